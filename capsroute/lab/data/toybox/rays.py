"""Parallel rays through convex solids, in closed form.

Rays of one view share their direction, so where they cross a plane is linear in the place on the image, and where they
cross a quadric is linear plus or minus the root of a polynomial of degree two. An image is cut into tiles of 4 x 4
pixels; only the tiles that a solid's shadow on the image touches are computed, each by one small matrix product.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .solids import Quadric, Solid

TILE = 4  # pixels along the side of a tile
FACE_BITS = 9  # low bits of a distance that carry the face it was measured to
MISS = 2**31 - 1


class Rays(NamedTuple):
    """Hold views of parallel rays: the ray at place (x, y) of view n is `o + x u + y v + t d`."""

    o: Tensor  # [n, 3] float64
    u: Tensor  # [n, 3]
    v: Tensor  # [n, 3]
    d: Tensor  # [n, 3]


class Grid(NamedTuple):
    """Hold where the samples of an image lie: tiles, and places within a tile; x to the right, y up."""

    centres: Tensor  # [tiles, 2] float64
    inner: Tensor  # [pixels in a tile * samples in a pixel, 2] float32, from the tile's centre
    n_side: int  # tiles along a side
    n_samples: int  # samples in a pixel


def make_grid(size: int, half: float, n_sub: int, device: torch.device) -> Grid:
    """Return `n_sub` x `n_sub` samples in each of `size` x `size` pixels of an image that spans -half to half."""
    n_side, pixel = -(-size // TILE), 2 * half / size
    edge = torch.arange(n_side, dtype=torch.float64, device=device) * TILE * pixel - half + TILE * pixel / 2
    centres = torch.stack(torch.meshgrid(edge, -edge, indexing="xy"), dim=-1).reshape(-1, 2)
    place = (torch.arange(TILE, device=device) - (TILE - 1) / 2) * pixel  # [4]
    sample = ((torch.arange(n_sub, device=device) + 0.5) / n_sub - 0.5) * pixel
    x = place[None, :, None, None] + sample[None, None, None, :]
    y = -place[:, None, None, None] - sample[None, None, :, None]
    inner = torch.stack(torch.broadcast_tensors(x, y), dim=-1).reshape(-1, 2).float()
    return Grid(centres, inner, n_side, n_sub * n_sub)


def to_image(tiles: Tensor, size: int) -> Tensor:
    """Rearrange tiles `[n, tiles, pixels in a tile, channels]` to images `[n, channels, size, size]`."""
    n, n_tiles, _, channels = tiles.shape
    n_side = round(n_tiles**0.5)
    image = tiles.reshape(n, n_side, n_side, TILE, TILE, channels).permute(0, 5, 1, 3, 2, 4)
    return image.reshape(n, channels, n_side * TILE, n_side * TILE)[..., :size, :size]


def list_faces(solids: Sequence[Solid]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each face, as `find_first_hits` counts them, the affine map `[3, 4]` to a normal, and the paint."""
    maps, paints = [], []
    for solid in solids:
        maps += [np.c_[np.zeros((3, 3)), plane[:3]] for plane in solid.planes]
        if solid.quadric is not None:
            Q, b, *_ = solid.quadric
            maps.append(np.c_[Q, b - Q @ solid.centre])
        paints += [solid.paint] * (len(maps) - len(paints))
    if len(maps) > 2**FACE_BITS:
        raise ValueError(f"solids: expected at most {2**FACE_BITS} faces, got {len(maps)}")
    return np.stack(maps).astype(np.float32), np.array(paints, np.float32)


def measure_extent(rims: np.ndarray | Tensor, along: np.ndarray | Tensor) -> Tensor:
    """Return how far the hull of ellipsoids `[..., 3, 4]` extends along directions `[n, 3]`: `[n, ...]`."""
    on_axes = torch.einsum("nk,...kl->n...l", torch.as_tensor(along), torch.as_tensor(rims))
    return on_axes[..., 3] + on_axes[..., :3].norm(dim=-1)


def find_first_hits(solids: Sequence[Solid], rays: Rays, grid: Grid) -> Tensor:
    """Return what each ray meets first, distance and face in one number or MISS, `[n, tiles, samples in a tile]` int32.

    Positive floats order as their bits do. So the lowest bits of a distance can make room for the number of a face,
    and one minimum keeps both.
    """
    n, n_tiles, device = len(rays.o), len(grid.centres), rays.o.device
    hits = torch.full((n * n_tiles, len(grid.inner)), MISS, dtype=torch.int32, device=device)
    dx, dy = grid.inner.unbind(-1)
    linear = torch.stack([torch.ones_like(dx), dx, dy])
    square = torch.stack([torch.ones_like(dx), dx, dy, dx * dx, dx * dy, dy * dy])
    # rows that give x and y of a point `o + x u + y v + t d`, [n, 2, 3]
    to_xy = torch.linalg.inv(torch.stack([rays.u, rays.v, rays.d], dim=-1))[:, :2]
    face = 0
    for solid in solids:
        touched = _find_tiles(solid, rays.o, to_xy, grid)  # [p] into views x tiles
        view, xy = touched // n_tiles, grid.centres[touched % n_tiles]
        near, far = _find_span(solid, Rays(*(axis[view] for axis in rays)), xy, linear, square, face)
        hits[touched] = torch.minimum(hits[touched], torch.where(near <= far, near, MISS))
        face += len(solid.planes) + (solid.quadric is not None)
    return hits.view(n, n_tiles, -1)


