"""Routing by blocks: votes are formed for some samples, inputs and outputs at a time, and again in the backward pass.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `...` batch. `passes.py` goes
over the blocks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..agreement import Quadratic
from ..capsules import Capsules
from ..case import Case
from ..mapping import Tensors, disable_autocast, map_one_by_one, pull_back
from .passes import Buffers, Loop, Normaliser, Params, Settings, Sums, to_float64

CPU_VOTES = 2**22
"""Numbers in a block of votes on a CPU: smaller blocks cost more in overhead than they save in cache misses."""
GPU_VOTES = 2**26
"""The same on other devices, which a block should fill."""
MIN_INPUTS = 8
"""Inputs that a block holds beside all outputs; where fewer would fit, blocks hold some outputs only."""
INPUTS_BESIDE_SOME_OUTPUTS = 64
"""Inputs of such a block."""
N_SAVED = 8
"""Tensors that the forward pass computes for the backward pass."""


def reasons_against(case: Case) -> list[str]:
    """List what keeps it from a case: it needs a quadratic agreement, eager execution and reverse mode."""
    reasons = []
    if not isinstance(case.agreement, Quadratic):
        reasons.append(f"agreement {case.agreement.name!r} is not quadratic in the votes")
    if case.compiling:
        reasons.append("its loop over blocks cannot be captured by torch.compile or torch.export")
    if case.forward_mode:
        reasons.append("it has no derivatives in forward mode")
    return reasons


def cut_blocks(
    x: Sequence[int], B: Sequence[int], n_kinds: int, block_votes: int
) -> tuple[list[slice], list[slice], list[slice]]:
    """Return slices of samples, inputs and outputs that make blocks, from the shapes of `x` and `B`.

    A block holds several samples, or some inputs of one, of whole kinds or of a single one; where few of these fit
    beside all outputs, some outputs too.
    """
    (n_samples, n_inp), (_, n_out, d_cov, d_out) = x[:2], B
    inputs, outputs = max(1, block_votes // (n_out * d_cov * d_out)), n_out
    if inputs < min(MIN_INPUTS, n_inp):
        inputs = min(INPUTS_BESIDE_SOME_OUTPUTS, n_inp)
        outputs = max(1, block_votes // (inputs * d_cov * d_out))
    samples = max(1, inputs // max(1, n_inp)) if outputs == n_out else 1
    places = max(1, n_inp // max(1, n_kinds))
    step = max(places, inputs // places * places)  # inputs from one group of kinds to the next
    size = min(inputs, step)
    return (
        [slice(start, start + samples) for start in range(0, max(1, n_samples), samples)],
        [
            slice(start, min(start + size, kind + step))
            for kind in range(0, max(1, n_inp), step)
            for start in range(kind, kind + step, size)
        ],
        [slice(start, start + outputs) for start in range(0, max(1, n_out), outputs)],
    )


class Route(Function):
    """Outputs are `a, mu, sig2`, then what the backward pass needs: sums, normalisers, and votes of a single block."""

    @staticmethod
    def forward(settings: Settings, a_inp: Tensor, x: Tensor, *params: Tensor) -> Tensors:  # pyright: ignore
        f, layer, buffers = torch.sigmoid(a_inp).unsqueeze(1), Params(*params), Buffers()
        samples, inputs, outputs = cut_blocks(x.shape, layer.B.shape, len(layer.W), settings.block_votes)
        loops = [Loop(f[part], x[part], layer, inputs, outputs, buffers) for part in samples]
        runs = [loop.forward(settings) for loop in loops]
        steps, normalisers = (
            [join_samples(ts) for ts in zip(*found, strict=True)] for found in zip(*runs, strict=True)
        )
        a, mu, sig2 = steps[-1].model(settings.eps)
        outs = a.squeeze(-1), *(t.unflatten(-1, layer.B.shape[2:]) for t in (mu, sig2))
        norms = [torch.stack(ts) for ts in zip(*normalisers, strict=True)] or [x.new_empty(0)] * 2
        block = loops[0].block if len(loops) == 1 and loops[0].single else None
        V = block.V if block else x.new_empty(0)
        return (*(t.clone() for t in outs), *(torch.stack(ts) for ts in zip(*steps, strict=True)), *norms, V)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.settings = inputs[0]
        ctx.save_for_backward(*inputs[1:], *output[3:])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)  # the tensors for the backward pass would get gradients too
        ctx.shapes = [out.shape for out in output[:3]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpoints unpack them a single time
        douts = (saved[1].new_zeros(shape) if d is None else d for d, shape in zip(grads[:3], ctx.shapes, strict=True))
        return None, *RouteBackward.apply(ctx.settings, *douts, *saved)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, Any]:
        return map_one_by_one(Route.apply, info, in_dims, *args)


class RouteBackward(Function):
    """Gradients from the blocks, formed again; theirs are those of plain operations, which hold all votes."""

    @staticmethod
    def forward(settings: Settings, da: Tensor, dmu: Tensor, dsig2: Tensor, *saved: Tensor) -> Tensors:  # pyright: ignore
        a_inp, x, *params = saved[:6]
        f, layer, buffers = torch.sigmoid(a_inp).unsqueeze(1), Params(*params), Buffers()
        if saved[-1].numel():
            buffers["saved V"] = saved[-1]
        samples, inputs, outputs = cut_blocks(x.shape, layer.B.shape, len(layer.W), settings.block_votes)
        dW, dB, *dbetas = map(torch.zeros_like, params)
        dparams = Params(dW, dB, *map(to_float64, dbetas))
        douts, runs = (da.unsqueeze(-1), dmu.flatten(-2), dsig2.flatten(-2)), []
        with disable_autocast(da.device.type):
            for part in samples:
                steps = [Sums(*(t[part] for t in ts)) for ts in zip(*saved[6:11], strict=True)]
                normalisers = [Normaliser(*(t[part] for t in ts)) for ts in zip(*saved[11:13], strict=True)]
                loop = Loop(f[part], x[part], layer, inputs, outputs, buffers)
                runs.append(loop.backward(settings, steps, normalisers, [d[part] for d in douts], dparams))
        da_inp, dx = map(torch.cat, zip(*runs, strict=True))
        return da_inp, dx, dW, dB, *(d.to(x.dtype) for d in dparams[2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.plain = inputs[0].plain
        ctx.save_for_backward(*inputs[1:10])  # the rest follows from them

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def gradients(*tensors: Tensor) -> Tensors:
            return pull_back(ctx.plain, tensors[3:], tensors[:3])

        return None, *pull_back(gradients, ctx.saved_tensors, grads), *[None] * N_SAVED

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, Any]:
        return map_one_by_one(RouteBackward.apply, info, in_dims, *args)


def join_samples(parts: tuple[Any, ...]) -> Any:
    """Join the sums or normalisers of blocks of samples."""
    return type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))


def route(
    a_inp: Tensor,  # [..., i]
    mu_inp: Tensor,  # [..., i, c, d]
    W: Tensor,  # [k|1, j|1, d, h]
    B: Tensor,  # [k|1, j, c, h]
    beta_use: Tensor,  # [k|1, j|1]
    beta_ign: Tensor,  # [k|1, j|1]
    n_iters: int,
    agreement: Quadratic,
    eps: float,
    block_votes: int | None = None,
    *,
    differentiable: Callable[..., Capsules],
) -> Capsules:
    """Route; `block_votes` replaces `CPU_VOTES` or `GPU_VOTES`, second derivatives are those of `differentiable`."""
    default = CPU_VOTES if mu_inp.device.type == "cpu" else GPU_VOTES

    def plain(*tensors: Tensor) -> Tensors:
        return tuple(differentiable(*tensors, n_iters, agreement, eps))

    settings = Settings(n_iters, agreement, eps, block_votes or default, plain)
    batch = a_inp.shape[:-1]
    n_samples, n_inp = math.prod(batch), mu_inp.shape[-3]
    # weights stay those of a kind, for they may be many; each input gets its own biases and betas
    params = [p if len(p) == 1 else p.repeat_interleave(n_inp // max(1, len(p)), 0) for p in (B, beta_use, beta_ign)]
    a_inp, mu_inp = a_inp.reshape(n_samples, *a_inp.shape[-1:]), mu_inp.reshape(n_samples, *mu_inp.shape[-3:])
    outs = Route.apply(settings, a_inp, mu_inp, W, *params)
    return Capsules(*(out.reshape(*batch, *out.shape[1:]) for out in outs[:3]))
