"""Parts that the toys share: plates, side profiles, limbs and wheels, and how a seed varies a toy's proportions.

Toys look along x, y is to their left, z up. Lengths are free: a finished toy is scaled to the frame.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from .solids import Point, Solid, ball, prism, rod

Spec = TypeVar("Spec")
SIDES = (-1, 1)  # right, left
GLASS = 0.12  # paints
DARK = 0.16


def vary_floats(spec: Spec, rng: np.random.Generator, by: float = 0.05) -> Spec:
    """A copy of a dataclass in which every float, also within tuples, has changed by at most a share `by` of itself."""

    def vary(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(vary(part) for part in value)
        return value * (1 + by * rng.uniform(-1, 1)) if isinstance(value, float) else value

    values = {f.name: vary(getattr(spec, f.name)) for f in fields(spec)}  # type: ignore[arg-type]
    return replace(spec, **values)  # type: ignore[type-var]


def convex(points: Sequence[tuple[float, float]]) -> np.ndarray:
    """Corners of the convex hull of points in the plane, in order: varied profiles stay fit for a prism."""
    ordered = sorted({(float(x), float(y)) for x, y in points})

    def chain(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        kept: list[tuple[float, float]] = []
        for p in points:
            while len(kept) > 1:
                (ax, ay), (bx, by) = kept[-2:]
                if (bx - ax) * (p[1] - ay) - (by - ay) * (p[0] - ax) > 1e-9:
                    break
                kept.pop()
            kept.append(p)
        return kept[:-1]

    return np.array(chain(ordered) + chain(ordered[::-1]))


def profile(
    xz: Sequence[tuple[float, float]],
    width: float,
    paint: float,
    *,
    lean: float = 0.0,
    narrow: float = 0.0,
    y: float = 0.0,
) -> Solid:
    """A side view drawn out across `width`, its sides leaning inwards with height and narrowing towards the front."""
    points = convex(xz)
    x, z = points.T
    half = width / 2 - lean * (z - z.min()) - narrow * (x - x.min())
    return prism(np.stack([x, y - half, z], axis=1), np.stack([x, y + half, z], axis=1), paint)


def plate(
    xy: Sequence[tuple[float, float]], z: float, thick: float, paint: float, *, rise: float = 0.0, side: int = 1
) -> Solid:
    """A plan drawn out upwards, rising with the distance from the middle; `side` -1 mirrors it."""
    points = convex([(x, side * y) for x, y in xy])
    height = z + rise * np.abs(points[:, 1])
    low, high = (np.c_[points, height + h] for h in (-thick / 2, thick / 2))
    return prism(low, high, paint)


def limb(points: Sequence[Point], radii: Sequence[float], paint: float, *, ends: bool = True) -> list[Solid]:
    """Rods from joint to joint with a ball at each."""
    points = [np.asarray(p, float) for p in points]
    bones = zip(points[:-1], points[1:], radii[:-1], radii[1:], strict=True)
    parts = [rod(a, b, r, paint, s) for a, b, r, s in bones]
    joints = zip(points[1:], radii[1:], strict=True) if ends else zip(points[1:-1], radii[1:-1], strict=True)
    return parts + [ball(p, r, paint) for p, r in joints]


def wheel(
    x: float, y: float, radius: float, width: float, side: int, tyre: float = 0.1, hub: float = 0.7
) -> list[Solid]:
    """A wheel on the ground, its outer face at distance `y` from the middle."""
    inner, outer = side * (y - width), side * y
    return [
        rod((x, inner, radius), (x, outer, radius), radius, tyre),
        rod((x, inner, radius), (x, outer + side * 0.12 * width, radius), radius * 0.52, hub),
    ]


def axles(xs: Sequence[float], track: float, radius: float, width: float, hub: float = 0.7) -> list[Solid]:
    """A pair of wheels at each x, `track` apart over all."""
    return [part for x in xs for side in SIDES for part in wheel(x, track / 2, radius, width, side, hub=hub)]


def shifted(point: np.ndarray, x: float, y: float, z: float) -> np.ndarray:
    return point + np.array([x, y, z])


def heading(swing: float, splay: float = 0.0, side: int = 1) -> np.ndarray:
    """Unit vector of a limb that hangs down, swung forwards and splayed outwards by degrees."""
    a, b = np.radians(swing), np.radians(splay)
    return np.array([np.sin(a) * np.cos(b), side * np.sin(b), -np.cos(a) * np.cos(b)])
