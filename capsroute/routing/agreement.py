"""Models of agreement: how well a vote fits an output capsule.

Axes: `i` inputs, `j` outputs, `c` covector, `h` output properties.

To add one, subclass `Agreement` and supply `log_p`; `reference` then routes with it. If the log-density is a
quadratic of the votes, subclass `Quadratic` and supply `weights` instead: every implementation routes with it.
Pass an instance of the class as `agreement=`.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from .checks import check_agreement


class Agreement(ABC):
    """The log-density of votes under each output capsule's model; constants shared by all outputs may be dropped."""

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @abstractmethod
    def log_p(self, V: Tensor, mu: Tensor, sig2: Tensor) -> Tensor:
        """Return log-densities `[..., i, j]` of votes `[..., i, j, c, h]` under models `[..., j, c, h]`."""


class Quadratic(Agreement):
    """Agreement of the form `log p_ij = g_j - sum_ch p_jch (V_ijch - mu_jch)^2`, up to a constant per input."""

    @abstractmethod
    def weights(self, sig2: Tensor) -> tuple[Tensor, Tensor]:
        """Return precisions `p [..., j, c, h]` and log-scales `g [..., j]` for variances `[..., j, c, h]`."""

    def checked_weights(self, sig2: Tensor) -> tuple[Tensor, Tensor]:
        """Return `weights`, or refuse what is something else."""
        found = self.weights(sig2)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(f"agreement: expected weights to be a pair of tensors, got {type(found).__name__}")
        for name, t, shape in zip(("p", "g"), found, (sig2.shape, sig2.shape[:-2]), strict=True):
            check_agreement(name, t, shape, sig2)
        return found

    def log_p(self, V: Tensor, mu: Tensor, sig2: Tensor) -> Tensor:
        p, g = self.checked_weights(sig2)
        distance = torch.einsum("...ijch,...jch->...ij", (V - mu.unsqueeze(-4)).square(), p)
        return g.unsqueeze(-2) - distance


class Gaussian(Quadratic):
    """The paper's model: each component `ch` of a vote is normal with mean `mu` and variance `sig2`."""

    def weights(self, sig2: Tensor) -> tuple[Tensor, Tensor]:
        return 0.5 / sig2, -0.5 * (2 * math.pi * sig2).log().sum((-2, -1))


class KMeans(Quadratic):
    """Squared distance to the mean alone, as the paper's outlook suggests."""

    def weights(self, sig2: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(sig2), torch.zeros_like(sig2[..., 0, 0])

    def log_p(self, V: Tensor, mu: Tensor, sig2: Tensor) -> Tensor:
        return super().log_p(V, mu, sig2).log_softmax(-1)


AGREEMENTS: dict[str, Agreement] = {"gaussian": Gaussian(), "kmeans": KMeans()}


def resolve_agreement(agreement: str | Agreement) -> Agreement:
    """Return the model of a name, or the instance itself."""
    if isinstance(agreement, Agreement):
        return agreement
    if not isinstance(agreement, str):
        raise TypeError(f"agreement: expected a name or an Agreement, got {type(agreement).__name__}")
    if agreement not in AGREEMENTS:
        raise ValueError(f"agreement: expected one of {list(AGREEMENTS)} or an Agreement, got {agreement!r}")
    return AGREEMENTS[agreement]
