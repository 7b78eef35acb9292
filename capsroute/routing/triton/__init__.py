"""Routing by fused kernels: votes and assignments stay on chip, and each pass over the inputs is one phase of a launch.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `...` batch. `moments.py` and
`moments_bwd.py` have the form for small capsules whose parameters all inputs share, `votes*.py` that for all others;
`grid.py` runs phases, `launch.py` starts kernels, `room.py` has memory for them. `docs/kernels.md` says why.
"""

import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function

from ..agreement import Agreement, Gaussian, KMeans
from ..capsules import Capsules
from ..case import Case
from ..mapping import Tensors, one_by_one
from .sizes import Plan, Sizes, power

LONGEST_ROW = 5
"""Numbers in a row of a capsule whose products are all with the next or the next but one."""
MOST_NUMBERS = 16
"""Numbers of a capsule, its axes taken to powers of two, up to which the moment form's tiles fit registers."""
MOST_OUTPUTS = 64
"""Outputs likewise."""
FEW_PAIRS = 2**18
"""Pairs of inputs and outputs below which votes serve: the moment form keeps two bits less, which only sums make up."""
OLDEST = (8, 0)
"""Compute capability from which a GPU has what the kernels use."""


def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU, as tests have it do."""
    return os.environ.get("TRITON_INTERPRET") == "1"


FOUND: dict[str, str] = {}
"""By device, what this machine lacks; empty if nothing."""


def look(device: str) -> None:
    """Find out what this machine lacks, which a graph being captured cannot do."""
    if device not in FOUND:
        FOUND[device] = _look(device)


def _look(device: str) -> str:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'capsroute[triton]'"
    if interpreted():
        return ""
    if device != "cuda" or not torch.cuda.is_available() or torch.version.hip:
        return f"it needs an NVIDIA GPU, the tensors are on {device!r}"
    capability = torch.cuda.get_device_capability()
    return f"the GPU's compute capability is {capability}, below {OLDEST}" if capability < OLDEST else ""


def exporting() -> bool:
    """Whether a graph is being exported; `is_exporting` itself says so of every compiled graph before PyTorch 2.13."""
    return getattr(torch.compiler, "_is_exporting_flag", False)


def reasons_against(case: Case) -> list[str]:
    """Needs Triton and a GPU, one of the two models of agreement, and at most float32."""
    if not case.compiling:
        look(case.device)
    machine = FOUND.get(case.device, "nothing was routed, and no layer made, before the graph was captured")
    reasons = [machine] if machine else []
    if type(case.agreement) not in (Gaussian, KMeans):
        reasons.append(f"agreement {case.agreement.name!r} has no kernel")
    if case.dtype == torch.float64:
        reasons.append("it computes in float32, the tensors are float64")
    if case.compiling and exporting():
        reasons.append("an exported graph has to run without it")
    return reasons


class Inputs(NamedTuple):
    """What is routed: samples one after the other, and the layer."""

    a_inp: Tensor  # [n]
    x: Tensor  # [n, c, d]
    offsets: Tensor | None  # [b + 1], of packed samples
    W: Tensor  # [i|1, j|1, d, h]
    B: Tensor  # [i|1, j, c, h]
    beta_use: Tensor  # [i|1, j|1]
    beta_ign: Tensor  # [i|1, j|1]

    def aligned(self) -> "Inputs":
        return Inputs(*[None if t is None else aligned(t) for t in self])  # pyright: ignore[reportArgumentType]


mapped: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
"""Whether a transform of `torch.func` is at work; assumed where PyTorch does not tell."""


def by_moments(sizes: Sizes, *params: Tensor) -> bool:
    """Whether the moment form serves, and so does better."""
    small = sizes.d <= LONGEST_ROW and power(sizes.c) * power(sizes.d) <= MOST_NUMBERS and 1 < sizes.j <= MOST_OUTPUTS
    enough = small and sizes.b * sizes.i * sizes.j >= max(1, FEW_PAIRS)
    return enough and all(p.shape[0] == 1 for p in params)


class Form(NamedTuple):
    """What runs a form of the kernels."""

    fwd: Callable[..., tuple[Tensors, Tensors]]
    bwd: Callable[..., Tensors]
    keep_counter: Callable[[Tensor], None]


@cache
def form(moments: bool) -> Form:
    """The moment form or that by votes; both need Triton, which is not imported before."""
    from .grid import keep_counter

    if moments:
        from .moments_host import bwd, fwd
    else:
        from .votes_host import bwd, fwd
    return Form(fwd, bwd, keep_counter)


def fwd(plan: Plan, sizes: Sizes, inputs: Inputs, in_graph: bool = False) -> tuple[Tensors, Tensors]:
    """Output capsules, and what the backward pass needs."""
    run = form(by_moments(sizes, *inputs[3:]))
    if not in_graph:
        run.keep_counter(inputs.x)
    return run.fwd(plan, sizes, *inputs.aligned())


def bwd(plan: Plan, sizes: Sizes, douts: Sequence[Tensor], inputs: Inputs, saved: Tensors) -> Tensors:
    """Gradients of `a_inp`, `x` and the parameters."""
    da, dmu, dsig2 = [aligned(d) for d in douts]
    run = form(by_moments(sizes, *inputs[3:]))
    return run.bwd(plan, sizes, da, dmu, dsig2, *inputs.aligned(), saved)


def aligned(t: Tensor) -> Tensor:
    """Contiguous, and where kernels compiled for other tensors expect it."""
    t = t.contiguous()
    return t if isinstance(t, FakeTensor) or not t.data_ptr() % 16 else t.clone()


class Route(Function):
    """Outputs are `a, mu, sig2`, then what the backward pass needs."""

    @staticmethod
    def forward(plan: Plan, sizes: Sizes, *inputs: Any) -> Tensors:  # pyright: ignore
        outs, saved = fwd(plan, sizes, Inputs(*inputs))
        return (*outs, *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.plan, ctx.sizes = inputs[:2]
        ctx.save_for_backward(*inputs[2:], *output[3:])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)
        ctx.shapes = [out.shape for out in output[:3]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        douts = [saved[3].new_zeros(shape) if d is None else d for d, shape in zip(grads[:3], ctx.shapes, strict=True)]
        da_inp, dx, *dparams = gradients(ctx, *douts, *saved)
        return None, None, da_inp, dx, None, *dparams

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, Any]:
        return one_by_one(Route, info, in_dims, *args)


class RoutePlain(Function):
    """The same outside of `torch.func`, of capsules with any batch axes: PyTorch spends less time on it."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, sizes: Sizes, a_inp: Tensor, mu_inp: Tensor, *others: Any) -> Tensors:
        outs, saved = fwd(plan, sizes, Inputs(*flat(a_inp, mu_inp), *others))
        ctx.plan, ctx.sizes = plan, sizes
        ctx.save_for_backward(a_inp, mu_inp, *others, *saved)
        return outs if sizes.packed or mu_inp.ndim == 4 else batched(outs, mu_inp.shape[:-3])

    @staticmethod
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        a_inp, mu_inp, *others = ctx.saved_tensors
        if not ctx.sizes.packed and mu_inp.ndim != 4:
            douts = tuple([d.reshape(ctx.sizes.b, *d.shape[-rank:]) for d, rank in zip(douts, (1, 3, 3), strict=True)])
        da_inp, dx, *dparams = gradients(ctx, *douts, *flat(a_inp, mu_inp), *others)
        return None, None, da_inp.reshape(a_inp.shape), dx.reshape(mu_inp.shape), None, *dparams


