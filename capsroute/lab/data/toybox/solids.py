"""Convex solids, and the parts of toys that are built of them.

A solid is what a few planes and at most one quadric enclose: a ball, a rod (a cylinder or a cut cone) or a prism. Toys
look along x, y is to their left, z up. Lengths are free: a finished toy is scaled to the frame.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

SIDES = (-1, 1)  # right, left
GLASS, DARK = 0.12, 0.16  # paints

Point = Sequence[float] | np.ndarray
Outline = Sequence[tuple[float, float]]


class Quadric(NamedTuple):
    """Hold the surface inside of which `q Q q + 2 b q + c <= 0`, with `q` measured from the solid's centre."""

    Q: np.ndarray  # [3, 3]
    b: np.ndarray  # [3]
    c: float
    widens: np.ndarray | None  # [3] along which a cone's radius grows, none for balls and cylinders


class Solid(NamedTuple):
    """Hold a convex body of one paint."""

    centre: np.ndarray  # [3]
    planes: np.ndarray  # [k, 4]: inside, `n q <= h` with rows (n, h) and `q` measured from the centre
    quadric: Quadric | None
    rims: np.ndarray  # [m, 3, 4]: the body is the hull of these ellipsoids, columns are three half axes and the middle
    paint: float  # share of the light that it reflects

    def moved(self, scale: float, shift: np.ndarray) -> "Solid":
        """Return the solid scaled about the origin, then shifted."""
        quadric = self.quadric and self.quadric._replace(Q=self.quadric.Q / scale**2, b=self.quadric.b / scale)
        rims = self.rims * scale
        rims[:, :, 3] += shift
        return Solid(self.centre * scale + shift, self.planes * [1, 1, 1, scale], quadric, rims, self.paint)


