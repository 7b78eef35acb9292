"""Other routing algorithms, plain and small, to be compared with ours on the same trunk, data and regime.

Each layer takes scores `a_inp [..., i]` and capsules `mu_inp [..., i, c, d]` and returns `OutputCapsules`. Votes are
those of `Routing` without biases, `V_ij = mu_i W_ij`, and where an algorithm routes vectors they are flattened to
`v = c * h` numbers. A score is the logit of what its paper calls the probability that a capsule is there.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEAST = 1e-9  # keeps divisions and logarithms finite


class OutputCapsules(NamedTuple):
    """Output capsules: scores `a [..., j]` before the logistic function, and poses `mu [..., j, c, h]`."""

    a: Tensor
    mu: Tensor


class Rival(nn.Module):
    """A routing layer whose inputs all share their weights, or each have their own if `n_inp` is given.

    Args:
        d_cov: Rows of all capsules.
        d_inp: Columns of an input capsule.
        d_out: Columns of an output capsule.
        n_inp: Number of inputs, if fixed.
        n_out: Number of outputs.
        n_iters: Iterations, where the algorithm has any.
    """

    def __init__(self, d_cov: int, d_inp: int, d_out: int, n_inp: int | None, n_out: int, *, n_iters: int = 3):
        super().__init__()
        self.capsule, self.n_iters = (d_cov, d_out), n_iters
        self.W = nn.Parameter(torch.randn(n_inp or 1, n_out, d_inp, d_out) / d_inp)

    def votes(self, mu_inp: Tensor) -> Tensor:
        """Return all votes as vectors, `[..., i, j, v]`."""
        W = self.W.expand(mu_inp.shape[-3], -1, -1, -1)
        return torch.einsum("...icd,ijdh->...ijch", mu_inp, W).flatten(-2)

    def poses(self, v: Tensor) -> Tensor:
        return v.unflatten(-1, self.capsule)


class DynamicRouting(Rival):
    """Sabour, Frosst and Hinton, *Dynamic Routing Between Capsules*, 2017.

    A vote that points the way of an output gains weight. The length of a capsule is the probability that it is there,
    so input scores are not used.
    """

    def forward(self, a_inp: Tensor, mu_inp: Tensor) -> OutputCapsules:
        V = self.votes(self.squash(mu_inp.flatten(-2)).view_as(mu_inp))  # [..., i, j, v]
        logits, s = torch.zeros_like(V[..., 0]), V[..., 0, :, :]
        for iteration in range(self.n_iters):
            s = torch.einsum("...ij,...ijv->...jv", logits.softmax(-1), V)
            if iteration + 1 < self.n_iters:
                logits = logits + torch.einsum("...ijv,...jv->...ij", V, self.squash(s))
        # the squashed length is s² / (1 + s²), whose logit is log s²
        return OutputCapsules((s.square().sum(-1) + LEAST).log(), self.poses(self.squash(s)))

    @staticmethod
    def squash(s: Tensor) -> Tensor:
        """Shrink vectors to a length below one."""
        square = s.square().sum(-1, keepdim=True)
        return s * (square + LEAST).sqrt() / (1 + square)


class EMRouting(Rival):
    """Hinton, Sabour and Frosst, *Matrix capsules with EM routing*, 2018.

    Outputs are Gaussians, fitted to votes by expectation maximisation. Costs are summed over inputs; the inverse
    temperature grows by iteration as `rate * (1 - 0.95 ** t)`.
    """

    def __init__(self, *args: Any, rate: float = 0.01, **settings: Any):
        super().__init__(*args, **settings)
        self.rate = rate
        n_out = self.W.shape[1]
        self.beta_u, self.beta_a = nn.Parameter(torch.zeros(n_out)), nn.Parameter(torch.zeros(n_out))

    def forward(self, a_inp: Tensor, mu_inp: Tensor) -> OutputCapsules:
        V, there = self.votes(mu_inp), a_inp.sigmoid().unsqueeze(-1)
        R = torch.full_like(V[..., 0], 1 / V.shape[-2])  # [..., i, j]
        for iteration in range(self.n_iters):
            used = R * there
            total = used.sum(-2) + LEAST  # [..., j]
            mu = torch.einsum("...ij,...ijv->...jv", used, V) / total[..., None]
            square = (V - mu.unsqueeze(-3)).square()
            sig2 = torch.einsum("...ij,...ijv->...jv", used, square) / total[..., None] + LEAST
            cost = (self.beta_u[:, None] + 0.5 * sig2.log()) * total[..., None]
            a = self.rate * (1 - 0.95 ** (iteration + 1)) * (self.beta_a - cost.sum(-1))
            fit = -0.5 * ((square / sig2.unsqueeze(-3)).sum(-1) + (2 * math.pi * sig2).log().sum(-1).unsqueeze(-2))
            R = (F.logsigmoid(a).unsqueeze(-2) + fit).softmax(-1)
        return OutputCapsules(a, self.poses(mu))


class InvertedAttention(Rival):
    """Tsai, Srivastava, Goh and Salakhutdinov, *Capsules with Inverted Dot-Product Attention Routing*, 2020.

    Outputs compete for each input by the dot product of its vote with their pose, which layer normalisation follows.
    Iterations run in one layer after the other. A linear map that all outputs share reads their scores.
    """

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        size = math.prod(self.capsule)
        self.normalise, self.read = nn.LayerNorm(size), nn.Linear(size, 1)

    def forward(self, a_inp: Tensor, mu_inp: Tensor) -> OutputCapsules:
        V = self.votes(mu_inp)
        R = torch.full_like(V[..., 0], 1 / V.shape[-2])
        for iteration in range(self.n_iters):
            pose = self.normalise(torch.einsum("...ij,...ijv->...jv", R, V))
            if iteration + 1 < self.n_iters:
                R = torch.einsum("...ijv,...jv->...ij", V, pose).softmax(-1)
        return OutputCapsules(self.read(pose).squeeze(-1), self.poses(pose))


class SelfAttentionRouting(Rival):
    """Mazzia, Salvetti and Chiaberge, *Efficient-CapsNet*, 2021.

    A vote weighs more the more it resembles all others; there are no iterations. The length of a capsule is the
    probability that it is there, so input scores are not used.
    """

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.prior = nn.Parameter(torch.zeros(self.W.shape[:2]))  # [i, j] or [1, j]

    def forward(self, a_inp: Tensor, mu_inp: Tensor) -> OutputCapsules:
        V = self.votes(self.squash(mu_inp.flatten(-2)).view_as(mu_inp))
        # a vote's products with all others, added up, are its product with their sum
        likeness = torch.einsum("...ijv,...jv->...ij", V, V.sum(-3)) / math.sqrt(V.shape[-1])
        s = torch.einsum("...ij,...ijv->...jv", likeness.softmax(-1) + self.prior, V)
        length = (s.square().sum(-1) + LEAST).sqrt()
        # the squashed length is 1 - exp(-length), whose logit is log(exp(length) - 1)
        return OutputCapsules(length + torch.log(-torch.expm1(-length)), self.poses(self.squash(s)))

    @staticmethod
    def squash(s: Tensor) -> Tensor:
        """Shrink vectors to a length below one."""
        length = (s.square().sum(-1, keepdim=True) + LEAST).sqrt()
        return s / length * -torch.expm1(-length)


class SequenceRouting(Rival):
    """Heinsen, *An Algorithm for Routing Vectors in Sequences*, 2022.

    Outputs predict inputs, and those that predict an input best use it. The four functions are the simplest the paper
    allows: inputs are scored by `a_inp`, votes are linear, predictions are linear maps of an output's normalised pose,
    and a prediction's score is its scaled dot product with the input. An output is the sum of the votes it gets credit
    for. A linear map that all outputs share reads scores.
    """

    def __init__(self, d_cov: int, d_inp: int, d_out: int, n_inp: int | None, n_out: int, *, n_iters: int = 3):
        super().__init__(d_cov, d_inp, d_out, n_inp, n_out, n_iters=n_iters)
        size = d_cov * d_out
        self.beta_use, self.beta_ign = (nn.Parameter(torch.randn(n_inp or 1, n_out)) for _ in range(2))
        self.normalise, self.predict = nn.LayerNorm(size), nn.Linear(size, d_cov * d_inp)
        self.read = nn.Linear(size, 1)

    def forward(self, a_inp: Tensor, mu_inp: Tensor) -> OutputCapsules:
        V, x = self.votes(mu_inp), mu_inp.flatten(-2)
        there = a_inp.sigmoid().unsqueeze(-1)  # [..., i, 1]
        R = torch.full_like(V[..., 0], 1 / V.shape[-2])
        for iteration in range(self.n_iters):
            D_use = there * R
            credit = self.beta_use * D_use - self.beta_ign * (there - D_use)
            pose = self.normalise(torch.einsum("...ij,...ijv->...jv", credit, V))
            if iteration + 1 < self.n_iters:
                R = (x @ self.predict(pose).mT / math.sqrt(x.shape[-1])).softmax(-1)
        return OutputCapsules(self.read(pose).squeeze(-1), self.poses(pose))


RIVALS: dict[str, type[Rival]] = {
    "dynamic": DynamicRouting,
    "em": EMRouting,
    "inverted-attention": InvertedAttention,
    "self-attention": SelfAttentionRouting,
    "sequence": SequenceRouting,
}
