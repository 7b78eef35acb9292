"""Trucks: three or more axles, an upright cab with two exhausts, and behind it a long, high load of lighter paint."""

from types import SimpleNamespace

import numpy as np

from .solids import DARK, GLASS, SIDES, Solid, axles, ball, box, limb, profile, rod, shifted, turn


def build_truck(s: SimpleNamespace, rng: np.random.Generator) -> list[Solid]:
    paint, cargo, hub = rng.uniform(0.42, 0.58), rng.uniform(0.65, 0.85), rng.uniform(0.45, 0.65)
    front, back, w, z = s.length / 2, -s.length / 2, s.width, s.frame
    cab_back = front - s.hood - s.cab
    x1, cab_top = cab_back - s.gap, z + s.cab_height
    x, y = x1 + 0.55 * s.gap, 0.4 * w
    xs = [front - 0.28, back + 0.28, back + 0.3 + 2.1 * s.radius]
    xs += [front - 0.3 - 2.1 * s.radius, back + 0.32 + 4.2 * s.radius][: s.axles - 3]
    bed = SimpleNamespace(x0=back, x1=x1, mid=(back + x1) / 2, length=x1 - back, w=w, h=s.load_height, z=z)
    bed.gap, bed.cab_top, bed.cargo, bed.paint = s.gap, cab_top, cargo, paint
    return [
        *axles(xs, w + 0.04, s.radius, 0.18, hub),
        box((0, 0, z - 0.06), (s.length - 0.04, 0.6 * w, 0.14), DARK),
        *_cab(s, front, cab_back, z - 0.14, paint),
        *(rod((x, side * y, z), (x, side * y, cab_top + 0.16), 0.045, DARK) for side in SIDES),  # exhausts
        *LOADS[s.kind](bed),
    ]


def _cab(s: SimpleNamespace, front: float, back: float, low: float, paint: float) -> list[Solid]:
    w, top, base = s.width, s.frame + s.cab_height, front - s.hood
    belt = s.frame + 0.5 * s.cab_height
    windows = [(back + 0.02, belt), (base - 0.01, belt), (base - 0.14, top), (back + 0.02, top)]
    wall = [(back, belt), (back + 0.08, belt), (back + 0.08, top), (back, top)]
    parts = [
        profile([(back, low), (base, low), (base, belt), (back, belt)], w, paint),
        profile(windows, w - 0.02, GLASS, lean=0.08),
        box((base - 0.16 - (base - back - 0.16) / 2, 0, top), (base - back - 0.14, w - 0.09, 0.06), paint),
        profile(wall, w, paint, lean=0.08),
        box((back, 0, (belt + top) / 2), (0.02, 0.6 * w, 0.55 * (top - belt)), GLASS),
    ]
    if s.hood:
        bonnet = [(base - 0.02, low), (front, low), (front, belt - 0.08), (base - 0.02, belt)]
        parts.append(profile(bonnet, w - 0.16, paint))
        x, r = front - 0.3, s.radius
        fender = [(x - 1.25 * r, low), (x - 0.8 * r, 2.25 * r), (x + 0.8 * r, 2.25 * r), (front - 0.02, low)]
        parts += [profile(fender, 0.16, paint, y=side * (w / 2 - 0.08)) for side in SIDES]
    y, z = 0.36 * w, low + 0.2
    return [
        *parts,
        box((front + 0.02, 0, low + 0.04), (0.07, w, 0.1), 0.6),
        box((front + 0.004, 0, z), (0.02, 0.5 * w, 0.16), DARK),
        *(rod((front - 0.02, side * y, z), (front + 0.02, side * y, z), 0.06, 1.0) for side in SIDES),  # lamps
    ]


def _floor(b: SimpleNamespace, paint: float) -> Solid:
    return box((b.mid, 0, b.z + 0.03), (b.length, b.w, 0.07), paint)


def _boxed(b: SimpleNamespace) -> list[Solid]:
    """Build a closed box with ribs."""
    z, places = b.z + 0.06 + b.h / 2, [b.x0 + f * b.length for f in (0.25, 0.5, 0.75)]
    ribs = [box((x, 0, z), (0.03, b.w + 0.03, b.h), 0.8 * b.cargo) for x in places]
    return [box((b.mid, 0, z), (b.length, b.w, b.h), b.cargo), *ribs]


