"""Convex solids and parallel rays through them, in closed form: what the toys are built of and seen by.

A solid is what a few planes and at most one quadric enclose: a ball, a rod (a cylinder or a cut cone) or a prism.
Rays of one view share their direction, so where they cross a plane is linear in the place on the image, and where they
cross a quadric is linear plus or minus the root of a polynomial of degree two. An image is cut into tiles of 4 x 4
pixels; only the tiles that a solid's shadow on the image touches are computed, each by one small matrix product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

TILE = 4  # pixels along the side of a tile
FACE_BITS = 9  # low bits of a distance that carry the face it was measured to
MISS = 2**31 - 1

Point = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Quadric:
    """Inside: `q Q q + 2 b q + c <= 0` with `q` measured from the solid's centre."""

    Q: np.ndarray  # [3, 3]
    b: np.ndarray  # [3]
    c: float
    widens: np.ndarray | None  # [3] along which a cone's radius grows, none for balls and cylinders


@dataclass(frozen=True)
class Solid:
    """A convex body of one paint."""

    centre: np.ndarray  # [3]
    planes: np.ndarray  # [k, 4]: inside, `n q <= h` with rows (n, h) and `q` measured from the centre
    quadric: Quadric | None
    rims: np.ndarray  # [m, 3, 4]: the body is the hull of these ellipsoids, columns are three half axes and the middle
    paint: float  # share of the light that it reflects

    def moved(self, scale: float, shift: np.ndarray) -> "Solid":
        """Scaled about the origin, then shifted."""
        planes = self.planes * [1, 1, 1, scale]
        quadric = self.quadric
        if quadric is not None:
            quadric = Quadric(quadric.Q / scale**2, quadric.b / scale, quadric.c, quadric.widens)
        rims = self.rims * scale
        rims[:, :, 3] += shift
        return Solid(self.centre * scale + shift, planes, quadric, rims, self.paint)


def reach(rims: np.ndarray | Tensor, along: np.ndarray | Tensor) -> Tensor:
    """How far the hull of ellipsoids `[..., 3, 4]` extends along directions `[n, 3]`: `[n, ...]`."""
    rims, along = torch.as_tensor(rims), torch.as_tensor(along)
    on_axes = torch.einsum("nk,...kl->n...l", along, rims)
    return on_axes[..., 3] + on_axes[..., :3].norm(dim=-1)


