"""Animals: four legs under a rounded trunk, a neck, a head with ears, and a tail."""

from types import SimpleNamespace

import numpy as np

from .solids import DARK, SIDES, Solid, ball, heading, limb, rod, shifted, turn


def build_animal(s: SimpleNamespace, rng: np.random.Generator) -> list[Solid]:
    paint = rng.uniform(0.42, 0.58)
    shade = paint * rng.uniform(0.6, 0.75)
    z = s.leg + 0.7 * s.depth  # middle of the trunk
    shoulder = np.array([0.72 * s.body, 0, z + 0.25 * s.depth])
    up = np.radians(s.neck_up)
    nape = shoulder + (s.neck + 0.2 * s.body) * np.array([np.cos(up), 0, np.sin(up)])
    base = min(1.45 * s.neck_radius, 0.8 * s.girth, 0.8 * s.depth)
    parts = [
        ball((0, 0, z), (s.body, s.girth, s.depth), paint),
        ball((0.55 * s.body, 0, z + 0.04), (0.46 * s.body, 0.89 * s.girth, 0.9 * s.depth), paint),
        ball((-0.55 * s.body, 0, z + 0.03), (0.46 * s.body, 0.91 * s.girth, 0.92 * s.depth), paint),
        *_legs(s, z, paint, shade),
        *limb([shoulder - [0.25 * s.body, 0, 0.3 * s.depth], nape], [base, s.neck_radius], paint),
        *_head(s, nape, paint, shade),
        *_tail(s, np.array([-0.93 * s.body, 0, z + 0.3 * s.depth]), shade),
    ]
    return parts + _marks(s, z, shoulder, nape, shade)


def _legs(s: SimpleNamespace, z: float, paint: float, shade: float) -> list[Solid]:
    parts, r = [], s.leg_radius
    for front in (1, -1):
        for side in SIDES:
            swing = s.gait * side * front
            hip = np.array([front * 0.68 * s.body, side * 0.7 * s.stance, z - 0.3 * s.depth])
            foot = hip + hip[2] / np.cos(np.radians(swing)) * heading(swing)
            foot[1] = side * s.stance
            # the knee bends forwards before, the hock backwards behind
            knee = hip + 0.52 * (foot - hip) + [front * 0.05, 0, 0]
            parts += limb([hip, knee, shifted(foot, 0, 0, 0.3 * r)], [1.5 * r, 1.05 * r, 0.95 * r], paint, ends=False)
            parts.append(ball(hip, 1.5 * r, paint))
            parts.append(rod(foot, shifted(foot, 0, 0, 0.12), 1.12 * r, shade))
            parts.append(ball(shifted(foot, 0.5 * r, 0, 0.5 * r), (1.4 * r, 1.1 * r, 0.6 * r), shade))
    return parts


def _tail(s: SimpleNamespace, rump: np.ndarray, shade: float) -> list[Solid]:
    up = np.radians(s.tail_up)
    tip = rump + s.tail * np.array([-np.cos(up), 0, np.sin(up)])
    parts = limb([rump, tip], [s.tail_radius, s.tail_radius], shade)
    if s.kind in ("lion", "cow", "elephant"):
        parts.append(ball(tip, (0.08, 0.06, 0.08), 0.5 * shade))
    if s.kind == "horse":
        parts.append(ball((rump + tip) / 2 - [0.06, 0, 0], (0.09, 0.08, 0.34), 0.6 * shade, turn(pitch=-25)))
    return parts


def _head(s: SimpleNamespace, nape: np.ndarray, paint: float, shade: float) -> list[Solid]:
    R, h, r = turn(pitch=s.head_pitch), s.head, s.muzzle_radius
    ahead, up = R[:, 0], R[:, 2]
    middle = nape + 0.45 * h * ahead
    snout = middle + (0.5 * h + s.muzzle) * ahead - 0.22 * h * up
    parts = [ball(middle, (1.1 * h, 0.9 * h, h), paint, R)]
    parts += limb([middle - 0.1 * h * up, snout], [0.78 * h, r], paint)
    parts.append(ball(snout + 0.55 * r * ahead, r * 0.62, DARK))
    for side in SIDES:
        parts.append(ball(middle + 0.62 * h * ahead + [0, side * 0.6 * h, 0] + 0.5 * h * up, 0.2 * h, DARK))  # eye
        parts += _ear(s, side, nape, middle, up, paint, shade) + _horn(s.kind, side, middle, h, up)
    if s.kind == "elephant":
        lip = middle + 0.85 * h * ahead
        trunk = [lip, shifted(lip, 0.14, 0, -0.32), shifted(lip, 0.16, 0, -0.66), shifted(lip, 0.3, 0, -0.8)]
        parts += limb(trunk, [0.15, 0.11, 0.085, 0.065], paint)
    if s.kind == "rhino":
        for back, tall in ((0.0, 0.38), (0.24, 0.2)):
            base = snout - back * ahead + 0.6 * r * up
            parts.append(rod(base, base + tall * up + 0.25 * tall * ahead, 0.1, 0.95, 0.015))
    return parts


