"""Pictures of the demo as HTML that follows the page's width and its light or dark colours."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ...routing import Step
from ..html import BLUE, GREEN, ORANGE, TEMPLATES, Html, encode_png, image
from .algorithm import HOMES, Scene

HUES = (BLUE, ORANGE, GREEN)
GREY = (140, 148, 156)
ANSWERS: Any = TEMPLATES.get_template("demo/answers.html").module
SCENE_SIZE = 3.7  # half the side of the scene of points


def show_answer(names: Sequence[str], probabilities: Tensor) -> Html:
    """Show the probabilities of classes, the highest in blue."""
    values = probabilities.tolist()
    hues = [BLUE if value == max(values) else GREY for value in values]
    return ANSWERS.answer(names, values, [f"{100 * p:.1f}%" for p in values], hues)


def show_grey(view: Tensor, alt: str) -> Html:
    """Show an image `[m, n]` in 0..1."""
    return image(encode_png((255 * view.clamp(0, 1)).round().byte().numpy()), alt)


def show_heat(view: Tensor, heat: Tensor, alt: str) -> Html:
    """Show an image `[m, n]` in 0..1, uncoloured where heat `[m, n]` is lowest, most orange where it is highest."""
    low, high = heat.aminmax()
    strength = ((heat - low) / (high - low).clamp(min=1e-12)).unsqueeze(-1).numpy()
    base = np.repeat(255 * view.clamp(0, 1).unsqueeze(-1).numpy(), 3, -1)
    return image(encode_png((base + 0.75 * strength * (np.array(ORANGE) - base)).round().astype(np.uint8)), alt)


def show_matrix(values: Tensor, alt: str, largest: float) -> Html:
    """Show cells `[rows, columns]` from transparent at 0 to blue at the largest value."""
    strength = (values / max(largest, 1e-12)).clamp(0, 1).sqrt()  # the root makes small shares visible
    cells = np.empty((*values.shape, 4), np.uint8)
    cells[..., :3] = BLUE
    cells[..., 3] = (255 * strength).round().byte().numpy()
    return image(encode_png(cells), alt)


def show_turn(points: Tensor, here: Tensor, azimuths: Sequence[int]) -> Html:
    """Show a closed path `[v, 2]` in the plane, and a point `[2]`."""
    every = np.concatenate([points.numpy(), here.numpy()[None]])
    low, high = every.min(0), every.max(0)
    scale = 170 / max(float((high - low).max()), 1e-12)
    x, y = ((every - (low + high) / 2) * scale * (1, -1) + 110).round(1).T.tolist()
    line = " ".join(f"{a},{b}" for a, b in zip(x[:-1], y[:-1], strict=True))
    marks = []
    for a, b, azimuth in zip(x, y, azimuths, strict=False):
        marks.append(f'<circle cx="{a}" cy="{b}" r="{1.6 if azimuth % 90 else 3.5}"/>')
        if azimuth % 90 == 0:
            marks.append(f'<text x="{a + 6}" y="{b - 5}">{azimuth}°</text>')
    return Html(
        '<svg class="path" viewBox="5 5 230 210" role="img" aria-label="The pose along a full turn, and the present '
        f'pose"><polygon points="{line}"/><g class="marks">{"".join(marks)}</g>'
        f'<circle class="here" cx="{x[-1]}" cy="{y[-1]}" r="6.5" fill="rgb{ORANGE}"/></svg>'
    )


def show_scene(scene: Scene, step: Step) -> Html:
    """Show points in the colours of the capsules that use them, their votes, and the capsules, at one iteration."""
    shares, drawn = step.R.numpy(), []  # [i, j]
    used = shares.sum(0) / shares.sum() * len(HUES)  # 1 for an equal share
    for i, row in enumerate(scene.votes.tolist()):
        for (x, y), hue, share in zip(row, HUES, shares[i], strict=True):
            style = f'r=".03" fill="rgb{hue}" opacity="{0.1 + 0.75 * share:.2f}"'
            drawn.append(f'<circle cx="{x:.2f}" cy="{-y:.2f}" {style}/>')
    for (x, y), colour in zip(scene.points.tolist(), (shares @ np.array(HUES)).round().astype(int), strict=True):
        style = f'r=".065" fill="rgb{tuple(colour.tolist())}"'
        drawn.append(f'<circle class="point" cx="{x:.2f}" cy="{-y:.2f}" {style}/>')
    means, deviations = step.mu.squeeze(-2).tolist(), step.sig2.squeeze(-2).sqrt().tolist()
    for (x, y), (u, v), (a, b), hue, share in zip(means, deviations, HOMES, HUES, used, strict=True):
        drawn.append(
            f'<g stroke="rgb{hue}" fill="rgb{hue}"><ellipse cx="{x:.2f}" cy="{-y:.2f}" rx="{2 * u:.2f}" '
            f'ry="{2 * v:.2f}" fill-opacity=".1" opacity="{min(share, 1):.2f}"/>'
            f'<path class="home" d="M{a} {-b - 0.13}l.13 .13l-.13 .13l-.13 -.13z"/></g>'
        )
    box = f"{-SCENE_SIZE} {-SCENE_SIZE} {2 * SCENE_SIZE} {2 * SCENE_SIZE}"
    label = "Points, votes and capsules"
    return Html(f'<svg class="playground" viewBox="{box}" role="img" aria-label="{label}">{"".join(drawn)}</svg>')
