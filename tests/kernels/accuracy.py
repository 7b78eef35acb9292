"""Errors and budgets relative to a result's size, for tests that can only afford one interpreted run."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from capsroute.testing import budget, distance

N_DRAWS = 12

Results = Mapping[str, Tensor]


def size(t: Tensor) -> float:
    """Return the largest absolute value, never zero."""
    return max(distance(t, torch.zeros_like(t)), 1e-30)


def relative_errors(found: Results, exact: Results) -> dict[str, float]:
    """Return by name how far results are from exact ones."""
    return {name: distance(found[name], t) / size(t) for name, t in exact.items()}


def assert_within_budget(
    kernels: Callable[[int], Results], reference: Callable[[int, torch.dtype], Results], times: float = 1
) -> None:
    """Compare one run of the kernels, on draw 0, with the largest budget of twelve draws: that of one is mere luck.

    Args:
        kernels: Results of the kernels for a seed.
        reference: Results of the reference for a seed, computed in a type.
        times: Budgets that the kernels may be off by.
    """
    allowed: dict[str, float] = {}
    for seed in range(N_DRAWS):
        exact = reference(seed, torch.float64)
        for name, may in budget(exact, [reference(seed, torch.float32)], torch.float32).items():
            allowed[name] = max(allowed.get(name, 0.0), times * may / size(exact[name]))
    errors = relative_errors(kernels(0), reference(0, torch.float64))
    assert {name: (error, allowed[name]) for name, error in errors.items() if not error <= allowed[name]} == {}
