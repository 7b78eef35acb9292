"""Numbers and texts as a reader wants them."""

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np

UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode's categories of control, format, surrogate, private and unassigned characters."""
JOINERS = "\u200c\u200d"
"""Format characters that some scripts and many emoji are written with."""


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


def readable(text: str, limit: int = 320) -> str:
    """A text of unknown origin on one line: too long a one cut between words, what cannot or must not show as �."""
    line = " ".join(text.split())
    if len(line) > limit:
        head, _, _ = line[:limit].rpartition(" ")
        # a word that is very long itself is cut inside
        line = (head if len(head) > limit // 2 else line[: limit - 1]) + "…"
    return "".join(map(_shown, line)) or "(empty)"


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


def _shown(character: str) -> str:
    """Itself, unless it would control the page rather than stand on it, as those do that turn the direction."""
    unseen = unicodedata.category(character) in UNSEEN and character not in JOINERS
    return "�" if unseen else character