def flat(a_inp: Tensor, mu_inp: Tensor) -> tuple[Tensor, Tensor]:
    """Samples one after the other, `[n]` and `[n, c, d]`."""
    return a_inp.reshape(-1), mu_inp.flatten(0, -3)


def batched(outs: Tensors, batch: Sequence[int]) -> Tensors:
    """Output capsules with the batch axes of their inputs."""
    return tuple([out.reshape(*batch, *out.shape[1:]) for out in outs])


def gradients(ctx: Any, *tensors: Any) -> Tensors:
    """What `RouteBackward` gives, through PyTorch only where that is told more than numbers."""
    run = RouteBackward.apply if torch.is_grad_enabled() or mapped() else RouteBackward.forward
    return run(ctx.plan, ctx.sizes, *tensors)


class RouteBackward(Function):
    """A function of its own, so that `torch.func` can map over gradients too."""

    @staticmethod
    def forward(plan: Plan, sizes: Sizes, *tensors: Any) -> Tensors:  # pyright: ignore
        return bwd(plan, sizes, tensors[:3], Inputs(*tensors[3:10]), tensors[10:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("impl='triton' has no second derivatives; route with impl='moments' or 'reference'")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, Any]:
        return one_by_one(RouteBackward, info, in_dims, *args)


@torch.library.custom_op("capsroute::route", mutates_args=())
def route_op(
    a_inp: Tensor, x: Tensor, W: Tensor, B: Tensor, beta_use: Tensor, beta_ign: Tensor, n_iters: int, gaussian: bool,
    eps: float, sizes: list[int],
) -> list[Tensor]:  # fmt: skip
    """`Route` for graphs of `torch.compile`, which do not look inside."""
    inputs = Inputs(a_inp, x, None, W, B, beta_use, beta_ign)
    outs, saved = fwd(Plan(n_iters, gaussian, eps), known(sizes), inputs, in_graph=True)
    return apart([*outs, *saved])


@torch.library.custom_op("capsroute::route_backward", mutates_args=())
def route_backward_op(
    douts: list[Tensor], inputs: list[Tensor], saved: list[Tensor], n_iters: int, gaussian: bool, eps: float,
    sizes: list[int],
) -> list[Tensor]:  # fmt: skip
    """`RouteBackward` likewise."""
    whole = Inputs(inputs[0], inputs[1], None, *inputs[2:])
    return apart(bwd(Plan(n_iters, gaussian, eps), known(sizes), douts, whole, tuple(saved)))


def known(sizes: Sequence[int]) -> Sizes:
    """Sizes of a graph as numbers: tiles depend on them, so that symbols stand for one size only."""
    b, i, j, c, d, h = map(int, sizes)
    return Sizes(b, i, j, c, d, h, False)


def apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each in memory of its own, as graphs want what a function returns."""
    return [t if t.nbytes == t.untyped_storage().nbytes() else t.clone() for t in tensors]


# the same code makes room for what it would compute, and launches nothing
route_op.register_fake(lambda *args: route_op._init_fn(*args))
route_backward_op.register_fake(lambda *args: route_backward_op._init_fn(*args))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.plan = inputs[6:]


def _op_backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    inputs, outs, saved = tensors[:6], tensors[6:9], tensors[9:]
    douts = [torch.zeros_like(out) if d is None else d for d, out in zip(grads[:3], outs, strict=True)]
    return *route_backward_op(douts, list(inputs), list(saved), *ctx.plan), None, None, None, None


route_op.register_autograd(_op_backward, setup_context=_keep)


def route(
    a_inp: Tensor,  # [..., i]
    mu_inp: Tensor,  # [..., i, c, d]
    W: Tensor,  # [i|1, j|1, d, h]
    B: Tensor,  # [i|1, j, c, h]
    beta_use: Tensor,  # [i|1, j|1]
    beta_ign: Tensor,  # [i|1, j|1]
    n_iters: int,
    agreement: Agreement,
    eps: float,
) -> Capsules:
    """Route."""
    *batch, n_inp, d_cov, d_inp = mu_inp.shape
    sizes = Sizes(math.prod(batch), n_inp, B.shape[1], d_cov, d_inp, B.shape[3], False)
    params, gaussian = in_float32(W, B, beta_use, beta_ign), type(agreement) is Gaussian
    if torch.compiler.is_compiling():
        outs = route_op(*flat(a_inp, mu_inp), *params, n_iters, gaussian, eps, list(sizes[:6]))
    elif mapped():
        outs = Route.apply(Plan(n_iters, gaussian, eps), sizes, *flat(a_inp, mu_inp), None, *params)
    else:
        return Capsules(*RoutePlain.apply(Plan(n_iters, gaussian, eps), sizes, a_inp, mu_inp, None, *params))
    return Capsules(*batched(outs[:3], batch))


def in_float32(*params: Tensor) -> list[Tensor]:
    """Parameters in the precision of kernels."""
    return [p if p.dtype == torch.float32 else p.float() for p in params]


def route_packed(
    a_inp: Tensor,  # [n]
    mu_inp: Tensor,  # [n, c, d]
    offsets: Tensor,  # [b + 1]
    longest: int,
    W: Tensor,  # [1, j|1, d, h]
    B: Tensor,  # [1, j, c, h]
    beta_use: Tensor,  # [1, j|1]
    beta_ign: Tensor,  # [1, j|1]
    n_iters: int,
    agreement: Agreement,
    eps: float,
) -> Capsules:
    """Route samples of different sizes, one after the other."""
    _, d_cov, d_inp = mu_inp.shape
    sizes = Sizes(len(offsets) - 1, longest, B.shape[1], d_cov, d_inp, B.shape[3], True)
    plan = Plan(n_iters, type(agreement) is Gaussian, eps)
    apply = Route.apply if mapped() else RoutePlain.apply
    inputs = a_inp, mu_inp, offsets.long(), *in_float32(W, B, beta_use, beta_ign)
    return Capsules(*apply(plan, sizes, *inputs)[:3])
