"""Ten humans, each a row of a table of proportions, poses and parts.

All are upright, with dark hair or hat, a light top and two arms and two legs of their own pose.
"""

from dataclasses import dataclass

import numpy as np

from .parts import DARK, SIDES, heading, limb, shifted
from .solids import Solid, ball, box, rod, turn


@dataclass(frozen=True)
class Human:
    arms: tuple[tuple[float, ...], tuple[float, ...]]  # right, left: swing and splay of the upper arm, of the forearm
    legs: tuple[tuple[float, ...], tuple[float, ...]]  # right, left: swing and splay of the thigh, of the shin
    hat: str = "hair"
    wear: str = "plain"
    item: str = "none"
    height: float = 1.0  # of trunk and legs
    width: float = 1.0
    bulk: float = 1.0  # thickness of the limbs
    head: float = 0.175
    lean: float = 0.0  # degrees forwards


STAND = ((3.0, 6.0, 3.0, 3.0), (-3.0, 6.0, -3.0, 3.0))
HUMANS = (
    Human(((10.0, 38.0, 40.0, -10.0), (-10.0, 38.0, 30.0, -10.0)),
          ((0.0, 16.0, 0.0, 8.0), (0.0, 16.0, 0.0, 8.0)), "cowboy", "plain", "none", 1.0, 1.05),
    Human(((0.0, 130.0, 0.0, 155.0), (0.0, 130.0, 0.0, 155.0)),
          ((5.0, 14.0, 0.0, 10.0), (-5.0, 14.0, 0.0, 10.0)), "hair", "shorts", "none", 1.0, 0.95),
    Human(((10.0, 28.0, 35.0, 0.0), (-5.0, 28.0, 20.0, -5.0)), STAND, "bun", "dress", "none", 0.96, 0.85, 0.85),
    Human(((30.0, 20.0, 80.0, -35.0), (40.0, 15.0, 90.0, -20.0)),
          ((22.0, 10.0, -4.0, 5.0), (-22.0, 8.0, -26.0, 5.0)), "helmet", "plain", "rifle", 0.95, 1.1, 1.1, lean=6.0),
    Human(((-32.0, 10.0, -15.0, 5.0), (34.0, 10.0, 55.0, 5.0)),
          ((28.0, 4.0, 12.0, 2.0), (-24.0, 4.0, -36.0, 2.0)), "cap", "plain", "none", 1.04, 1.0),
    Human(((45.0, 12.0, 115.0, -5.0), (-45.0, 14.0, 20.0, 0.0)),
          ((-24.0, 6.0, -60.0, 3.0), (42.0, 6.0, -4.0, 3.0)), "hair", "shorts", "none", 1.0, 0.95, 0.95, lean=7.0),
    Human(((35.0, 12.0, 85.0, -42.0), (45.0, 22.0, 100.0, -38.0)),
          ((8.0, 10.0, 3.0, 6.0), (-8.0, 10.0, -10.0, 6.0)), "helmet", "pack", "rifle", 1.0, 1.1, 1.1),
    Human(((0.0, 115.0, 0.0, 160.0), (10.0, 50.0, 20.0, 60.0)),
          ((4.0, 6.0, 0.0, 3.0), (-12.0, 12.0, -22.0, 10.0)), "bun", "skirt", "none", 1.0, 0.9, 0.95),
    Human(((20.0, 10.0, 80.0, -10.0), (20.0, 10.0, 80.0, -10.0)),
          ((12.0, 8.0, 6.0, 5.0), (-12.0, 8.0, -14.0, 5.0)), "cap", "plain", "crate", 1.0, 1.0, 1.05),
    Human(((10.0, 34.0, 45.0, 8.0), (15.0, 34.0, 40.0, 10.0)),
          ((10.0, 18.0, -4.0, 10.0), (6.0, 18.0, -8.0, 10.0)), "helmet", "pads", "ball", 0.95, 1.2, 1.25, lean=4.0),
)  # fmt: skip


