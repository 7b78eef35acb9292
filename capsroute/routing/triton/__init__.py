"""Routing by fused kernels: votes and assignments stay on chip, and each pass over the inputs is one phase of a launch.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `...` batch. `moments*.py`
have the form for small capsules whose parameters all inputs share, `votes*.py` that for all others;
`grid.py` runs phases, `launch.py` starts kernels, `room.py` has memory for them. `docs/kernels.md` says why.
"""

import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function

from ..agreement import Agreement, Gaussian, KMeans
from ..capsules import Capsules
from ..case import Case
from ..mapping import Tensors, one_by_one
from .sizes import ALWAYS, Hard, Plan, Sizes, power

LONGEST_ROW = 5
"""Numbers in a row of a capsule whose products are all with the next or the next but one."""
MOST_NUMBERS = 16
"""Numbers of a capsule, its axes taken to powers of two, up to which the moment form's tiles fit registers."""
MOST_OUTPUTS = 64
"""Outputs likewise."""


class Enough(NamedTuple):
    """What moments need: their form keeps two bits less, which long sums make up, and multiplies 16 outputs at once.

    Outputs of few numbers, or of few inputs, come to lie close together; how close, squares cannot tell, for they
    cancel. Logits of k-means, which no variance divides, take more digits.
    """

    inputs: int = 64  # for each output
    outputs: int = 16
    numbers: int = 12  # of a vote, as far as they do not follow from each other
    gaussian: bool = True  # and no other agreement
    iterations: int = 3  # at most: outputs shrink from one to the next
    hard: Hard = Hard()  # which samples take more digits all the same
    pairs: int = 2**16  # of inputs and outputs, from which float64 takes less time than votes where halves do not serve


ENOUGH = Enough()
OLDEST = (8, 0)
"""Compute capability from which a GPU has what the kernels use."""
EXACT = ((8, 0), (9, 0), (10, 0))
"""Those of GPUs that multiply in float64 about as fast as others in float32."""


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


mapped: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
"""Whether a transform of `torch.func` is at work; assumed where PyTorch does not tell."""


class Inputs(NamedTuple):
    """What is routed, and the layer."""

    a_inp: Tensor  # [..., i]; of packed samples, all inputs one after the other, likewise below
    x: Tensor  # [..., i, c, d]
    offsets: Tensor | None  # [b + 1], of packed samples
    W: Tensor  # [i|1, j|1, d, h]
    B: Tensor  # [i|1, j, c, h]
    beta_use: Tensor  # [i|1, j|1]
    beta_ign: Tensor  # [i|1, j|1]


class Runner(Protocol):
    """Runs a case by one form of the kernels."""

    def direct(self, inputs: Sequence[Any]) -> Tensors | None:
        """The output capsules, differentiable as they are; nothing where that takes Python."""
        ...

    def fwd(self, given: Sequence[Tensor], in_graph: bool = False) -> tuple[Tensors, Tensors]:
        """Output capsules, and what the backward pass needs."""
        ...

    def bwd(self, douts: Sequence[Tensor], given: Sequence[Tensor], saved: Tensors) -> Tensors:
        """Gradients of `a_inp`, `x` and the parameters."""
        ...


def by_moments(
    plan: Plan, sizes: Sizes, n: int, many: bool, shapes: Sequence[Sequence[int]], enough: Enough, exact: bool
) -> Hard | None:
    """If the moment form serves, and so does better, which samples are hard; otherwise nothing.

    There are `n` inputs in all; `many` says that every sample has enough, `exact` that float64 is fast.
    """
    s = sizes
    small = s.d <= LONGEST_ROW and power(s.c) * power(s.d) <= MOST_NUMBERS and s.j <= MOST_OUTPUTS
    large = n > 0 and s.j >= enough.outputs and s.c * min(s.d, s.h) >= enough.numbers
    if not (small and large and all(shape[0] == 1 for shape in shapes)):
        return None
    if many and plan.n_iters <= enough.iterations and (plan.gaussian or not enough.gaussian):
        return enough.hard
    return ALWAYS if exact and n * s.j >= enough.pairs else None


