"""Subsets of viewpoints, by azimuth and elevation: to train on some and test on others."""

from typing import NamedTuple

import numpy as np

from ..errors import UserError
from .pairs import Pairs

ALL, THIRD = "all", "third"


class Angle(NamedTuple):
    """Hold the values of one viewing angle of stereo pairs, in degrees."""

    first: int
    step: int
    n: int
    per_code: int  # degrees by which a metadata column's number counts
    third: str  # the third that Hinton, Sabour and Frosst (2018) train on

    @property
    def values(self) -> range:
        return range(self.first, self.first + self.step * self.n, self.step)

    @property
    def closes(self) -> bool:
        """Say whether the last value is followed by the first, so that a range may pass over it."""
        return self.step * self.n == 360


ANGLES = {"azimuth": Angle(0, 20, 18, 10, "300-40"), "elevation": Angle(30, 5, 9, 5, "30-40")}


def parse_angles(name: str, text: str) -> list[int]:
    """Return the degrees that a setting names: `all`, `third`, or ranges such as `300-40` or `0-80,200`.

    Args:
        name: `"azimuth"` or `"elevation"`.
        text: Both ends of a range belong to it; a range of azimuths may pass over 0.
    """
    angle = ANGLES[name]
    if text == ALL:
        return list(angle.values)
    found: set[int] = set()
    for part in (angle.third if text == THIRD else text).split(","):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isdecimal() and int(end) in angle.values for end in ends):
            raise ValueError(describe_expected(name))
        low, high = int(ends[0]), int(ends[-1])
        if low > high and not angle.closes:
            raise ValueError(describe_expected(name))
        found.update(v for v in angle.values if (low <= v <= high if low <= high else v >= low or v <= high))
    return sorted(found)


def describe_expected(name: str) -> str:
    """Return what the setting of an angle may be, for messages."""
    angle = ANGLES[name]
    grid = f"multiples of {angle.step} from {angle.first} to {angle.values[-1]}"
    return f"{ALL}, {THIRD} or ranges in degrees such as {angle.third}, of {grid}"


def match_angles(pairs: Pairs, name: str, text: str) -> np.ndarray:
    """Return which pairs are seen from the angles that a setting names, `[n]` bool."""
    angle, codes, wanted = ANGLES[name], getattr(pairs, name), parse_angles(name, text)
    if text == ALL:
        return np.ones(len(codes), dtype=bool)
    if (codes < 0).any():
        problem = f"the {name}s of these pairs are unknown, as in copies of smallNORB without them"
        raise UserError(f"{name}s: expected {ALL}, because {problem}, got {text!r}")
    return np.isin(angle.first + angle.per_code * codes, wanted)


def match_views(pairs: Pairs, azimuths: str, elevations: str) -> np.ndarray:
    """Return which pairs are seen from these azimuths and elevations, `[n]` bool."""
    return match_angles(pairs, "azimuth", azimuths) & match_angles(pairs, "elevation", elevations)
