"""Accuracy of a classifier, overall and by factor, with confidence intervals."""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

N_DRAWS = 10_000  # of the bootstrap


class GroupAccuracy(NamedTuple):
    """Accuracy of the samples that share one value of a factor, with a confidence interval."""

    value: int
    right: int
    total: int
    low: float
    high: float

    @property
    def accuracy(self) -> float:
        return self.right / self.total


def wilson_interval(right: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Compute Wilson's score interval of a proportion; unlike the normal interval it stays within 0 to 1."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    centre = (right + z * z / 2) / (total + z * z)
    half = z / (total + z * z) * math.sqrt(right * (total - right) / total + z * z / 4)
    # the bound is exact at both ends, where rounding would not be
    return 0.0 if right == 0 else centre - half, 1.0 if right == total else centre + half


def bootstrap_interval(
    hit: np.ndarray, category: np.ndarray, instance: np.ndarray, level: float = 0.95, *, seed: int = 0
) -> tuple[float, float]:
    """Compute a bootstrap interval of the accuracy over objects, the pairs of category and instance.

    Images of one object are correlated, so each draw takes whole objects with replacement, as many as there are.
    """
    _, which, total = np.unique(np.stack([category, instance]), axis=1, return_inverse=True, return_counts=True)
    n_objects, right = len(total), np.bincount(which.ravel(), weights=hit)
    times = np.random.default_rng(seed).multinomial(n_objects, np.full(n_objects, 1 / n_objects), size=N_DRAWS)
    low, high = np.quantile((times @ right) / (times @ total), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def accuracy_by_factor(hit: np.ndarray, values: np.ndarray, level: float = 0.95) -> list[GroupAccuracy]:
    """Compute the accuracy for each value of a factor, in order, with Wilson intervals; -1 means unknown."""
    rows = []
    for value in np.unique(values[values >= 0]).tolist():
        mine = hit[values == value]
        right, total = int(mine.sum()), len(mine)
        rows.append(GroupAccuracy(value, right, total, *wilson_interval(right, total, level)))
    return rows
