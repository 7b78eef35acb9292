"""Chooses the kernels of a call.

Moments serve many small capsules with shared parameters, products long capsules that cast small votes, and stored votes
everything else.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from .sizes import ALWAYS, Call, Float64Rule, ceil_pow2, products_fit

MAX_D = 5
"""Size of axis `d` up to which every product of two of its entries pairs neighbours at most two apart."""
MAX_COMPONENTS = 16
"""Components of an input capsule, its axes rounded up to powers of two, up to which moment tiles fit registers."""
MAX_OUTPUTS = 64
"""Outputs up to which they do."""
FAST_FLOAT64 = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities of GPUs that multiply in float64 about as fast as others in float32."""


class MomentLimits(NamedTuple):
    """Sizes for which the moment kernels meet the error budget with products of float16 pairs.

    These have two bits less than float32, which only long sums average out. Outputs with few components or few inputs
    come to lie close together, where differences of squares cancel; so do k-means logits, which no variance divides.
    """

    min_inputs: int = 64  # for each output
    min_outputs: int = 16
    min_components: int = 12  # of a vote, those that follow from others not counted
    gaussian_only: bool = True
    max_iters: int = 3  # outputs shrink with every iteration
    rule: Float64Rule = Float64Rule()
    min_float64_pairs: int = 2**16  # inputs times outputs from which float64 moments are fastest beyond these limits


LIMITS = MomentLimits()


def choose_moments(call: Call, min_inputs: int, limits: MomentLimits, fast: bool) -> Float64Rule | None:
    """Return the float64 rule of the moment kernels, or None where other kernels serve better.

    Each sample has at least `min_inputs`; `fast` says whether float64 is fast.
    """
    loop, s, n, shapes, _ = call
    small = s.d <= MAX_D and ceil_pow2(s.c) * ceil_pow2(s.d) <= MAX_COMPONENTS and s.j <= MAX_OUTPUTS
    large = n > 0 and s.j >= limits.min_outputs and s.c * min(s.d, s.h) >= limits.min_components
    if not (small and large and all(shape[0] == 1 for shape in shapes)):
        return None
    long_sums = min_inputs >= limits.min_inputs * s.j and loop.n_iters <= limits.max_iters
    if long_sums and (loop.gaussian or not limits.gaussian_only):
        return limits.rule
    return ALWAYS if fast and n * s.j >= limits.min_float64_pairs else None


@lru_cache(maxsize=4096)
def plan(form: Callable[..., Any], *args: Any) -> Any:
    """Plan the kernels of a form, cached: planning takes longer than many calls."""
    return form(*args)


def select_kernels(call: Call, min_inputs: int, device: torch.device) -> Any:
    """Return the kernels of a call; their files import Triton, which may be missing."""
    from .moments_float64 import HAS_FLOAT64_DOT
    from .moments_host import MomentKernels
    from .products_host import ProductKernels
    from .stored_host import StoredKernels

    fast = HAS_FLOAT64_DOT and device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_FLOAT64
    rule = choose_moments(call, min_inputs, LIMITS, fast)
    if rule is not None:
        return plan(MomentKernels, call, rule)
    return plan(ProductKernels if products_fit(call.sizes, call.shapes) else StoredKernels, call)
