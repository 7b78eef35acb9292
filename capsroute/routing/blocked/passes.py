"""The two passes over blocks of votes, each of some inputs and all outputs.

Axes: `b` samples, `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `v` is `c`
and `h` together. Inputs come last here, `V [b, j, v, i]`, so that every sum over them reads memory in order, and large
results go to buffers that serve every block. `docs/algorithm.md` derives the gradients.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from .models import Last, Model, Params, Plan, Pull, Sums, finer, look_back, look_back_backward, model_backward

TINY = 1e-30


class Buffers:
    """Memory for large results, one place per name, used by block after block: new memory costs more than it holds."""

    def __init__(self, like: Tensor, **places: Tensor):
        self.like, self.places = like, places

    def __call__(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self.places or self.places[name].numel() < size:
            self.places[name] = self.like.new_empty(size)
        return self.places[name].view(-1)[:size].view(shape)


def votes(x: Tensor, params: Params, buffers: Buffers) -> Tensor:
    """Votes `[b, j, v, i]` of the capsules `x [b, i, c, d]`."""
    W, B, *_ = params
    (b, i, c, _), (_, j, _, h) = x.shape, B.shape
    V = buffers("V", b, j, c * h, i)
    votes = V.view(b, j, c, h, i)
    if W.shape[0] > 1:
        Wx = torch.einsum("bicd,ijdh->bjchi", x, W)
    else:
        straight = c == 1 and W.shape[1] == j  # only then the product comes out as votes are laid out
        product = V.view(b, 1, j * h, i) if straight else buffers("scratch", b, c, W.shape[1] * h, i)
        torch.matmul(W[0].mT.flatten(0, 1), x.permute(0, 2, 3, 1), out=product)
        Wx = votes if straight else product.unflatten(2, (-1, h)).transpose(1, 2)
    torch.add(Wx, B.permute(1, 2, 3, 0), out=votes)
    return V


def votes_backward(dV: Tensor, x: Tensor, params: Params, dparams: Params) -> Tensor:
    """The gradient of `x`; adds to that of `W`."""
    W, B, *_ = params
    dV = dV.unflatten(2, B.shape[2:])  # [b, j, c, h, i]
    if W.shape[1] == 1:
        dV = dV.sum(1, keepdim=True)
    if W.shape[0] > 1:
        dparams.W.add_(torch.einsum("bjchi,bicd->ijdh", dV, x))
        return torch.einsum("bjchi,ijdh->bicd", dV, W)
    dV, x = dV.transpose(1, 2).flatten(2, 3), x.transpose(1, 2)  # [b, c, jh, i], [b, c, i, d]
    # a GPU sums a long axis in parts, and so more exactly, only when it is a single one
    dW = (dV @ x).sum((0, 1)) if x.device.type == "cpu" else torch.einsum("bcvi,bcid->vd", dV, x)
    dparams.W.add_(dW.unflatten(0, (-1, B.shape[3])).mT)
    return (dV.mT @ W[0].mT.flatten(0, 1)).transpose(1, 2)


def along_v(p: Tensor, V: Tensor, out: Tensor) -> Tensor:
    """`sum_v p V`, `[b, j, v]` and `[b, j, v, i]` to `[b, j, i]`."""
    torch.bmm(p.reshape(-1, 1, p.shape[-1]), V.flatten(0, 1), out=out.flatten(0, 1).unsqueeze(1))
    return out


def along_i(D: Tensor, V: Tensor) -> Tensor:
    """`sum_i D V`, `[b, j|1, i]` and `[b, j, v, i]` to `[b, j, v]`."""
    if D.shape[1] == 1:
        return (D @ V.flatten(1, 2).mT).view(V.shape[:3])
    return (D.unsqueeze(-2) @ V.mT).squeeze(-2)


def measure(V: Tensor, mu: Tensor, distance: Tensor, square: Tensor) -> None:
    """Write `V - mu` and its square to the buffers given, which may be one."""
    torch.sub(V, mu.unsqueeze(-1), out=distance)
    torch.square(distance, out=square)


def share(square: Tensor, last: Last | None, f: Tensor, out: Tensor) -> Tensor:
    """E- and D-step: D_use `[b, j|1, i]` from the squared distances to the model before, and `f(a_inp) [b, 1, i]`."""
    if last is None:
        return f / out.shape[1]
    weigh(square, last, out)
    return out.mul_(f / out.sum(1, keepdim=True))


def weigh(square: Tensor, last: Last, out: Tensor, highest: Tensor | None = None) -> Tensor:
    """Shares `[b, j, i]` before they are divided by their sum, and the highest logits `[b, 1, i]` they count from."""
    log = last.log.to(out)
    lost = (last.log - log).exp().to(out)  # by rounding, the same for all inputs
    along_v(-last.p, square, out).add_(log)
    highest = out.amax(1, keepdim=True) if highest is None else highest
    floor = 0.7 * math.log(torch.finfo(out.dtype).tiny)  # far below rounding; subnormal numbers would cost much time
    out.sub_(highest).clamp_(min=floor).exp_().mul_(lost)
    return highest


def gain(V: Tensor, f: Tensor, D_use: Tensor, params: Params, eps: float, scratch: Tensor) -> Sums:
    """M-step: the sums over a block; leaves the squared distances to its mean in the buffer."""
    D, D_V = D_use.sum(-1, keepdim=True), along_i(D_use, V)
    use, whole = (finer(D), finer(f.sum(-1, keepdim=True))) if params.share_betas else (D_use, f)
    a = (params.beta_use.mT * use - params.beta_ign.mT * (whole - use)).sum(-1)
    E = torch.sub(V, (D_V / (D + eps)).unsqueeze(-1), out=scratch)
    D_E, n_out = along_i(D_use, E), V.shape[1]
    return Sums(a.to(V).expand(-1, n_out), D.expand(-1, n_out, 1), D_V, D_E, along_i(D_use, E.square_()))


def forward(f: Tensor, x: Tensor, params: Params, parts: list[slice], plan: Plan, buffers: Buffers) -> list[Model]:
    """Every iteration's model, for `f(a_inp) [b, 1, i]` and `x [b, i, c, d]`, taking the inputs in parts."""
    models: list[Model] = []
    last = V = None
    for iteration in range(plan.n_iters):
        total = None
        for part in parts:
            p, f_i = params.of(part), f[..., part]
            if V is None or len(parts) > 1:
                V = votes(x[:, part], p, buffers)
                square = buffers("square", *V.shape)
                if last:
                    measure(V, last.mu, square, square)
            D_use = share(square, last, f_i, buffers(f"D_use {iteration}", *V.shape[:2], V.shape[3]))
            sums = gain(V, f_i, D_use, p, plan.eps, square)
            total = total.merge(sums, plan.eps) if total else sums
        assert total
        models.append(total.model(plan.eps))
        last = look_back(models[-1], plan, x.shape[2])
    return models


