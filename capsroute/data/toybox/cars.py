"""Ten cars, each a row of a table of proportions and parts."""

from dataclasses import dataclass

import numpy as np

from .parts import DARK, GLASS, SIDES, axles, profile
from .solids import Solid, ball, box, rod, turn


@dataclass(frozen=True)
class Car:
    style: str
    length: float = 2.2
    width: float = 0.92
    belt: float = 0.5  # height of the bonnet and of the windows' lower edge
    roof: float = 0.78
    nose: float = 0.4  # height of the front edge
    deck: float = 0.48  # height of the rear edge
    screen: float = 0.42  # from the front edge to the foot of the windscreen, as a share of the length
    rake: float = 0.16  # how far the windscreen's top lies behind its foot
    tail: float = 0.18  # from the rear edge to the foot of the rear window, as a share of the length
    slope: float = 0.16  # how far the rear window's top lies before its foot
    radius: float = 0.19
    clearance: float = 0.15
    lean: float = 0.2  # of the cabin's sides


CARS = (
    Car("sedan"),
    Car("beetle", 1.9, 0.95, 0.5, 0.84, 0.3, 0.3, 0.36, 0.16, 0.14, 0.34, 0.2),
    Car("sports", 2.3, 1.0, 0.42, 0.66, 0.34, 0.46, 0.42, 0.3, 0.12, 0.42, 0.18, 0.11),
    Car("jeep", 1.8, 0.9, 0.62, 1.02, 0.6, 0.6, 0.4, 0.04, 0.02, 0.02, 0.25, 0.24, 0.05),
    Car("wagon", 2.4, 0.92, 0.5, 0.8, 0.42, 0.5, 0.36, 0.18, 0.02, 0.1),
    Car("hatch", 1.75, 0.88, 0.52, 0.86, 0.42, 0.5, 0.3, 0.22, 0.04, 0.2),
    Car("open", 2.2, 0.94, 0.48, 0.76, 0.38, 0.44, 0.42, 0.1, 0.24, 0.1),
    Car("van", 2.1, 0.94, 0.56, 1.0, 0.44, 0.55, 0.2, 0.34, 0.02, 0.08),
    Car("vintage", 2.2, 0.78, 0.62, 1.0, 0.56, 0.5, 0.46, 0.04, 0.1, 0.12, 0.24, 0.22, 0.08),
    Car("racer", 2.4, 0.5, 0.34, 0.5, 0.2, 0.36, 0.5, 0.1, 0.2, 0.3, 0.24, 0.1),
)  # fmt: skip


def car(s: Car, rng: np.random.Generator) -> list[Solid]:
    paint, hub = rng.uniform(0.35, 0.95), rng.uniform(0.5, 0.9)
    roof = paint if rng.random() < 0.7 else rng.uniform(0.3, 0.95)
    if s.style == "racer":
        return _racer(s, paint, hub)
    front, back, w = s.length / 2, -s.length / 2, s.width
    foot, tail = front - s.screen * s.length, back + s.tail * s.length
    track = w + (0.36 if s.style == "vintage" else 0.03)
    parts = axles((front - 0.2 * s.length, back + 0.2 * s.length), track, s.radius, 0.17, hub)
    if s.style == "vintage":
        parts += _fenders(s, front, back, 0.7 * paint)
        front -= 0.12
    parts += _round_body(s, paint) if s.style == "beetle" else _body(s, foot, front, tail, back, paint)
    if s.style in ("open", "jeep"):
        parts += _open_top(s, foot, tail, paint)
    elif s.style != "beetle":
        parts += _cabin(s, foot, tail, roof)
    parts += _lamps(s, front, back)
    if s.style == "jeep":
        parts.append(rod((back - 0.14, 0, 0.55), (back + 0.02, 0, 0.55), 0.22, 0.1))
        parts += [
            box((x, side * 0.46 * w, 0.5), (0.52, 0.14, 0.1), DARK)
            for x in (0.3 * s.length, -0.3 * s.length)
            for side in SIDES
        ]
    if s.style == "sports":
        parts.append(box((back + 0.1, 0, s.deck + 0.14), (0.18, w, 0.03), DARK))
        parts += [box((back + 0.12, side * 0.36 * w, s.deck + 0.06), (0.1, 0.04, 0.16), DARK) for side in SIDES]
    if s.style == "wagon":
        parts += [box((-0.35, side * 0.26 * w, s.roof + 0.05), (0.9, 0.03, 0.04), DARK) for side in SIDES]
    return parts


