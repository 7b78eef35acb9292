"""A turntable on light ground, seen by two eyes under six lightings, with the shadows that toys cast.

World axes: x from the turntable towards the eyes, y to their right, z up. The toy turns, the eyes rise, the lights
stay. A frame reaches from -1 to 1, and a toy is scaled to fill most of it. Geometry is found in the toy's own axes,
once for all lightings.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .rays import FACE_BITS, MISS, Grid, Rays, find_first_hits, list_faces, make_grid, measure_extent, to_image
from .solids import Point, Solid

EYE_ANGLE = 3.5  # degrees of each eye from straight ahead
DISTANCE = 4.0  # of the eyes; any will do, as rays are parallel
FILL = 0.93  # share of the frame that a toy's farthest point reaches
N_SUB = 2  # samples along the side of a pixel
SHADOW_SIZE, SHADOW_HALF = 64, 2.5  # pixels and reach of a map of shadows on the ground
SHADOW_AWAY = 0.9  # of its middle from the toy's: eyes see more of the ground behind the toy than before it
SPREAD = 5.0  # degrees by which a lamp's rays differ, which softens shadows
AROUND = ((0.0, 90.0), *((azimuth, 38.0) for azimuth in range(0, 360, 60)))  # the sky, for its soft shadow


class Lighting(NamedTuple):
    """Hold a lamp and the light from the sky."""

    azimuth: float  # degrees from the eyes, to their right
    elevation: float  # degrees
    key: float  # strength of the directed light
    sky: float  # strength of the light from all around, above more than below


LIGHTINGS = (
    Lighting(-50.0, 50.0, 0.7, 0.34),
    Lighting(55.0, 45.0, 0.66, 0.34),
    Lighting(0.0, 75.0, 0.6, 0.4),
    Lighting(-115.0, 38.0, 0.65, 0.42),
    Lighting(125.0, 55.0, 0.58, 0.34),
    Lighting(20.0, 35.0, 0.3, 0.6),
)


class Toy(NamedTuple):
    """Hold solids that are ready to be rendered."""

    solids: list[Solid]  # standing on z = 0, turning about the z axis
    height: float  # of the point the eyes look at
    faces: tuple[np.ndarray, np.ndarray]  # affine maps from points to outward normals [k, 3, 4], and paints [k]


def place_toy(solids: Sequence[Solid], shift: Point = (0.0, 0.0), scale: float = 1.0) -> Toy:
    """Stand solids on the ground in the middle, scaled so that they fill the frame from wherever they are seen."""
    rims = np.concatenate([solid.rims for solid in solids])
    low, high = (s * measure_extent(rims, s * np.eye(3)).amax(1).numpy() for s in (-1, 1))
    foot, height = np.append((low + high)[:2] / 2, low[2]), (high - low)[2] / 2
    rims[:, :, 3] -= foot + np.array([0, 0, height])
    around = _aim_rays(torch.arange(0, 360, 10).repeat(3), torch.tensor([30.0, 50.0, 70.0]).repeat_interleave(36))
    most = max(float(measure_extent(rims, s * axis).max()) for axis in (around.u, around.v) for s in (-1, 1))
    factor = scale * FILL / most
    moved = [solid.moved(factor, np.append(shift, 0.0) - foot * factor) for solid in solids]
    return Toy(moved, height * factor, list_faces(moved))


def _find_direction(azimuth: Tensor, elevation: Tensor) -> Tensor:
    """Return unit vectors towards angles in degrees."""
    a, e = torch.deg2rad(azimuth.double()), torch.deg2rad(elevation.double())
    return torch.stack([e.cos() * a.cos(), e.cos() * a.sin(), e.sin()], dim=-1)


def _aim_rays(azimuth: Tensor, elevation: Tensor) -> Rays:
    """Return parallel rays of eyes at angles in degrees about the origin."""
    a, e = torch.deg2rad(azimuth.double()), torch.deg2rad(elevation.double())
    back = _find_direction(azimuth, elevation)
    u = torch.stack([-a.sin(), a.cos(), torch.zeros_like(a)], dim=-1)
    v = torch.stack([-e.sin() * a.cos(), -e.sin() * a.sin(), e.cos()], dim=-1)
    return Rays(DISTANCE * back, u, v, -back)


def _aim_both_eyes(azimuth: Tensor, elevation: Tensor) -> Rays:
    eyes = torch.tensor([-EYE_ANGLE, EYE_ANGLE], dtype=torch.float64, device=azimuth.device)
    return _aim_rays((eyes[:, None] - azimuth).flatten(), elevation.repeat(2))


def make_eye_rays(toy: Toy, azimuth: Tensor, elevation: Tensor) -> Rays:
    """Return both eyes' rays in the axes of a toy turned by `azimuth`: left eyes, then right eyes."""
    rays = _aim_both_eyes(azimuth, elevation)
    return rays._replace(o=rays.o + rays.o.new_tensor([0, 0, toy.height]))