class Block:
    """A block in the backward pass: votes, their gradient, and their distances to a mean with the squares."""

    def __init__(self, V: Tensor, buffers: Buffers):
        self.V, self.buffers = V, buffers
        self.dV, self.distance, self.square, self.spare = (
            buffers(name, *V.shape) for name in ("dV", "distance", "square", "scratch")
        )
        self.fresh = True

    def measure(self, mu: Tensor) -> None:
        measure(self.V, mu, self.distance, self.square)

    def shares(self, f: Tensor, last: Last | None, pull: Pull, share: Callable[[Tensor], Tensor]) -> Tensor:
        """First half of an iteration, measured from its own mean: D_use, its gradient, and the votes' by them.

        `share` makes D_use of a buffer for it. Returns `sum_j D_use dD_use`.
        """
        size = (*self.V.shape[:2], self.V.shape[3])
        dD_use, spare = self.buffers("dD_use", *size), self.buffers("D_use", *size)
        along_v(pull.D_E, self.distance, dD_use).add_(pull.D).add_(along_v(pull.D_EE, self.square, spare))
        force = self.distance.mul_(2 * pull.D_EE.unsqueeze(-1)).add_(pull.D_E.unsqueeze(-1))
        if last:
            measure(self.V, last.mu, self.spare, self.square)
        self.D_use, self.dD_use = share(spare), dD_use
        if self.fresh:
            torch.mul(force, self.D_use.unsqueeze(-2), out=self.dV)
        else:
            self.dV.addcmul_(force, self.D_use.unsqueeze(-2))
        self.fresh = False
        return torch.mul(self.D_use, dD_use, out=self.buffers("D dD", *size)).sum(1, keepdim=True)

    def agree(self, f: Tensor, last: Last, D_dD: Tensor) -> Last:
        """Second half: the gradients of `last`, and the votes' by it; leaves the block measured from the last mean."""
        self.distance, self.spare = self.spare, self.distance
        dlogits = self.dD_use.sub_(D_dD / f.clamp(min=TINY)).mul_(self.D_use)
        dmu, dp = 2 * last.p * along_i(dlogits, self.distance), -along_i(dlogits, self.square)
        force = torch.mul(self.distance, -2 * last.p.unsqueeze(-1), out=self.spare)
        self.dV.addcmul_(force, dlogits.unsqueeze(-2))
        return Last(dmu, dp, dlogits.sum(-1, keepdim=True))