def _ear(
    s: SimpleNamespace, side: int, nape: np.ndarray, middle: np.ndarray, up: np.ndarray, paint: float, shade: float
) -> list[Solid]:
    """Build an ear, of an elephant with the tusk on its side."""
    h, ear = s.head, s.ear
    if s.kind == "elephant":
        R = turn(yaw=-28 * side)
        tusk = [shifted(middle, 0.2, side * 0.17, -0.2), shifted(middle, 0.52, side * 0.22, -0.3)]
        flap = ball(shifted(nape, -0.02, side * 1.05 * h, 0.02), (0.07, ear, 1.2 * ear), 0.85 * paint, R)
        return [flap, *limb(tusk, [0.05, 0.03], 0.97)]
    base = shifted(middle, -0.25 * h, side * 0.62 * h, 0.0) + 0.72 * h * up
    if s.ear_pitch < -60:  # it hangs sideways
        return [ball(shifted(base, 0, side * 0.9 * ear, 0.1 * ear), (0.05, ear, 0.06), shade)]
    R = turn(roll=side * (s.ear_pitch - 18.0))
    return [ball(shifted(base, 0, side * 0.25 * ear, 0.6 * ear), (0.05, 0.5 * ear, ear), shade, R)]


def _horn(kind: str, side: int, middle: np.ndarray, h: float, up: np.ndarray) -> list[Solid]:
    if kind == "stag":
        base = shifted(middle, 0, side * 0.4 * h, 0) + 0.8 * h * up
        fork, tips = shifted(base, -0.1, side * 0.14, 0.2), ([-0.16, side * 0.2, 0.46], [0.1, side * 0.22, 0.36])
        return [*limb([base, fork], [0.04, 0.035], 0.9), *(rod(fork, base + tip, 0.035, 0.9, 0.02) for tip in tips)]
    if kind in ("cow", "giraffe"):
        base = shifted(middle, 0, side * 0.3 * h, 0) + 0.85 * h * up
        reach, paint = ([0.06, side * 0.2, 0.22], 0.95) if kind == "cow" else ([-0.04, side * 0.02, 0.17], DARK)
        return limb([base, base + reach], [0.045, 0.03], paint)
    return []


def _marks(s: SimpleNamespace, z: float, shoulder: np.ndarray, nape: np.ndarray, shade: float) -> list[Solid]:
    """Build what sits on the trunk or neck of some kinds: manes, spots, an udder."""
    along = nape - shoulder
    if s.kind == "lion":
        return [
            ball(nape - [0.1, 0, 0.04], (0.22, 0.31, 0.35), 0.85 * shade),
            ball(shifted(shoulder, -0.02, 0, -0.12), (0.22, 0.25, 0.28), 0.85 * shade),
        ]
    if s.kind == "horse":
        R = turn(pitch=float(np.degrees(np.arctan2(along[2], along[0]))))
        return [ball((shoulder + nape) / 2 + [-0.13, 0, 0.1], (0.42, 0.05, 0.13), 0.55 * shade, R)]
    if s.kind == "cow":
        places = ((0.3, 0.88), (-0.35, -0.88), (-0.4, 0.86), (0.25, -0.88))
        spots = [ball((x * s.body, y * s.girth, z + 0.1), (0.18, 0.07, 0.16), shade) for x, y in places]
        return [*spots, ball((-0.42 * s.body, 0, z - 0.9 * s.depth), (0.15, 0.13, 0.13), 0.9)]
    if s.kind == "giraffe":
        rings = [(shoulder + f * along, shoulder + (f + 0.06) * along, 1.38 - 0.4 * f) for f in (0.3, 0.55, 0.8)]
        places = [(x * s.body, y * s.girth, z + 0.1) for x in (-0.6, -0.1, 0.45) for y in (-0.9, 0.9)]
        spots = [ball(place, (0.12, 0.07, 0.11), shade) for place in places]
        return [rod(low, high, s.neck_radius * wide, shade) for low, high, wide in rings] + spots
    return []
