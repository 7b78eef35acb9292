"""Ten animals, each a row of a table of proportions and parts.

All stand on four legs under a rounded trunk and have a neck, a head with ears, and a tail.
"""

from dataclasses import dataclass

import numpy as np

from .parts import DARK, SIDES, heading, limb, shifted
from .solids import Solid, ball, rod, turn


@dataclass(frozen=True)
class Animal:
    kind: str
    body: float = 0.6  # half the length of the trunk
    girth: float = 0.3  # its half width
    depth: float = 0.34  # its half height
    leg: float = 0.6  # length of the leg below the trunk
    leg_radius: float = 0.09
    stance: float = 0.2  # of the feet from the middle
    neck: float = 0.3
    neck_up: float = 45.0  # degrees
    neck_radius: float = 0.17
    head: float = 0.2  # its radius
    muzzle: float = 0.22  # how far it sticks out
    muzzle_radius: float = 0.11
    tail: float = 0.5
    tail_radius: float = 0.04
    tail_up: float = -55.0
    ear: float = 0.1
    gait: float = 14.0  # degrees by which the legs swing


ANIMALS = (
    Animal("elephant", 0.62, 0.4, 0.42, 0.6, 0.13, 0.23, 0.22, 20.0, 0.3, 0.34, 0.1, 0.1, 0.45, 0.03, -70.0,
           0.3, 10.0),
    Animal("horse", 0.58, 0.27, 0.31, 0.68, 0.08, 0.16, 0.55, 52.0, 0.15, 0.15, 0.36, 0.09, 0.62, 0.07, -62.0,
           0.09, 15.0),
    Animal("bear", 0.58, 0.32, 0.35, 0.42, 0.13, 0.2, 0.25, 18.0, 0.26, 0.27, 0.2, 0.13, 0.1, 0.08, -20.0, 0.11, 16.0),
    Animal("pig", 0.56, 0.33, 0.34, 0.27, 0.09, 0.18, 0.18, 5.0, 0.25, 0.25, 0.2, 0.11, 0.2, 0.03, 40.0, 0.12, 10.0),
    Animal("rhino", 0.66, 0.36, 0.38, 0.42, 0.13, 0.22, 0.3, -6.0, 0.28, 0.25, 0.34, 0.17, 0.35, 0.035, -65.0,
           0.1, 8.0),
    Animal("dog", 0.46, 0.19, 0.21, 0.45, 0.065, 0.13, 0.28, 50.0, 0.12, 0.17, 0.24, 0.08, 0.42, 0.04, 48.0,
           0.14, 16.0),
    Animal("giraffe", 0.54, 0.27, 0.31, 0.74, 0.085, 0.17, 0.92, 62.0, 0.15, 0.16, 0.28, 0.09, 0.5, 0.035, -68.0,
           0.11, 10.0),
    Animal("lion", 0.58, 0.24, 0.26, 0.48, 0.095, 0.16, 0.24, 35.0, 0.18, 0.2, 0.17, 0.11, 0.62, 0.035, 12.0,
           0.08, 20.0),
    Animal("cow", 0.64, 0.31, 0.33, 0.5, 0.085, 0.18, 0.32, 22.0, 0.18, 0.18, 0.3, 0.12, 0.55, 0.03, -72.0, 0.12, 8.0),
    Animal("stag", 0.54, 0.24, 0.27, 0.6, 0.075, 0.15, 0.4, 55.0, 0.14, 0.15, 0.27, 0.085, 0.2, 0.06, 15.0, 0.12, 15.0),
)  # fmt: skip


