"""Ten trucks, each a row of a table of proportions and parts.

All have three or more axles and, behind an upright cab with two exhausts, a longer and higher load of lighter paint.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .parts import DARK, GLASS, SIDES, axles, limb, profile, shifted
from .solids import Solid, ball, box, rod, turn


@dataclass(frozen=True)
class Truck:
    load: str
    length: float = 2.6
    width: float = 0.86
    cab: float = 0.52  # length of the cab
    cab_height: float = 0.76  # above the frame
    hood: float = 0.0  # length of a bonnet before the cab
    frame: float = 0.38  # height of the frame
    radius: float = 0.2
    load_height: float = 1.0
    axles: int = 3
    gap: float = 0.2


TRUCKS = (
    Truck("box", 2.5, load_height=1.1),
    Truck("tank", 2.7, hood=0.16, cab_height=0.74, load_height=1.05),
    Truck("dump", 2.4, width=0.94, radius=0.24, frame=0.44, cab_height=0.7, load_height=0.88),
    Truck("ladder", 2.8, cab=0.62, cab_height=0.72, load_height=0.84),
    Truck("trailer", 3.3, cab=0.5, cab_height=0.86, hood=0.2, gap=0.3, axles=5, load_height=1.12),
    Truck("mixer", 2.5, cab_height=0.76, load_height=1.0),
    Truck("containers", 2.9, width=0.84, cab=0.46, cab_height=0.8, axles=4, load_height=0.95),
    Truck("logs", 2.9, hood=0.2, cab_height=0.74, load_height=0.95, gap=0.22, axles=4),
    Truck("canvas", 2.4, width=0.9, hood=0.16, cab=0.48, cab_height=0.72, radius=0.23, frame=0.42, load_height=0.95),
    Truck("crane", 2.7, cab=0.48, cab_height=0.7, load_height=0.8, axles=4),
)  # fmt: skip


def build_truck(s: Truck, rng: np.random.Generator) -> list[Solid]:
    paint, cargo = rng.uniform(0.42, 0.58), rng.uniform(0.65, 0.85)
    hub = rng.uniform(0.45, 0.65)
    front, back, w, z = s.length / 2, -s.length / 2, s.width, s.frame
    cab_back = front - s.hood - s.cab
    xs = [front - 0.28, back + 0.28, back + 0.3 + 2.1 * s.radius]
    if s.axles > 3:
        xs.append(front - 0.3 - 2.1 * s.radius)
    if s.axles > 4:
        xs.append(back + 0.32 + 4.2 * s.radius)
    parts = axles(xs, w + 0.04, s.radius, 0.18, hub)
    parts.append(box((0, 0, z - 0.06), (s.length - 0.04, 0.6 * w, 0.14), DARK))
    parts += _cab(s, front, cab_back, z - 0.14, paint)
    x1 = cab_back - s.gap
    stack = z + s.cab_height + 0.16
    parts += [rod((x1 + 0.55 * s.gap, side * 0.4 * w, z), (x1 + 0.55 * s.gap, side * 0.4 * w, stack), 0.045, DARK)
              for side in SIDES]  # fmt: skip
    return parts + LOADS[s.load](
        Bed(back, x1, (back + x1) / 2, x1 - back, w, s.load_height, z, s.gap, z + s.cab_height, cargo, paint)
    )


def _cab(s: Truck, front: float, back: float, low: float, paint: float) -> list[Solid]:
    w, top, base = s.width, s.frame + s.cab_height, front - s.hood
    belt = s.frame + 0.5 * s.cab_height
    parts = [
        profile([(back, low), (base, low), (base, belt), (back, belt)], w, paint),
        profile(
            [(back + 0.02, belt), (base - 0.01, belt), (base - 0.14, top), (back + 0.02, top)],
            w - 0.02,
            GLASS,
            lean=0.08,
        ),
        box((base - 0.16 - (base - back - 0.16) / 2, 0, top), (base - back - 0.14, w - 0.09, 0.06), paint),
        profile([(back, belt), (back + 0.08, belt), (back + 0.08, top), (back, top)], w, paint, lean=0.08),
    ]
    parts.append(box((back, 0, (belt + top) / 2), (0.02, 0.6 * w, 0.55 * (top - belt)), GLASS))
    if s.hood:
        parts.append(
            profile([(base - 0.02, low), (front, low), (front, belt - 0.08), (base - 0.02, belt)], w - 0.16, paint)
        )
        x = front - 0.3
        r = s.radius
        fender = [(x - 1.25 * r, low), (x - 0.8 * r, 2.25 * r), (x + 0.8 * r, 2.25 * r), (front - 0.02, low)]
        parts += [profile(fender, 0.16, paint, y=side * (w / 2 - 0.08)) for side in SIDES]
    parts.append(box((front + 0.02, 0, low + 0.04), (0.07, w, 0.1), 0.6))
    parts.append(box((front + 0.004, 0, low + 0.2), (0.02, 0.5 * w, 0.16), DARK))
    parts += [
        rod((front - 0.02, side * 0.36 * w, low + 0.2), (front + 0.02, side * 0.36 * w, low + 0.2), 0.06, 1.0)
        for side in SIDES
    ]
    return parts


class Bed(NamedTuple):
    """Where a load goes."""

    x0: float  # back
    x1: float  # front
    mid: float
    length: float
    w: float
    h: float  # height of the load
    z: float  # height of the frame
    gap: float  # to the cab
    cab_top: float
    cargo: float  # paints
    paint: float


def _floor(b: Bed) -> Solid:
    return box((b.mid, 0, b.z + 0.03), (b.length, b.w, 0.07), 0.8 * b.paint)


def _boxed(b: Bed) -> list[Solid]:
    """A closed box with ribs."""
    ribs = [
        box((b.x0 + f * b.length, 0, b.z + 0.06 + b.h / 2), (0.03, b.w + 0.03, b.h), 0.8 * b.cargo)
        for f in (0.25, 0.5, 0.75)
    ]
    return [box((b.mid, 0, b.z + 0.06 + b.h / 2), (b.length, b.w, b.h), b.cargo), *ribs]


def _tank(b: Bed) -> list[Solid]:
    """A tank with bands and a hatch."""
    r = 0.44 * b.h
    z = b.z + 0.1 + r
    ends = [ball((x, 0, z), (0.14, r, r), b.cargo) for x in (b.x0 + 0.14, b.x1 - 0.14)]
    bands = [rod((x, 0, z), (x + 0.1, 0, z), 1.02 * r, b.paint) for x in (b.x0 + 0.4, b.mid, b.x1 - 0.42)]
    hatch = rod((b.mid - 0.15, 0, z + r - 0.05), (b.mid - 0.15, 0, z + r + 0.07), 0.12, b.paint)
    walk = box((b.mid, 0, z + r), (0.8 * b.length, 0.3 * b.w, 0.05), b.cargo)
    shell = rod((b.x0 + 0.14, 0, z), (b.x1 - 0.14, 0, z), r, b.cargo)
    return [_floor(b), shell, *ends, *bands, hatch, walk]


def _tipper(b: Bed) -> list[Solid]:
    """An open tray with a heap in it."""
    side_view = [(b.x0, b.z + 0.22), (b.x1, b.z + 0.1), (b.x1, b.z + 0.1 + b.h), (b.x0 - 0.1, b.z + 0.1 + 0.8 * b.h)]
    walls = [profile(side_view, 0.07, b.cargo, y=side * (b.w / 2 - 0.02)) for side in SIDES]
    floor = profile([(b.x0, b.z + 0.2), (b.x1, b.z + 0.08), (b.x1, b.z + 0.2), (b.x0, b.z + 0.32)], b.w, b.cargo)
    head = box((b.x1 - 0.03, 0, b.z + 0.1 + b.h / 2), (0.07, b.w, b.h), b.cargo)
    heap = ball((b.mid, 0, b.z + 0.1 + 0.6 * b.h), (0.46 * b.length, 0.44 * b.w, 0.34 * b.h), 0.7 * b.cargo)
    return [*walls, floor, head, heap]


def _fire_engine(b: Bed) -> list[Solid]:
    """Shutters at the sides, a ladder on top."""
    body = box((b.mid, 0, b.z + 0.05 + b.h / 2), (b.length, b.w, b.h), b.cargo)
    shutters = [
        box((b.x0 + f * b.length, 0, b.z + 0.02 + b.h / 2), (0.2 * b.length, b.w + 0.02, 0.6 * b.h), 0.7 * b.cargo)
        for f in (0.2, 0.5, 0.8)
    ]
    top, R = b.z + b.h + 0.2, turn(pitch=5)
    rails = [box((b.mid + 0.2, y, top), (b.length + 0.5, 0.045, 0.08), 0.95, R) for y in (-0.13, 0.13)]
    rungs = [box(R @ [k, 0, 0] + [b.mid + 0.2, 0, top], (0.04, 0.26, 0.04), 0.95) for k in np.linspace(-0.9, 0.9, 8)]
    beacon = box((b.x1 + b.gap + 0.35, 0, b.cab_top + 0.06), (0.1, 0.5 * b.w, 0.09), 0.25)
    pivot = rod((b.x0 + 0.3, 0, b.z + b.h), (b.x0 + 0.3, 0, b.z + b.h + 0.16), 0.2, DARK)
    return [body, *shutters, *rails, *rungs, beacon, pivot]


def _mixer(b: Bed) -> list[Solid]:
    """A slanting drum that narrows to both ends, between a water tank and a hopper with its chute."""
    mouth, wide = np.array([b.x0 + 0.02, 0, b.z + 0.96 * b.h]), np.array([b.mid - 0.3, 0, b.z + 0.7 * b.h])
    deep, end = np.array([b.mid + 0.1, 0, b.z + 0.57 * b.h]), np.array([b.x1 - 0.2, 0, b.z + 0.47 * b.h])
    drum = [rod(end, deep, 0.32, b.cargo, 0.44), rod(deep, wide, 0.44, b.cargo), rod(wide, mouth, 0.44, b.cargo, 0.2)]
    rings = [rod(p, p + 0.25 * (wide - deep), 0.455, b.paint) for p in (deep, deep + 0.75 * (wide - deep))]
    hopper = rod((b.x0, 0, b.z + 0.86 * b.h), (b.x0, 0, b.z + 1.12 * b.h), 0.12, b.paint, 0.24)
    chute = limb([(b.x0, 0, b.z + 0.78), (b.x0 - 0.18, 0, b.z + 0.4)], [0.09, 0.07], DARK, ends=False)
    tank = box((b.x1 - 0.13, 0, b.z + 0.44 * b.h), (0.26, b.w, 0.8 * b.h), b.cargo)
    post = box((b.x0 + 0.16, 0, b.z + 0.36 * b.h), (0.2, b.w, 0.66 * b.h), b.cargo)
    return [_floor(b), *drum, *rings, hopper, *chute, tank, post]


def _containers(b: Bed) -> list[Solid]:
    """Two ribbed containers, the front one higher."""
    parts, long = [_floor(b)], 0.49 * b.length
    for x, h, paint in ((b.x0 + long / 2, 0.86 * b.h, 0.75 * b.cargo), (b.x1 - long / 2, b.h, b.cargo)):
        z = b.z + 0.08 + h / 2
        parts.append(box((x, 0, z), (long, b.w - 0.04, h), paint))
        parts += [box((x + f * long, 0, z), (0.05, b.w, 0.84 * h), 0.85 * paint) for f in (-0.33, -0.11, 0.11, 0.33)]
    return parts


def _logs(b: Bed) -> list[Solid]:
    """A pile of logs between stakes."""
    r = b.h / 6.6
    rows = [(y, up) for up in (0, 2, 4) for y in (-2, 0, 2)] + [(-1, 5.7), (1, 5.7)]
    logs = []
    for k, (y, up) in enumerate(rows):
        z = b.z + 0.08 + r * (1 + up)
        ends = (b.x0 - 0.06 + 0.03 * (k % 4), y * r, z), (b.x1 - 0.03 * (k % 3), y * r, z)
        logs.append(rod(*ends, r, b.cargo * (0.75 + 0.05 * (k % 5))))
    stakes = [
        box((b.x0 + f * b.length, side * (3 * r + 0.03), b.z + 0.5 * b.h), (0.06, 0.05, b.h), DARK)
        for f in (0.15, 0.85)
        for side in SIDES
    ]
    return [box((b.mid, 0, b.z + 0.03), (b.length, b.w, 0.07), DARK), *logs, *stakes]


def _canvas(b: Bed) -> list[Solid]:
    """A cover over hoops."""
    wall = box((b.mid, 0, b.z + 0.16), (b.length, b.w, 0.3), b.paint)
    top = b.z + 0.3 + 0.4 * b.h
    hood = rod((b.x0 + 0.01, 0, top), (b.x1 - 0.01, 0, top), b.w / 2, b.cargo)
    sides = box((b.mid, 0, b.z + 0.3 + 0.2 * b.h), (b.length - 0.02, b.w, 0.4 * b.h), b.cargo)
    hoops = [
        rod((b.x0 + f * b.length, 0, top), (b.x0 + f * b.length + 0.04, 0, top), b.w / 2 + 0.02, 0.75 * b.cargo)
        for f in (0.02, 0.34, 0.66, 0.95)
    ]
    return [wall, hood, sides, *hoops]


def _crane(b: Bed) -> list[Solid]:
    """A house with a pane and a weight behind, and on it a jib that reaches over the cab."""
    deck = box((b.mid, 0, b.z + 0.12), (b.length, b.w, 0.22), b.paint)
    house = box((b.mid - 0.06, 0, b.z + 0.22 + 0.4 * b.h), (b.length - 0.3, 0.9 * b.w, 0.8 * b.h), b.cargo)
    pane = box((b.x1 - 0.42, 0, b.z + 0.22 + 0.55 * b.h), (0.28, 0.9 * b.w + 0.02, 0.3 * b.h), GLASS)
    weight = box((b.x0 + 0.1, 0, b.z + 0.22 + 0.25 * b.h), (0.22, b.w, 0.5 * b.h), b.paint)
    root, tip = np.array([b.x0 + 0.2, 0, b.z + 0.3 + 0.8 * b.h]), np.array([b.x1 + 0.55, 0, b.z + 0.5 + 1.05 * b.h])
    R = turn(pitch=float(np.degrees(np.arctan2(tip[2] - root[2], tip[0] - root[0]))))
    reach = float(np.linalg.norm(tip - root))
    jib = [box(root + f * (tip - root), (g * reach, w, w), p, R)
           for f, g, w, p in ((0.4, 0.8, 0.24, b.cargo), (0.6, 0.8, 0.17, b.paint))]  # fmt: skip
    hook = rod(shifted(tip, 0, 0, -0.26), tip, 0.045, DARK)
    feet = [
        box((x, side * (b.w / 2 + 0.04), b.z - 0.05), (0.12, 0.16, 0.12), b.cargo)
        for x in (b.x0 + 0.05, b.x1 - 0.1)
        for side in SIDES
    ]
    return [deck, house, pane, weight, *jib, hook, *feet]


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
