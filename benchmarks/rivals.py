"""The rivals of a benchmark: how each one routes, and what keeps it from a shape."""

from collections.abc import Callable, Mapping
from functools import partial

import psutil
import torch
from torch import Tensor

from capsroute import route
from capsroute.routing import IMPLS, Case, pick, triton
from capsroute.routing.moments import n_features
from capsroute.testing import Shape

Call = Callable[[], tuple[Tensor, ...]]
SEED = 0
MODES = ("forward", "forward+backward")
COMPILED = {"compiled": "reference", "moments compiled": "moments"}
"""Implementations that `torch.compile` makes rivals of."""
RIVALS = ("reference", "compiled", "moments", "moments compiled", "blocked", "triton", "auto")
CPU_RIVALS = ("reference", "compiled", "moments", "blocked", "auto")
CUDA_RIVALS = ("reference", "compiled", "moments", "moments compiled", "blocked", "triton")

COPIES_OF_VOTES = 20
"""Tensors of the votes' size that the reference holds at its peak, about."""
COPIES_OF_FEATURES = 6
"""The same of what `moments` computes with, in float64."""


def impl_of(rival: str, case: Case) -> str:
    """The implementation behind a rival."""
    return pick(case) if rival == "auto" else COMPILED.get(rival, rival)


def bytes_needed(impl: str, shape: Shape) -> int:
    """About how much memory a shape takes beyond its inputs; 0 for what streams."""
    if impl == "reference":
        return COPIES_OF_VOTES * shape.votes * torch.float32.itemsize
    if impl == "moments":
        features = n_features(shape.case())
        phi_and_theta = (shape.n_inp + shape.n_out) * features
        return COPIES_OF_FEATURES * shape.batch * (phi_and_theta + shape.n_inp * shape.n_out) * torch.float64.itemsize
    return 0


def bytes_free(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available


def reason_to_skip(rival: str, shape: Shape, device: str) -> str:
    """Why a rival cannot run a shape here; empty if it can."""
    case = shape.case(device=device)
    impl = impl_of(rival, case)
    if reasons := IMPLS[impl].reasons_against(case):
        return "; ".join(reasons)
    needed, free = bytes_needed(impl, shape), bytes_free(device)
    return f"needs about {needed / 2**30:.0f} GiB of {free / 2**30:.0f} GiB free" if needed > free else ""


def output_weights(shape: Shape, device: str) -> list[Tensor]:
    """What the outputs `a`, `mu` and `sig2` are weighted by before the backward pass."""
    generator = torch.Generator().manual_seed(SEED + 1)
    capsules = (shape.batch, shape.n_out, shape.d_cov, shape.d_out)
    return [torch.randn(size, generator=generator).to(device) for size in (capsules[:2], capsules, capsules)]


def make_call(
    rival: str, mode: str, inputs: Mapping[str, Tensor], weights: list[Tensor]
) -> Callable[[], tuple[Tensor, ...]]:
    """One run of a rival, ready to be timed after some runs."""
    if rival == "triton" and inputs["W"].is_cuda:
        triton.ready()
    if rival in COMPILED:
        # sizes fixed, for code that serves any size is slower
        run = partial(torch.compile(route, dynamic=False), **inputs, impl=COMPILED[rival])
    else:
        run = partial(route, **inputs, impl=rival)

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return run()

    def forward_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(), list(inputs.values()), weights)

    return {"forward": forward, "forward+backward": forward_backward}[mode]
