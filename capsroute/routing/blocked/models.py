"""What one iteration of a blocked routing leaves to the next: few numbers, and their gradients.

Axes: `b` samples, `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `v` is `c`
and `h` together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..agreement import Quadratic


class Plan(NamedTuple):
    """How to iterate, and in blocks of how many votes."""

    n_iters: int
    agreement: Quadratic
    eps: float
    block_votes: int


class Params(NamedTuple):
    """Parameters of a layer, or those of some of its inputs."""

    W: Tensor  # [i|1, j|1, d, h]
    B: Tensor  # [i|1, j, c, h]
    beta_use: Tensor  # [i|1, j|1]
    beta_ign: Tensor  # [i|1, j|1]

    def of(self, inputs: slice) -> "Params":
        return Params(*(p if p.shape[0] == 1 else p[inputs] for p in self))

    def to(self, outputs: slice) -> "Params":
        return Params(*(p if p.shape[1] == 1 else p[:, outputs] for p in self))

    @property
    def share_betas(self) -> bool:
        """Whether all inputs share the betas, which sums over inputs then leave outside."""
        return self.beta_use.shape[0] == 1

    def add_betas_(self, da: Tensor, D_use: Tensor, D_ign: Tensor) -> None:
        """Add the gradients of the betas, from `da [b, j, 1]` and the shares `[b, j, i]`, or their sums over inputs."""
        for dbeta, D in ((self.beta_use, D_use), (self.beta_ign, -D_ign)):
            dbeta += (da * D).sum(0, dtype=dbeta.dtype).mT.sum_to_size(dbeta.shape)

    def add_shared_(self, da: Tensor, D_use: Tensor, f: Tensor, dD_E: Tensor, eps: float) -> None:
        """Add what an iteration gives to parameters that all inputs share, from sums over inputs."""
        if self.share_betas:
            self.add_betas_(da, finer(D_use), finer(f.sum(-1, keepdim=True)) - finer(D_use))
        if self.B.shape[0] == 1:
            self.B.sub_(eps * dD_E.sum(0).view(self.B.shape[1:]))


class Model(NamedTuple):
    """Output capsules after an iteration; also what carries from one pass to the other."""

    a: Tensor  # [b, j]
    mu: Tensor  # [b, j, v]
    sig2: Tensor  # [b, j, v]
    D: Tensor  # sum_i D_use, [b, j, 1]
    D_E: Tensor  # sum_i D_use (V - mu): eps mu, but for rounding, which must cancel in the gradients, [b, j, v]
    D_EE: Tensor  # sum_i D_use (V - mu)^2, [b, j, v]


class Sums(NamedTuple):
    """Sums over a set of inputs, weighted by D_use; `E` is a vote's distance to the set's own mean."""

    a: Tensor  # [b, j]
    D: Tensor  # [b, j, 1]
    D_V: Tensor  # [b, j, v]
    D_E: Tensor  # [b, j, v]
    D_EE: Tensor  # [b, j, v]

    def merge(self, other: "Sums", eps: float) -> "Sums":
        """The sums over both sets, free of the cancellation in `sum V^2 - (sum V)^2`."""
        a, D, D_V, D_E, D_EE = (one + two for one, two in zip(self, other, strict=True))
        for part in (self, other):
            move = D_V / (D + eps) - part.D_V / (part.D + eps)
            D_E = D_E - part.D * move
            D_EE = D_EE + move * (part.D * move - 2 * part.D_E)
        return Sums(a, D, D_V, D_E, D_EE)

    def model(self, eps: float) -> Model:
        used = self.D + eps
        return Model(self.a, self.D_V / used, self.D_EE / used + eps, self.D, self.D_E, self.D_EE)


class Pull(NamedTuple):
    """Gradients of an iteration's sums, distances counted from its `mu`."""

    a: Tensor  # [b, j]
    D: Tensor  # [b, j, 1]
    D_E: Tensor  # [b, j, v]
    D_EE: Tensor  # [b, j, v]

    def to(self, outputs: slice) -> "Pull":
        return Pull(*(t[:, outputs] for t in self))


def model_backward(model: Model, douts: Sequence[Tensor], eps: float) -> Pull:
    """From the gradients of the model's `a`, `mu` and `sig2`."""
    da, dmu, dsig2 = douts
    used = model.D + eps
    dD_EE = dsig2 / used
    dD_E = (dmu - 2 * model.D_E * dD_EE) / used
    return Pull(da, -(dD_EE * model.D_EE / used).sum(-1, keepdim=True), dD_E, dD_EE)


class Last(NamedTuple):
    """What an E-step takes from the iteration before. Also gradients."""

    mu: Tensor  # [b, j, v]
    p: Tensor  # the agreement's precisions, [b, j, v]
    log: Tensor  # log f(a) plus the agreement's log-scales, finer than the rest, [b, j, 1]

    def to(self, outputs: slice) -> "Last":
        return Last(*(t[:, outputs] for t in self))


def finer(t: Tensor) -> Tensor:
    """To float64, where the device has it: for the few numbers whose rounding would shift all inputs alike."""
    return t if t.device.type == "mps" else t.double()


def look_back(model: Model, plan: Plan, d_cov: int) -> Last:
    p, g = plan.agreement.weights(finer(model.sig2).unflatten(-1, (d_cov, -1)))
    log = F.logsigmoid(finer(model.a)) + g
    log = log - log.detach().amax(1, keepdim=True)  # softmax does not see it, rounding does
    return Last(model.mu, p.flatten(-2).to(model.mu), log.unsqueeze(-1))


def look_back_backward(dlast: Last, model: Model, plan: Plan, d_cov: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the model's `a`, `mu` and `sig2`."""
    with torch.enable_grad():
        a, sig2 = (t.detach().requires_grad_() for t in (model.a, model.sig2))
        _, p, log = look_back(model._replace(a=a, sig2=sig2), plan, d_cov)
        value = (p * dlast.p).sum() + (log * dlast.log).sum()
    da, dsig2 = torch.autograd.grad(value, (a, sig2), allow_unused=True, materialize_grads=True)
    return da, dlast.mu, dsig2
