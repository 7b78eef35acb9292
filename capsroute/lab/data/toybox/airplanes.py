"""Airplanes: a slender light hull, wings about as wide as it is long, a tailplane and one or two fins."""

from collections.abc import Iterator
from types import SimpleNamespace

from .solids import DARK, GLASS, SIDES, Solid, ball, box, plate, profile, rod, turn


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