def _body(s: Car, foot: float, front: float, tail: float, back: float, paint: float) -> list[Solid]:
    low = s.clearance
    lower = [(back, low), (front, low), (front, low + 0.08), (back, low + 0.1)]
    upper = [(back + 0.06, s.deck), (tail, s.belt), (foot, s.belt), (front - 0.06, s.nose)]
    bumpers = box((0, 0, low + 0.03), (s.length + 0.06, s.width - 0.06, 0.1), 0.65 if s.style != "sports" else DARK)
    return [profile(lower + upper, s.width, paint, lean=0.02), bumpers]


def _round_body(s: Car, paint: float) -> list[Solid]:
    length, w, r = s.length, s.width, s.radius
    parts = [
        ball((-0.1, 0, 0.34), (0.34 * length, 0.37 * w, s.roof - 0.34), paint),
        ball((-0.08, 0, 0.65), (0.28 * length, 0.31 * w, 0.12), GLASS),
        ball((0.25 * length, 0, 0.28), (0.27 * length, 0.32 * w, 0.24), paint),
        ball((-0.3 * length, 0, 0.28), (0.22 * length, 0.36 * w, 0.24), paint),
        box((0, 0, 0.22), (0.6 * length, 0.8 * w, 0.12), paint),
    ]
    for x in (0.3 * length, -0.3 * length):
        parts += [ball((x, side * 0.36 * w, r + 0.08), (1.5 * r, 0.13 * w, r + 0.02), 0.9 * paint) for side in SIDES]
    return parts + [box((x, 0, 0.2), (0.06, 0.8 * w, 0.07), 0.75) for x in (length / 2, -length / 2)]


def _cabin(s: Car, foot: float, tail: float, roof: float) -> list[Solid]:
    w, low = s.width - 0.06, s.belt - 0.03
    top0, top1 = tail + s.slope, foot - s.rake
    glass = [(tail, low), (foot, low), (top1, s.roof), (top0, s.roof)]
    top_w = w - 2 * s.lean * (s.roof - low)
    skin = [
        (top0 - 0.03, s.roof - 0.04),
        (top1 + 0.03, s.roof - 0.04),
        (top1 - 0.03, s.roof + 0.03),
        (top0 + 0.03, s.roof + 0.03),
    ]
    parts = [profile(glass, w, GLASS, lean=s.lean), profile(skin, top_w + 0.035, roof, lean=s.lean)]
    # posts stand a little proud of the glass
    posts = [0.5 * (foot + tail) - 0.05] + ([tail + 0.3 * (foot - tail) - 0.06] if s.style in ("wagon", "van") else [])
    for x in posts:
        parts.append(
            profile(
                [(x - 0.035, low), (x + 0.035, low), (x + 0.03, s.roof), (x - 0.03, s.roof)],
                w + 0.02,
                roof,
                lean=s.lean,
            )
        )
    for top, bottom in ((top1, foot), (top0, tail)):
        for side in SIDES:
            y = w / 2 - 0.015
            parts.append(rod((bottom, side * y, low), (top, side * (y - s.lean * (s.roof - low)), s.roof), 0.03, roof))
    return parts


