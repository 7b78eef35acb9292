"""Cars: four equal wheels under a low body, a lower bonnet and boot, and a cabin with windows all around."""

from types import SimpleNamespace

import numpy as np

from .solids import DARK, GLASS, SIDES, Solid, axles, ball, box, profile, rod, turn


def build_car(s: SimpleNamespace, rng: np.random.Generator) -> list[Solid]:
    paint, hub = rng.uniform(0.6, 0.85), rng.uniform(0.55, 0.75)
    front, back, w = s.length / 2, -s.length / 2, s.width
    foot, tail = front - s.screen * s.length, back + s.tail * s.length  # of the windscreen, of the rear window
    fenders = "fenders" in s.extras
    wheels = (front - 0.19 * s.length, back + 0.19 * s.length)
    parts = axles(wheels, w + (0.26 if fenders else 0.04), s.radius, 0.17, hub)
    if fenders:
        parts += _fenders(s, front, back, 0.85 * paint)
        front -= 0.1
    low = s.clearance
    lower = [(back, low), (front, low), (front, low + 0.08), (back, low + 0.1)]
    upper = [(back + 0.06, s.deck), (tail, s.belt), (foot, s.belt), (front - 0.06, s.nose)]
    parts.append(profile(lower + upper, w, paint, lean=0.02))
    parts.append(box((0, 0, low + 0.03), (s.length + 0.06, w - 0.06, 0.1), 0.5))  # bumpers
    if "open top" in s.extras:
        parts += _open_top(s, foot, tail, paint) + _cabin(s, tail + 0.62 * (foot - tail), tail, 0.0, paint)
    else:
        parts += _cabin(s, foot, tail, s.rake, paint)
    return parts + _lamps(s, front, back) + _extras(s, foot, front, tail, back, paint)


def _fenders(s: SimpleNamespace, front: float, back: float, paint: float) -> list[Solid]:
    """Build mudguards beside the body, with a running board from one to the next."""
    parts, r = [], s.radius
    for side in SIDES:
        y = side * (s.width / 2 + 0.02)
        for x in (front - 0.2 * s.length, back + 0.2 * s.length):
            arch = [(x - 1.7 * r, r), (x - 0.8 * r, 2.3 * r), (x + 0.7 * r, 2.3 * r), (x + 1.35 * r, 1.3 * r)]
            parts.append(profile(arch, 0.2, paint, y=y))
        parts.append(box((0, y, s.clearance + 0.05), (0.6 * s.length, 0.2, 0.05), paint))
    return parts


def _cabin(s: SimpleNamespace, foot: float, tail: float, rake: float, paint: float) -> list[Solid]:
    w, low, roof, lean = s.width - 0.06, s.belt - 0.03, s.roof, s.lean
    top0, top1 = tail + s.slope, foot - rake
    lower, upper = roof - 0.04, roof + 0.03
    skin = [(top0 - 0.03, lower), (top1 + 0.03, lower), (top1 - 0.03, upper), (top0 + 0.03, upper)]
    parts = [
        profile([(tail, low), (foot, low), (top1, roof), (top0, roof)], w, GLASS, lean=lean),
        profile(skin, w - 2 * lean * (roof - low) + 0.035, paint, lean=lean),
    ]
    for x in (tail + f * (foot - tail) for f in s.posts):  # they stand a little proud of the glass
        post = [(x - 0.035, low), (x + 0.035, low), (x + 0.03, roof), (x - 0.03, roof)]
        parts.append(profile(post, w + 0.02, paint, lean=lean))
    for top, bottom in ((top1, foot), (top0, tail)):
        for side in SIDES:
            y = w / 2 - 0.015
            parts.append(rod((bottom, side * y, low), (top, side * (y - lean * (roof - low)), roof), 0.03, paint))
    return parts


def _open_top(s: SimpleNamespace, foot: float, tail: float, paint: float) -> list[Solid]:
    """Build a windscreen and two seats before a hood."""
    w, z, top, y = s.width, s.belt, foot - s.rake, s.width / 2 - 0.05
    x = foot - 0.3 * (foot - tail)
    screen = [(foot - 0.03, z), (foot + 0.03, z), (top + 0.02, s.roof), (top - 0.02, s.roof)]
    return [
        box((0.5 * (foot + tail), 0, z), (foot - tail - 0.06, w - 0.16, 0.04), DARK),
        profile(screen, w - 0.1, GLASS),
        *(rod((foot, side * y, z), (top, side * y, s.roof), 0.03, paint) for side in SIDES),
        box((top, 0, s.roof), (0.06, w - 0.06, 0.05), paint),
        *(box((x, side * 0.2 * w, z + 0.1), (0.1, 0.3 * w, 0.26), 0.4, turn(pitch=8)) for side in SIDES),
        rod((foot - 0.16, 0.2 * w, z + 0.1), (foot - 0.19, 0.2 * w, z + 0.13), 0.1, 0.4),  # steering wheel
    ]


def _lamps(s: SimpleNamespace, front: float, back: float) -> list[Solid]:
    z, y = max(s.nose - 0.1, s.clearance + 0.1), 0.36 * s.width
    fenders = "fenders" in s.extras
    parts = []
    for side in SIDES:
        if fenders:
            parts.append(ball((front - 0.1, side * 0.42 * s.width, z + 0.1), 0.09, 1.0))
        else:
            parts.append(rod((front - 0.1, side * y, z), (front + 0.015, side * y, z), 0.07, 1.0))
        parts.append(box((back + 0.02, side * y, s.deck - 0.1), (0.08, 0.16, 0.09), 0.25))
    if "grille" in s.extras:
        parts.append(box((front, 0, z), (0.05, 0.44 * s.width, 0.28 if fenders else 0.12), DARK))
    return parts


def _extras(s: SimpleNamespace, foot: float, front: float, tail: float, back: float, paint: float) -> list[Solid]:
    w, parts = s.width, []
    middle, top = (foot - s.rake + tail + s.slope) / 2, foot - tail - s.rake - s.slope  # of the roof: place and length
    if "spare wheel" in s.extras:
        parts.append(rod((back - 0.12, 0, 0.5), (back + 0.02, 0, 0.5), 0.2, 0.1))
    if "bull bar" in s.extras:
        parts += [box((front + 0.05, side * 0.16 * w, s.nose - 0.1), (0.04, 0.05, 0.26), DARK) for side in SIDES]
        parts.append(box((front + 0.05, 0, s.nose - 0.03), (0.04, 0.5 * w, 0.05), DARK))
    if "spoiler" in s.extras:
        parts.append(box((back + 0.1, 0, s.deck + 0.08), (0.16, 0.86 * w, 0.035), paint))
        parts += [box((back + 0.12, side * 0.34 * w, s.deck + 0.03), (0.1, 0.04, 0.1), paint) for side in SIDES]
    for name, y, z in (("rails", 0.28, s.roof + 0.05), ("rack", 0.34, s.roof + 0.06)):
        if name in s.extras:
            parts += [box((middle, side * y * w, z), (top, 0.03, 0.04), 0.8 * paint) for side in SIDES]
    if "rack" in s.extras:
        places = [middle + f * top for f in (-0.4, 0.0, 0.4)]
        parts += [box((x, 0, s.roof + 0.06), (0.03, 0.7 * w, 0.03), 0.8 * paint) for x in places]
    if "light bar" in s.extras:
        parts.append(box((middle + 0.05, 0, s.roof + 0.07), (0.12, 0.5 * w, 0.09), 0.4))
    return parts
