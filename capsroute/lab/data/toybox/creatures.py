"""Animals: four legs under a rounded trunk, a neck, a head with ears, and a tail. Humans: upright, with dark hair or
hat, a light top, and two arms and two legs of their own pose.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from .solids import DARK, SIDES, Solid, ball, box, heading, limb, rod, turn


def build_animal(s: SimpleNamespace) -> Iterator[Solid]:
    s.shade *= s.paint
    z, body = s.leg + 0.7 * s.depth, s.body  # height of the trunk's middle, half its length
    shoulder, neck_up = np.array([0.72 * body, 0, z + 0.25 * s.depth]), np.radians(s.neck_up)
    nape = shoulder + (s.neck + 0.2 * body) * np.array([np.cos(neck_up), 0, np.sin(neck_up)])
    yield ball((0, 0, z), (body, s.girth, s.depth), s.paint)
    yield ball((0.55 * body, 0, z + 0.04), (0.46 * body, 0.89 * s.girth, 0.9 * s.depth), s.paint)
    yield ball((-0.55 * body, 0, z + 0.03), (0.46 * body, 0.91 * s.girth, 0.92 * s.depth), s.paint)
    yield from _legs(s, z)
    base = min(1.45 * s.neck_radius, 0.8 * s.girth, 0.8 * s.depth)
    yield from limb([shoulder - [0.25 * body, 0, 0.3 * s.depth], nape], [base, s.neck_radius], s.paint)
    yield from _head(s, nape)
    yield from _tail(s, np.array([-0.93 * body, 0, z + 0.3 * s.depth]))
    yield from _marks(s, z, shoulder, nape)


def _legs(s: SimpleNamespace, z: float) -> Iterator[Solid]:
    r = s.leg_radius
    for front in (1, -1):
        for side in SIDES:
            swing = s.gait * side * front
            hip = np.array([front * 0.68 * s.body, side * 0.7 * s.stance, z - 0.3 * s.depth])
            foot = hip + hip[2] / np.cos(np.radians(swing)) * heading(swing)
            foot[1] = side * s.stance
            # the knee bends forwards before, the hock backwards behind
            knee, ankle = hip + 0.52 * (foot - hip) + [front * 0.05, 0, 0], foot + [0, 0, 0.3 * r]
            yield from limb([hip, knee, ankle], [1.5 * r, 1.05 * r, 0.95 * r], s.paint, ends=False)
            yield ball(hip, 1.5 * r, s.paint)
            yield rod(foot, foot + [0, 0, 0.12], 1.12 * r, s.shade)
            yield ball(foot + [0.5 * r, 0, 0.5 * r], (1.4 * r, 1.1 * r, 0.6 * r), s.shade)


def _tail(s: SimpleNamespace, rump: np.ndarray) -> Iterator[Solid]:
    up = np.radians(s.tail_up)
    tip = rump + s.tail * np.array([-np.cos(up), 0, np.sin(up)])
    yield from limb([rump, tip], [s.tail_radius, s.tail_radius], s.shade)
    if s.kind in ("lion", "cow", "elephant"):
        yield ball(tip, (0.08, 0.06, 0.08), 0.5 * s.shade)
    if s.kind == "horse":
        yield ball((rump + tip) / 2 - [0.06, 0, 0], (0.09, 0.08, 0.34), 0.6 * s.shade, turn(pitch=-25))


def _head(s: SimpleNamespace, nape: np.ndarray) -> Iterator[Solid]:
    R, h, r = turn(pitch=s.head_pitch), s.head, s.muzzle_radius
    ahead, up = R[:, 0], R[:, 2]
    middle = nape + 0.45 * h * ahead
    snout = middle + (0.5 * h + s.muzzle) * ahead - 0.22 * h * up
    yield ball(middle, (1.1 * h, 0.9 * h, h), s.paint, R)
    yield from limb([middle - 0.1 * h * up, snout], [0.78 * h, r], s.paint)
    yield ball(snout + 0.55 * r * ahead, r * 0.62, DARK)
    for side in SIDES:
        yield ball(middle + 0.62 * h * ahead + [0, side * 0.6 * h, 0] + 0.5 * h * up, 0.2 * h, DARK)  # eye
        yield from _ear(s, side, nape, middle, up)
        yield from _horn(s, side, middle, up)
    if s.kind == "elephant":
        lip = middle + 0.85 * h * ahead
        trunk = [lip, *(lip + [x, 0, z] for x, z in ((0.14, -0.32), (0.16, -0.66), (0.3, -0.8)))]
        yield from limb(trunk, [0.15, 0.11, 0.085, 0.065], s.paint)
    if s.kind == "rhino":
        for back, tall in ((0.0, 0.38), (0.24, 0.2)):
            base = snout - back * ahead + 0.6 * r * up
            yield rod(base, base + tall * up + 0.25 * tall * ahead, 0.1, 0.95, 0.015)


def _ear(s: SimpleNamespace, side: int, nape: np.ndarray, middle: np.ndarray, up: np.ndarray) -> Iterator[Solid]:
    """Build an ear, of an elephant with the tusk on its side."""
    h, ear = s.head, s.ear
    base = middle + [-0.25 * h, side * 0.62 * h, 0.0] + 0.72 * h * up
    if s.kind == "elephant":
        flap = nape + [-0.02, side * 1.05 * h, 0.02]
        yield ball(flap, (0.07, ear, 1.2 * ear), 0.85 * s.paint, turn(yaw=-28 * side))
        tusk = [middle + [0.2, side * 0.17, -0.2], middle + [0.52, side * 0.22, -0.3]]
        yield from limb(tusk, [0.05, 0.03], 0.97)
    elif s.ear_pitch < -60:  # it hangs sideways
        yield ball(base + [0, side * 0.9 * ear, 0.1 * ear], (0.05, ear, 0.06), s.shade)
    else:
        R = turn(roll=side * (s.ear_pitch - 18.0))
        yield ball(base + [0, side * 0.25 * ear, 0.6 * ear], (0.05, 0.5 * ear, ear), s.shade, R)


def _horn(s: SimpleNamespace, side: int, middle: np.ndarray, up: np.ndarray) -> Iterator[Solid]:
    h = s.head
    if s.kind == "stag":
        base = middle + [0, side * 0.4 * h, 0] + 0.8 * h * up
        fork = base + [-0.1, side * 0.14, 0.2]
        yield from limb([base, fork], [0.04, 0.035], 0.9)
        for tip in ([-0.16, side * 0.2, 0.46], [0.1, side * 0.22, 0.36]):
            yield rod(fork, base + tip, 0.035, 0.9, 0.02)
    if s.kind in ("cow", "giraffe"):
        base = middle + [0, side * 0.3 * h, 0] + 0.85 * h * up
        reach, paint = ([0.06, side * 0.2, 0.22], 0.95) if s.kind == "cow" else ([-0.04, side * 0.02, 0.17], DARK)
        yield from limb([base, base + reach], [0.045, 0.03], paint)


def _marks(s: SimpleNamespace, z: float, shoulder: np.ndarray, nape: np.ndarray) -> Iterator[Solid]:
    """Build what sits on the trunk or neck of some kinds: manes, spots, an udder."""
    along = nape - shoulder
    if s.kind == "lion":
        yield ball(nape - [0.1, 0, 0.04], (0.22, 0.31, 0.35), 0.85 * s.shade)
        yield ball(shoulder + [-0.02, 0, -0.12], (0.22, 0.25, 0.28), 0.85 * s.shade)
    if s.kind == "horse":
        R = turn(pitch=float(np.degrees(np.arctan2(along[2], along[0]))))
        yield ball((shoulder + nape) / 2 + [-0.13, 0, 0.1], (0.42, 0.05, 0.13), 0.55 * s.shade, R)
    if s.kind == "cow":
        for x, y in ((0.3, 0.88), (-0.35, -0.88), (-0.4, 0.86), (0.25, -0.88)):
            yield ball((x * s.body, y * s.girth, z + 0.1), (0.18, 0.07, 0.16), s.shade)
        yield ball((-0.42 * s.body, 0, z - 0.9 * s.depth), (0.15, 0.13, 0.13), 0.9)
    if s.kind == "giraffe":
        for f in (0.3, 0.55, 0.8):
            low, high = shoulder + f * along, shoulder + (f + 0.06) * along
            yield rod(low, high, s.neck_radius * (1.38 - 0.4 * f), s.shade)
        places = [(x * s.body, y * s.girth, z + 0.1) for x in (-0.6, -0.1, 0.45) for y in (-0.9, 0.9)]
        yield from (ball(place, (0.12, 0.07, 0.11), s.shade) for place in places)


def build_human(s: SimpleNamespace) -> Iterator[Solid]:
    k, b, w, h, R = s.height, s.bulk, 0.2 * s.width, s.head, turn(pitch=-s.lean)
    ahead, up = R[:, 0], R[:, 2]
    hips = np.zeros(3)
    chest, neck = hips + 0.34 * k * up, hips + 0.56 * k * up
    head = neck + 0.2 * up
    yield ball(hips + 0.02 * up, (0.12 * b, 0.8 * w, 0.15), s.trousers, R)
    yield ball(chest, (0.14 * b, 1.05 * w, 0.24 * k), s.shirt, R)
    yield ball(hips + 0.16 * k * up, (0.115 * b, 0.78 * w, 0.2 * k), s.shirt, R)
    yield rod(neck - 0.06 * up, head, 0.06, s.skin)
    yield ball(head, (1.0 * h, 0.88 * h, 1.15 * h), s.skin, R)
    yield ball(head + 0.95 * h * ahead, 0.035, s.skin)
    bare_arms, bare_thighs = s.wear in ("shorts", "skirt", "dress"), s.wear in ("skirt", "dress")
    hands = []
    for side, arm, leg in zip(SIDES, s.arms, s.legs, strict=True):
        shoulder = neck - 0.07 * up + [0, side * 1.12 * w, 0]
        elbow = shoulder + 0.3 * k * heading(arm[0], arm[1], side)
        hand = elbow + 0.28 * k * heading(arm[2], arm[3], side)
        hip = hips + [0, side * 0.5 * w, -0.04]
        knee = hip + 0.42 * k * heading(leg[0], leg[1], side)
        foot = knee + 0.42 * k * heading(leg[2], leg[3], side)
        yield ball(shoulder, 0.085 * b * (1.5 if s.wear == "pads" else 1.0), s.shirt)
        yield from limb([shoulder, elbow], [0.08 * b, 0.065 * b], s.shirt)
        yield from limb([elbow, hand], [0.062 * b, 0.048 * b], s.skin if bare_arms else s.shirt)
        yield ball(hand, 0.068, s.skin)
        yield from limb([hip, knee], [0.115 * b, 0.085 * b], s.skin if bare_thighs else s.trousers)
        yield from limb([knee, foot], [0.08 * b, 0.058 * b], s.skin if bare_arms else s.trousers)
        yield ball(foot + [0.06, 0, -0.02], (0.145, 0.07, 0.06), DARK)
        hands.append(hand)
    yield from _hat(s.hat, head, h, R)
    yield from _clothes(s, hips, chest, up)
    yield from _item(s.item, hands[0], hands[1], R)


def _hat(hat: str, head: np.ndarray, h: float, R: np.ndarray) -> Iterator[Solid]:
    """Build hair, or a hat in its place."""
    ahead, up = R[:, 0], R[:, 2]
    crown = head + 0.35 * h * up
    if hat == "cowboy":
        yield rod(crown + 0.2 * h * up, crown + 0.42 * h * up, 1.7 * h, 0.25)
        yield rod(crown + 0.3 * h * up, crown + 1.35 * h * up, 1.05 * h, 0.25, 0.75 * h)
    elif hat == "helmet":
        yield ball(crown, (1.15 * h, 1.08 * h, 0.95 * h), 0.25, R)
        yield rod(crown - 0.1 * h * up, crown + 0.1 * h * up, 1.22 * h, 0.25)
    elif hat == "cap":
        yield ball(crown, (1.08 * h, 0.98 * h, 0.92 * h), 0.25, R)
        yield ball(crown + 1.05 * h * ahead + 0.1 * h * up, (0.7 * h, 0.7 * h, 0.12 * h), 0.25, R)
    else:
        yield ball(head + 0.28 * h * up - 0.22 * h * ahead, (1.0 * h, 0.98 * h, 1.0 * h), 0.2, R)
    if hat == "bun":
        yield ball(head + 0.95 * h * up - 0.85 * h * ahead, 0.45 * h, 0.2)


def _clothes(s: SimpleNamespace, hips: np.ndarray, chest: np.ndarray, up: np.ndarray) -> Iterator[Solid]:
    if s.wear == "dress":
        yield rod(hips - 0.4 * s.height * up, hips + 0.2 * s.height * up, 0.29, s.shirt, 0.12)
    if s.wear == "skirt":
        yield rod(hips - 0.2 * s.height * up, hips + 0.12 * s.height * up, 0.27, s.trousers, 0.12)
    if s.wear == "pack":
        yield box(chest - [0.24, 0, 0.0], (0.2, 0.32, 0.4), 0.4)
        yield rod(chest + [-0.2, -0.2, 0.24], chest + [-0.2, 0.2, 0.24], 0.07, 0.6)
    if s.wear == "pads":
        yield ball(chest + 0.12 * up, (0.19, 0.36 * s.width, 0.15), s.shirt)
    if s.wear == "plain":
        yield rod(hips + 0.02 * up, hips + 0.07 * up, 0.15, DARK)  # a belt


def _item(item: str, right: np.ndarray, left: np.ndarray, R: np.ndarray) -> Iterator[Solid]:
    """Build what the hands hold."""
    if item == "rifle":
        along = (left - right) / np.linalg.norm(left - right)
        yield rod(right, left + 0.3 * along, 0.03, DARK)
        yield from limb([right - 0.2 * along, right + 0.3 * along], [0.07, 0.045], 0.3)
    if item == "crate":
        yield box((right + left) / 2 + [0.06, 0, 0.06], (0.22, 0.36, 0.22), 0.5)
    if item == "ball":
        yield ball(right + [0.06, 0.05, 0], (0.15, 0.09, 0.09), 0.4, R)
