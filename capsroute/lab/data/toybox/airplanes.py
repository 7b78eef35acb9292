"""Ten airplanes, each a row of a table of proportions and parts.

All have a slender light hull, wings about as wide as it is long, a tailplane and one or two fins.
"""

from dataclasses import dataclass

import numpy as np

from .parts import DARK, GLASS, SIDES, plate, profile
from .solids import Solid, ball, box, rod, turn


@dataclass(frozen=True)
class Airplane:
    span: float
    chord: float  # of the wing at its root
    taper: float = 0.5  # chord at the tip as a share of that at the root
    sweep: float = 0.0  # how far the tip lies behind the root
    wing_x: float = 0.1  # leading edge at the root, from the middle forwards
    wing_z: float = 0.0  # in body radii
    rise: float = 0.04
    length: float = 2.2
    radius: float = 0.14
    nose: float = 0.3
    tail_span: float = 0.8
    fin: float = 0.42
    fin_sweep: float = 0.22
    engine_y: float = 0.3  # of the inner engines
    engines: str = "none"  # none, pods, rear, props, four props
    tail: str = "low"  # low, high, twin
    second_wing: bool = False
    propeller: bool = False
    floats: bool = False
    gear: bool = False
    canopy: bool = False
    windows: bool = False
    struts: bool = False


AIRPLANES = (
    # airliner, biplane, swept fighter, low-wing sports plane, business jet
    Airplane(2.3, 0.52, 0.35, 0.5, 0.32, -0.5, length=2.4, radius=0.15, engines="pods", engine_y=0.42, windows=True),
    Airplane(2.0, 0.4, 0.95, 0.0, 0.36, -0.8, length=1.85, radius=0.14, nose=0.14, second_wing=True, propeller=True,
             gear=True, struts=True, tail_span=0.78, fin_sweep=0.12, fin=0.38),
    Airplane(2.0, 0.62, 0.35, 0.6, 0.34, -0.3, rise=0.0, length=2.35, radius=0.14, nose=0.6, canopy=True, fin=0.46,
             fin_sweep=0.28),
    Airplane(2.1, 0.5, 0.5, 0.1, 0.34, -0.6, rise=0.08, length=1.9, radius=0.15, nose=0.2, propeller=True, canopy=True,
             tail_span=0.78, fin=0.38, fin_sweep=0.14),
    Airplane(2.05, 0.48, 0.45, 0.36, 0.22, -0.6, length=2.3, radius=0.15, engines="rear", tail="high", windows=True,
             fin=0.44, fin_sweep=0.25),
    # floatplane, twin-fin fighter, twin propellers, high-wing plane, four propellers
    Airplane(2.2, 0.44, 0.8, 0.02, 0.36, 1.0, rise=0.02, length=2.0, radius=0.15, nose=0.2, propeller=True,
             floats=True, struts=True, tail_span=0.78, fin=0.4, fin_sweep=0.14),
    Airplane(1.95, 0.6, 0.45, 0.36, 0.28, 0.1, rise=0.0, length=2.25, radius=0.16, nose=0.5, tail="twin", canopy=True,
             tail_span=0.95, fin=0.4, fin_sweep=0.24),
    Airplane(2.4, 0.5, 0.4, 0.14, 0.3, -0.5, rise=0.06, length=2.0, radius=0.16, nose=0.25, engines="props",
             engine_y=0.4, windows=True, tail_span=0.85, fin=0.42, fin_sweep=0.2),
    Airplane(2.4, 0.38, 0.7, 0.04, 0.36, 1.05, rise=0.02, length=1.85, radius=0.15, nose=0.2, propeller=True, gear=True,
             struts=True, tail_span=0.8, fin=0.38, fin_sweep=0.16),
    Airplane(2.5, 0.46, 0.5, 0.14, 0.34, 0.4, rise=0.02, length=2.15, radius=0.16, nose=0.25, engines="four props",
             engine_y=0.4, tail="twin", tail_span=0.9, fin=0.36, fin_sweep=0.12),
)  # fmt: skip


