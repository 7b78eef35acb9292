"""Numbers as a reader wants them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def interval(bounds: tuple[float, float]) -> str:
    return f"{percent(bounds[0])} to {percent(bounds[1])}"


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def fact(name: str, value: Any) -> tuple[str, str]:
    """A number of a run and its name, for people: `training_seconds` is a time, whole numbers have commas."""
    words = name.split("_")
    if "seconds" in words and isinstance(value, int | float):
        return " ".join("time" if word == "seconds" else word for word in words), duration(value)
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return " ".join(words), f"{value:,}" if whole else plain(value)


def plain(value: Any) -> str:
    """A setting's value: numbers as they are written in Python, to be copied, and lists without brackets."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return str(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Mappings inside mappings brought to one level, their names joined by dots."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