def cast_shadows(toy: Toy, azimuth: Tensor) -> Tensor:
    """Return the share of each light that a turned toy keeps from the ground, `[n, lightings + 1, m, m]`.

    The last map is that of the sky. In maps, right is to the eyes' right and up is away from them.
    """
    device, n_lights = azimuth.device, len(LIGHTINGS)
    keys = torch.tensor([light[:2] for light in LIGHTINGS], device=device)
    corners = torch.tensor([(-1, -1), (-1, 1), (1, -1), (1, 1)], device=device) * (SPREAD / 2)
    angles = torch.cat([(keys[:, None] + corners).view(-1, 2), torch.tensor(AROUND, device=device)])  # [lamps, 2]
    n, n_lamps = len(azimuth), len(angles)
    towards = _find_direction((angles[:, 0] - azimuth[:, None]).flatten(), angles[:, 1].repeat(n))
    above = _aim_rays(-azimuth.repeat_interleave(n_lamps), torch.full((n * n_lamps,), 90.0, device=device))
    rays = Rays(DISTANCE * towards + SHADOW_AWAY * above.v, above.u, above.v, -towards)
    dark = find_first_hits(toy.solids, rays, make_grid(SHADOW_SIZE, SHADOW_HALF, 1, device)) != MISS
    maps = to_image(dark.float().unsqueeze(-1), SHADOW_SIZE).reshape(n, n_lamps, SHADOW_SIZE, SHADOW_SIZE)
    key, sky = maps.split([n_lamps - len(AROUND), len(AROUND)], dim=1)
    key = F.avg_pool2d(key.unflatten(1, (n_lights, 4)).mean(2), 3, stride=1, padding=1)
    sky = sky.mean(1, keepdim=True)
    for _ in range(2):
        sky = F.avg_pool2d(sky, 7, stride=1, padding=3)
    return torch.cat([key, sky], dim=1)


def render_views(toy: Toy, azimuth: Tensor, elevation: Tensor, shadows: Tensor, size: int) -> Tensor:
    """Render stereo pairs under every lighting, `[n, lightings, 2, size, size]` uint8, given `cast_shadows`."""
    rays = make_eye_rays(toy, azimuth, elevation)
    grid = make_grid(size, 1.0, N_SUB, azimuth.device)
    lit, covered = _shade_toy(toy, rays, grid, azimuth.repeat(2), size)
    ground = _shade_ground(toy, shadows, elevation, size)  # [2 n, lightings, size, size]
    both = (lit + (1 - covered) * ground).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return torch.stack(both.chunk(2), dim=2)


