"""The operator `capsroute::route` and its backward operator.

Inputs are `a_inp`, capsules `x`, the offsets of packed samples and parameters. Settings are `n_iters`, `gaussian`,
`eps`, and the fewest and the most inputs of a packed sample, which only the host knows.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..mapping import FirstDerivatives, map_one_by_one
from .selection import select_kernels
from .sizes import Call, LoopSettings, Sizes

INPUTS = "Tensor a_inp, Tensor x, Tensor? offsets, Tensor W, Tensor B, Tensor beta_use, Tensor beta_ign"
SETTINGS = "SymInt n_iters, bool gaussian, float eps, SymInt min_inputs, SymInt max_inputs"
N_SETTINGS = 5
Outs = tuple[Tensor, Tensor, Tensor, Tensor]
Grads = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def call_forward(*args: Any) -> Outs:
    """Return `a`, `mu`, `sig2`, and what the backward pass needs."""
    inputs, settings = args[:-N_SETTINGS], args[-N_SETTINGS:]
    return run_forward(find_kernels(inputs, *settings), inputs)


def call_backward(da: Tensor, dmu: Tensor, dsig2: Tensor, saved: Tensor, *args: Any) -> Grads:
    """Return the gradients of all inputs but the offsets."""
    inputs, settings = args[:-N_SETTINGS], args[-N_SETTINGS:]
    return run_backward(find_kernels(inputs, *settings), (da, dmu, dsig2), saved, inputs)


def find_kernels(inputs: Sequence[Any], n_iters: int, gaussian: bool, eps: float, min_inputs: int, max_inputs: int):
    """Return the kernels of a call; sizes become constants, because tiles depend on them."""
    from .grid import count_cores

    _, x, offsets, *params = inputs
    *batch, n_inp, c, d = map(int, x.shape)
    shapes = tuple([tuple(map(int, p.shape)) for p in params])
    _, j, _, h = shapes[1]
    if offsets is None:
        sizes, min_inputs = Sizes(math.prod(batch), n_inp, j, c, d, h, packed=False), n_inp
    else:
        sizes = Sizes(int(offsets.shape[0]) - 1, int(max_inputs), j, c, d, h, packed=True)
    loop, n, cores = LoopSettings(n_iters, gaussian, eps), math.prod(batch) * n_inp, count_cores(x.device)
    return select_kernels(Call(loop, sizes, n, shapes, cores), int(min_inputs), x.device)


def run_forward(kernels: Any, inputs: Sequence[Any]) -> Outs:
    """Route with the given kernels."""
    from .grid import launch_all

    outs = empty_outputs(kernels, inputs)
    if kernels.sizes.b:
        launch_all(kernels.fwd(align_inputs(inputs), outs[3], outs[:3]), outs[0])
    return outs


def empty_outputs(kernels: Any, inputs: Sequence[Any]) -> Outs:
    """Allocate what `route_op` returns."""
    (a_inp, W), s = (inputs[0], inputs[3]), kernels.sizes
    batch = (s.b,) if s.packed else a_inp.shape[:-1]
    a, mu, sig2 = (W.new_empty(*batch, s.j, *axes) for axes in ((), (s.c, s.h), (s.c, s.h)))
    return a, mu, sig2, kernels.saved.allocate(W)


def run_backward(kernels: Any, douts: Sequence[Tensor], saved: Tensor, inputs: Sequence[Any]) -> Grads:
    """Differentiate with the given kernels."""
    from .grid import launch_all

    inputs = align_inputs(inputs)
    arguments = *inputs[:2], *inputs[3:]
    if not kernels.sizes.b:
        return tuple([torch.zeros_like(t) for t in arguments])  # pyright: ignore[reportReturnType]
    grads = kernels.empty_grads(inputs)
    launch_all(kernels.bwd(inputs, saved, align(douts), grads), saved)
    # kernels leave sums over outputs that share a parameter, and the cast to the argument's type, to torch
    pairs = zip(grads, arguments, strict=True)
    found = [d.sum_to_size(p.shape).to(p.dtype) if p.numel() else torch.zeros_like(p) for d, p in pairs]
    # contiguous, as compiled graphs are told to expect
    return tuple([d.contiguous() for d in found])  # pyright: ignore[reportReturnType]


def align_inputs(inputs: Sequence[Any]) -> list[Tensor]:
    """Align arguments; kernels for samples of one size ignore the offsets and get `x` instead."""
    a_inp, x, offsets, *params = inputs
    return align([a_inp, x, x if offsets is None else offsets, *params])


def align(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors that are not contiguous, or not aligned to 16 bytes, for which Triton would compile anew."""
    return [
        t if t.is_contiguous() and not t.data_ptr() % 16 else t.clone(memory_format=torch.contiguous_format)
        for t in tensors
    ]


def fake_forward(*args: Any) -> Outs:
    """Return tensors without data, as `call_forward` would."""
    inputs, settings = args[:-N_SETTINGS], args[-N_SETTINGS:]
    return empty_outputs(find_kernels(inputs, *settings), inputs)


def fake_backward(da: Tensor, dmu: Tensor, dsig2: Tensor, saved: Tensor, *args: Any) -> Grads:
    """Return tensors without data, as `call_backward` would."""
    a_inp, x, _, *params = args[:-N_SETTINGS]
    return tuple([t.new_empty(t.shape) for t in (a_inp, x, *params)])  # pyright: ignore[reportReturnType]


def define_op(name: str, schema: str, call: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define an operator that calls a function at once, without what `torch.library.custom_op` puts around it."""
    full_name = f"capsroute::{name}"
    torch.library.define(full_name, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full_name, ("cpu", "cuda"), call)
    torch.library.register_fake(full_name, fake)
    op = getattr(torch.ops.capsroute, name).default
    torch.library.register_vmap(full_name, partial(map_one_by_one, op))
    return op


schema = f"({INPUTS}, {SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor)"
route_op = define_op("route", schema, call_forward, fake_forward)
schema = f"(Tensor da, Tensor dmu, Tensor dsig2, Tensor saved, {INPUTS}, {SETTINGS}) -> ({', '.join(['Tensor'] * 6)})"
route_backward_op = define_op("route_backward", schema, call_backward, fake_backward)


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outs) -> None:
    """Save what `backward` needs."""
    *outs, saved = output
    ctx.save_for_backward(saved, *inputs[:-N_SETTINGS])
    ctx.mark_non_differentiable(saved)
    ctx.set_materialize_grads(False)  # or `saved` would get one
    ctx.settings, ctx.shapes = inputs[-N_SETTINGS:], [out.shape for out in outs]


def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return gradients in the order of `route_op`'s arguments."""
    saved, *inputs = ctx.saved_tensors
    W = inputs[3]
    douts = [W.new_zeros(shape) if d is None else d for d, shape in zip(grads[:3], ctx.shapes, strict=True)]
    da_inp, dx, *dparams = RouteBackward.apply(*douts, saved, *inputs, *ctx.settings)  # pyright: ignore
    return da_inp, dx, None, *dparams, *[None] * N_SETTINGS


torch.library.register_autograd("capsroute::route", backward, setup_context=setup_context)


class Route(Function):
    """`route_op` for eager calls: unlike operators, a Function can be differentiated under `torch.func`."""

    generate_vmap_rule = True
    forward = staticmethod(route_op)  # pyright: ignore
    setup_context = staticmethod(setup_context)  # pyright: ignore
    backward = staticmethod(backward)  # pyright: ignore


class RouteBackward(FirstDerivatives):
    """`route_backward_op` for eager calls."""

    generate_vmap_rule = True
    forward = staticmethod(route_backward_op)  # pyright: ignore
