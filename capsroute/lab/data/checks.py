"""The error that all datasets raise, and checks of their arguments."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import UserError


class DataError(UserError):
    """Report data that is missing or wrong; the message names the file or address and says what to do."""


def check_split(split: str, splits: Iterable[str]) -> None:
    if split not in splits:
        raise ValueError(f"split: expected one of {list(splits)}, got {split!r}")


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raise unless `value` is an integer from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name}: expected {wanted}, got {value}")
