"""Deletion curves: how fast the predicted class loses probability as inputs are removed, most important first.

Axes: `i` input capsules, `k` classes, `f` fractions removed, `n` samples.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...credit import credit, for_class
from ...layers import Routing

Attribute = Callable[[Sequence[Routing], Tensor, Tensor, torch.Generator], dict[str, Tensor]]
FRACTIONS = (0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)


class Mean(NamedTuple):
    """A mean over samples and its standard error."""

    mean: float
    error: float


class Deletion(NamedTuple):
    """Probability of the class predicted from all inputs, after a fraction of them was removed."""

    fractions: Tensor
    """Fractions of the inputs removed, `[f]`."""
    probabilities: dict[str, Tensor]
    """`[n, f]` by name of the attribution that ordered the inputs."""

    def curve(self, name: str) -> list[Mean]:
        """Return the mean over samples at each fraction."""
        return [_mean(column) for column in self.probabilities[name].T]

    def area(self, name: str) -> Mean:
        """Return the area under the curve; smaller means that what mattered was removed earlier."""
        return _mean(self._areas(name))

    def difference(self, name: str, baseline: str) -> Mean:
        """Return the paired difference of the areas, negative where the first is more faithful than the baseline."""
        return _mean(self._areas(name) - self._areas(baseline))

    def _areas(self, name: str) -> Tensor:
        return torch.trapezoid(self.probabilities[name], self.fractions)  # [n]


def measure_deletion(
    layers: Sequence[Routing],
    samples: Iterable[tuple[Tensor, Tensor]],
    *,
    attribute: Attribute | None = None,
    fractions: Sequence[float] = FRACTIONS,
    seed: int = 0,
) -> Deletion:
    """Measure deletion curves of credit, of gradient times input, and of a random order.

    Args:
        layers: Stacked routing layers, whose last outputs are classes.
        samples: Inputs of the first layer for each sample, `a_inp [i]` and `mu_inp [i, c, d]`.
        attribute: Returns other named attributions `[i]` of a sample; inputs with the highest values go first.
        fractions: Fractions of the inputs to remove, from 0 to 1.
        seed: Seed of the random order.
    """
    generator = torch.Generator().manual_seed(seed)
    curves: dict[str, list[Tensor]] = {}
    for a, mu in samples:
        for name, attribution in (attribute or attribute_inputs)(layers, a, mu, generator).items():
            curves.setdefault(name, []).append(delete_inputs(layers, a, mu, attribution, fractions))
    if not curves:
        raise ValueError("samples: expected at least one, got none")
    stacked = {name: torch.stack(rows) for name, rows in curves.items()}
    return Deletion(torch.tensor(fractions, dtype=torch.float64), stacked)


def attribute_inputs(layers: Sequence[Routing], a: Tensor, mu: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Attribute the predicted class to the inputs by credit and by two baselines, `[i]` each."""
    with torch.no_grad():
        net = credit(layers, (a, mu)).net
        by_credit = for_class(net, net.sum(-2))
    return {
        "credit": by_credit,
        "gradient times input": gradient_times_input(layers, a, mu),
        "random": torch.rand(len(a), generator=generator),
    }


def gradient_times_input(layers: Sequence[Routing], a: Tensor, mu: Tensor, *, odds: bool = True) -> Tensor:
    """Compute gradient times input of the predicted class, `[i]`, summed over `a_inp [i]` and `mu_inp [i, c, d]`.

    With `odds` the logarithm of the class's odds is differentiated, as for credit, or else its score. Infinite scores
    of inputs, as of texts, count as zero: no finite step changes them.
    """
    a, mu = a.detach().requires_grad_(), mu.detach().requires_grad_()
    with torch.enable_grad():
        scores = _class_scores(layers, a, mu)
        winner = torch.zeros_like(scores).index_fill(0, scores.argmax()[None], 1.0)
        weights = for_class(torch.eye(len(scores), dtype=mu.dtype), scores.detach()) if odds else winner
        d_a, d_mu = torch.autograd.grad(scores @ weights, (a, mu))
    return torch.where(a.isfinite(), d_a * a, 0).detach() + (d_mu * mu.detach()).sum((-2, -1))


@torch.no_grad()
def delete_inputs(
    layers: Sequence[Routing], a: Tensor, mu: Tensor, attribution: Tensor, fractions: Sequence[float]
) -> Tensor:
    """Remove the inputs with the highest attribution and return the predicted class's probability, `[f]`."""
    all_inputs = _class_scores(layers, a, mu)
    order = attribution.argsort(descending=True, stable=True)
    scores = []
    for fraction in fractions:
        removed = order[: round(fraction * len(a))]
        mask = torch.ones_like(a, dtype=torch.bool).index_fill(0, removed, False)
        scores.append(_class_scores(layers, a, mu, mask) if len(removed) else all_inputs)
    return torch.stack(scores).double().softmax(-1)[:, all_inputs.argmax()]


def _class_scores(layers: Sequence[Routing], a: Tensor, mu: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None and mask.any() and layers[0].n_inp is None:
        a, mu, mask = a[mask], mu[mask], None  # same result as the mask, and faster
    for layer in layers:
        a, mu, _ = layer(a, mu, mask=mask)
        mask = None
    return a


def _mean(values: Tensor) -> Mean:
    n = len(values)
    return Mean(float(values.mean()), float(values.std()) / math.sqrt(n) if n > 1 else math.nan)