def build_airplane(s: Airplane, rng: np.random.Generator) -> list[Solid]:
    skin, wings, trim = rng.uniform(0.76, 0.9), rng.uniform(0.72, 0.86), rng.uniform(0.35, 0.5)
    front, r = s.length / 2, s.radius
    hull_end, tail_end = -0.25 * s.length, -front
    parts = [
        rod((hull_end, 0, 0), (front - s.nose, 0, 0), r, skin),
        rod((tail_end, 0, 0.35 * r), (hull_end, 0, 0), 0.3 * r, skin, r),
        ball((hull_end, 0, 0), r, skin),
        ball((front - s.nose, 0, 0), (s.nose, r, r), skin),
    ]
    parts += _wings(s, s.wing_x, s.wing_z * r, s.span, wings)
    if s.second_wing:
        top = 3.0 * r
        parts += _wings(s, s.wing_x + 0.06, top, s.span, wings)
        parts += [rod((s.wing_x - k, y, -0.8 * r), (s.wing_x - k + 0.06, y, top), 0.022, trim)
                  for y in (-0.36 * s.span, 0.36 * s.span) for k in (0.05, 0.32)]  # fmt: skip
        parts += [rod((s.wing_x - 0.1, y, 0), (s.wing_x - 0.05, 2 * y, top), 0.022, trim) for y in (-r / 2, r / 2)]
    elif s.struts:
        for side in SIDES:
            parts.append(rod((s.wing_x - 0.12, side * r * 0.7, -0.6 * r),
                             (s.wing_x - 0.12, side * 0.26 * s.span, s.wing_z * r), 0.022, wings))  # fmt: skip
    parts += _tail(s, tail_end, 0.3 * r, wings, trim)
    if s.propeller:
        parts += _propeller(front, 0, 0, 0.42, trim)
        parts.append(rod((front - 0.12, 0, 0), (front - 0.02, 0, 0), 0.85 * r, trim, 0.5 * r))
    parts += _engines(s, skin, trim)
    if s.canopy:
        parts.append(ball((front - s.nose - 0.12, 0, 0.75 * r), (0.3, 0.62 * r, 0.75 * r), GLASS))
    else:
        parts.append(ball((front - s.nose + 0.02, 0, 0.45 * r), (0.14, 0.75 * r, 0.62 * r), GLASS))
    if s.windows:
        parts.append(box((0.05, 0, 0.3 * r), (0.62 * s.length, 1.97 * r, 0.22 * r), GLASS))
    if s.floats or s.gear:
        parts += _undercarriage(s, trim, skin)
    return parts


def _wings(s: Airplane, x: float, z: float, span: float, paint: float) -> list[Solid]:
    tip = s.chord * s.taper
    plan = [(x, 0.0), (x - s.sweep, span / 2), (x - s.sweep - tip, span / 2), (x - s.chord, 0.0)]
    return [plate(plan, z, 0.05, paint, rise=s.rise, side=side) for side in SIDES]


def _tail(s: Airplane, end: float, z: float, paint: float, trim: float) -> list[Solid]:
    high = s.tail == "high"
    root, y = 0.36, s.tail_span / 2
    sweep = 0.7 * s.fin_sweep
    parts: list[Solid] = []
    if s.tail_span:
        x = end + (0.16 if high else 0.4)
        plan = [(x, 0.0), (x - sweep, y), (x - sweep - 0.2, y), (x - root, 0.0)]
        parts += [plate(plan, z + (s.fin if high else 0.0), 0.04, paint, side=side) for side in SIDES]
    fin = [(end + 0.45, z), (end + 0.4 - s.fin_sweep, z + s.fin), (end + 0.16 - s.fin_sweep, z + s.fin), (end, z)]
    places = (-0.5 * y, 0.5 * y) if s.tail == "twin" else (0.0,)
    return parts + [profile(fin, 0.045, trim, y=p) for p in places]


def _propeller(x: float, y: float, z: float, length: float, paint: float) -> list[Solid]:
    blades = [box((x + 0.02, y, z), (0.025, 0.07, 2 * length), DARK, turn(roll=angle)) for angle in (35, 125)]
    return [*blades, rod((x - 0.02, y, z), (x + 0.1, y, z), 0.05, paint, 0.01)]


def _engines(s: Airplane, paint: float, trim: float) -> list[Solid]:
    r, parts = s.radius, []
    for side in SIDES:
        if s.engines == "pods":
            x, y, z = 0.3, side * s.engine_y, s.wing_z * r - 0.13
            parts.append(rod((x - 0.34, y, z), (x + 0.08, y, z), 0.07, paint, 0.1))
            parts.append(rod((x, y, z), (x + 0.09, y, z), 0.075, DARK))
        if s.engines == "rear":
            x, y = -0.3 * s.length, side * (r + 0.09)
            parts.append(rod((x - 0.25, y, 0.06), (x + 0.22, y, 0.06), 0.07, paint, 0.1))
            parts.append(rod((x, y, 0.06), (x + 0.23, y, 0.06), 0.075, DARK))
        if "props" in s.engines:
            places = (s.engine_y, 2 * s.engine_y) if s.engines == "four props" else (s.engine_y,)
            for y in places:
                x, z = s.wing_x + 0.16, s.wing_z * r + s.rise * y
                parts.append(rod((x - 0.5, side * y, z), (x, side * y, z), 0.04, paint, 0.09))
                parts += _propeller(x, side * y, z, 0.24 if len(places) > 1 else 0.3, trim)
    return parts


def _undercarriage(s: Airplane, trim: float, paint: float) -> list[Solid]:
    r, parts, x = s.radius, [], s.wing_x - 0.08
    for side in SIDES:
        y = side * 0.3
        low = -r - (0.26 if s.floats else 0.2)
        parts.append(rod((x, side * r * 0.5, -0.7 * r), (x, y, low), 0.025, trim))
        if s.floats:
            parts.append(rod((x - 0.4, side * r * 0.5, -0.7 * r), (x - 0.4, y, low), 0.025, trim))
            parts.append(ball((x - 0.12, y, low - 0.04), (0.56, 0.09, 0.08), paint))
        else:
            parts.append(rod((x, y - 0.035, low), (x, y + 0.035, low), 0.1, 0.1))
    return parts
