"""The two passes where a block holds some outputs too, for so many of them that few inputs would fit beside all.

A softmax over all outputs then takes a pass of its own over their blocks, for its normaliser, before the one that sums;
in the backward pass so does the sum over outputs in its gradient. Axes as in `passes.py`.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .models import Last, Model, Params, Plan, Pull, Sums, finer, look_back, look_back_backward, model_backward
from .passes import Block, Buffers, gain, measure, votes, votes_backward, weigh

FEWEST_INPUTS = 8
"""Beside all outputs: with fewer, blocks are of some outputs."""
BLOCK_INPUTS = 64
"""Of such a block."""


class Norm(NamedTuple):
    """A softmax over outputs: the highest logit, and the sum of the shares counted from it."""

    highest: Tensor  # [b, 1, i]
    total: Tensor  # [b, 1, i], finer than the rest


def cut_outputs(x: Tensor, B: Tensor, plan: Plan) -> tuple[list[slice], list[slice]] | None:
    """Slices of inputs and of outputs that make blocks; None where blocks can hold all outputs."""
    n_inp, n_out, size = x.shape[1], B.shape[1], B.shape[2] * B.shape[3]
    if plan.block_votes >= min(FEWEST_INPUTS, n_inp) * n_out * size:
        return None
    inputs = min(BLOCK_INPUTS, n_inp)
    outputs = max(1, plan.block_votes // (inputs * size))
    return (
        [slice(start, start + inputs) for start in range(0, n_inp, inputs)],
        [slice(start, start + outputs) for start in range(0, n_out, outputs)],
    )


def share(square: Tensor, last: Last | None, f: Tensor, n_out: int, norm: Norm | None, out: Tensor) -> Tensor:
    """E- and D-step for some of the outputs: D_use `[b, j|1, i]`."""
    if last is None or norm is None:
        return f / n_out
    weigh(square, last, out, norm.highest)
    return out.mul_((f / norm.total).to(out))


def normaliser(x: Tensor, params: Params, last: Last, outs: list[slice], buffers: Buffers) -> Norm:
    """Over all outputs, block by block, for the inputs `x [b, i, c, d]`."""
    norm = None
    for out in outs:
        V = votes(x, params.to(out), buffers)
        square = buffers("square", *V.shape)
        measure(V, last.mu[:, out], square, square)
        shares = buffers("D_use", *V.shape[:2], V.shape[3])
        highest = weigh(square, last.to(out), shares)
        new = Norm(highest, finer(shares.sum(1, keepdim=True)))
        norm = merge(norm, new) if norm else new
    assert norm
    return norm


def merge(one: Norm, two: Norm) -> Norm:
    highest = torch.maximum(one.highest, two.highest)
    one_total, two_total = (n.total * finer(n.highest - highest).exp() for n in (one, two))
    return Norm(highest, one_total + two_total)


def forward(
    f: Tensor, x: Tensor, params: Params, parts: list[slice], outs: list[slice], plan: Plan, buffers: Buffers
) -> tuple[list[Model], list[Norm]]:
    """Every iteration's model, and the normalisers of all but the first, as `passes.forward`."""
    models: list[Model] = []
    norms: list[Norm] = []
    last, n_out = None, params.B.shape[1]
    for _ in range(plan.n_iters):
        totals: list[Sums | None] = [None] * len(outs)
        found: list[Norm] = []
        for part in parts:
            x_i, f_i, p = x[:, part], f[..., part], params.of(part)
            norm = normaliser(x_i, p, last, outs, buffers) if last else None
            if norm:
                found.append(norm)
            for number, out in enumerate(outs):
                V = votes(x_i, p.to(out), buffers)
                square = buffers("square", *V.shape)
                last_j = last.to(out) if last else None
                if last_j:
                    measure(V, last_j.mu, square, square)
                D_use = share(square, last_j, f_i, n_out, norm, buffers("D_use", *V.shape[:2], V.shape[3]))
                sums, total = gain(V, f_i, D_use, p.to(out), plan.eps, square), totals[number]
                totals[number] = total.merge(sums, plan.eps) if total else sums
        models.append(Sums(*(torch.cat(ts, 1) for ts in zip(*(t for t in totals if t), strict=True))).model(plan.eps))
        if found:
            norms.append(Norm(*(torch.cat(ts, -1) for ts in zip(*found, strict=True))))
        last = look_back(models[-1], plan, x.shape[2])
    return models, norms