def backward(
    f: Tensor,
    x: Tensor,
    params: Params,
    parts: list[slice],
    plan: Plan,
    buffers: Buffers,
    models: list[Model],
    douts: Sequence[Tensor],
    dparams: Params,
    kept: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of `a_inp [b, i]` and `x`, from those of the last model; adds to those of the parameters."""
    da_inp, dx = torch.zeros_like(f), x.new_zeros(x.shape if len(parts) > 1 else 0)
    n_out, d_cov, d_out = params.B.shape[1:]
    if params.B.shape[0] == 1:  # a shift of B shifts mu, but for eps: the sum of dV, without its cancellation
        dparams.B.add_(douts[1].sum(0).view(params.B.shape[1:]))
    block = None
    for iteration in reversed(range(plan.n_iters)):
        this, before = models[iteration], models[iteration - 1] if iteration else None
        last = look_back(before, plan, d_cov) if before else None
        pull = model_backward(this, douts, plan.eps)
        da, dlast = pull.a.unsqueeze(-1), None  # [b, j, 1]
        for part in parts:
            x_i, f_i, p, dp = x[:, part], f[..., part], params.of(part), dparams.of(part)
            if block is None or len(parts) > 1:
                V = buffers("V", len(x), n_out, d_cov * d_out, f_i.shape[-1]) if kept else votes(x_i, p, buffers)
                block = Block(V, buffers)
                block.measure(this.mu)
            dD = pull.D + da * (p.beta_use + p.beta_ign).mT
            if kept and last:
                make = partial(buffers, f"D_use {iteration}", len(x), n_out, f_i.shape[-1])
                D_dD = block.shares(f_i, last, pull._replace(D=dD), lambda _, make=make: make())
            else:
                make = partial(share, block.square, last, f_i)
                D_dD = block.shares(f_i, last, pull._replace(D=dD), make)
            if last:
                new = block.agree(f_i, last, D_dD)
                dlast = Last(*map(torch.add, dlast, new)) if dlast else new
            da_inp[..., part] += D_dD - f_i * (da * p.beta_ign.mT).sum(1, keepdim=True)
            if not params.share_betas:
                dp.add_betas_(da, block.D_use, f_i - block.D_use)
            if iteration == 0 or len(parts) > 1:
                dx_i = votes_backward(block.dV, x_i, p, dp)
                if len(parts) == 1:
                    dx = dx_i
                else:
                    dx[:, part] += dx_i
                if params.B.shape[0] > 1:
                    dp.B.add_(block.dV.sum(0).unflatten(1, (d_cov, d_out)).permute(3, 0, 1, 2))
        dparams.add_shared_(da, this.D, f, pull.D_E, plan.eps)
        if before and dlast:
            douts = look_back_backward(dlast, before, plan, d_cov)
    return (da_inp * (1 - f)).squeeze(1), dx


def cut(x: Tensor, B: Tensor, plan: Plan) -> tuple[list[slice], list[slice]]:
    """Slices of samples and of inputs that make blocks: of several samples whole, or of parts of one."""
    n_samples, n_inp = x.shape[:2]
    inputs = max(1, plan.block_votes // B[0].numel())
    samples = max(1, inputs // max(1, n_inp))
    chunks = [slice(start, start + samples) for start in range(0, max(1, n_samples), samples)]
    return chunks, [slice(start, start + inputs) for start in range(0, max(1, n_inp), inputs)]