def exact(device: torch.device) -> bool:
    """Whether float64 is fast, and Triton multiplies in it."""
    from .moments_float64 import HAS_FLOAT64_DOT

    return HAS_FLOAT64_DOT and device.type == "cuda" and torch.cuda.get_device_capability(device) in EXACT


def runner(plan: Plan, sizes: Sizes, inputs: Sequence[Any], fewest: int | None = None) -> Runner:
    """Who runs a case, settled once per sizes, types and device: that takes longer than many a routing.

    Of packed samples the one with the fewest inputs counts too.
    """
    a_inp, x, _, *params = inputs
    n = len(a_inp) if sizes.packed else sizes.b * sizes.i
    shapes = tuple([p.shape for p in params])
    many = (sizes.i if fewest is None else fewest) >= ENOUGH.inputs * sizes.j
    return settled(plan, sizes, n, many, shapes, (a_inp.dtype, x.dtype), x.device, ENOUGH)


@lru_cache(maxsize=1024)
def settled(
    plan: Plan,
    sizes: Sizes,
    n: int,
    many: bool,
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[torch.dtype, torch.dtype],
    device: torch.device,
    enough: Enough,
) -> Runner:
    """Likewise; both forms need Triton, which is not imported before."""
    hard = by_moments(plan, sizes, n, many, shapes, enough, exact(device))
    if hard is not None:
        from .moments_host import runner

        run = runner(plan, sizes, shapes, dtypes, device, hard)
    else:
        from . import votes_host

        run = votes_host.Runner(plan, sizes, n, shapes, dtypes, device)
    if not interpreted() and device.type == "cuda":
        from .build import begun

        run.native = begun(python_backward)
    return run


def ready() -> str:
    """Wait until plain calls on a GPU go without Python, as `build.py` has it; says why they will not."""
    from .build import begun

    return begun(python_backward).wait()