def _shade_toy(toy: Toy, rays: Rays, grid: Grid, azimuth: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the toy's brightness in each pixel under every lighting, and how much of the pixel it covers."""
    hits = find_first_hits(toy.solids, rays, grid)
    n, n_tiles, per_tile = hits.shape
    pixels = hits.view(-1, grid.n_samples)  # [n * tiles * pixels in a tile, samples]
    some = (pixels != MISS).any(-1).nonzero().squeeze(-1)  # [p] the rest is ground alone
    seen = pixels[some] != MISS  # [p, samples]
    keys = torch.where(seen, pixels[some], 0)
    tile, inner = some // (per_tile // grid.n_samples), some % (per_tile // grid.n_samples)
    xy = grid.centres[tile % n_tiles].float().unsqueeze(1) + grid.inner.view(-1, grid.n_samples, 2)[inner]
    view = tile // n_tiles
    o, u, v, d = (axis.float()[view].unsqueeze(1) for axis in rays)
    t = (keys & -(2**FACE_BITS)).view(torch.float32).unsqueeze(-1)
    at = o + xy[..., :1] * u + xy[..., 1:] * v + t * d  # [p, samples, 3]
    turned = torch.deg2rad(azimuth).float()[view].unsqueeze(1)
    lit = _light_points(toy, at, (keys & (2**FACE_BITS - 1)).long(), turned)
    out = torch.zeros(len(pixels), lit.shape[-1] + 1, device=hits.device)
    out[some] = torch.cat([(lit * seen.unsqueeze(-1)).mean(1), seen.float().mean(1, keepdim=True)], dim=-1)
    image = to_image(out.view(n, n_tiles, -1, out.shape[-1]), size)
    return image[:, :-1], image[:, -1:]


def _light_points(toy: Toy, at: Tensor, face: Tensor, turned: Tensor) -> Tensor:
    """Return the brightness of points on given faces of a toy turned by radians, under every lighting."""
    maps, paints = (torch.as_tensor(table, device=at.device) for table in toy.faces)
    to_normal = maps[face]  # [p, samples, 3, 4]
    x, y, z = F.normalize((to_normal[..., :3] @ at.unsqueeze(-1)).squeeze(-1) + to_normal[..., 3], dim=-1).unbind(-1)
    c, s = turned.cos(), turned.sin()
    world = torch.stack([c * x - s * y, s * x + c * y, z], dim=-1)
    # less light reaches what is near the ground
    paint = paints[face] * (0.7 + 0.3 * (at[..., 2] / 0.4).clamp(0, 1))
    azimuth, elevation, key, sky = torch.tensor(LIGHTINGS, device=at.device).unbind(-1)
    towards = (_find_direction(azimuth, elevation).float() * key[:, None]).T  # [3, lightings]
    light = (world @ towards).clamp_(min=0) + sky * (0.7 + 0.3 * world[..., 2:])
    return light * paint.unsqueeze(-1)


def _shade_ground(toy: Toy, shadows: Tensor, elevation: Tensor, size: int) -> Tensor:
    """Return the ground under every lighting, for left eyes then right eyes, `[2 n, lightings, size, size]`."""
    device = shadows.device
    rays = _aim_both_eyes(torch.zeros_like(elevation), elevation)
    place = (torch.arange(size, dtype=torch.float64, device=device) + 0.5) * 2 / size - 1
    x, y = place[None, :, None], -place[:, None, None]
    o, u, v, d = (axis[:, None, None] for axis in rays)
    start = o + x * u + y * v + o.new_tensor([0, 0, toy.height])
    at = start - start[..., 2:] / d[..., 2:] * d  # [2 n, size, size, 3]
    where = torch.stack([at[..., 1], at[..., 0] + SHADOW_AWAY], dim=-1) / SHADOW_HALF
    shade = F.grid_sample(shadows.repeat(2, 1, 1, 1), where.float(), align_corners=False)
    _, up, key, sky = torch.tensor(LIGHTINGS, device=device)[:, :, None, None].unbind(1)  # [lightings, 1, 1] each
    return key * torch.deg2rad(up).sin() * (1 - shade[:, :-1]) + sky * (1 - shade[:, -1:])
