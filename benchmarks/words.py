"""Numbers as readers want them, in tables and pictures alike."""

AS_GOOD = 1.05
"""Ratios closer to 1 are not worth a number."""


def short(number: float) -> str:
    """Two digits of a small number, all of a large one before the point."""
    return f"{number:.2f}" if number < 1 else f"{number:.1f}" if number < 10 else f"{number:,.0f}"


def compared(ratio: float, above: str, below: str, equal: str) -> str:
    """A ratio in words: `4.2x faster`, `1.3x slower`, or that there is no difference."""
    if 1 / AS_GOOD < ratio < AS_GOOD:
        return equal
    return f"{short(ratio)}x {above}" if ratio > 1 else f"{short(1 / ratio)}x {below}"


def size(mib: float) -> str:
    return f"{short(mib / 1024)} GiB" if mib >= 1024 else f"{short(mib)} MiB"


def brief(number: float, _: object = None) -> str:
    """A number on an axis."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return f"{number:g}"
