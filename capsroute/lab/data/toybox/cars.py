"""Ten cars, each a row of a table of proportions and parts.

All have four equal wheels under a low body, with a lower bonnet and boot and a cabin between them, windows all around.
"""

from dataclasses import dataclass, replace

import numpy as np

from .parts import DARK, GLASS, SIDES, axles, profile
from .solids import Solid, ball, box, rod, turn


@dataclass(frozen=True)
class Car:
    length: float = 2.2
    width: float = 0.92
    belt: float = 0.48  # height of the bonnet and of the windows' lower edge
    roof: float = 0.8
    nose: float = 0.42  # height of the front edge
    deck: float = 0.48  # height of the rear edge
    screen: float = 0.32  # from the front edge to the foot of the windscreen, as a share of the length
    rake: float = 0.16  # how far the windscreen's top lies behind its foot
    tail: float = 0.2  # from the rear edge to the foot of the rear window, as a share of the length
    slope: float = 0.16  # how far the rear window's top lies before its foot
    radius: float = 0.19
    clearance: float = 0.15
    lean: float = 0.26  # of the cabin's sides
    posts: tuple[float, ...] = (0.48,)  # between side windows, as shares of the cabin from its rear
    extras: tuple[str, ...] = ()  # open top, fenders, rails, rack, spare wheel, spoiler, light bar, bull bar, grille


CARS = (
    Car(extras=("grille",)),  # saloon
    Car(1.68, 0.94, 0.53, 0.93, 0.45, 0.5, 0.27, 0.2, 0.15, 0.2, 0.19),  # small car
    Car(2.35, 1.0, 0.44, 0.69, 0.36, 0.46, 0.37, 0.28, 0.18, 0.3, 0.19, 0.12, extras=("spoiler",)),  # sports car
    Car(2.0, 0.97, 0.6, 0.99, 0.55, 0.6, 0.31, 0.16, 0.14, 0.12, 0.23, 0.23, 0.18, (0.3, 0.62),
        ("spare wheel", "bull bar", "rack")),  # off-road car
    Car(2.35, 0.93, 0.5, 0.84, 0.43, 0.5, 0.3, 0.2, 0.11, 0.17, posts=(0.3, 0.62), extras=("rails",)),  # estate
    Car(1.9, 0.9, 0.5, 0.82, 0.42, 0.5, 0.3, 0.24, 0.14, 0.24),  # hatchback
    Car(2.4, 0.9, 0.43, 0.71, 0.36, 0.42, 0.37, 0.16, 0.22, 0.18, 0.2, 0.13, posts=(),
        extras=("open top",)),  # open car
    Car(2.75, 0.94, 0.5, 0.84, 0.45, 0.5, 0.27, 0.19, 0.18, 0.18, 0.2, posts=(0.25, 0.5, 0.75),
        extras=("grille",)),  # limousine
    Car(2.1, 0.8, 0.57, 0.96, 0.53, 0.5, 0.37, 0.12, 0.17, 0.14, 0.23, 0.2, 0.18,
        extras=("fenders", "grille")),  # vintage car
    Car(2.15, 1.0, 0.54, 0.87, 0.49, 0.54, 0.31, 0.2, 0.21, 0.22, 0.21, 0.17,
        extras=("light bar", "bull bar")),  # patrol car
)  # fmt: skip


def build_car(s: Car, rng: np.random.Generator) -> list[Solid]:
    paint, hub = rng.uniform(0.6, 0.85), rng.uniform(0.55, 0.75)
    front, back, w = s.length / 2, -s.length / 2, s.width
    foot, tail = front - s.screen * s.length, back + s.tail * s.length
    fenders = "fenders" in s.extras
    track = w + (0.26 if fenders else 0.04)
    parts = axles((front - 0.19 * s.length, back + 0.19 * s.length), track, s.radius, 0.17, hub)
    if fenders:
        parts += _fenders(s, front, back, 0.85 * paint)
        front -= 0.1
    parts += _body(s, foot, front, tail, back, paint)
    if "open top" in s.extras:
        parts += _open_top(s, foot, tail, paint)
        parts += _cabin(replace(s, rake=0.0), tail + 0.62 * (foot - tail), tail, paint)
    else:
        parts += _cabin(s, foot, tail, paint)
    return parts + _lamps(s, front, back) + _extras(s, foot, front, tail, back, paint)