def build_animal(s: Animal, rng: np.random.Generator) -> list[Solid]:
    paint = rng.uniform(0.42, 0.58)
    shade = paint * rng.uniform(0.6, 0.75)
    z = s.leg + 0.7 * s.depth  # middle of the trunk
    parts = [
        ball((0, 0, z), (s.body, s.girth, s.depth), paint),
        ball((0.55 * s.body, 0, z + 0.04), (0.46 * s.body, 0.89 * s.girth, 0.9 * s.depth), paint),
        ball((-0.55 * s.body, 0, z + 0.03), (0.46 * s.body, 0.91 * s.girth, 0.92 * s.depth), paint),
    ]
    parts += _legs(s, z, paint, shade)
    shoulder = np.array([0.72 * s.body, 0, z + 0.25 * s.depth])
    up = np.radians(s.neck_up)
    nape = shoulder + (s.neck + 0.2 * s.body) * np.array([np.cos(up), 0, np.sin(up)])
    base = min(1.45 * s.neck_radius, 0.8 * s.girth, 0.8 * s.depth)
    parts += limb([shoulder - [0.25 * s.body, 0, 0.3 * s.depth], nape], [base, s.neck_radius], paint)
    parts += _head(s, nape, paint, shade)
    rump = np.array([-0.93 * s.body, 0, z + 0.3 * s.depth])
    up = np.radians(s.tail_up)
    tip = rump + s.tail * np.array([-np.cos(up), 0, np.sin(up)])
    parts += limb([rump, tip], [s.tail_radius, s.tail_radius], shade)
    if s.kind in ("lion", "cow", "elephant"):
        parts.append(ball(tip, (0.08, 0.06, 0.08), 0.5 * shade))
    if s.kind == "horse":
        parts.append(ball((rump + tip) / 2 - [0.06, 0, 0], (0.09, 0.08, 0.34), 0.6 * shade, turn(pitch=-25)))
    return parts + _marks(s, z, shoulder, nape, shade)


def _legs(s: Animal, z: float, paint: float, shade: float) -> list[Solid]:
    parts = []
    for front in (1, -1):
        for side in SIDES:
            swing = s.gait * side * front
            hip = np.array([front * 0.68 * s.body, side * 0.7 * s.stance, z - 0.3 * s.depth])
            length = hip[2] / np.cos(np.radians(swing))
            foot = hip + length * heading(swing)
            foot[1] = side * s.stance
            # the knee bends forwards before, the hock backwards behind
            knee = hip + 0.52 * (foot - hip) + [front * 0.05, 0, 0]
            r = s.leg_radius
            parts += limb([hip, knee, shifted(foot, 0, 0, 0.3 * r)], [1.5 * r, 1.05 * r, 0.95 * r], paint, ends=False)
            parts.append(ball(hip, 1.5 * r, paint))
            parts.append(rod(foot, shifted(foot, 0, 0, 0.12), 1.12 * r, shade))
            parts.append(ball(shifted(foot, 0.5 * r, 0, 0.5 * r), (1.4 * r, 1.1 * r, 0.6 * r), shade))
    return parts


