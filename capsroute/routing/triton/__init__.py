"""Routing by fused Triton kernels.

Axes: `k` kinds of inputs, `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `...`
batch. `moments*.py` hold kernels for small capsules, `products*.py` for long ones that cast small votes, both for
parameters that all inputs share; `stored*.py` serve everything else. `selection.py` picks one, `op.py` makes them an
operator of PyTorch. `docs/kernels.md` explains how they work.
"""

import importlib.util
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from ..agreement import Agreement, Gaussian, KMeans
from ..capsules import Capsules
from ..case import Case
from .op import Route, route_op

MAX_VOTE = 4096
"""Numbers of a vote up to which a tile holds it."""
MIN_CAPABILITY = (8, 0)
"""Compute capability of the oldest GPUs that the kernels run on."""


def check_support(device: str) -> str:
    """Return why the kernels cannot run on a type of device, or an empty string if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'capsroute[triton]'"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    if device != "cuda" or not torch.cuda.is_available() or torch.version.hip:
        return f"it needs an NVIDIA GPU, the tensors are on {device!r}"
    capability = torch.cuda.get_device_capability()
    too_old = capability < MIN_CAPABILITY
    return f"the GPU's compute capability is {capability}, below {MIN_CAPABILITY}" if too_old else ""


# what torch.compiler.assume_constant_result sets, without importing torch._dynamo: a traced graph calls it once
check_support._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def reasons_against(case: Case) -> list[str]:
    """Return why the kernels cannot run a case, an empty list if they can."""
    unsupported = check_support(case.device)
    reasons = [unsupported] if unsupported else []
    if type(case.agreement) not in (Gaussian, KMeans):
        reasons.append(f"agreement {case.agreement.name!r} has no kernel")
    if case.d_cov * case.d_out > MAX_VOTE:
        reasons.append(f"output capsules have {case.d_cov * case.d_out} numbers, above {MAX_VOTE}")
    if case.dtype == torch.float64:
        reasons.append("it computes in float32, the tensors are float64")
    # torch.compiler.is_exporting is also true of torch.compile before 2.13
    if case.compiling and getattr(torch.compiler, "_is_exporting_flag", False):
        reasons.append("an exported graph has to run without it")
    return reasons


def route(
    a_inp: Tensor,  # [..., i]
    mu_inp: Tensor,  # [..., i, c, d]
    W: Tensor,  # [k|1, j|1, d, h]
    B: Tensor,  # [k|1, j, c, h]
    beta_use: Tensor,  # [k|1, j|1]
    beta_ign: Tensor,  # [k|1, j|1]
    n_iters: int,
    agreement: Agreement,
    eps: float,
) -> Capsules:
    """Route samples that all have the same number of inputs."""
    return route_packed(a_inp, mu_inp, None, (), W, B, beta_use, beta_ign, n_iters, agreement, eps)


def route_packed(
    a_inp: Tensor,  # [n]
    mu_inp: Tensor,  # [n, c, d]
    offsets: Tensor | None,  # [b + 1], int64; none if inputs have batch axes of their own
    lengths: Sequence[int],
    W: Tensor,  # [1, j|1, d, h]
    B: Tensor,  # [1, j, c, h]
    beta_use: Tensor,  # [1, j|1]
    beta_ign: Tensor,  # [1, j|1]
    n_iters: int,
    agreement: Agreement,
    eps: float,
) -> Capsules:
    """Route samples of different sizes, whose inputs lie one sample after the other."""
    params, ends = [p.float() for p in (W, B, beta_use, beta_ign)], (min(lengths, default=0), max(lengths, default=0))
    # in eager mode through the Function that `torch.func` can differentiate
    call = route_op if torch.compiler.is_compiling() else Route.apply
    return Capsules(*call(a_inp, mu_inp, offsets, *params, n_iters, type(agreement) is Gaussian, eps, *ends)[:3])
