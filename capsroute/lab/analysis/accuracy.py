"""How often a classifier is right, overall and for each value of a factor, and how far chance may have moved that."""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch


class Share(NamedTuple):
    """How many images with one value of a factor were classified right, with a confidence interval."""

    value: int
    right: int
    total: int
    low: float
    high: float

    @property
    def accuracy(self) -> float:
        return self.right / self.total


def wilson(right: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a share of independent trials; unlike the normal one it never leaves 0 to 1."""
    if total < 1:
        raise ValueError(f"total: expected at least 1, got {total}")
    if not 0 <= right <= total:
        raise ValueError(f"right: expected 0 to {total}, got {right}")
    z = NormalDist().inv_cdf(0.5 + _checked_level(level) / 2)
    centre = (right + z * z / 2) / (total + z * z)
    half = z / (total + z * z) * math.sqrt(right * (total - right) / total + z * z / 4)
    # at the ends the bound is exact, where rounding would leave a trace
    return 0.0 if right == 0 else centre - half, 1.0 if right == total else centre + half


def by_instance_interval(
    hit: np.ndarray,
    category: np.ndarray,
    instance: np.ndarray,
    level: float = 0.95,
    *,
    n_draws: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Bootstrap interval of the accuracy over instances, that is over the pairs of category and instance.

    Images of one object succeed and fail together, so they say less than as many independent images would. Each draw
    takes as many objects as there are, with replacement and with all of their images.
    """
    hit, category, instance = _columns(hit=hit, category=category, instance=instance)
    if (instance < 0).any():
        raise ValueError(f"instance: expected known instances, got {int((instance < 0).sum())} unknown")
    objects, which = np.unique(np.stack([category, instance]), axis=1, return_inverse=True)
    n_objects = objects.shape[1]
    if n_objects < 2:
        raise ValueError(f"instance: expected at least 2 objects to draw from, got {n_objects}")
    tail = (1 - _checked_level(level)) / 2
    total = np.bincount(which.ravel())
    right = np.bincount(which.ravel(), weights=hit)
    times = np.random.default_rng(seed).multinomial(n_objects, np.full(n_objects, 1 / n_objects), size=n_draws)
    low, high = np.quantile((times @ right) / (times @ total), [tail, 1 - tail])
    return float(low), float(high)


def confusion(category: np.ndarray, predicted: np.ndarray, n_classes: int) -> np.ndarray:
    """Counts `[true, predicted]`; a class without images has a row of zeros."""
    from torchmetrics.functional.classification import multiclass_confusion_matrix  # slow to load

    category, predicted = _columns(category=category, predicted=predicted)
    for name, values in (("category", category), ("predicted", predicted)):
        if len(values) and not 0 <= values.min() <= values.max() < n_classes:
            raise ValueError(f"{name}: expected 0 to {n_classes - 1}, got {values.min()} to {values.max()}")
    return multiclass_confusion_matrix(torch.tensor(predicted), torch.tensor(category), n_classes).numpy()


def by_factor(hit: np.ndarray, values: np.ndarray, level: float = 0.95) -> list[Share]:
    """A row for each known value, in order; -1 means unknown. The intervals are Wilson's."""
    hit, values = _columns(hit=hit, values=values)
    rows = []
    for value in np.unique(values[values >= 0]):
        chosen = hit[values == value]
        right, total = int(chosen.sum()), len(chosen)
        rows.append(Share(int(value), right, total, *wilson(right, total, level)))
    return rows


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, in double precision."""
    return torch.tensor(scores, dtype=torch.float64).softmax(-1).numpy()


def _columns(**named: np.ndarray) -> list[np.ndarray]:
    """The arrays, after checking that each is one column and all are equally long."""
    columns = {name: np.asarray(values) for name, values in named.items()}
    n = len(next(iter(columns.values())))
    for name, column in columns.items():
        if column.shape != (n,):
            raise ValueError(f"{name}: expected [{n}], got shape {list(column.shape)}")
    return list(columns.values())


def _checked_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, got {level}")
    return level