def turn(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> np.ndarray:
    """Return a rotation by degrees: roll about x, then pitch about y (nose up is positive), then yaw about z."""
    (cz, cy, cx), (sz, sy, sx) = ([f(np.radians(a)) for a in (yaw, -pitch, roll)] for f in (np.cos, np.sin))
    Rz = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    Ry = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    Rx = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    return Rz @ Ry @ Rx


def ball(centre: Point, radii: float | Point, paint: float, R: np.ndarray | None = None) -> Solid:
    """Return an ellipsoid."""
    axes = (np.eye(3) if R is None else R) * np.broadcast_to(radii, 3)  # columns are half axes
    M = np.linalg.inv(axes)
    centre = np.asarray(centre, float)
    return Solid(centre, np.zeros((0, 4)), Quadric(M.T @ M, np.zeros(3), -1.0, None), np.c_[axes, centre][None], paint)


def rod(start: Point, end: Point, radius: float, paint: float, end_radius: float | None = None) -> Solid:
    """Return a cylinder, or with two radii a cut cone, with flat ends."""
    start, end = np.asarray(start, float), np.asarray(end, float)
    end_radius = radius if end_radius is None else end_radius
    centre, length = (start + end) / 2, float(np.linalg.norm(end - start))
    a = (end - start) / length
    mean, slope = (radius + end_radius) / 2, (end_radius - radius) / length
    Q = np.eye(3) - np.outer(a, a) * (1 + slope**2)
    quadric = Quadric(Q / mean**2, -mean * slope * a / mean**2, -1.0, a * slope if slope else None)
    planes = np.stack([np.append(a, length / 2), np.append(-a, length / 2)])
    side = np.cross(a, [1, 0, 0] if abs(a[0]) < 0.7 else [0, 1, 0])
    side /= np.linalg.norm(side)
    disc = np.stack([side, np.cross(a, side), np.zeros(3)], axis=1)
    rims = np.stack([np.c_[disc * r, p] for r, p in ((radius, start), (end_radius, end))])
    return Solid(centre, planes, quadric, rims, paint)


def prism(near: np.ndarray, far: np.ndarray, paint: float) -> Solid:
    """Return the hull of two convex polygons `[m, 3]` in different planes, whose corresponding edges are parallel."""
    points = np.concatenate([near, far])
    centre = points.mean(0)
    sides = [np.stack([near[k - 1], near[k], far[k], far[k - 1]]) for k in range(len(near))]
    planes = []
    for face in (near, far, *sides):
        # Newell's sum is the normal of a polygon even where an edge has shrunk to a point
        normal = np.cross(face, np.roll(face, -1, axis=0)).sum(0)
        normal /= np.linalg.norm(normal)
        h = normal @ (face.mean(0) - centre)
        planes.append(np.append(normal, h) if h > 0 else -np.append(normal, h))
    rims = np.concatenate([np.zeros((len(points), 3, 3)), points[:, :, None]], axis=2)
    return Solid(centre, np.stack(planes), None, rims, paint)


def box(centre: Point, size: Point, paint: float, R: np.ndarray | None = None) -> Solid:
    """Return a block with the given edge lengths."""
    x, y, z = np.asarray(size, float) / 2
    square = np.array([[x, y], [-x, y], [-x, -y], [x, -y]])
    near, far = (np.c_[square, np.full(4, h)] @ (np.eye(3) if R is None else R).T for h in (-z, z))
    return prism(near + centre, far + centre, paint)


def find_hull(points: Outline) -> np.ndarray:
    """Return the corners of a convex hull in order, so that varied outlines stay fit for a prism."""
    from scipy.spatial import ConvexHull  # of scikit-learn's dependencies; slow to import

    corners = np.array(points)[ConvexHull(points).vertices]
    return np.roll(corners, -np.lexsort(corners.T[::-1])[0], axis=0)  # the leftmost first


def profile(xz: Outline, width: float, paint: float, *, lean: float = 0.0, y: float = 0.0) -> Solid:
    """Return a side view extruded to a width, its sides leaning inwards with height."""
    x, z = find_hull(xz).T
    half = width / 2 - lean * (z - z.min())
    return prism(np.stack([x, y - half, z], axis=1), np.stack([x, y + half, z], axis=1), paint)


def plate(xy: Outline, z: float, thick: float, paint: float, *, rise: float = 0.0, side: int = 1) -> Solid:
    """Return a plan extruded upwards that rises with the distance from the middle; `side` -1 mirrors it."""
    points = find_hull([(x, side * y) for x, y in xy])
    height = z + rise * np.abs(points[:, 1])
    low, high = (np.c_[points, height + h] for h in (-thick / 2, thick / 2))
    return prism(low, high, paint)


def limb(points: Sequence[Point], radii: Sequence[float], paint: float, *, ends: bool = True) -> Iterator[Solid]:
    """Build rods from joint to joint, with a ball at each joint but the first and, if `ends`, at the last."""
    for line, (r, end_radius) in zip(pairwise(points), pairwise(radii), strict=True):
        yield rod(*line, r, paint, end_radius)
    joints = list(zip(points, radii, strict=True))[1 : None if ends else -1]
    yield from (ball(point, r, paint) for point, r in joints)


def axles(xs: Sequence[float], track: float, radius: float, width: float, hub: float) -> Iterator[Solid]:
    """Build a pair of wheels on the ground at each x, `track` apart over all."""
    for x in xs:
        for side in SIDES:
            inner, outer = side * (track / 2 - width), side * (track / 2)
            yield rod((x, inner, radius), (x, outer, radius), radius, 0.1)
            yield rod((x, inner, radius), (x, outer + side * 0.12 * width, radius), radius * 0.52, hub)


def heading(swing: float, splay: float = 0.0, side: int = 1) -> np.ndarray:
    """Return the unit vector of a limb that hangs down, swung forwards and splayed outwards by degrees."""
    a, b = np.radians(swing), np.radians(splay)
    return np.array([np.sin(a) * np.cos(b), side * np.sin(b), -np.cos(a) * np.cos(b)])