def _find_tiles(solid: Solid, o: Tensor, to_xy: Tensor, grid: Grid) -> Tensor:
    """Return indices into views x tiles of the tiles whose rays may meet the solid."""
    rims, axes = torch.as_tensor(solid.rims, device=o.device), to_xy.reshape(-1, 3)
    low, high = -measure_extent(rims, -axes).amax(1), measure_extent(rims, axes).amax(1)
    bounds = torch.stack([low, high], dim=-1).view(-1, 2, 2) - to_xy @ o.unsqueeze(-1)  # [n, xy, low and high]
    margin = grid.inner.abs().amax(0).double()
    x = grid.centres[: grid.n_side, 0]  # of columns; rows lie at -x
    columns = (x >= bounds[:, 0, :1] - margin[0]) & (x <= bounds[:, 0, 1:] + margin[0])
    rows = (-x >= bounds[:, 1, :1] - margin[1]) & (-x <= bounds[:, 1, 1:] + margin[1])
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).flatten().nonzero().squeeze(-1)


def _find_span(
    solid: Solid, rays: Rays, xy: Tensor, linear: Tensor, square: Tensor, face: int
) -> tuple[Tensor, Tensor]:
    """Return where the rays of some tiles enter and leave a solid, `[p, samples]` int32; faces count from `face`."""
    centre, planes = (torch.as_tensor(x, device=xy.device) for x in (solid.centre, solid.planes))
    start = rays.o - centre + xy[:, :1] * rays.u + xy[:, 1:] * rays.v  # [p, 3] from the solid's centre to the tile's
    spans = [_cross_planes(planes, start, rays, linear, face)] if len(planes) else []
    if solid.quadric is not None:
        near, far = _cross_quadric(solid.quadric, start, rays, linear, square)
        spans.append((_pack_face(near, face + len(planes)), far.clamp_(min=0).view(torch.int32)))
    nears, fars = zip(*spans, strict=True)
    return reduce(torch.maximum, nears), reduce(torch.minimum, fars)


def _pack_face(t: Tensor, face: int | Tensor) -> Tensor:
    return t.clamp_(min=0).view(torch.int32).bitwise_and_(-(2**FACE_BITS)).bitwise_or_(face)


def _cross_planes(planes: Tensor, start: Tensor, rays: Rays, linear: Tensor, face: int) -> tuple[Tensor, Tensor]:
    """Return the last plane that each ray enters through and the first that it leaves through."""
    normal, h = planes[:, :3], planes[:, 3]
    rate = rays.d @ normal.T  # [p, k]
    rate = torch.where(rate.abs() < 1e-9, 1e-9, rate)
    value = torch.stack([h - start @ normal.T, -rays.u @ normal.T, -rays.v @ normal.T], dim=-1)  # [p, k, 3]
    value = value / rate.unsqueeze(-1)
    leaving = (rate > 0).unsqueeze(-1)
    never = torch.tensor([1e9, 0, 0], dtype=value.dtype, device=value.device)
    entering = torch.where(leaving, 0.0, value).float() @ linear  # [p, k, samples]
    faces = torch.arange(face, face + len(planes), dtype=torch.int32, device=value.device)
    far = torch.where(leaving, value, never).float() @ linear
    return _pack_face(entering, faces.unsqueeze(-1)).amax(1), far.amin(1).clamp_(min=0).view(torch.int32)


def _cross_quadric(
    quadric: Quadric, start: Tensor, rays: Rays, linear: Tensor, square: Tensor
) -> tuple[Tensor, Tensor]:
    """Return both roots, or, along a cone's axis, the span beyond the root on the side of its base."""
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
    first, far = middle - root, middle + root
    near = torch.where(D < 0, 1e9, first)
    if quadric.widens is None:
        return near, far
    # rays steeper than the cone's side meet both its halves; only one is ours
    steep = (A < 0).unsqueeze(-1)
    ahead = (d @ torch.as_tensor(quadric.widens, device=d.device) > 0).unsqueeze(-1)
    near = torch.where(steep, torch.where(ahead, far, 0.0), near)
    return near, torch.where(steep, torch.where(ahead, 1e9, first), far)