def _tank(b: SimpleNamespace) -> list[Solid]:
    """Build a tank with bands and a hatch."""
    r = 0.44 * b.h
    z = b.z + 0.1 + r
    back, front, hatch = b.x0 + 0.14, b.x1 - 0.14, b.mid - 0.15
    return [
        _floor(b, 0.8 * b.paint),
        rod((back, 0, z), (front, 0, z), r, b.cargo),
        *(ball((x, 0, z), (0.14, r, r), b.cargo) for x in (back, front)),
        *(rod((x, 0, z), (x + 0.1, 0, z), 1.02 * r, b.paint) for x in (b.x0 + 0.4, b.mid, b.x1 - 0.42)),
        rod((hatch, 0, z + r - 0.05), (hatch, 0, z + r + 0.07), 0.12, b.paint),
        box((b.mid, 0, z + r), (0.8 * b.length, 0.3 * b.w, 0.05), b.cargo),
    ]


def _tipper(b: SimpleNamespace) -> list[Solid]:
    """Build an open tray with a heap in it."""
    low, h = b.z + 0.1, b.h
    wall = [(b.x0, b.z + 0.22), (b.x1, low), (b.x1, low + h), (b.x0 - 0.1, low + 0.8 * h)]
    floor = [(b.x0, b.z + 0.2), (b.x1, b.z + 0.08), (b.x1, b.z + 0.2), (b.x0, b.z + 0.32)]
    return [
        *(profile(wall, 0.07, b.cargo, y=side * (b.w / 2 - 0.02)) for side in SIDES),
        profile(floor, b.w, b.cargo),
        box((b.x1 - 0.03, 0, low + h / 2), (0.07, b.w, h), b.cargo),
        ball((b.mid, 0, low + 0.6 * h), (0.46 * b.length, 0.44 * b.w, 0.34 * h), 0.7 * b.cargo),
    ]


def _fire_engine(b: SimpleNamespace) -> list[Solid]:
    """Build shutters at the sides and a ladder on top."""
    x, top, ladder, R = b.x0 + 0.3, b.z + b.h, np.array([b.mid + 0.2, 0, b.z + b.h + 0.2]), turn(pitch=5)
    shutters = [(b.x0 + f * b.length, 0, b.z + 0.02 + b.h / 2) for f in (0.2, 0.5, 0.8)]
    return [
        box((b.mid, 0, b.z + 0.05 + b.h / 2), (b.length, b.w, b.h), b.cargo),
        *(box(place, (0.2 * b.length, b.w + 0.02, 0.6 * b.h), 0.7 * b.cargo) for place in shutters),
        *(box(shifted(ladder, 0, y, 0), (b.length + 0.5, 0.045, 0.08), 0.95, R) for y in (-0.13, 0.13)),
        *(box(R @ [k, 0, 0] + ladder, (0.04, 0.26, 0.04), 0.95) for k in np.linspace(-0.9, 0.9, 8)),
        box((b.x1 + b.gap + 0.35, 0, b.cab_top + 0.06), (0.1, 0.5 * b.w, 0.09), 0.25),  # beacon
        rod((x, 0, top), (x, 0, top + 0.16), 0.2, DARK),  # pivot
    ]


def _mixer(b: SimpleNamespace) -> list[Solid]:
    """Build a slanting drum that narrows to both ends, between a water tank and a hopper with its chute."""
    places = ((b.x1 - 0.2, 0.47), (b.mid + 0.1, 0.57), (b.mid - 0.3, 0.7), (b.x0 + 0.02, 0.96))
    end, deep, wide, mouth = (np.array([x, 0, b.z + f * b.h]) for x, f in places)
    along = wide - deep
    return [
        _floor(b, 0.8 * b.paint),
        rod(end, deep, 0.32, b.cargo, 0.44),
        rod(deep, wide, 0.44, b.cargo),
        rod(wide, mouth, 0.44, b.cargo, 0.2),
        *(rod(p, p + 0.25 * along, 0.455, b.paint) for p in (deep, deep + 0.75 * along)),
        rod((b.x0, 0, b.z + 0.86 * b.h), (b.x0, 0, b.z + 1.12 * b.h), 0.12, b.paint, 0.24),  # hopper
        *limb([(b.x0, 0, b.z + 0.78), (b.x0 - 0.18, 0, b.z + 0.4)], [0.09, 0.07], DARK, ends=False),
        box((b.x1 - 0.13, 0, b.z + 0.44 * b.h), (0.26, b.w, 0.8 * b.h), b.cargo),
        box((b.x0 + 0.16, 0, b.z + 0.36 * b.h), (0.2, b.w, 0.66 * b.h), b.cargo),
    ]


