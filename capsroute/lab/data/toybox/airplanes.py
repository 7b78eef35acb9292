"""Airplanes: a slender light hull, wings about as wide as it is long, a tailplane and one or two fins."""

from types import SimpleNamespace

import numpy as np

from .solids import DARK, GLASS, SIDES, Solid, ball, box, plate, profile, rod, turn


def build_airplane(s: SimpleNamespace, rng: np.random.Generator) -> list[Solid]:
    skin, wings, trim = rng.uniform(0.76, 0.9), rng.uniform(0.72, 0.86), rng.uniform(0.35, 0.5)
    front, r = s.length / 2, s.radius
    hull_end, nose = -0.25 * s.length, front - s.nose
    parts = [
        rod((hull_end, 0, 0), (nose, 0, 0), r, skin),
        rod((-front, 0, 0.35 * r), (hull_end, 0, 0), 0.3 * r, skin, r),
        ball((hull_end, 0, 0), r, skin),
        ball((nose, 0, 0), (s.nose, r, r), skin),
        *_wings(s, wings, trim),
        *_tail(s, -front, 0.3 * r, wings, trim),
    ]
    if "propeller" in s.extras:
        parts += _propeller(front, 0, 0, 0.42, trim)
        parts.append(rod((front - 0.12, 0, 0), (front - 0.02, 0, 0), 0.85 * r, trim, 0.5 * r))
    parts += _engines(s, skin, trim)
    if "canopy" in s.extras:
        parts.append(ball((nose - 0.12, 0, 0.75 * r), (0.3, 0.62 * r, 0.75 * r), GLASS))
    else:
        parts.append(ball((nose + 0.02, 0, 0.45 * r), (0.14, 0.75 * r, 0.62 * r), GLASS))
    if "windows" in s.extras:
        parts.append(box((0.05, 0, 0.3 * r), (0.62 * s.length, 1.97 * r, 0.22 * r), GLASS))
    return parts + _undercarriage(s, trim, skin)


def _wings(s: SimpleNamespace, paint: float, trim: float) -> list[Solid]:
    """Build one pair of wings, with struts below it, or two pairs with struts between them."""
    x, r, tip = s.wing_x, s.radius, s.chord * s.taper
    two = "second wing" in s.extras
    parts = []
    for lead, z in [(x, s.wing_z * r), (x + 0.06, 3.0 * r)][: 1 + two]:
        back = lead - s.sweep
        plan = [(lead, 0.0), (back, s.span / 2), (back - tip, s.span / 2), (lead - s.chord, 0.0)]
        parts += [plate(plan, z, 0.05, paint, rise=s.rise, side=side) for side in SIDES]
    if two:
        outer = [(x - k, x - k + 0.06, side * 0.36 * s.span) for side in SIDES for k in (0.05, 0.32)]
        parts += [rod((low, y, -0.8 * r), (high, y, 3.0 * r), 0.022, trim) for low, high, y in outer]
        parts += [rod((x - 0.1, y, 0), (x - 0.05, 2 * y, 3.0 * r), 0.022, trim) for y in (-r / 2, r / 2)]
    elif "struts" in s.extras:
        for side in SIDES:
            foot, top = (x - 0.12, side * r * 0.7, -0.6 * r), (x - 0.12, side * 0.26 * s.span, s.wing_z * r)
            parts.append(rod(foot, top, 0.022, paint))
    return parts


def _tail(s: SimpleNamespace, end: float, z: float, paint: float, trim: float) -> list[Solid]:
    y, sweep = s.tail_span / 2, 0.7 * s.fin_sweep
    x, up = (end + 0.16, s.fin) if s.tail == "high" else (end + 0.4, 0.0)
    plan = [(x, 0.0), (x - sweep, y), (x - sweep - 0.2, y), (x - 0.36, 0.0)]
    parts = [plate(plan, z + up, 0.04, paint, side=side) for side in SIDES]
    fin = [(end + 0.45, z), (end + 0.4 - s.fin_sweep, z + s.fin), (end + 0.16 - s.fin_sweep, z + s.fin), (end, z)]
    places = (-0.5 * y, 0.5 * y) if s.tail == "twin" else (0.0,)
    return parts + [profile(fin, 0.045, trim, y=p) for p in places]


def _propeller(x: float, y: float, z: float, length: float, paint: float) -> list[Solid]:
    blades = [box((x + 0.02, y, z), (0.025, 0.07, 2 * length), DARK, turn(roll=angle)) for angle in (35, 125)]
    return [*blades, rod((x - 0.02, y, z), (x + 0.1, y, z), 0.05, paint, 0.01)]


def _engines(s: SimpleNamespace, paint: float, trim: float) -> list[Solid]:
    jets = {  # x, y, z, and how far they reach behind and ahead of x
        "pods": (0.3, s.engine_y, s.wing_z * s.radius - 0.13, 0.34, 0.08, 0.09),
        "rear": (-0.3 * s.length, s.radius + 0.09, 0.06, 0.25, 0.22, 0.23),
    }
    propellers = {"props": (0.3, [s.engine_y]), "four props": (0.24, [s.engine_y, 2 * s.engine_y])}
    parts = []
    for side in SIDES:
        if s.engines in jets:
            x, y, z, behind, ahead, intake = jets[s.engines]
            parts.append(rod((x - behind, side * y, z), (x + ahead, side * y, z), 0.07, paint, 0.1))
            parts.append(rod((x, side * y, z), (x + intake, side * y, z), 0.075, DARK))
        elif s.engines in propellers:
            length, places = propellers[s.engines]
            for y in places:
                x, z = s.wing_x + 0.16, s.wing_z * s.radius + s.rise * y
                parts.append(rod((x - 0.5, side * y, z), (x, side * y, z), 0.04, paint, 0.09))
                parts += _propeller(x, side * y, z, length, trim)
    return parts


def _undercarriage(s: SimpleNamespace, trim: float, paint: float) -> list[Solid]:
    """Build struts with floats, or with wheels, or nothing."""
    r, x, parts = s.radius, s.wing_x - 0.08, []
    for side in SIDES:
        top, y = side * r * 0.5, side * 0.3
        if "floats" in s.extras:
            low = -r - 0.26
            parts += [rod((k, top, -0.7 * r), (k, y, low), 0.025, trim) for k in (x, x - 0.4)]
            parts.append(ball((x - 0.12, y, low - 0.04), (0.56, 0.09, 0.08), paint))
        elif "gear" in s.extras:
            low = -r - 0.2
            parts.append(rod((x, top, -0.7 * r), (x, y, low), 0.025, trim))
            parts.append(rod((x, y - 0.035, low), (x, y + 0.035, low), 0.1, 0.1))
    return parts