def _open_top(s: Car, foot: float, tail: float, paint: float) -> list[Solid]:
    w, z = s.width, s.belt
    tub = box((0.5 * (foot + tail), 0, z), (foot - tail - 0.06, w - 0.16, 0.04), DARK)
    screen = profile(
        [(foot - 0.03, z), (foot + 0.03, z), (foot - s.rake + 0.02, s.roof), (foot - s.rake - 0.02, s.roof)],
        w - 0.1,
        GLASS,
    )
    frame = [
        rod((foot, side * (w / 2 - 0.05), z), (foot - s.rake, side * (w / 2 - 0.05), s.roof), 0.03, paint)
        for side in SIDES
    ]
    rim = box((foot - s.rake, 0, s.roof), (0.06, w - 0.06, 0.05), paint)
    seats = []
    rows = (0.42,) if s.style == "open" else (0.35, 0.75)
    for f in rows:
        x = foot - f * (foot - tail) - 0.1
        seats += [box((x, side * 0.22 * w, z + 0.1), (0.1, 0.3 * w, 0.28), 0.55, turn(pitch=8)) for side in SIDES]
        seats += [box((x + 0.16, side * 0.22 * w, z + 0.03), (0.3, 0.3 * w, 0.08), 0.5) for side in SIDES]
    steering = rod((foot - 0.2, 0.22 * w, z + 0.12), (foot - 0.23, 0.22 * w, z + 0.15), 0.1, 0.3)
    parts = [tub, screen, *frame, rim, *seats, steering]
    if s.style == "jeep":
        x = foot - 0.62 * (foot - tail)
        posts = [(x, side * (w / 2 - 0.06)) for side in SIDES]
        parts += [rod((*p, z), (*p, s.roof), 0.035, DARK) for p in posts]
        parts.append(rod((*posts[0], s.roof), (*posts[1], s.roof), 0.035, DARK))
    else:
        parts.append(ball((tail + 0.02, 0, z + 0.03), (0.2, 0.42 * w, 0.12), 0.3))
    return parts


def _fenders(s: Car, front: float, back: float, paint: float) -> list[Solid]:
    """Mudguards beside the body, with a running board from one to the next; wheels stand out from below them."""
    parts, r = [], s.radius
    for side in SIDES:
        y = side * (s.width / 2 + 0.04)
        for x in (front - 0.2 * s.length, back + 0.2 * s.length):
            arch = [(x - 1.7 * r, r), (x - 0.8 * r, 2.3 * r), (x + 0.7 * r, 2.3 * r), (x + 1.35 * r, 1.3 * r)]
            parts.append(profile(arch, 0.2, paint, y=y))
        parts.append(box((0, y, s.clearance + 0.05), (0.6 * s.length, 0.2, 0.05), paint))
    return parts


def _lamps(s: Car, front: float, back: float) -> list[Solid]:
    z = max(s.nose - 0.1, s.clearance + 0.1)
    y = 0.36 * s.width
    parts = []
    for side in SIDES:
        if s.style == "vintage":
            parts.append(ball((front - 0.1, side * 0.42 * s.width, z + 0.1), 0.09, 1.0))
        else:
            parts.append(rod((front - 0.1, side * y, z), (front + 0.015, side * y, z), 0.07, 1.0))
        parts.append(box((back + 0.02, side * y, s.deck - 0.1), (0.08, 0.16, 0.09), 0.25))
    if s.style in ("vintage", "jeep", "sedan", "wagon"):
        parts.append(box((front, 0, z), (0.05, 0.44 * s.width, 0.3 if s.style == "vintage" else 0.12), DARK))
    return parts


def _racer(s: Car, paint: float, hub: float) -> list[Solid]:
    front, back, w = s.length / 2, -s.length / 2, s.width
    parts = axles((front - 0.45, back + 0.3), 2.1 * w, s.radius, 0.24, hub)
    parts += [
        ball((0.1, 0, 0.26), (0.48 * s.length, 0.36 * w, 0.15), paint),
        profile([(back + 0.1, 0.12), (0.15, 0.12), (0.1, 0.38), (back + 0.2, 0.42)], 1.1 * w, paint, lean=0.3),
        ball((-0.18, 0, 0.44), (0.34, 0.2 * w, 0.2), paint),
        rod((0.14, 0, 0.3), (0.14, 0, 0.42), 0.16, DARK),
        ball((0.14, 0, 0.47), 0.11, 0.9),
        box((front - 0.02, 0, 0.13), (0.24, 1.7 * w, 0.04), paint * 0.7),
        box((back + 0.12, 0, 0.62), (0.26, 1.6 * w, 0.04), paint * 0.7),
    ]
    parts += [box((back + 0.12, side * 0.8 * w, 0.54), (0.3, 0.03, 0.24), DARK) for side in SIDES]
    parts += [box((back + 0.14, side * 0.2, 0.45), (0.1, 0.04, 0.34), DARK) for side in SIDES]
    parts += [rod((x, -0.9 * w, s.radius), (x, 0.9 * w, s.radius), 0.03, DARK) for x in (front - 0.45, back + 0.3)]
    return parts
