"""Is credit faithful? Inputs are removed in its order, and the class that had won loses its probability, or does not.

Axes: `i` input capsules, `k` classes, `f` fractions removed, `n` samples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...credit import credit, for_class
from ...layers import Routing

FRACTIONS = (0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)


class Mean(NamedTuple):
    """A mean over samples, and its standard error."""

    mean: float
    error: float


class Deletion(NamedTuple):
    """How probable the class predicted at first still is, after so much was removed."""

    fractions: Tensor
    """Shares of the inputs that were removed, `[f]`."""
    chances: dict[str, Tensor]
    """By what gave the order, `[n, f]`."""

    def curve(self, name: str) -> list[Mean]:
        """The mean over samples at each fraction."""
        return [_mean(column) for column in self.chances[name].T]

    def area(self, name: str) -> Mean:
        """Under the curve: the smaller, the more of what mattered was removed early."""
        return _mean(self._areas(name))

    def difference(self, name: str, rival: str) -> Mean:
        """Of the areas, sample by sample: below zero where the first is more faithful than its rival."""
        return _mean(self._areas(name) - self._areas(rival))

    def _areas(self, name: str) -> Tensor:
        return torch.trapezoid(self.chances[name], self.fractions)  # [n]


def deletion(
    layers: Sequence[Routing],
    samples: Iterable[tuple[Tensor, Tensor]],
    *,
    fractions: Sequence[float] = FRACTIONS,
    seed: int = 0,
) -> Deletion:
    """Remove inputs in the order of their credit, of gradient times input, and of chance.

    Args:
        layers: Stacked routing layers, whose last outputs are classes.
        samples: What the first layer gets for each sample, `a_inp [i]` and `mu_inp [i, c, d]`.
        fractions: Shares of the inputs to remove, from 0 to 1.
        seed: Of the random order.
    """
    chance = torch.Generator().manual_seed(seed)
    return measured(layers, ((a, mu, orders(layers, a, mu, chance)) for a, mu in samples), fractions)


def measured(
    layers: Sequence[Routing],
    samples: Iterable[tuple[Tensor, Tensor, Mapping[str, Tensor]]],
    fractions: Sequence[float] = FRACTIONS,
) -> Deletion:
    """The same for any attributions `[i]`, named: the highest goes first."""
    found: dict[str, list[Tensor]] = {}
    for a, mu, named in samples:
        for name, worth in named.items():
            found.setdefault(name, []).append(removed(layers, a, mu, worth, fractions))
    if not found:
        raise ValueError("samples: expected at least one, got none")
    places = torch.tensor(fractions, dtype=torch.float64)
    return Deletion(places, {name: torch.stack(rows) for name, rows in found.items()})


def orders(layers: Sequence[Routing], a: Tensor, mu: Tensor, chance: torch.Generator) -> dict[str, Tensor]:
    """What credit and its rivals say of each input, for the class predicted: three times `[i]`."""
    with torch.no_grad():
        owed = credit(layers, (a, mu)).net
        by_credit = for_class(owed, owed.sum(-2))
    return {
        "credit": by_credit,
        "gradient times input": gradient_times_input(layers, a, mu),
        "random": torch.rand(len(a), generator=chance),
    }


def gradient_times_input(layers: Sequence[Routing], a: Tensor, mu: Tensor, *, odds: bool = True) -> Tensor:
    """Gradient with respect to `a_inp` and `mu_inp`, times these, `[i]`.

    Args:
        layers: Routing layers.
        a: Their `a_inp [i]`. Where it is infinite, as for texts, a finite step changes nothing: its part is zero.
        mu: Their `mu_inp [i, c, d]`.
        odds: Of the logarithm of the class's odds, as for credit; if not, of its score alone.
    """
    a, mu = a.detach().requires_grad_(), mu.detach().requires_grad_()
    with torch.enable_grad():
        scores = _scores(layers, a, mu)
        weights = for_class(torch.eye(len(scores), dtype=mu.dtype), scores.detach()) if odds else _winner(scores)
        d_a, d_mu = torch.autograd.grad(scores @ weights, (a, mu))
    return torch.where(a.isfinite(), d_a * a, 0).detach() + (d_mu * mu.detach()).sum((-2, -1))


@torch.no_grad()
def removed(layers: Sequence[Routing], a: Tensor, mu: Tensor, worth: Tensor, fractions: Sequence[float]) -> Tensor:
    """The probability of the class predicted at first, after the worthiest inputs were masked, `[f]`."""
    whole = _scores(layers, a, mu)
    order = worth.argsort(descending=True, stable=True)
    found = []
    for fraction in fractions:
        gone = order[: round(fraction * len(a))]
        mask = torch.ones_like(a, dtype=torch.bool).index_fill(0, gone, False)
        found.append(_scores(layers, a, mu, mask) if len(gone) else whole)
    return torch.stack(found).double().softmax(-1)[:, whole.argmax()]


def _scores(layers: Sequence[Routing], a: Tensor, mu: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None and mask.any() and layers[0].n_inp is None:
        a, mu, mask = a[mask], mu[mask], None  # as good as masked, and quicker
    for layer in layers:
        a, mu, _ = layer(a, mu, mask=mask)
        mask = None
    return a


def _winner(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).index_fill(0, scores.argmax()[None], 1.0)


def _mean(values: Tensor) -> Mean:
    n = len(values)
    return Mean(float(values.mean()), float(values.std()) / math.sqrt(n) if n > 1 else math.nan)
