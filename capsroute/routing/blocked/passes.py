"""The forward and the backward pass over blocks of votes.

Axes: `b` samples, `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `v` is `c`
and `h` together. Inputs come last here, `V [b, j, v, i]`, so that every sum over them reads memory in order.
`docs/algorithm.md` derives the gradients. A softmax over more outputs than a block holds takes a pass of its own over
their blocks, for its normaliser; in the backward pass so does the sum over outputs in its gradient.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..agreement import Quadratic
from ..mapping import Tensors, largest_gradients

EVERY = slice(None)
Buffers = dict[str, Tensor]
"""Memory for large results, by name; all blocks share it."""


class Settings(NamedTuple):
    """Settings of the loop, and the size of a block."""

    n_iters: int
    agreement: Quadratic
    eps: float
    block_votes: int
    plain: Callable[..., Tensors]  # the same results by operations that PyTorch can differentiate


class Params(NamedTuple):
    """Parameters of a layer, or their gradients."""

    W: Tensor  # [k|1, j|1, d, h]
    B: Tensor  # [i|1, j, c, h]
    beta_use: Tensor  # [i|1, j|1]
    beta_ign: Tensor  # [i|1, j|1]

    def narrow(self, inputs: slice, n_inp: int, outputs: slice = EVERY) -> "Params":
        """Return views of the parameters of some of `n_inp` inputs, and of some outputs."""
        places = max(1, n_inp // max(1, len(self.W)))
        kinds = slice(inputs.start // places, -(-inputs.stop // places))
        per_input = (p if len(p) == 1 else p[part] for p, part in zip(self, (kinds, *[inputs] * 3), strict=True))
        return Params(*(p if p.shape[1] == 1 else p[:, outputs] for p in per_input))

    def add_beta_grads_(self, da: Tensor, D_use: Tensor, D_ign: Tensor) -> None:
        """Add to the gradients of the betas, from `da [b, j, 1]` and shares `[b, j, i]` or their sums over inputs."""
        for dbeta, D in ((self.beta_use, D_use), (self.beta_ign, -D_ign)):
            dbeta += (da * D).sum(0, dtype=dbeta.dtype).mT.sum_to_size(dbeta.shape)


class Sums(NamedTuple):
    """Sums over a set of inputs, weighted by D_use; `E` is a vote's distance to the mean of that set."""

    a: Tensor  # [b, j, 1]
    D: Tensor  # [b, j, 1]
    D_V: Tensor  # [b, j, v]
    D_E: Tensor  # eps mu up to rounding, which must cancel in the gradients, [b, j, v]
    D_EE: Tensor  # [b, j, v]

    def merge(self, other: "Sums", eps: float) -> "Sums":
        """Return the sums over both sets, free of the cancellation in `sum V^2 - (sum V)^2`."""
        a, D, D_V, D_E, D_EE = (one + two for one, two in zip(self, other, strict=True))
        for part in (self, other):
            shift = D_V / (D + eps) - part.D_V / (part.D + eps)
            D_E = D_E - part.D * shift
            D_EE = D_EE + shift * (part.D * shift - 2 * part.D_E)
        return Sums(a, D, D_V, D_E, D_EE)

    def model(self, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return `a [b, j, 1]`, `mu` and `sig2 [b, j, v]`: the M-step."""
        used = self.D + eps
        return self.a, self.D_V / used, self.D_EE / used + eps

    def backward(self, da: Tensor, dmu: Tensor, dsig2: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of `a`, `D`, `D_E` and `D_EE` from those of the model, distances counted from `mu`."""
        used = self.D + eps
        dD_EE = dsig2 / used
        dD_E = (dmu - 2 * self.D_E * dD_EE) / used
        return da, -(dD_EE * self.D_EE / used).sum(-1, keepdim=True), dD_E, dD_EE


class Normaliser(NamedTuple):
    """Normaliser of the softmax over outputs: the highest logit, and the sum of exponentials relative to it."""

    highest: Tensor  # [b, 1, i]
    total: Tensor  # [b, 1, i], in float64

    def merge(self, other: "Normaliser") -> "Normaliser":
        """Return the normaliser over both sets of outputs."""
        highest = torch.maximum(self.highest, other.highest)
        one, two = (n.total * to_float64(n.highest - highest).exp() for n in (self, other))
        return Normaliser(highest, one + two)


class Terms(NamedTuple):
    """Coefficients of the logits, `bias - sum_v p (V - mu)^2`, or their gradients."""

    mu: Tensor  # [b, j, v]
    p: Tensor  # the agreement's precisions, [b, j, v]
    bias: Tensor  # log f(a) plus the agreement's log-scales, in float64, [b, j, 1]

    @classmethod
    def of(cls, a: Tensor, mu: Tensor, sig2: Tensor, agreement: Quadratic, d_cov: int) -> "Terms":
        """Return what an E-step takes from the model before."""
        p, g = agreement.checked_weights(to_float64(sig2).unflatten(-1, (d_cov, -1)))
        bias = F.logsigmoid(to_float64(a)) + g.unsqueeze(-1)
        bias = bias - bias.detach().amax(1, keepdim=True)  # the softmax cancels it; smaller numbers round less
        return cls(mu, p.flatten(-2).to(mu), bias)

    def backward(self, a: Tensor, mu: Tensor, sig2: Tensor, agreement: Quadratic, d_cov: int) -> tuple[Tensor, ...]:
        """Return the gradients of the model; these are those of the terms."""
        with torch.enable_grad():
            a, sig2 = (t.detach().requires_grad_() for t in (a, sig2))
            _, p, bias = Terms.of(a, mu, sig2, agreement, d_cov)
            value = (p * self.p).sum() + (bias * self.bias).sum()
        da, dsig2 = torch.autograd.grad(value, (a, sig2), allow_unused=True, materialize_grads=True)
        return da, self.mu, dsig2

    def narrow(self, outputs: slice) -> "Terms":
        return Terms(*(t[:, outputs] for t in self))


def to_float64(t: Tensor) -> Tensor:
    """Convert the few numbers whose rounding would shift all inputs alike; MPS has no float64."""
    return t if t.device.type == "mps" else t.double()


def sum_over_v(p: Tensor, V: Tensor, out: Tensor) -> Tensor:
    """Compute `sum_v p V`, `[b, j, v]` and `[b, j, v, i]` to `[b, j, i]`."""
    torch.bmm(p.reshape(-1, 1, p.shape[-1]), V.flatten(0, 1), out=out.flatten(0, 1).unsqueeze(1))
    return out


def sum_over_i(D: Tensor, V: Tensor) -> Tensor:
    """Compute `sum_i D V`, `[b, j|1, i]` and `[b, j, v, i]` to `[b, j, v]`."""
    if D.shape[1] == 1:
        return (D @ V.flatten(1, 2).mT).view(V.shape[:3])
    return (D.unsqueeze(-2) @ V.mT).squeeze(-2)


class Block:
    """Votes of some samples, inputs and outputs, with one iteration over them.

    Large results go to `buffers`: allocating memory anew for each block costs more than filling it.
    """

    def __init__(self, x: Tensor, f: Tensor, params: Params, n_out: int, buffers: Buffers, backward: bool):
        self.x, self.f, self.params, self.n_out, self.buffers = x, f, params, n_out, buffers
        (b, i, c, _), (_, j, _, h) = x.shape, params.B.shape
        self.size, self.pairs = (b, j, c * h, i), (b, j, i)
        self.V = buffers["saved V"] if "saved V" in buffers else self.form_votes()
        self.square = self.distance = self.buffer("square", self.size)  # squared distances to a mean
        self.dV = None
        if backward:  # distances have a buffer of their own, and those to the mean of the iteration before another
            self.distance, self.spare = self.buffer("distance", self.size), self.buffer("spare", self.size)

    def buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.x.new_empty(size)
        return self.buffers[name][:size].view(shape)

    def form_votes(self) -> Tensor:
        (b, i, c, _), (W, B, *_), V = self.x.shape, self.params, self.buffer("V", self.size)
        votes, (_, j, _, h) = V.unflatten(2, B.shape[2:]), W.shape  # [b, j, c, h, i]
        if W.shape[0] != 1:
            x = self.x.unflatten(1, (len(W), i // max(1, len(W))))
            Wx = torch.einsum("bkpcd,kjdh->bjchkp", x, W).flatten(-2)
        else:
            in_place = c == 1 and j == B.shape[1]  # only then the product is laid out as the votes are
            product = V.view(b, 1, j * h, i) if in_place else self.buffer("spare", (b, c, j * h, i))
            torch.matmul(W[0].mT.flatten(0, 1), self.x.permute(0, 2, 3, 1), out=product)
            Wx = votes if in_place else product.unflatten(2, (-1, h)).transpose(1, 2)
        torch.add(Wx, B.permute(1, 2, 3, 0), out=votes)
        return V

    def form_votes_backward(self, dparams: Params, own_B: bool) -> Tensor:
        """Return the gradient of `x`, and add to that of `W`, and of `B` where it differs between inputs."""
        (W, B, *_), x = self.params, self.x
        dV = self.buffer("dV", self.size).unflatten(2, B.shape[2:])  # [b, j, c, h, i]
        if own_B:
            dparams.B.add_(dV.sum(0).permute(3, 0, 1, 2))
        if W.shape[1] == 1:
            dV = dV.sum(1, keepdim=True)
        if W.shape[0] != 1:
            kinds = len(W), x.shape[1] // max(1, len(W))
            # kinds first in memory: products of other layouts are copied matrix by matrix
            dV = dV.unflatten(-1, kinds).permute(4, 0, 5, 2, 1, 3).contiguous().flatten(1, 3).flatten(2)
            x = x.unflatten(1, kinds).transpose(0, 1)  # [k, b, p, c, d]
            dparams.W.add_((x.flatten(1, 3).mT @ dV).unflatten(2, (-1, B.shape[3])).transpose(1, 2))
            return (dV @ W.mT.flatten(1, 2)).view(x.shape).transpose(0, 1).flatten(1, 2)
        dV, x = dV.transpose(1, 2).flatten(2, 3), x.transpose(1, 2)  # [b, c, jh, i], [b, c, i, d]
        # a GPU sums a long axis in parts, and so more exactly, only when it is a single one
        dW = (dV @ x).sum((0, 1)) if x.device.type == "cpu" else torch.einsum("bcvi,bcid->vd", dV, x)
        dparams.W.add_(dW.unflatten(0, (-1, B.shape[3])).mT)
        return (dV.mT @ W[0].mT.flatten(0, 1)).transpose(1, 2)

    def measure(self, mu: Tensor) -> None:
        """Write the distances to a mean and their squares, in one buffer if `distance` is `square`."""
        torch.sub(self.V, mu.unsqueeze(-1), out=self.distance)
        torch.square(self.distance, out=self.square)

    def shares(self, terms: Terms | None, norm: Normaliser | None, f: Tensor) -> tuple[Tensor, Normaliser | None]:
        """Return `f R [b, j|1, i]` from the distances to the mean of `terms`; without `norm`, by the block's own."""
        if terms is None:
            return f / self.n_out, None
        D_use, bias = self.buffer("D_use", self.pairs), terms.bias.to(self.V)
        # of the rounding to float32, which all inputs have in common
        correction = (terms.bias - bias).clamp(-1, 1).exp().to(bias)
        sum_over_v(-terms.p, self.square, D_use).add_(bias)
        highest = norm.highest if norm else D_use.amax(1, keepdim=True)
        floor = 0.7 * math.log(torch.finfo(D_use.dtype).tiny)  # subnormal numbers are slow
        F.threshold(D_use.sub_(highest), floor, -math.inf, inplace=True).exp_().mul_(correction)
        norm = norm or Normaliser(highest, to_float64(D_use.sum(1, keepdim=True)))
        return D_use.div_((norm.total / f).to(D_use)), norm

    def sums(self, D_use: Tensor, eps: float) -> Sums:
        """Return the sums over the block; leaves the squared distances to its own mean."""
        D, D_V, (beta_use, beta_ign) = D_use.sum(-1, keepdim=True), sum_over_i(D_use, self.V), self.params[2:]
        use, data = D_use, self.f
        if beta_use.shape[0] == 1:  # all inputs share the betas
            use, data = to_float64(D), to_float64(data.sum(-1, keepdim=True))
        a = (beta_use.mT * use - beta_ign.mT * (data - use)).sum(-1, keepdim=True)
        E = torch.sub(self.V, (D_V / (D + eps)).unsqueeze(-1), out=self.square)
        D_E, j = sum_over_i(D_use, E), self.V.shape[1]
        return Sums(a.to(E).expand(-1, j, 1), D.expand(-1, j, 1), D_V, D_E, sum_over_i(D_use, E.square_()))

    def shares_backward(self, dsums: Sequence[Tensor], terms: Terms | None, norm: Normaliser | None) -> Tensor:
        """Compute R and the gradient of D_use, and return `sum_j R dD_use [b, 1, i]`."""
        (da, dD, dD_E, dD_EE), (beta_use, beta_ign) = dsums, self.params[2:]
        self.dD_use, self.R_dD = self.buffer("dD_use", self.pairs), self.buffer("R dD_use", self.pairs)
        sum_over_v(dD_E, self.distance, self.dD_use).add_(sum_over_v(dD_EE, self.square, self.R_dD))
        self.dD_use.add_(dD + da * (beta_use + beta_ign).mT)
        self.distance, self.spare = self.spare, self.distance
        if terms:
            self.measure(terms.mu)
        self.R, _ = self.shares(terms, norm, self.f.new_ones(()))
        return torch.mul(self.R, self.dD_use, out=self.R_dD).sum(1, keepdim=True)

    def votes_backward(self, dsums: Sequence[Tensor], terms: Terms | None, total: Tensor) -> Terms | None:
        """Add to the gradient of the votes, and return that of `terms`; `total` is the sum of `R dD_use` over all."""
        if terms:
            self.dD_use.sub_(total)
            if self.V.shape[1] == self.n_out:  # what rounding left of the sum would count where one R is nearly 1
                self.dD_use.sub_(torch.mul(self.R, self.dD_use, out=self.R_dD).sum(1, keepdim=True))
        self.D_use = self.R.mul_(self.f) if terms else self.f / self.n_out
        _, _, dD_E, dD_EE = dsums
        slope = self.spare.mul_(2 * dD_EE.unsqueeze(-1)).add_(dD_E.unsqueeze(-1))
        if self.dV is None:
            self.dV = torch.mul(slope, self.D_use.unsqueeze(-2), out=self.buffer("dV", self.size))
        else:
            self.dV.addcmul_(slope, self.D_use.unsqueeze(-2))
        if terms is None:
            return None
        largest = largest_gradients(total.dtype)[1]
        dlogits = self.dD_use.mul_(self.D_use).clamp_(-largest, largest)
        dmu, dp = 2 * terms.p * sum_over_i(dlogits, self.distance), -sum_over_i(dlogits, self.square)
        slope = torch.mul(self.distance, -2 * terms.p.unsqueeze(-1), out=self.spare)
        self.dV.addcmul_(slope, dlogits.unsqueeze(-2))
        return Terms(dmu, dp, dlogits.sum(-1, keepdim=True))


class Loop:
    """The routing loop over the blocks of some samples: slices `inputs` by slices `outputs`."""

    def __init__(
        self, f: Tensor, x: Tensor, params: Params, inputs: list[slice], outputs: list[slice], buffers: Buffers
    ):
        self.f, self.x, self.params, self.inputs, self.outputs, self.buffers = f, x, params, inputs, outputs, buffers
        self.single, self.block = len(inputs) == len(outputs) == 1, None

    def blocks(self, part: slice, mu: Tensor | None, backward: bool = False) -> Iterator[tuple[slice, Block]]:
        """Yield slices of the outputs with their blocks, measured from `mu`; a single block serves all iterations."""
        x, f, n_out = self.x[:, part], self.f[..., part], self.params.B.shape[1]
        for out in self.outputs:
            if self.block is None or not self.single:
                params = self.params.narrow(part, self.x.shape[1], out)
                self.block = Block(x, f, params, n_out, self.buffers, backward)
                if mu is not None:
                    self.block.measure(mu[:, out])
            yield out, self.block

    def forward(self, settings: Settings) -> tuple[list[Sums], list[Normaliser]]:
        """Return the sums of every iteration, and the normalisers of all but the first."""
        steps, normalisers, eps, terms = list[Sums](), list[Normaliser](), settings.eps, None
        for _ in range(settings.n_iters):
            totals, norms, mu = dict[int, Sums](), list[Normaliser](), terms.mu if terms else None
            for part in self.inputs:
                norm = None
                if terms and len(self.outputs) > 1:
                    found = [block.shares(terms.narrow(out), None, block.f)[1] for out, block in self.blocks(part, mu)]
                    norm = reduce(Normaliser.merge, filter(None, found))
                for out, block in self.blocks(part, mu):
                    D_use, norm = block.shares(terms.narrow(out) if terms else None, norm, block.f)
                    sums = block.sums(D_use, eps)
                    totals[out.start] = totals[out.start].merge(sums, eps) if out.start in totals else sums
                norms += [norm] if norm else []
            steps.append(Sums(*(torch.cat(ts, 1) for ts in zip(*totals.values(), strict=True))))
            normalisers += [Normaliser(*(torch.cat(ts, -1) for ts in zip(*norms, strict=True)))] if norms else []
            terms = Terms.of(*steps[-1].model(eps), settings.agreement, self.x.shape[2])
        return steps, normalisers

    def backward(
        self,
        settings: Settings,
        steps: Sequence[Sums],
        normalisers: Sequence[Normaliser],
        douts: Sequence[Tensor],
        dparams: Params,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of `a_inp` and `x` from those of the last model; add to those of the parameters."""
        f, params, (n_iters, agreement, eps, *_), d_cov = self.f, self.params, settings, self.x.shape[2]
        da_inp, dx = torch.zeros_like(f), torch.zeros_like(self.x)
        own_B, own_betas = params.B.shape[0] != 1, params.beta_use.shape[0] != 1  # they differ between inputs
        largest = largest_gradients(f.dtype)[0]
        for iteration in reversed(range(n_iters)):
            sums, before = steps[iteration], steps[iteration - 1].model(eps) if iteration else None
            da, dmu, dsig2 = (d.clamp(-largest, largest) for d in douts)
            mu, dsums = sums.model(eps)[1], sums.backward(da, dmu, dsig2, eps)
            terms = Terms.of(*before, agreement, d_cov) if before else None
            dterms = Terms(*map(torch.zeros_like, terms)) if terms else None
            for part in self.inputs:
                f_i, norm, total = f[..., part], None, None
                if terms:
                    norm = Normaliser(*(t[..., part] for t in normalisers[iteration - 1]))
                if terms and len(self.outputs) > 1:
                    each = (
                        block.shares_backward([d[:, out] for d in dsums], terms.narrow(out), norm)
                        for out, block in self.blocks(part, mu, backward=True)
                    )
                    total = reduce(torch.add, map(to_float64, each)).to(f)
                for out, block in self.blocks(part, mu, backward=True):
                    dsums_j, dp = [d[:, out] for d in dsums], dparams.narrow(part, self.x.shape[1], out)
                    terms_j = terms.narrow(out) if terms else None
                    R_dD = block.shares_backward(dsums_j, terms_j, norm)
                    dterms_j = block.votes_backward(dsums_j, terms_j, R_dD if total is None else total)
                    if dterms and dterms_j:
                        for t, new in zip(dterms.narrow(out), dterms_j, strict=True):
                            t += new
                    da_inp[..., part] += f_i * R_dD
                    if own_betas:
                        dp.add_beta_grads_(dsums_j[0], block.D_use, f_i - block.D_use)
                    if iteration == 0 or not self.single:  # a single block collects dV over all iterations
                        dx[:, part] += block.form_votes_backward(dp, own_B)
                cost = dsums[0] * params.narrow(part, self.x.shape[1]).beta_ign.mT
                da_inp[..., part] -= f_i * cost.sum(1, keepdim=True)
            if not own_betas:
                D, data = to_float64(sums.D), to_float64(f.sum(-1, keepdim=True))
                dparams.add_beta_grads_(dsums[0], D, data - D)
            if not own_B:  # the sum of dV, without its cancellation: a shift of B shifts mu, but for eps
                last = iteration == n_iters - 1
                dB = sums.D * dsums[2] + 2 * sums.D_E * dsums[3] if last else -eps * dsums[2]
                dparams.B.add_(dB.sum(0).view_as(params.B[0]))
            if before and dterms:
                douts = dterms.backward(*before, agreement, d_cov)
        return (da_inp * (1 - f)).squeeze(1), dx