def turn(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> np.ndarray:
    """Rotation by degrees: roll about x, then pitch about y (nose up is positive), then yaw about z."""
    (cz, cy, cx), (sz, sy, sx) = ([f(np.radians(a)) for a in (yaw, -pitch, roll)] for f in (np.cos, np.sin))
    Rz = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    Ry = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    Rx = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    return Rz @ Ry @ Rx


def ball(centre: Point, radii: float | Point, paint: float, R: np.ndarray | None = None) -> Solid:
    """An ellipsoid."""
    axes = (np.eye(3) if R is None else R) * np.broadcast_to(radii, 3)  # columns are half axes
    M = np.linalg.inv(axes)
    centre = np.asarray(centre, float)
    rims = np.concatenate([axes, centre[:, None]], axis=1)[None]
    return Solid(centre, np.zeros((0, 4)), Quadric(M.T @ M, np.zeros(3), -1.0, None), rims, paint)


def rod(start: Point, end: Point, radius: float, paint: float, end_radius: float | None = None) -> Solid:
    """A cylinder, or with two radii a cut cone, with flat ends."""
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
    """The hull of two convex polygons `[m, 3]` in different planes, whose corresponding edges are parallel."""
    centre = np.concatenate([near, far]).mean(0)
    corners = [near, far]
    corners += [np.stack([near[k - 1], near[k], far[k], far[k - 1]]) for k in range(len(near))]
    planes = []
    for face in corners:
        # Newell's sum is the normal of a polygon even where an edge has shrunk to a point
        normal = np.cross(face, np.roll(face, -1, axis=0)).sum(0)
        normal /= np.linalg.norm(normal)
        h = normal @ (face.mean(0) - centre)
        planes.append(np.append(normal, h) if h > 0 else -np.append(normal, h))
    points = np.concatenate([near, far])
    rims = np.concatenate([np.zeros((len(points), 3, 3)), points[:, :, None]], axis=2)
    return Solid(centre, np.stack(planes), None, rims, paint)


def box(centre: Point, size: Point, paint: float, R: np.ndarray | None = None) -> Solid:
    """A block with the given edge lengths."""
    x, y, z = np.asarray(size, float) / 2
    square = np.array([[x, y], [-x, y], [-x, -y], [x, -y]])
    near, far = (np.c_[square, np.full(4, h)] @ (np.eye(3) if R is None else R).T for h in (-z, z))
    return prism(near + centre, far + centre, paint)


class Rays(NamedTuple):
    """Views of parallel rays: the ray at place (x, y) of view n is `o + x u + y v + t d`."""

    o: Tensor  # [n, 3] float64
    u: Tensor  # [n, 3]
    v: Tensor  # [n, 3]
    d: Tensor  # [n, 3]


class Grid(NamedTuple):
    """Where the samples of an image lie: tiles, and places within a tile; x to the right, y up."""

    centres: Tensor  # [tiles, 2] float64
    inner: Tensor  # [pixels in a tile * samples in a pixel, 2] float32, from the tile's centre
    n_side: int  # tiles along a side
    n_samples: int  # samples in a pixel


def grid(size: int, half: float, n_sub: int, device: torch.device) -> Grid:
    """Samples for an image of `size` pixels that spans -half to half, `n_sub` x `n_sub` samples in each pixel."""
    n_side = -(-size // TILE)
    pixel = 2 * half / size
    edge = torch.arange(n_side, dtype=torch.float64, device=device) * TILE * pixel - half + TILE * pixel / 2
    centres = torch.stack(torch.meshgrid(edge, -edge, indexing="xy"), dim=-1).reshape(-1, 2)
    place = (torch.arange(TILE, device=device) - (TILE - 1) / 2) * pixel  # [4]
    sample = ((torch.arange(n_sub, device=device) + 0.5) / n_sub - 0.5) * pixel
    x = place[None, :, None, None] + sample[None, None, None, :]
    y = -place[:, None, None, None] - sample[None, None, :, None]
    inner = torch.stack(torch.broadcast_tensors(x, y), dim=-1).reshape(-1, 2).float()
    return Grid(centres, inner, n_side, n_sub * n_sub)


def to_image(tiles: Tensor, size: int) -> Tensor:
    """From tiles `[n, tiles, pixels in a tile, channels]` to images `[n, channels, size, size]`."""
    n, n_tiles, _, channels = tiles.shape
    n_side = round(n_tiles**0.5)
    image = tiles.reshape(n, n_side, n_side, TILE, TILE, channels).permute(0, 5, 1, 3, 2, 4)
    return image.reshape(n, channels, n_side * TILE, n_side * TILE)[..., :size, :size]


def first_hits(solids: Sequence[Solid], rays: Rays, on: Grid) -> Tensor:
    """What each ray meets first, `[n, tiles, samples in a tile]` int32: distance and face in one number, or MISS.

    Positive floats order as their bits do. So the lowest bits of a distance can make room for the number of a face,
    and one minimum keeps both.
    """
    n, n_tiles, device = len(rays.o), len(on.centres), rays.o.device
    hits = torch.full((n * n_tiles, len(on.inner)), MISS, dtype=torch.int32, device=device)
    dx, dy = on.inner.unbind(-1)
    linear = torch.stack([torch.ones_like(dx), dx, dy])
    square = torch.stack([torch.ones_like(dx), dx, dy, dx * dx, dx * dy, dy * dy])
    readers = _image_axes(rays)
    face = 0
    for solid in solids:
        seen = _tiles_touched(solid, rays.o, readers, on)  # [p] into views x tiles
        view, xy = seen // n_tiles, on.centres[seen % n_tiles]
        some = Rays(*(axis[view] for axis in rays))
        near, far = _span(solid, some, xy, linear, square, face)
        near = torch.where(near <= far, near, MISS)
        hits[seen] = torch.minimum(hits[seen], near)
        face += len(solid.planes) + (solid.quadric is not None)
    return hits.view(n, n_tiles, -1)


def _image_axes(rays: Rays) -> Tensor:
    """Rows that read x and y of a point off, given that it is `o + x u + y v + t d`: `[n, 2, 3]`."""
    return torch.linalg.inv(torch.stack([rays.u, rays.v, rays.d], dim=-1))[:, :2]


def _tiles_touched(solid: Solid, o: Tensor, readers: Tensor, on: Grid) -> Tensor:
    """Indices into views x tiles of the tiles whose rays may meet the solid."""
    rims = torch.as_tensor(solid.rims, device=o.device)
    e = readers.reshape(-1, 3)
    bounds = torch.stack([-reach(rims, -e).amax(1), reach(rims, e).amax(1)], dim=-1).view(-1, 2, 2)
    bounds = bounds - readers @ o.unsqueeze(-1)  # [n, xy, low and high]
    margin = on.inner.abs().amax(0).double()
    x = on.centres[: on.n_side, 0]  # of columns; rows lie at -x
    columns = (x >= bounds[:, 0, :1] - margin[0]) & (x <= bounds[:, 0, 1:] + margin[0])
    rows = (-x >= bounds[:, 1, :1] - margin[1]) & (-x <= bounds[:, 1, 1:] + margin[1])
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).flatten().nonzero().squeeze(-1)


def _span(solid: Solid, rays: Rays, xy: Tensor, linear: Tensor, square: Tensor, face: int) -> tuple[Tensor, Tensor]:
    """Where the rays of some tiles enter and leave a solid, `[p, samples]` int32 bits; faces count from `face`."""
    device = xy.device
    rel = rays.o - torch.as_tensor(solid.centre, device=device)
    start = rel + xy[:, :1] * rays.u + xy[:, 1:] * rays.v  # [p, 3] from the solid's centre to the tile's
    near = far = None
    if len(solid.planes):
        near, far = _between_planes(torch.as_tensor(solid.planes, device=device), start, rays, linear, face)
    if solid.quadric is not None:
        lo, hi = _within_quadric(solid.quadric, start, rays, linear, square)
        lo = _keys(lo, face + len(solid.planes))
        hi = hi.clamp_(min=0).view(torch.int32)
        near = lo if near is None else torch.maximum(near, lo)
        far = hi if far is None else torch.minimum(far, hi)
    if near is None or far is None:
        raise ValueError("solid: expected planes or a quadric, got neither")
    return near, far


def _keys(t: Tensor, face: int | Tensor) -> Tensor:
    bits = t.clamp_(min=0).view(torch.int32)
    return bits.bitwise_and_(-(2**FACE_BITS)).bitwise_or_(face)


def _between_planes(planes: Tensor, start: Tensor, rays: Rays, linear: Tensor, face: int) -> tuple[Tensor, Tensor]:
    """Past the last plane that a ray enters through and before the first that it leaves through."""
    normal, h = planes[:, :3], planes[:, 3]
    rate = rays.d @ normal.T  # [p, k]
    rate = torch.where(rate.abs() < 1e-9, 1e-9, rate)
    value = torch.stack([h - start @ normal.T, -rays.u @ normal.T, -rays.v @ normal.T], dim=-1)  # [p, k, 3]
    value = value / rate.unsqueeze(-1)
    leaving = rate > 0
    never = torch.zeros(3, dtype=value.dtype, device=value.device)
    entering = torch.where(leaving.unsqueeze(-1), never, value).float() @ linear  # [p, k, samples]
    faces = torch.arange(face, face + len(planes), dtype=torch.int32, device=value.device)
    near = _keys(entering, faces.unsqueeze(-1)).amax(1)
    never[0] = 1e9
    far = torch.where(leaving.unsqueeze(-1), value, never).float() @ linear
    return near, far.amin(1).clamp_(min=0).view(torch.int32)


def _within_quadric(
    quadric: Quadric, start: Tensor, rays: Rays, linear: Tensor, square: Tensor
) -> tuple[Tensor, Tensor]:
    """Between the two roots, or, along a cone's axis, beyond the one on the side of its base."""
    Q, b = (torch.as_tensor(x, device=start.device) for x in (quadric.Q, quadric.b))

    def form(x: Tensor, y: Tensor) -> Tensor:
        return ((x @ Q) * y).sum(-1)

    d, u, v = rays.d, rays.u, rays.v
    A = form(d, d)
    A = torch.where(A.abs() < 1e-9, 1e-9, A)
    B = torch.stack([form(d, start) + d @ b, form(d, u), form(d, v)], dim=-1) / A.unsqueeze(-1)  # [p, 3]
    C0 = form(start, start) + 2 * (start @ b) + quadric.c
    C1 = [2 * (form(start, u) + u @ b), 2 * (form(start, v) + v @ b)]
    C = torch.stack([C0, *C1, form(u, u), 2 * form(u, v), form(v, v)], dim=-1) / A.unsqueeze(-1)  # [p, 6]
    b0, bx, by = B.unbind(-1)
    D = torch.stack([b0 * b0, 2 * b0 * bx, 2 * b0 * by, bx * bx, 2 * bx * by, by * by], dim=-1) - C
    D, middle = D.float() @ square, -B.float() @ linear  # [p, samples]
    root = D.clamp(min=0).sqrt_()
    lo, hi = middle - root, middle + root
    if quadric.widens is None:
        return torch.where(D < 0, 1e9, lo), hi
    # rays steeper than the cone's side meet both its halves; only one is ours
    steep = (A < 0).unsqueeze(-1)
    ahead = (d @ torch.as_tensor(quadric.widens, device=d.device) > 0).unsqueeze(-1)
    near = torch.where(steep, torch.where(ahead, hi, 0.0), torch.where(D < 0, 1e9, lo))
    return near, torch.where(steep, torch.where(ahead, 1e9, lo), hi)


class Faces(NamedTuple):
    """The affine map from a point on each face to an outward normal, and each face's paint."""

    normals: np.ndarray  # [faces, 3, 4] float32
    paints: np.ndarray  # [faces] float32


def faces(solids: Sequence[Solid]) -> Faces:
    """Faces in the order in which `first_hits` counts them."""
    maps, paints = [], []
    for solid in solids:
        maps += [np.c_[np.zeros((3, 3)), plane[:3]] for plane in solid.planes]
        if solid.quadric is not None:
            Q, b = solid.quadric.Q, solid.quadric.b
            maps.append(np.c_[Q, b - Q @ solid.centre])
        paints += [solid.paint] * (len(maps) - len(paints))
    if len(maps) > 2**FACE_BITS:
        raise ValueError(f"solids: expected at most {2**FACE_BITS} faces, got {len(maps)}")
    return Faces(np.stack(maps).astype(np.float32), np.array(paints, np.float32))
