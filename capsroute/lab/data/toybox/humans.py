"""Humans: upright, with dark hair or hat, a light top, and two arms and two legs of their own pose."""

from types import SimpleNamespace

import numpy as np

from .solids import DARK, SIDES, Solid, ball, box, heading, limb, rod, shifted, turn


def build_human(s: SimpleNamespace, rng: np.random.Generator) -> list[Solid]:
    skin, shirt, trousers = rng.uniform(0.75, 0.85), rng.uniform(0.66, 0.84), rng.uniform(0.22, 0.34)
    k, b, w, h = s.height, s.bulk, 0.2 * s.width, s.head
    R = turn(pitch=-s.lean)
    ahead, up = R[:, 0], R[:, 2]
    hips = np.zeros(3)
    chest, neck = hips + 0.34 * k * up, hips + 0.56 * k * up
    head = neck + 0.2 * up
    parts = [
        ball(hips + 0.02 * up, (0.12 * b, 0.8 * w, 0.15), trousers, R),
        ball(chest, (0.14 * b, 1.05 * w, 0.24 * k), shirt, R),
        ball(hips + 0.16 * k * up, (0.115 * b, 0.78 * w, 0.2 * k), shirt, R),
        rod(neck - 0.06 * up, head, 0.06, skin),
        ball(head, (1.0 * h, 0.88 * h, 1.15 * h), skin, R),
        ball(head + 0.95 * h * ahead, 0.035, skin),
    ]
    sleeve, thigh, shin = {  # paints
        "shorts": (skin, trousers, skin),
        "skirt": (skin, skin, skin),
        "dress": (skin, skin, skin),
    }.get(s.wear, (shirt, trousers, trousers))
    hands = []
    for side, arm, leg in zip(SIDES, s.arms, s.legs, strict=True):
        shoulder = neck - 0.07 * up + [0, side * 1.12 * w, 0]
        elbow = shoulder + 0.3 * k * heading(arm[0], arm[1], side)
        hand = elbow + 0.28 * k * heading(arm[2], arm[3], side)
        hip = shifted(hips, 0, side * 0.5 * w, -0.04)
        knee = hip + 0.42 * k * heading(leg[0], leg[1], side)
        foot = knee + 0.42 * k * heading(leg[2], leg[3], side)
        parts += [
            ball(shoulder, 0.085 * b * (1.5 if s.wear == "pads" else 1.0), shirt),
            *limb([shoulder, elbow], [0.08 * b, 0.065 * b], shirt),
            *limb([elbow, hand], [0.062 * b, 0.048 * b], sleeve),
            ball(hand, 0.068, skin),
            *limb([hip, knee], [0.115 * b, 0.085 * b], thigh),
            *limb([knee, foot], [0.08 * b, 0.058 * b], shin),
            ball(shifted(foot, 0.06, 0, -0.02), (0.145, 0.07, 0.06), DARK),
        ]
        hands.append(hand)
    parts += _hat(s.hat, head, h, R) + _clothes(s, hips, chest, up, shirt, trousers)
    return parts + _item(s.item, hands[0], hands[1], R)


def _hat(hat: str, head: np.ndarray, h: float, R: np.ndarray) -> list[Solid]:
    """Build hair, or a hat in its place."""
    ahead, up = R[:, 0], R[:, 2]
    crown = head + 0.35 * h * up
    if hat == "cowboy":
        return [
            rod(crown + 0.2 * h * up, crown + 0.42 * h * up, 1.7 * h, 0.25),
            rod(crown + 0.3 * h * up, crown + 1.35 * h * up, 1.05 * h, 0.25, 0.75 * h),
        ]
    if hat == "helmet":
        return [
            ball(crown, (1.15 * h, 1.08 * h, 0.95 * h), 0.25, R),
            rod(crown - 0.1 * h * up, crown + 0.1 * h * up, 1.22 * h, 0.25),
        ]
    if hat == "cap":
        return [
            ball(crown, (1.08 * h, 0.98 * h, 0.92 * h), 0.25, R),
            ball(crown + 1.05 * h * ahead + 0.1 * h * up, (0.7 * h, 0.7 * h, 0.12 * h), 0.25, R),
        ]
    hair = ball(head + 0.28 * h * up - 0.22 * h * ahead, (1.0 * h, 0.98 * h, 1.0 * h), 0.2, R)
    bun = ball(head + 0.95 * h * up - 0.85 * h * ahead, 0.45 * h, 0.2)
    return [hair, bun] if hat == "bun" else [hair]


def _clothes(
    s: SimpleNamespace, hips: np.ndarray, chest: np.ndarray, up: np.ndarray, shirt: float, trousers: float
) -> list[Solid]:
    if s.wear == "dress":
        return [rod(hips - 0.4 * s.height * up, hips + 0.2 * s.height * up, 0.29, shirt, 0.12)]
    if s.wear == "skirt":
        return [rod(hips - 0.2 * s.height * up, hips + 0.12 * s.height * up, 0.27, trousers, 0.12)]
    if s.wear == "pack":
        roll = rod(shifted(chest, -0.2, -0.2, 0.24), shifted(chest, -0.2, 0.2, 0.24), 0.07, 0.6)
        return [box(chest - [0.24, 0, 0.0], (0.2, 0.32, 0.4), 0.4), roll]
    if s.wear == "pads":
        return [ball(chest + 0.12 * up, (0.19, 0.36 * s.width, 0.15), shirt)]
    return [rod(hips + 0.02 * up, hips + 0.07 * up, 0.15, DARK)] if s.wear == "plain" else []  # a belt


def _item(item: str, right: np.ndarray, left: np.ndarray, R: np.ndarray) -> list[Solid]:
    """Build what the hands hold."""
    if item == "rifle":
        along = (left - right) / np.linalg.norm(left - right)
        barrel = rod(right, left + 0.3 * along, 0.03, DARK)
        return [barrel, *limb([right - 0.2 * along, right + 0.3 * along], [0.07, 0.045], 0.3)]
    if item == "crate":
        return [box((right + left) / 2 + [0.06, 0, 0.06], (0.22, 0.36, 0.22), 0.5)]
    return [ball(shifted(right, 0.06, 0.05, 0), (0.15, 0.09, 0.09), 0.4, R)] if item == "ball" else []