def _extras(s: Car, foot: float, front: float, tail: float, back: float, paint: float) -> list[Solid]:
    w, parts = s.width, []
    middle, top = (foot - s.rake + tail + s.slope) / 2, foot - tail - s.rake - s.slope  # of the roof: place and length
    if "spare wheel" in s.extras:
        parts.append(rod((back - 0.12, 0, 0.5), (back + 0.02, 0, 0.5), 0.2, 0.1))
    if "bull bar" in s.extras:
        parts += [box((front + 0.05, y, s.nose - 0.1), (0.04, 0.05, 0.26), DARK) for y in (-0.16 * w, 0.16 * w)]
        parts.append(box((front + 0.05, 0, s.nose - 0.03), (0.04, 0.5 * w, 0.05), DARK))
    if "spoiler" in s.extras:
        parts.append(box((back + 0.1, 0, s.deck + 0.08), (0.16, 0.86 * w, 0.035), paint))
        parts += [box((back + 0.12, side * 0.34 * w, s.deck + 0.03), (0.1, 0.04, 0.1), paint) for side in SIDES]
    if "rails" in s.extras:
        parts += [box((middle, side * 0.28 * w, s.roof + 0.05), (top, 0.03, 0.04), 0.8 * paint) for side in SIDES]
    if "rack" in s.extras:
        parts += [box((middle, side * 0.34 * w, s.roof + 0.06), (top, 0.03, 0.04), 0.8 * paint) for side in SIDES]
        parts += [
            box((middle + f * top, 0, s.roof + 0.06), (0.03, 0.7 * w, 0.03), 0.8 * paint) for f in (-0.4, 0.0, 0.4)
        ]
    if "light bar" in s.extras:
        parts.append(box((middle + 0.05, 0, s.roof + 0.07), (0.12, 0.5 * w, 0.09), 0.4))
    return parts


def _body(s: Car, foot: float, front: float, tail: float, back: float, paint: float) -> list[Solid]:
    low = s.clearance
    lower = [(back, low), (front, low), (front, low + 0.08), (back, low + 0.1)]
    upper = [(back + 0.06, s.deck), (tail, s.belt), (foot, s.belt), (front - 0.06, s.nose)]
    bumpers = box((0, 0, low + 0.03), (s.length + 0.06, s.width - 0.06, 0.1), 0.5)
    return [profile(lower + upper, s.width, paint, lean=0.02), bumpers]


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
    for x in (tail + f * (foot - tail) for f in s.posts):
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
    """A windscreen and two seats before a hood."""
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
    x = foot - 0.3 * (foot - tail)
    seats = [box((x, side * 0.2 * w, z + 0.1), (0.1, 0.3 * w, 0.26), 0.4, turn(pitch=8)) for side in SIDES]
    steering = rod((foot - 0.16, 0.2 * w, z + 0.1), (foot - 0.19, 0.2 * w, z + 0.13), 0.1, 0.4)
    return [tub, screen, *frame, rim, *seats, steering]


def _fenders(s: Car, front: float, back: float, paint: float) -> list[Solid]:
    """Mudguards beside the body, with a running board from one to the next; wheels stand out from below them."""
    parts, r = [], s.radius
    for side in SIDES:
        y = side * (s.width / 2 + 0.02)
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
        if "fenders" in s.extras:
            parts.append(ball((front - 0.1, side * 0.42 * s.width, z + 0.1), 0.09, 1.0))
        else:
            parts.append(rod((front - 0.1, side * y, z), (front + 0.015, side * y, z), 0.07, 1.0))
        parts.append(box((back + 0.02, side * y, s.deck - 0.1), (0.08, 0.16, 0.09), 0.25))
    if "grille" in s.extras:
        parts.append(box((front, 0, z), (0.05, 0.44 * s.width, 0.28 if "fenders" in s.extras else 0.12), DARK))
    return parts