def _containers(b: SimpleNamespace) -> list[Solid]:
    """Build two ribbed containers, the front one higher."""
    parts, long = [_floor(b, 0.8 * b.paint)], 0.49 * b.length
    for x, h, paint in ((b.x0 + long / 2, 0.86 * b.h, 0.75 * b.cargo), (b.x1 - long / 2, b.h, b.cargo)):
        z = b.z + 0.08 + h / 2
        parts.append(box((x, 0, z), (long, b.w - 0.04, h), paint))
        parts += [box((x + f * long, 0, z), (0.05, b.w, 0.84 * h), 0.85 * paint) for f in (-0.33, -0.11, 0.11, 0.33)]
    return parts


def _logs(b: SimpleNamespace) -> list[Solid]:
    """Build a pile of logs between stakes."""
    r, parts = b.h / 6.6, [_floor(b, DARK)]
    rows = [(y, up) for up in (0, 2, 4) for y in (-2, 0, 2)] + [(-1, 5.7), (1, 5.7)]
    for k, (y, up) in enumerate(rows):
        z = b.z + 0.08 + r * (1 + up)
        ends = (b.x0 - 0.06 + 0.03 * (k % 4), y * r, z), (b.x1 - 0.03 * (k % 3), y * r, z)
        parts.append(rod(*ends, r, b.cargo * (0.75 + 0.05 * (k % 5))))
    stakes = [(b.x0 + f * b.length, side * (3 * r + 0.03), b.z + 0.5 * b.h) for f in (0.15, 0.85) for side in SIDES]
    return parts + [box(place, (0.06, 0.05, b.h), DARK) for place in stakes]


def _canvas(b: SimpleNamespace) -> list[Solid]:
    """Build a cover over hoops."""
    top, hoops = b.z + 0.3 + 0.4 * b.h, [b.x0 + f * b.length for f in (0.02, 0.34, 0.66, 0.95)]
    return [
        box((b.mid, 0, b.z + 0.16), (b.length, b.w, 0.3), b.paint),
        rod((b.x0 + 0.01, 0, top), (b.x1 - 0.01, 0, top), b.w / 2, b.cargo),
        box((b.mid, 0, b.z + 0.3 + 0.2 * b.h), (b.length - 0.02, b.w, 0.4 * b.h), b.cargo),
        *(rod((x, 0, top), (x + 0.04, 0, top), b.w / 2 + 0.02, 0.75 * b.cargo) for x in hoops),
    ]


def _crane(b: SimpleNamespace) -> list[Solid]:
    """Build a house with a pane and a weight behind, and on it a jib that reaches over the cab."""
    z = b.z + 0.22
    root, tip = np.array([b.x0 + 0.2, 0, b.z + 0.3 + 0.8 * b.h]), np.array([b.x1 + 0.55, 0, b.z + 0.5 + 1.05 * b.h])
    along = tip - root
    R, reach = turn(pitch=float(np.degrees(np.arctan2(along[2], along[0])))), float(np.linalg.norm(along))
    feet = [(x, side * (b.w / 2 + 0.04), b.z - 0.05) for x in (b.x0 + 0.05, b.x1 - 0.1) for side in SIDES]
    return [
        box((b.mid, 0, b.z + 0.12), (b.length, b.w, 0.22), b.paint),
        box((b.mid - 0.06, 0, z + 0.4 * b.h), (b.length - 0.3, 0.9 * b.w, 0.8 * b.h), b.cargo),
        box((b.x1 - 0.42, 0, z + 0.55 * b.h), (0.28, 0.9 * b.w + 0.02, 0.3 * b.h), GLASS),
        box((b.x0 + 0.1, 0, z + 0.25 * b.h), (0.22, b.w, 0.5 * b.h), b.paint),
        box(root + 0.4 * along, (0.8 * reach, 0.24, 0.24), b.cargo, R),
        box(root + 0.6 * along, (0.8 * reach, 0.17, 0.17), b.paint, R),
        rod(shifted(tip, 0, 0, -0.26), tip, 0.045, DARK),
        *(box(place, (0.12, 0.16, 0.12), b.cargo) for place in feet),
    ]


LOADS = {
    "box": _boxed,
    "trailer": _boxed,
    "tank": _tank,
    "dump": _tipper,
    "ladder": _fire_engine,
    "mixer": _mixer,
    "containers": _containers,
    "logs": _logs,
    "canvas": _canvas,
    "crane": _crane,
}