def build_human(s: Human, rng: np.random.Generator) -> list[Solid]:
    skin, shirt, trousers = rng.uniform(0.75, 0.85), rng.uniform(0.66, 0.84), rng.uniform(0.22, 0.34)
    k, b = s.height, s.bulk
    hips = np.array([0.0, 0.0, 0.0])
    R = turn(pitch=-s.lean)
    up = R[:, 2]
    chest, neck = hips + 0.34 * k * up, hips + 0.56 * k * up
    head = neck + 0.2 * up
    w = 0.2 * s.width
    parts = [
        ball(hips + 0.02 * up, (0.12 * b, 0.8 * w, 0.15), trousers, R),
        ball(chest, (0.14 * b, 1.05 * w, 0.24 * k), shirt, R),
        ball(hips + 0.16 * k * up, (0.115 * b, 0.78 * w, 0.2 * k), shirt, R),
        rod(neck - 0.06 * up, head, 0.06, skin),
        ball(head, (1.0 * s.head, 0.88 * s.head, 1.15 * s.head), skin, R),
        ball(head + 0.95 * s.head * R[:, 0], 0.035, skin),
    ]
    bare = s.wear in ("shorts", "skirt", "dress")
    hands = []
    for side, arm, leg in zip(SIDES, s.arms, s.legs, strict=True):
        shoulder = neck - 0.07 * up + [0, side * 1.12 * w, 0]
        elbow = shoulder + 0.3 * k * heading(arm[0], arm[1], side)
        hand = elbow + 0.28 * k * heading(arm[2], arm[3], side)
        parts += [ball(shoulder, 0.085 * b * (1.5 if s.wear == "pads" else 1.0), shirt)]
        parts += limb([shoulder, elbow], [0.08 * b, 0.065 * b], shirt)
        parts += limb([elbow, hand], [0.062 * b, 0.048 * b], skin if bare else shirt)
        parts.append(ball(hand, 0.068, skin))
        hip = shifted(hips, 0, side * 0.5 * w, -0.04)
        knee = hip + 0.42 * k * heading(leg[0], leg[1], side)
        foot = knee + 0.42 * k * heading(leg[2], leg[3], side)
        parts += limb([hip, knee], [0.115 * b, 0.085 * b], skin if s.wear in ("skirt", "dress") else trousers)
        parts += limb([knee, foot], [0.08 * b, 0.058 * b], skin if bare else trousers)
        parts.append(ball(shifted(foot, 0.06, 0, -0.02), (0.145, 0.07, 0.06), DARK))
        hands.append(hand)
    parts += _hat(s, head, R)
    return parts + _clothes(s, hips, chest, up, shirt, trousers) + _items(s, hands, hips, chest, R)


def _hat(s: Human, head: np.ndarray, R: np.ndarray) -> list[Solid]:
    up, ahead, h = R[:, 2], R[:, 0], s.head
    crown = head + 0.35 * h * up
    if s.hat == "cowboy":
        brim = [rod(crown + 0.2 * h * up, crown + 0.42 * h * up, 1.7 * h, 0.25)]
        return [*brim, rod(crown + 0.3 * h * up, crown + 1.35 * h * up, 1.05 * h, 0.25, 0.75 * h)]
    if s.hat == "helmet":
        return [
            ball(crown, (1.15 * h, 1.08 * h, 0.95 * h), 0.25, R),
            rod(crown - 0.1 * h * up, crown + 0.1 * h * up, 1.22 * h, 0.25),
        ]
    if s.hat == "cap":
        return [
            ball(crown, (1.08 * h, 0.98 * h, 0.92 * h), 0.25, R),
            ball(crown + 1.05 * h * ahead + 0.1 * h * up, (0.7 * h, 0.7 * h, 0.12 * h), 0.25, R),
        ]
    hair = [ball(head + 0.28 * h * up - 0.22 * h * ahead, (1.0 * h, 0.98 * h, 1.0 * h), 0.2, R)]
    if s.hat == "bun":
        hair.append(ball(head + 0.95 * h * up - 0.85 * h * ahead, 0.45 * h, 0.2))
    return hair


def _clothes(
    s: Human, hips: np.ndarray, chest: np.ndarray, up: np.ndarray, shirt: float, trousers: float
) -> list[Solid]:
    if s.wear == "dress":
        return [rod(hips - 0.4 * s.height * up, hips + 0.2 * s.height * up, 0.29, shirt, 0.12)]
    if s.wear == "skirt":
        return [rod(hips - 0.2 * s.height * up, hips + 0.12 * s.height * up, 0.27, trousers, 0.12)]
    if s.wear == "pack":
        return [
            box(chest - [0.24, 0, 0.0], (0.2, 0.32, 0.4), 0.4),
            rod(shifted(chest, -0.2, -0.2, 0.24), shifted(chest, -0.2, 0.2, 0.24), 0.07, 0.6),
        ]
    if s.wear == "pads":
        return [ball(chest + 0.12 * up, (0.19, 0.36 * s.width, 0.15), shirt)]
    return [rod(hips + 0.02 * up, hips + 0.07 * up, 0.15, DARK)] if s.wear == "plain" else []


def _items(s: Human, hands: list[np.ndarray], hips: np.ndarray, chest: np.ndarray, R: np.ndarray) -> list[Solid]:
    right, left = hands
    if s.item == "rifle":
        along = (left - right) / np.linalg.norm(left - right)
        butt, tip = right - 0.2 * along, left + 0.3 * along
        return [rod(right, tip, 0.03, DARK), *limb([butt, right + 0.3 * along], [0.07, 0.045], 0.3)]
    if s.item == "crate":
        return [box((right + left) / 2 + [0.06, 0, 0.06], (0.22, 0.36, 0.22), 0.5)]
    if s.item == "ball":
        return [ball(shifted(right, 0.06, 0.05, 0), (0.15, 0.09, 0.09), 0.4, R)]
    return []
