"""Ten trucks, each a row of a table of proportions and parts."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .parts import DARK, GLASS, SIDES, axles, limb, profile
from .solids import Solid, ball, box, rod, turn


@dataclass(frozen=True)
class Truck:
    load: str
    length: float = 2.5
    width: float = 0.86
    cab: float = 0.55  # length of the cab
    cab_height: float = 0.8  # above the frame
    hood: float = 0.0  # length of a bonnet before the cab
    frame: float = 0.34  # height of the frame
    radius: float = 0.2
    load_height: float = 0.85
    axles: int = 3
    gap: float = 0.06


TRUCKS = (
    Truck("box", 2.4, load_height=1.05, axles=2),
    Truck("tank", 2.6, hood=0.35, cab_height=0.72),
    Truck("dump", 2.2, width=0.95, hood=0.3, radius=0.27, frame=0.42, axles=2, load_height=0.6),
    Truck("ladder", 2.7, cab=0.75, cab_height=0.7, load_height=0.62),
    Truck("trailer", 3.4, cab=0.5, cab_height=0.9, hood=0.4, gap=0.22, axles=5, load_height=1.0),
    Truck("mixer", 2.4, cab_height=0.78, load_height=0.9),
    Truck("pickup", 2.3, width=0.9, cab=0.62, cab_height=0.72, hood=0.55, radius=0.22, axles=2,
          load_height=0.36, gap=0.02),
    Truck("logs", 2.9, hood=0.4, cab_height=0.72, load_height=0.55, gap=0.12, axles=4),
    Truck("canvas", 2.3, width=0.9, hood=0.45, cab=0.45, cab_height=0.68, radius=0.24, frame=0.42, load_height=0.85),
    Truck("crane", 2.5, cab=0.5, cab_height=0.75, load_height=0.4),
)  # fmt: skip


def truck(s: Truck, rng: np.random.Generator) -> list[Solid]:
    paint, cargo = rng.uniform(0.4, 0.95), rng.uniform(0.45, 0.95)
    hub = rng.uniform(0.4, 0.8)
    front, back, w, z = s.length / 2, -s.length / 2, s.width, s.frame
    cab_back = front - s.hood - s.cab
    low = z - 0.14 if s.load != "pickup" else z - 0.1
    xs = [front - (0.3 if s.hood else 0.26), back + 0.32]
    if s.axles > 2:
        xs.append(back + 0.34 + 2.1 * s.radius)
    if s.axles > 3:
        xs.append(cab_back - 0.12)
    if s.axles > 4:
        xs.append(cab_back - 0.12 - 2.1 * s.radius)
    parts = axles(xs, w + 0.04, s.radius, 0.16, hub)
    parts.append(box((0, 0, z - 0.06), (s.length - 0.04, 0.5 * w, 0.14), DARK))
    parts += _cab(s, front, cab_back, low, paint)
    x1 = cab_back - s.gap
    top = s.frame + s.cab_height
    size = ((back + x1) / 2, x1 - back, w, s.load_height)
    return parts + LOADS[s.load](Bed(back, x1, *size, z, s.radius, s.gap, top, cargo, paint))


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
    radius: float  # of the wheels
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
    r = 0.42 * b.h
    ends = [ball((x, 0, b.z + r), (0.14, r, r), b.cargo) for x in (b.x0 + 0.14, b.x1 - 0.14)]
    bands = [rod((x, 0, b.z + r), (x + 0.04, 0, b.z + r), 1.04 * r, DARK) for x in (b.x0 + 0.4, b.mid, b.x1 - 0.42)]
    hatch = rod((b.mid - 0.15, 0, b.z + 2 * r - 0.05), (b.mid - 0.15, 0, b.z + 2 * r + 0.07), 0.12, b.paint)
    return [_floor(b), rod((b.x0 + 0.14, 0, b.z + r), (b.x1 - 0.14, 0, b.z + r), r, b.cargo), *ends, *bands, hatch]


def _tipper(b: Bed) -> list[Solid]:
    """An open tray with a heap in it and a visor over the cab."""
    side_view = [(b.x0, b.z + 0.22), (b.x1, b.z + 0.1), (b.x1, b.z + 0.1 + b.h), (b.x0 - 0.1, b.z + 0.1 + 0.8 * b.h)]
    walls = [profile(side_view, 0.07, b.cargo, y=side * (b.w / 2 - 0.02)) for side in SIDES]
    floor = profile([(b.x0, b.z + 0.2), (b.x1, b.z + 0.08), (b.x1, b.z + 0.2), (b.x0, b.z + 0.32)], b.w, b.cargo)
    head = box((b.x1 - 0.03, 0, b.z + 0.1 + b.h / 2), (0.07, b.w, b.h), b.cargo)
    visor = box((b.x1 + 0.16, 0, b.z + 0.1 + b.h), (0.44, b.w, 0.05), b.cargo)
    heap = ball((b.mid, 0, b.z + 0.35), (0.42 * b.length, 0.4 * b.w, 0.32 * b.h + 0.1), 0.35)
    return [*walls, floor, head, visor, heap]


def _fire_engine(b: Bed) -> list[Solid]:
    """Shutters at the sides, a ladder on top."""
    body = box((b.mid, 0, b.z + 0.05 + b.h / 2), (b.length, b.w, b.h), b.cargo)
    shutters = [
        box((b.x0 + f * b.length, 0, b.z + 0.02 + b.h / 2), (0.2 * b.length, b.w + 0.02, 0.6 * b.h), 0.55 * b.cargo)
        for f in (0.2, 0.5, 0.8)
    ]
    top, R = b.z + b.h + 0.2, turn(pitch=5)
    rails = [box((b.mid + 0.2, y, top), (b.length + 0.5, 0.045, 0.08), 0.95, R) for y in (-0.13, 0.13)]
    rungs = [box(R @ [k, 0, 0] + [b.mid + 0.2, 0, top], (0.04, 0.26, 0.04), 0.95) for k in np.linspace(-0.9, 0.9, 8)]
    beacon = box((b.x1 + b.gap + 0.35, 0, b.cab_top + 0.06), (0.1, 0.5 * b.w, 0.09), 0.25)
    pivot = rod((b.x0 + 0.3, 0, b.z + b.h), (b.x0 + 0.3, 0, b.z + b.h + 0.16), 0.2, DARK)
    return [body, *shutters, *rails, *rungs, beacon, pivot]


def _mixer(b: Bed) -> list[Solid]:
    """A slanting drum that narrows to both ends, with hopper and chute."""
    mouth, wide = np.array([b.x0, 0, b.z + 0.86]), np.array([b.mid - 0.25, 0, b.z + 0.6])
    deep, end = np.array([b.mid + 0.2, 0, b.z + 0.45]), np.array([b.x1 - 0.1, 0, b.z + 0.32])
    drum = [rod(end, deep, 0.2, b.cargo, 0.43), rod(deep, wide, 0.43, b.cargo), rod(wide, mouth, 0.43, b.cargo, 0.17)]
    rings = [rod(p, p + 0.06 * (wide - deep), 0.45, DARK) for p in (deep, wide)]
    hopper = rod((b.x0 - 0.02, 0, b.z + 0.78), (b.x0 - 0.02, 0, b.z + 1.02), 0.12, b.paint, 0.24)
    chute = limb([(b.x0 - 0.02, 0, b.z + 0.7), (b.x0 - 0.2, 0, b.z + 0.35)], [0.09, 0.07], DARK, ends=False)
    post = box((b.x0 + 0.12, 0, b.z + 0.3), (0.14, 0.5 * b.w, 0.6), DARK)
    return [_floor(b), *drum, *rings, hopper, *chute, post]


def _open_bed(b: Bed) -> list[Solid]:
    """A pick-up's low walls."""
    walls = [
        box((b.mid, side * (b.w / 2 - 0.04), b.z + b.h / 2 - 0.05), (b.length, 0.08, b.h + 0.1), b.paint)
        for side in SIDES
    ]
    gate = box((b.x0 + 0.03, 0, b.z + b.h / 2 - 0.04), (0.07, b.w - 0.02, b.h + 0.06), b.paint)
    x, r = b.x0 + 0.32, b.radius
    arch = [(x - 1.3 * r, b.z), (x - 0.8 * r, 2.3 * r), (x + 0.8 * r, 2.3 * r), (x + 1.3 * r, b.z)]
    fenders = [profile(arch, 0.1, b.paint, y=side * (b.w / 2 - 0.02)) for side in SIDES]
    return [
        box((b.mid, 0, b.z), (b.length, b.w - 0.04, 0.08), 0.25),
        *walls,
        gate,
        *fenders,
        box((b.x0 - 0.02, 0, b.z - 0.08), (0.08, b.w, 0.09), 0.6),
    ]