def packed(norms: list[list[Norm]], like: Tensor) -> list[Tensor]:
    """Normalisers of chunks of samples, for every iteration but the first, as tensors `[t, b, 1, i]`."""
    steps = [Norm(*map(torch.cat, zip(*chunks, strict=True))) for chunks in zip(*norms, strict=True)]
    return [torch.stack(ts) for ts in zip(*steps, strict=True)] or [like.new_empty(0)] * 2


def unpacked(tensors: Sequence[Tensor], chunk: slice) -> list[Norm]:
    """Those of a chunk."""
    return [Norm(*(t[chunk] for t in step)) for step in zip(*tensors, strict=True)]


class Step(NamedTuple):
    """What the backward pass of one iteration goes by."""

    mu: Tensor  # [b, j, v]
    pull: Pull
    last: Last | None
    norm: Norm | None


def block_of(
    step: Step, out: slice, x: Tensor, f: Tensor, params: Params, buffers: Buffers
) -> tuple[Block, Last | None, Tensor]:
    """A block after the first half of an iteration, its outputs' last model, and its part of `sum_j D_use dD_use`."""
    p, pull, last, n_out = params.to(out), step.pull.to(out), step.last, params.B.shape[1]
    last = last.to(out) if last else None
    block = Block(votes(x, p, buffers), buffers)
    block.measure(step.mu[:, out])
    dD = pull.D + pull.a.unsqueeze(-1) * (p.beta_use + p.beta_ign).mT
    D_dD = block.shares(f, last, pull._replace(D=dD), partial(share, block.square, last, f, n_out, step.norm))
    return block, last, D_dD


def backward(
    f: Tensor,
    x: Tensor,
    params: Params,
    parts: list[slice],
    outs: list[slice],
    plan: Plan,
    buffers: Buffers,
    models: list[Model],
    douts: Sequence[Tensor],
    dparams: Params,
    norms: list[Norm],
) -> tuple[Tensor, Tensor]:
    """Gradients of `a_inp [b, i]` and `x`, as `passes.backward`."""
    da_inp, dx = torch.zeros_like(f), torch.zeros_like(x)
    d_cov, d_out = params.B.shape[2:]
    if params.B.shape[0] == 1:
        dparams.B.add_(douts[1].sum(0).view(params.B.shape[1:]))
    for iteration in reversed(range(plan.n_iters)):
        this, before = models[iteration], models[iteration - 1] if iteration else None
        last = look_back(before, plan, d_cov) if before else None
        pull = model_backward(this, douts, plan.eps)
        da = pull.a.unsqueeze(-1)  # [b, j, 1]
        dlast = Last(*map(torch.zeros_like, last)) if last else None
        for part in parts:
            x_i, f_i, p, dp = x[:, part], f[..., part], params.of(part), dparams.of(part)
            norm = Norm(*(t[..., part] for t in norms[iteration - 1])) if last else None
            step = Step(this.mu, pull, last, norm)
            D_dD = finer(torch.zeros_like(f_i))
            if last:
                for out in outs:
                    D_dD += block_of(step, out, x_i, f_i, p, buffers)[2]
            whole = D_dD.to(f_i)
            for out in outs:
                block, last_j, own = block_of(step, out, x_i, f_i, p, buffers)
                if last_j and dlast:
                    for total, new in zip(dlast.to(out), block.agree(f_i, last_j, whole), strict=True):
                        total += new
                else:
                    D_dD += own
                dp_j = dp.to(out)
                if not params.share_betas:
                    dp_j.add_betas_(da[:, out], block.D_use, f_i - block.D_use)
                dx[:, part] += votes_backward(block.dV, x_i, p.to(out), dp_j)
                if params.B.shape[0] > 1:
                    dp_j.B.add_(block.dV.sum(0).unflatten(1, (d_cov, d_out)).permute(3, 0, 1, 2))
            da_inp[..., part] += D_dD.to(f_i) - f_i * (da * p.beta_ign.mT).sum(1, keepdim=True)
        dparams.add_shared_(da, this.D, f, pull.D_E, plan.eps)
        if before and dlast:
            douts = look_back_backward(dlast, before, plan, d_cov)
    return (da_inp * (1 - f)).squeeze(1), dx