def _head(s: Animal, nape: np.ndarray, paint: float, shade: float) -> list[Solid]:
    drop = {"horse": -38.0, "giraffe": -25.0, "stag": -25.0, "cow": -28.0, "rhino": -22.0, "dog": -8.0}.get(
        s.kind, -10.0
    )
    R = turn(pitch=drop)
    ahead, up = R[:, 0], R[:, 2]
    h = s.head
    middle = nape + 0.45 * h * ahead
    snout = middle + (0.5 * h + s.muzzle) * ahead - 0.22 * h * up
    parts = [ball(middle, (1.1 * h, 0.9 * h, h), paint, R)]
    parts += limb([middle - 0.1 * h * up, snout], [0.78 * h, s.muzzle_radius], paint)
    parts.append(ball(snout + 0.55 * s.muzzle_radius * ahead, s.muzzle_radius * 0.62, DARK))
    for side in SIDES:
        eye = middle + 0.62 * h * ahead + [0, side * 0.6 * h, 0] + 0.5 * h * up
        parts.append(ball(eye, 0.2 * h, DARK))
        if s.kind == "elephant":
            parts.append(
                ball(
                    shifted(nape, -0.02, side * 1.05 * h, 0.02),
                    (0.07, s.ear, 1.2 * s.ear),
                    0.85 * paint,
                    turn(yaw=-28 * side),
                )
            )
            parts += limb(
                [shifted(middle, 0.2, side * 0.17, -0.2), shifted(middle, 0.52, side * 0.22, -0.3)], [0.05, 0.03], 0.97
            )
        elif s.ear:
            flop = {"dog": -40.0, "pig": 15.0, "cow": -75.0}.get(s.kind, 0.0)
            R_ear = turn(roll=side * (flop - 18.0))
            base = shifted(middle, -0.25 * h, side * 0.62 * h, 0.0) + 0.72 * h * up
            sideways = flop < -60
            out = np.array(
                [0, side * 0.9 * s.ear if sideways else side * 0.25 * s.ear, 0.1 * s.ear if sideways else 0.6 * s.ear]
            )
            radii = (0.05, s.ear, 0.06) if sideways else (0.05, 0.5 * s.ear, s.ear)
            parts.append(ball(base + out, radii, shade, None if sideways else R_ear))
        if s.kind == "stag":
            base = shifted(middle, 0, side * 0.4 * h, 0) + 0.8 * h * up
            fork, tips = shifted(base, -0.1, side * 0.14, 0.2), ([-0.16, side * 0.2, 0.46], [0.1, side * 0.22, 0.36])
            parts += limb([base, fork], [0.04, 0.035], 0.9)
            parts += [rod(fork, base + tip, 0.035, 0.9, 0.02) for tip in tips]
        if s.kind in ("cow", "giraffe"):
            base = shifted(middle, 0, side * 0.3 * h, 0) + 0.85 * h * up
            reach = [0.06, side * 0.2, 0.22] if s.kind == "cow" else [-0.04, side * 0.02, 0.17]
            parts += limb([base, base + np.array(reach)], [0.045, 0.03], 0.95 if s.kind == "cow" else DARK)
    if s.kind == "elephant":
        lip = middle + 0.85 * h * ahead
        chain = [lip, shifted(lip, 0.14, 0, -0.32), shifted(lip, 0.16, 0, -0.66), shifted(lip, 0.3, 0, -0.8)]
        parts += limb(chain, [0.15, 0.11, 0.085, 0.065], paint)
    if s.kind == "rhino":
        for back, tall in ((0.0, 0.38), (0.24, 0.2)):
            base = snout - back * ahead + 0.6 * s.muzzle_radius * up
            parts.append(rod(base, base + tall * up + 0.25 * tall * ahead, 0.1, 0.95, 0.015))
    return parts


def _marks(s: Animal, z: float, shoulder: np.ndarray, nape: np.ndarray, shade: float) -> list[Solid]:
    """What is peculiar to a kind and sits on its trunk or neck."""
    if s.kind == "lion":
        return [
            ball(nape - [0.1, 0, 0.04], (0.22, 0.31, 0.35), 0.85 * shade),
            ball(shifted(shoulder, -0.02, 0, -0.12), (0.22, 0.25, 0.28), 0.85 * shade),
        ]
    if s.kind == "horse":
        middle, along = (shoulder + nape) / 2, nape - shoulder
        pitch = float(np.degrees(np.arctan2(along[2], along[0])))
        return [ball(shifted(middle, -0.13, 0, 0.1), (0.42, 0.05, 0.13), 0.55 * shade, turn(pitch=pitch))]
    if s.kind == "cow":
        spots = [
            ball((x * s.body, y * s.girth, z + 0.1), (0.18, 0.07, 0.16), shade)
            for x, y in ((0.3, 0.88), (-0.35, -0.88), (-0.4, 0.86), (0.25, -0.88))
        ]
        return [*spots, ball((-0.42 * s.body, 0, z - 0.9 * s.depth), (0.15, 0.13, 0.13), 0.9)]
    if s.kind == "giraffe":
        along = nape - shoulder
        rings = [
            rod(shoulder + f * along, shoulder + (f + 0.06) * along, s.neck_radius * (1.38 - 0.4 * f), shade)
            for f in (0.3, 0.55, 0.8)
        ]
        spots = [
            ball((x * s.body, y * s.girth, z + 0.1), (0.12, 0.07, 0.11), shade)
            for x in (-0.6, -0.1, 0.45)
            for y in (-0.9, 0.9)
        ]
        return rings + spots
    return []