def _logs(b: Bed) -> list[Solid]:
    """A pile of logs between stakes."""
    r, rows = 0.135, ((-0.28, 0), (0.0, 0), (0.28, 0), (-0.14, 0.23), (0.14, 0.23), (0.0, 0.46))
    logs = []
    for k, (y, up) in enumerate(rows):
        up += b.z + 0.08 + r
        logs.append(rod((b.x0 - 0.06 + 0.05 * k, y, up), (b.x1 - 0.03 * k, y, up), r * (1 - 0.03 * k), 0.4 + 0.07 * k))
    stakes = [
        box((b.x0 + f * b.length, side * 0.44, b.z + 0.3), (0.06, 0.05, 0.6), DARK)
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
    """A jib that reaches over the cab."""
    turret = rod((b.mid - 0.1, 0, b.z), (b.mid - 0.1, 0, b.z + 0.3), 0.36, b.cargo)
    house = box((b.mid - 0.2, 0.12, b.z + 0.42), (0.5, 0.5, 0.36), b.cargo)
    jib = limb([(b.mid - 0.3, -0.16, b.z + 0.4), (b.x1 + 0.75, -0.16, b.z + 1.15)], [0.11, 0.07], b.paint)
    hook = [
        rod((b.x1 + 0.75, -0.16, b.z + 0.75), (b.x1 + 0.75, -0.16, b.z + 1.15), 0.022, DARK),
        ball((b.x1 + 0.75, -0.16, b.z + 0.72), 0.07, DARK),
    ]
    feet = [
        box((x, side * b.w / 2, b.z - 0.05), (0.1, 0.2, 0.12), b.cargo)
        for x in (b.x0 + 0.05, b.x1 - 0.1)
        for side in SIDES
    ]
    return [_floor(b), turret, house, *jib, *hook, *feet]


LOADS = {
    "box": _boxed,
    "trailer": _boxed,
    "tank": _tank,
    "dump": _tipper,
    "ladder": _fire_engine,
    "mixer": _mixer,
    "pickup": _open_bed,
    "logs": _logs,
    "canvas": _canvas,
    "crane": _crane,
}
