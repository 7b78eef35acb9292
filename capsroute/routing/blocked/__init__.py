"""Routing by blocks: votes are formed for some samples and inputs at a time, and again in the backward pass.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `...` batch. `passes.py` goes
over the blocks, or `streams.py` where they hold some outputs only; `models.py` holds what is left of them.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..agreement import Quadratic
from ..capsules import Capsules
from ..case import Case
from ..mapping import Tensors, one_by_one
from . import streams
from .models import Model, Params, Plan, finer
from .passes import Buffers, backward, cut, forward

CPU_VOTES = 2**22
"""Numbers in a block of votes on a CPU: smaller blocks cost more in overhead than they gain in cache."""
GPU_VOTES = 2**26
"""The same on other devices, which a block should fill."""


def reasons_against(case: Case) -> list[str]:
    """Needs a quadratic agreement and eager execution."""
    reasons = []
    if not isinstance(case.agreement, Quadratic):
        reasons.append(f"agreement {case.agreement.name!r} is not quadratic in the votes")
    if case.compiling:
        reasons.append("its loop over blocks cannot be captured by torch.compile or torch.export")
    return reasons


class Route(Function):
    """Outputs are `a, mu, sig2`, then what the backward pass needs: models, and votes and D_use of a single block.

    Blocks of some outputs leave normalisers instead.
    """

    @staticmethod
    def forward(plan: Plan, a_inp: Tensor, x: Tensor, *params: Tensor) -> Tensors:  # pyright: ignore
        layer, f, buffers = Params(*params), torch.sigmoid(a_inp).unsqueeze(1), Buffers(x)
        chunks, parts = cut(x, layer.B, plan)
        if pieces := streams.cut_outputs(x, layer.B, plan):
            both = [streams.forward(f[chunk], x[chunk], layer, *pieces, plan, buffers) for chunk in chunks]
            runs, kept = [models for models, _ in both], streams.packed([norms for _, norms in both], x)
        else:
            runs = [forward(f[chunk], x[chunk], layer, parts, plan, buffers) for chunk in chunks]
            names = ["V", *(f"D_use {k}" for k in range(1, plan.n_iters))]
            kept = [buffers.places[n] if len(chunks) == len(parts) == 1 else x.new_empty(0) for n in names]
        models = [Model(*map(torch.cat, zip(*steps, strict=True))) for steps in zip(*runs, strict=True)]
        a, mu, sig2, *_ = models[-1]
        outs = a.clone(), *(t.unflatten(-1, layer.B.shape[2:]).clone() for t in (mu, sig2))
        return (*outs, *(torch.stack(m) for m in zip(*models, strict=True)), *kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.plan = inputs[0]
        ctx.save_for_backward(*inputs[1:], *output[3:])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)  # or the votes would get one
        ctx.shapes = [out.shape for out in output[:3]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x = ctx.saved_tensors[1]
        douts = (x.new_zeros(shape) if d is None else d for d, shape in zip(grads[:3], ctx.shapes, strict=True))
        return None, *RouteBackward.apply(ctx.plan, *douts, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, Any]:
        return one_by_one(Route, info, in_dims, *args)


class RouteBackward(Function):
    """A function of its own, so that `torch.func` can map over gradients too."""

    @staticmethod
    def forward(plan: Plan, da: Tensor, dmu: Tensor, dsig2: Tensor, *saved: Tensor) -> Tensors:  # pyright: ignore
        with torch.autocast(da.device.type, enabled=False):
            return RouteBackward.run(plan, da, dmu, dsig2, *saved)

    @staticmethod
    def run(plan: Plan, da: Tensor, dmu: Tensor, dsig2: Tensor, *saved: Tensor) -> Tensors:
        a_inp, x, *params = saved[:6]
        layer, f = Params(*params), torch.sigmoid(a_inp).unsqueeze(1)
        models = [Model(*m) for m in zip(*saved[6:12], strict=True)]
        chunks, parts = cut(x, layer.B, plan)
        douts = da, dmu.flatten(-2), dsig2.flatten(-2)
        dW, dB, *dbetas = map(torch.zeros_like, params)
        dparams = Params(dW, dB, *map(finer, dbetas))
        pieces = streams.cut_outputs(x, layer.B, plan)
        names = ["V", *(f"D_use {k}" for k in range(1, plan.n_iters))]
        kept = not pieces and saved[12].numel() > 0
        buffers = Buffers(x, **dict(zip(names, saved[12:], strict=True)) if kept else {})
        runs = []
        for chunk in chunks:
            own = f[chunk], x[chunk], layer
            known = [Model(*(t[chunk] for t in model)) for model in models], [d[chunk] for d in douts], dparams
            if pieces:
                norms = streams.unpacked(saved[12:], chunk)
                runs.append(streams.backward(*own, *pieces, plan, buffers, *known, norms))
            else:
                runs.append(backward(*own, parts, plan, buffers, *known, kept))
        da_inp, dx = map(torch.cat, zip(*runs, strict=True))
        return da_inp, dx, dW, dB, *(d.to(x.dtype) for d in dparams[2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("impl='blocked' has no second derivatives; route with impl='moments' or 'reference'")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, Any]:
        return one_by_one(RouteBackward, info, in_dims, *args)


def route(
    a_inp: Tensor,  # [..., i]
    mu_inp: Tensor,  # [..., i, c, d]
    W: Tensor,  # [i|1, j|1, d, h]
    B: Tensor,  # [i|1, j, c, h]
    beta_use: Tensor,  # [i|1, j|1]
    beta_ign: Tensor,  # [i|1, j|1]
    n_iters: int,
    agreement: Quadratic,
    eps: float,
    block_votes: int | None = None,
) -> Capsules:
    """Route; `block_votes` replaces `CPU_VOTES` or `GPU_VOTES`."""
    default = CPU_VOTES if mu_inp.device.type == "cpu" else GPU_VOTES
    plan = Plan(n_iters, agreement, eps, block_votes or default)
    batch = a_inp.shape[:-1]
    n_samples = math.prod(batch)
    a_inp, mu_inp = a_inp.reshape(n_samples, *a_inp.shape[-1:]), mu_inp.reshape(n_samples, *mu_inp.shape[-3:])
    outs = Route.apply(plan, a_inp, mu_inp, W, B, beta_use, beta_ign)
    return Capsules(*(out.reshape(*batch, *out.shape[1:]) for out in outs[:3]))