def aligned(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous, and where kernels compiled for other tensors expect it."""
    if isinstance(tensors[0], FakeTensor):  # which may lie anywhere
        return [t.contiguous() for t in tensors]
    return [t if t.is_contiguous() and not t.data_ptr() % 16 else fresh(t) for t in tensors]


def fresh(t: Tensor) -> Tensor:
    """In memory of its own."""
    return t.clone(memory_format=torch.contiguous_format)


def fwd(run: Runner, inputs: Sequence[Any], in_graph: bool = False) -> tuple[Tensors, Tensors]:
    """Output capsules, and what the backward pass needs."""
    return run.fwd(given(*inputs), in_graph)


def bwd(run: Runner, douts: Sequence[Tensor], inputs: Sequence[Any], saved: Tensors) -> Tensors:
    """Gradients of `a_inp`, `x` and the parameters."""
    return run.bwd(aligned(douts), given(*inputs), saved)


def given(a_inp: Tensor, x: Tensor, offsets: Tensor | None, *params: Tensor) -> list[Tensor]:
    """What kernels are given; where samples are not packed they read no offsets, and get anything."""
    return aligned((a_inp, x, x if offsets is None else offsets, *params))


class Route(Function):
    """Outputs are `a, mu, sig2`, then what the backward pass needs."""

    @staticmethod
    def forward(run: Runner, *inputs: Any) -> Tensors:  # pyright: ignore
        outs, saved = fwd(run, inputs)
        return (*outs, *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.run = inputs[0]
        ctx.save_for_backward(*inputs[1:], *output[3:])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)
        ctx.shapes = [out.shape for out in output[:3]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        W = ctx.saved_tensors[3]
        douts = [W.new_zeros(shape) if d is None else d for d, shape in zip(grads[:3], ctx.shapes, strict=True)]
        return of_all(gradients(ctx.run, *douts, *ctx.saved_tensors))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, Any]:
        return one_by_one(Route, info, in_dims, *args)


class RoutePlain(Function):
    """The same outside of `torch.func`: PyTorch spends less time on it."""

    @staticmethod
    def forward(ctx: Any, run: Runner, *inputs: Any) -> Tensors:
        outs, saved = fwd(run, inputs)
        ctx.run = run
        ctx.save_for_backward(*inputs, *saved)
        return outs

    @staticmethod
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        return of_all(gradients(ctx.run, *douts, *ctx.saved_tensors))


def gradients(run: Runner, *tensors: Tensor | None) -> Tensors:
    """Through PyTorch only where that is told more than numbers."""
    apply = RouteBackward.apply if torch.is_grad_enabled() or mapped() else RouteBackward.forward
    return apply(run, *tensors)


def of_all(grads: Tensors) -> tuple[Tensor | None, ...]:
    """Arguments, who runs them and offsets included, which have none."""
    da_inp, dx, *dparams = grads
    return None, da_inp, dx, None, *dparams


def python_backward(run: Runner, douts: list[Tensor], given: list[Tensor | None], saved: Tensor) -> list[Tensor]:
    """What `native.cpp` calls where it takes more than launches."""
    return list(gradients(run, *douts, *given, saved))


class RouteBackward(Function):
    """A function of its own, so that `torch.func` can map over gradients too."""

    @staticmethod
    def forward(run: Runner, *tensors: Any) -> Tensors:  # pyright: ignore
        return bwd(run, tensors[:3], tensors[3:10], tensors[10:])

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
    outs, saved = fwd(runner(Plan(n_iters, gaussian, eps), known(sizes), inputs), inputs, in_graph=True)
    return apart([*outs, *saved])


@torch.library.custom_op("capsroute::route_backward", mutates_args=())
def route_backward_op(
    douts: list[Tensor], inputs: list[Tensor], saved: list[Tensor], n_iters: int, gaussian: bool, eps: float,
    sizes: list[int],
) -> list[Tensor]:  # fmt: skip
    """`RouteBackward` likewise."""
    whole = Inputs(inputs[0], inputs[1], None, *inputs[2:])
    return apart(bwd(runner(Plan(n_iters, gaussian, eps), known(sizes), whole), douts, whole, tuple(saved)))


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
        outs = route_op(a_inp, mu_inp, *params, n_iters, gaussian, eps, list(sizes[:6]))
        return Capsules(*outs[:3])
    return applied(Plan(n_iters, gaussian, eps), sizes, a_inp, mu_inp, None, *params)


def applied(plan: Plan, sizes: Sizes, *inputs: Tensor | None, fewest: int | None = None) -> Capsules:
    """Route where gradients are PyTorch's business."""
    run = runner(plan, sizes, inputs, fewest)
    if mapped():
        return Capsules(*Route.apply(run, *inputs)[:3])  # pyright: ignore
    return Capsules(*(run.direct(inputs) or RoutePlain.apply(run, *inputs)))  # pyright: ignore


def in_float32(*params: Tensor) -> list[Tensor]:
    """Parameters in the precision of kernels."""
    return [p if p.dtype == torch.float32 else p.float() for p in params]


def route_packed(
    a_inp: Tensor,  # [n]
    mu_inp: Tensor,  # [n, c, d]
    offsets: Tensor,  # [b + 1], int64
    lengths: Sequence[int],
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
    sizes = Sizes(len(lengths), max(lengths, default=0), B.shape[1], d_cov, d_inp, B.shape[3], True)
    plan, inputs = Plan(n_iters, type(agreement) is Gaussian, eps), (a_inp, mu_inp, offsets)
    return applied(plan, sizes, *inputs, *in_float32(W, B, beta_use, beta_ign), fewest=min(lengths, default=0))
