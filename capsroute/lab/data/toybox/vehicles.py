"""Cars: four equal wheels under a low body, a lower bonnet and boot, and a cabin with windows all around. Trucks: three
or more axles, an upright cab with two exhausts, and behind it a long, high load of lighter paint. Airplanes: a slender
light hull, wings about as wide as it is long, a tailplane and one or two fins.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from .solids import DARK, GLASS, SIDES, Solid, axles, ball, box, limb, plate, profile, rod, turn


def build_car(s: SimpleNamespace) -> Iterator[Solid]:
    front, back, w, low = s.length / 2, -s.length / 2, s.width, s.clearance
    foot, tail = front - s.screen * s.length, back + s.tail * s.length  # of the windscreen, of the rear window
    fenders = "fenders" in s.extras
    wheels = (front - 0.19 * s.length, back + 0.19 * s.length)
    yield from axles(wheels, w + (0.26 if fenders else 0.04), s.radius, 0.17, s.hub)
    if fenders:
        yield from _fenders(s, front, back, 0.85 * s.paint)
        front -= 0.1
    lower = [(back, low), (front, low), (front, low + 0.08), (back, low + 0.1)]
    upper = [(back + 0.06, s.deck), (tail, s.belt), (foot, s.belt), (front - 0.06, s.nose)]
    yield profile(lower + upper, w, s.paint, lean=0.02)
    yield box((0, 0, low + 0.03), (s.length + 0.06, w - 0.06, 0.1), 0.5)  # bumpers
    if "open top" in s.extras:
        yield from _open_top(s, foot, tail)
        yield from _cabin(s, tail + 0.62 * (foot - tail), tail, 0.0)
    else:
        yield from _cabin(s, foot, tail, s.rake)
    yield from _lamps(s, front, back)
    yield from _extras(s, foot, front, tail, back)


def _fenders(s: SimpleNamespace, front: float, back: float, paint: float) -> Iterator[Solid]:
    """Build mudguards beside the body, with a running board from one to the next."""
    r = s.radius
    for y in (-(s.width / 2 + 0.02), s.width / 2 + 0.02):
        for x in (front - 0.2 * s.length, back + 0.2 * s.length):
            arch = [(x - 1.7 * r, r), (x - 0.8 * r, 2.3 * r), (x + 0.7 * r, 2.3 * r), (x + 1.35 * r, 1.3 * r)]
            yield profile(arch, 0.2, paint, y=y)
        yield box((0, y, s.clearance + 0.05), (0.6 * s.length, 0.2, 0.05), paint)


def _cabin(s: SimpleNamespace, foot: float, tail: float, rake: float) -> Iterator[Solid]:
    w, low, roof, lean = s.width - 0.06, s.belt - 0.03, s.roof, s.lean
    top0, top1, narrowed = tail + s.slope, foot - rake, lean * (roof - low)
    yield profile([(tail, low), (foot, low), (top1, roof), (top0, roof)], w, GLASS, lean=lean)
    lower, upper = roof - 0.04, roof + 0.03
    skin = [(top0 - 0.03, lower), (top1 + 0.03, lower), (top1 - 0.03, upper), (top0 + 0.03, upper)]
    yield profile(skin, w - 2 * lean * (roof - low) + 0.035, s.paint, lean=lean)
    for x in (tail + f * (foot - tail) for f in s.posts):  # they stand a little proud of the glass
        post = [(x - 0.035, low), (x + 0.035, low), (x + 0.03, roof), (x - 0.03, roof)]
        yield profile(post, w + 0.02, s.paint, lean=lean)
    y = w / 2 - 0.015
    for top, bottom in ((top1, foot), (top0, tail)):
        yield from (rod((bottom, k * y, low), (top, k * (y - narrowed), roof), 0.03, s.paint) for k in SIDES)


def _open_top(s: SimpleNamespace, foot: float, tail: float) -> Iterator[Solid]:
    """Build a windscreen and two seats before a hood."""
    w, z, top, y = s.width, s.belt, foot - s.rake, s.width / 2 - 0.05
    yield box((0.5 * (foot + tail), 0, z), (foot - tail - 0.06, w - 0.16, 0.04), DARK)
    screen = [(foot - 0.03, z), (foot + 0.03, z), (top + 0.02, s.roof), (top - 0.02, s.roof)]
    yield profile(screen, w - 0.1, GLASS)
    yield from (rod((foot, side * y, z), (top, side * y, s.roof), 0.03, s.paint) for side in SIDES)
    yield box((top, 0, s.roof), (0.06, w - 0.06, 0.05), s.paint)
    x, R = foot - 0.3 * (foot - tail), turn(pitch=8)
    yield from (box((x, side * 0.2 * w, z + 0.1), (0.1, 0.3 * w, 0.26), 0.4, R) for side in SIDES)
    yield rod((foot - 0.16, 0.2 * w, z + 0.1), (foot - 0.19, 0.2 * w, z + 0.13), 0.1, 0.4)  # steering wheel


def _lamps(s: SimpleNamespace, front: float, back: float) -> Iterator[Solid]:
    z, fenders = max(s.nose - 0.1, s.clearance + 0.1), "fenders" in s.extras
    for side in SIDES:
        y = side * 0.36 * s.width
        if fenders:
            yield ball((front - 0.1, side * 0.42 * s.width, z + 0.1), 0.09, 1.0)
        else:
            yield rod((front - 0.1, y, z), (front + 0.015, y, z), 0.07, 1.0)
        yield box((back + 0.02, y, s.deck - 0.1), (0.08, 0.16, 0.09), 0.25)
    if "grille" in s.extras:
        yield box((front, 0, z), (0.05, 0.44 * s.width, 0.28 if fenders else 0.12), DARK)


def _extras(s: SimpleNamespace, foot: float, front: float, tail: float, back: float) -> Iterator[Solid]:
    w, trim = s.width, 0.8 * s.paint
    middle, top = (foot - s.rake + tail + s.slope) / 2, foot - tail - s.rake - s.slope  # of the roof: place and length
    if "spare wheel" in s.extras:
        yield rod((back - 0.12, 0, 0.5), (back + 0.02, 0, 0.5), 0.2, 0.1)
    if "bull bar" in s.extras:
        yield from (box((front + 0.05, y * w, s.nose - 0.1), (0.04, 0.05, 0.26), DARK) for y in (-0.16, 0.16))
        yield box((front + 0.05, 0, s.nose - 0.03), (0.04, 0.5 * w, 0.05), DARK)
    if "spoiler" in s.extras:
        yield box((back + 0.1, 0, s.deck + 0.08), (0.16, 0.86 * w, 0.035), s.paint)
        yield from (box((back + 0.12, y * w, s.deck + 0.03), (0.1, 0.04, 0.1), s.paint) for y in (-0.34, 0.34))
    if "rails" in s.extras:
        yield from (box((middle, y * w, s.roof + 0.05), (top, 0.03, 0.04), trim) for y in (-0.28, 0.28))
    if "rack" in s.extras:
        yield from (box((middle, y * w, s.roof + 0.06), (top, 0.03, 0.04), trim) for y in (-0.34, 0.34))
        yield from (box((middle + f * top, 0, s.roof + 0.06), (0.03, 0.7 * w, 0.03), trim) for f in (-0.4, 0.0, 0.4))
    if "light bar" in s.extras:
        yield box((middle + 0.05, 0, s.roof + 0.07), (0.12, 0.5 * w, 0.09), 0.4)


def build_truck(s: SimpleNamespace) -> Iterator[Solid]:
    front, back, w, z, r = s.length / 2, -s.length / 2, s.width, s.frame, s.radius
    cab_back, cab_top = front - s.hood - s.cab, z + s.cab_height
    xs = [front - 0.28, back + 0.28, back + 0.3 + 2.1 * r, front - 0.3 - 2.1 * r, back + 0.32 + 4.2 * r]
    yield from axles(xs[: s.axles], w + 0.04, r, 0.18, s.hub)
    yield box((0, 0, z - 0.06), (s.length - 0.04, 0.6 * w, 0.14), DARK)
    yield from _cab(s, front, cab_back, z - 0.14)
    x1 = cab_back - s.gap
    x, y = x1 + 0.55 * s.gap, 0.4 * w
    yield from (rod((x, side * y, z), (x, side * y, cab_top + 0.16), 0.045, DARK) for side in SIDES)  # exhausts
    bed = {"x0": back, "x1": x1, "mid": (back + x1) / 2, "length": x1 - back, "w": w, "h": s.load_height, "z": z}
    yield from LOADS[s.kind](SimpleNamespace(**bed, gap=s.gap, cab_top=cab_top, cargo=s.cargo, paint=s.paint))


def _cab(s: SimpleNamespace, front: float, back: float, low: float) -> Iterator[Solid]:
    w, top, base, belt = s.width, s.frame + s.cab_height, front - s.hood, s.frame + 0.5 * s.cab_height
    yield profile([(back, low), (base, low), (base, belt), (back, belt)], w, s.paint)
    windows = [(back + 0.02, belt), (base - 0.01, belt), (base - 0.14, top), (back + 0.02, top)]
    yield profile(windows, w - 0.02, GLASS, lean=0.08)
    yield box((base - 0.16 - (base - back - 0.16) / 2, 0, top), (base - back - 0.14, w - 0.09, 0.06), s.paint)
    wall = [(back, belt), (back + 0.08, belt), (back + 0.08, top), (back, top)]
    yield profile(wall, w, s.paint, lean=0.08)
    yield box((back, 0, (belt + top) / 2), (0.02, 0.6 * w, 0.55 * (top - belt)), GLASS)
    if s.hood:
        bonnet = [(base - 0.02, low), (front, low), (front, belt - 0.08), (base - 0.02, belt)]
        yield profile(bonnet, w - 0.16, s.paint)
        x, r = front - 0.3, s.radius
        fender = [(x - 1.25 * r, low), (x - 0.8 * r, 2.25 * r), (x + 0.8 * r, 2.25 * r), (front - 0.02, low)]
        yield from (profile(fender, 0.16, s.paint, y=side * (w / 2 - 0.08)) for side in SIDES)
    y, z = 0.36 * w, low + 0.2
    yield box((front + 0.02, 0, low + 0.04), (0.07, w, 0.1), 0.6)
    yield box((front + 0.004, 0, z), (0.02, 0.5 * w, 0.16), DARK)
    yield from (rod((front - 0.02, side * y, z), (front + 0.02, side * y, z), 0.06, 1.0) for side in SIDES)  # lamps


def _floor(b: SimpleNamespace, paint: float) -> Solid:
    return box((b.mid, 0, b.z + 0.03), (b.length, b.w, 0.07), paint)


def _boxed(b: SimpleNamespace) -> Iterator[Solid]:
    """Build a closed box with ribs."""
    z = b.z + 0.06 + b.h / 2
    yield box((b.mid, 0, z), (b.length, b.w, b.h), b.cargo)
    ribs = (b.x0 + f * b.length for f in (0.25, 0.5, 0.75))
    yield from (box((x, 0, z), (0.03, b.w + 0.03, b.h), 0.8 * b.cargo) for x in ribs)


def _tank(b: SimpleNamespace) -> Iterator[Solid]:
    """Build a tank with bands and a hatch."""
    r = 0.44 * b.h
    z, back, front, hatch = b.z + 0.1 + r, b.x0 + 0.14, b.x1 - 0.14, b.mid - 0.15
    yield _floor(b, 0.8 * b.paint)
    yield rod((back, 0, z), (front, 0, z), r, b.cargo)
    yield from (ball((x, 0, z), (0.14, r, r), b.cargo) for x in (back, front))
    bands = (b.x0 + 0.4, b.mid, b.x1 - 0.42)
    yield from (rod((x, 0, z), (x + 0.1, 0, z), 1.02 * r, b.paint) for x in bands)
    yield rod((hatch, 0, z + r - 0.05), (hatch, 0, z + r + 0.07), 0.12, b.paint)
    yield box((b.mid, 0, z + r), (0.8 * b.length, 0.3 * b.w, 0.05), b.cargo)


def _tipper(b: SimpleNamespace) -> Iterator[Solid]:
    """Build an open tray with a heap in it."""
    low, h = b.z + 0.1, b.h
    wall = [(b.x0, b.z + 0.22), (b.x1, low), (b.x1, low + h), (b.x0 - 0.1, low + 0.8 * h)]
    yield from (profile(wall, 0.07, b.cargo, y=side * (b.w / 2 - 0.02)) for side in SIDES)
    floor = [(b.x0, b.z + 0.2), (b.x1, b.z + 0.08), (b.x1, b.z + 0.2), (b.x0, b.z + 0.32)]
    yield profile(floor, b.w, b.cargo)
    yield box((b.x1 - 0.03, 0, low + h / 2), (0.07, b.w, h), b.cargo)
    yield ball((b.mid, 0, low + 0.6 * h), (0.46 * b.length, 0.44 * b.w, 0.34 * h), 0.7 * b.cargo)


def _fire_engine(b: SimpleNamespace) -> Iterator[Solid]:
    """Build shutters at the sides and a ladder on top."""
    x, top, ladder, R = b.x0 + 0.3, b.z + b.h, np.array([b.mid + 0.2, 0, b.z + b.h + 0.2]), turn(pitch=5)
    yield box((b.mid, 0, b.z + 0.05 + b.h / 2), (b.length, b.w, b.h), b.cargo)
    shutters = [(b.x0 + f * b.length, 0, b.z + 0.02 + b.h / 2) for f in (0.2, 0.5, 0.8)]
    yield from (box(place, (0.2 * b.length, b.w + 0.02, 0.6 * b.h), 0.7 * b.cargo) for place in shutters)
    yield from (box(ladder + [0, y, 0], (b.length + 0.5, 0.045, 0.08), 0.95, R) for y in (-0.13, 0.13))
    yield from (box(R @ [k, 0, 0] + ladder, (0.04, 0.26, 0.04), 0.95) for k in np.linspace(-0.9, 0.9, 8))
    yield box((b.x1 + b.gap + 0.35, 0, b.cab_top + 0.06), (0.1, 0.5 * b.w, 0.09), 0.25)  # beacon
    yield rod((x, 0, top), (x, 0, top + 0.16), 0.2, DARK)  # pivot


def _mixer(b: SimpleNamespace) -> Iterator[Solid]:
    """Build a slanting drum that narrows to both ends, between a water tank and a hopper with its chute."""
    places = ((b.x1 - 0.2, 0.47), (b.mid + 0.1, 0.57), (b.mid - 0.3, 0.7), (b.x0 + 0.02, 0.96))
    end, deep, wide, mouth = (np.array([x, 0, b.z + f * b.h]) for x, f in places)
    along = wide - deep
    yield _floor(b, 0.8 * b.paint)
    yield rod(end, deep, 0.32, b.cargo, 0.44)
    yield rod(deep, wide, 0.44, b.cargo)
    yield rod(wide, mouth, 0.44, b.cargo, 0.2)
    yield from (rod(p, p + 0.25 * along, 0.455, b.paint) for p in (deep, deep + 0.75 * along))
    yield rod((b.x0, 0, b.z + 0.86 * b.h), (b.x0, 0, b.z + 1.12 * b.h), 0.12, b.paint, 0.24)  # hopper
    yield from limb([(b.x0, 0, b.z + 0.78), (b.x0 - 0.18, 0, b.z + 0.4)], [0.09, 0.07], DARK, ends=False)
    yield box((b.x1 - 0.13, 0, b.z + 0.44 * b.h), (0.26, b.w, 0.8 * b.h), b.cargo)
    yield box((b.x0 + 0.16, 0, b.z + 0.36 * b.h), (0.2, b.w, 0.66 * b.h), b.cargo)


def _containers(b: SimpleNamespace) -> Iterator[Solid]:
    """Build two ribbed containers, the front one higher."""
    yield _floor(b, 0.8 * b.paint)
    long = 0.49 * b.length
    for x, h, paint in ((b.x0 + long / 2, 0.86 * b.h, 0.75 * b.cargo), (b.x1 - long / 2, b.h, b.cargo)):
        z, ribs = b.z + 0.08 + h / 2, (x + f * long for f in (-0.33, -0.11, 0.11, 0.33))
        yield box((x, 0, z), (long, b.w - 0.04, h), paint)
        yield from (box((rib, 0, z), (0.05, b.w, 0.84 * h), 0.85 * paint) for rib in ribs)


def _logs(b: SimpleNamespace) -> Iterator[Solid]:
    """Build a pile of logs between stakes."""
    r = b.h / 6.6
    yield _floor(b, DARK)
    for k, (y, up) in enumerate([(y, up) for up in (0, 2, 4) for y in (-2, 0, 2)] + [(-1, 5.7), (1, 5.7)]):
        y, z = y * r, b.z + 0.08 + r * (1 + up)
        start, end = (b.x0 - 0.06 + 0.03 * (k % 4), y, z), (b.x1 - 0.03 * (k % 3), y, z)
        yield rod(start, end, r, b.cargo * (0.75 + 0.05 * (k % 5)))
    stakes = [(b.x0 + f * b.length, side * (3 * r + 0.03), b.z + 0.5 * b.h) for f in (0.15, 0.85) for side in SIDES]
    yield from (box(place, (0.06, 0.05, b.h), DARK) for place in stakes)


def _canvas(b: SimpleNamespace) -> Iterator[Solid]:
    """Build a cover over hoops."""
    top, hoops = b.z + 0.3 + 0.4 * b.h, [b.x0 + f * b.length for f in (0.02, 0.34, 0.66, 0.95)]
    yield box((b.mid, 0, b.z + 0.16), (b.length, b.w, 0.3), b.paint)
    yield rod((b.x0 + 0.01, 0, top), (b.x1 - 0.01, 0, top), b.w / 2, b.cargo)
    yield box((b.mid, 0, b.z + 0.3 + 0.2 * b.h), (b.length - 0.02, b.w, 0.4 * b.h), b.cargo)
    yield from (rod((x, 0, top), (x + 0.04, 0, top), b.w / 2 + 0.02, 0.75 * b.cargo) for x in hoops)


def _crane(b: SimpleNamespace) -> Iterator[Solid]:
    """Build a house with a pane and a weight behind, and on it a jib that reaches over the cab."""
    z = b.z + 0.22
    root, tip = np.array([b.x0 + 0.2, 0, b.z + 0.3 + 0.8 * b.h]), np.array([b.x1 + 0.55, 0, b.z + 0.5 + 1.05 * b.h])
    along = tip - root
    R, reach = turn(pitch=float(np.degrees(np.arctan2(along[2], along[0])))), float(np.linalg.norm(along))
    yield box((b.mid, 0, b.z + 0.12), (b.length, b.w, 0.22), b.paint)
    yield box((b.mid - 0.06, 0, z + 0.4 * b.h), (b.length - 0.3, 0.9 * b.w, 0.8 * b.h), b.cargo)
    yield box((b.x1 - 0.42, 0, z + 0.55 * b.h), (0.28, 0.9 * b.w + 0.02, 0.3 * b.h), GLASS)
    yield box((b.x0 + 0.1, 0, z + 0.25 * b.h), (0.22, b.w, 0.5 * b.h), b.paint)
    yield box(root + 0.4 * along, (0.8 * reach, 0.24, 0.24), b.cargo, R)
    yield box(root + 0.6 * along, (0.8 * reach, 0.17, 0.17), b.paint, R)
    yield rod(tip + [0, 0, -0.26], tip, 0.045, DARK)
    feet = [(x, side * (b.w / 2 + 0.04), b.z - 0.05) for x in (b.x0 + 0.05, b.x1 - 0.1) for side in SIDES]
    yield from (box(place, (0.12, 0.16, 0.12), b.cargo) for place in feet)


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


def build_airplane(s: SimpleNamespace) -> Iterator[Solid]:
    front, r = s.length / 2, s.radius
    hull_end, nose = -0.25 * s.length, front - s.nose
    yield rod((hull_end, 0, 0), (nose, 0, 0), r, s.skin)
    yield rod((-front, 0, 0.35 * r), (hull_end, 0, 0), 0.3 * r, s.skin, r)
    yield ball((hull_end, 0, 0), r, s.skin)
    yield ball((nose, 0, 0), (s.nose, r, r), s.skin)
    yield from _wings(s)
    yield from _tail(s, -front, 0.3 * r)
    if "propeller" in s.extras:
        yield from _propeller(front, 0, 0, 0.42, s.trim)
        yield rod((front - 0.12, 0, 0), (front - 0.02, 0, 0), 0.85 * r, s.trim, 0.5 * r)
    yield from _engines(s)
    if "canopy" in s.extras:
        yield ball((nose - 0.12, 0, 0.75 * r), (0.3, 0.62 * r, 0.75 * r), GLASS)
    else:
        yield ball((nose + 0.02, 0, 0.45 * r), (0.14, 0.75 * r, 0.62 * r), GLASS)
    if "windows" in s.extras:
        yield box((0.05, 0, 0.3 * r), (0.62 * s.length, 1.97 * r, 0.22 * r), GLASS)
    yield from _undercarriage(s)


def _wings(s: SimpleNamespace) -> Iterator[Solid]:
    """Build one pair of wings, with struts below it, or two pairs with struts between them."""
    x, r, tip = s.wing_x, s.radius, s.chord * s.taper
    two = "second wing" in s.extras
    for lead, z in [(x, s.wing_z * r), (x + 0.06, 3.0 * r)][: 1 + two]:
        back = lead - s.sweep
        plan = [(lead, 0.0), (back, s.span / 2), (back - tip, s.span / 2), (lead - s.chord, 0.0)]
        yield from (plate(plan, z, 0.05, s.wings, rise=s.rise, side=side) for side in SIDES)
    if two:
        for y in (-0.36 * s.span, 0.36 * s.span):
            yield from (rod((k, y, -0.8 * r), (k + 0.06, y, 3.0 * r), 0.022, s.trim) for k in (x - 0.05, x - 0.32))
        yield from (rod((x - 0.1, y, 0), (x - 0.05, 2 * y, 3.0 * r), 0.022, s.trim) for y in (-r / 2, r / 2))
    elif "struts" in s.extras:
        for side in SIDES:
            foot, top = (x - 0.12, side * r * 0.7, -0.6 * r), (x - 0.12, side * 0.26 * s.span, s.wing_z * r)
            yield rod(foot, top, 0.022, s.wings)


def _tail(s: SimpleNamespace, end: float, z: float) -> Iterator[Solid]:
    y, sweep = s.tail_span / 2, 0.7 * s.fin_sweep
    x, up = (end + 0.16, s.fin) if s.tail == "high" else (end + 0.4, 0.0)
    plan = [(x, 0.0), (x - sweep, y), (x - sweep - 0.2, y), (x - 0.36, 0.0)]
    yield from (plate(plan, z + up, 0.04, s.wings, side=side) for side in SIDES)
    fin = [(end + 0.45, z), (end + 0.4 - s.fin_sweep, z + s.fin), (end + 0.16 - s.fin_sweep, z + s.fin), (end, z)]
    yield from (profile(fin, 0.045, s.trim, y=p) for p in ((-0.5 * y, 0.5 * y) if s.tail == "twin" else (0.0,)))


def _propeller(x: float, y: float, z: float, length: float, paint: float) -> Iterator[Solid]:
    yield from (box((x + 0.02, y, z), (0.025, 0.07, 2 * length), DARK, turn(roll=angle)) for angle in (35, 125))
    yield rod((x - 0.02, y, z), (x + 0.1, y, z), 0.05, paint, 0.01)


def _engines(s: SimpleNamespace) -> Iterator[Solid]:
    jets = {  # x, y, z, and how far they reach behind and ahead of x
        "pods": (0.3, s.engine_y, s.wing_z * s.radius - 0.13, 0.34, 0.08, 0.09),
        "rear": (-0.3 * s.length, s.radius + 0.09, 0.06, 0.25, 0.22, 0.23),
    }
    propellers = {"props": (0.3, [s.engine_y]), "four props": (0.24, [s.engine_y, 2 * s.engine_y])}
    for side in SIDES:
        if s.engines in jets:
            x, y, z, behind, ahead, intake = jets[s.engines]
            yield rod((x - behind, side * y, z), (x + ahead, side * y, z), 0.07, s.skin, 0.1)
            yield rod((x, side * y, z), (x + intake, side * y, z), 0.075, DARK)
        length, places = propellers.get(s.engines, (0.0, []))
        for y in places:
            x, z = s.wing_x + 0.16, s.wing_z * s.radius + s.rise * y
            yield rod((x - 0.5, side * y, z), (x, side * y, z), 0.04, s.skin, 0.09)
            yield from _propeller(x, side * y, z, length, s.trim)


def _undercarriage(s: SimpleNamespace) -> Iterator[Solid]:
    """Build struts with floats, or with wheels, or nothing."""
    r, x = s.radius, s.wing_x - 0.08
    for side in SIDES:
        top, y = side * r * 0.5, side * 0.3
        if "floats" in s.extras:
            low = -r - 0.26
            yield from (rod((k, top, -0.7 * r), (k, y, low), 0.025, s.trim) for k in (x, x - 0.4))
            yield ball((x - 0.12, y, low - 0.04), (0.56, 0.09, 0.08), s.skin)
        elif "gear" in s.extras:
            low = -r - 0.2
            yield rod((x, top, -0.7 * r), (x, y, low), 0.025, s.trim)
            yield rod((x, y - 0.035, low), (x, y + 0.035, low), 0.1, 0.1)
