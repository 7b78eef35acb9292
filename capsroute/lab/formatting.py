"""Numbers and texts formatted for readers."""

import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")  # Unicode: control, format, surrogate, private, unassigned
JOINERS = "\u200c\u200d"  # format characters that some scripts and many emoji need


def percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def interval(bounds: tuple[float, float]) -> str:
    return f"{percent(bounds[0])} to {percent(bounds[1])}"


def readable(text: str, limit: int = 320) -> str:
    """Return any text on one line, cut between words if too long; characters that control a terminal become �."""
    line = " ".join(text.split())
    if len(line) > limit:
        head, _, _ = line[:limit].rpartition(" ")
        line = (head if len(head) > limit // 2 else line[: limit - 1]) + "…"  # a very long word is cut inside
    hidden = {c for c in line if unicodedata.category(c) in HIDDEN and c not in JOINERS}
    return "".join("�" if c in hidden else c for c in line) or "(empty)"


def plain(value: Any) -> str:
    """Return a setting's value: numbers as Python writes them, lists without brackets."""
    if isinstance(value, np.generic):
        value = value.item()
    return ", ".join(map(plain, value)) if isinstance(value, list | tuple) else str(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, their names joined by dots."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return result
