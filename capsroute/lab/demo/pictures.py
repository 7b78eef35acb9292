"""Pictures as pieces of HTML, which follow the page's width and its light or dark colours; all words are escaped."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from io import BytesIO

import numpy as np
from torch import Tensor

from ..formatting import readable

BLUE, ORANGE, GREEN = (47, 143, 208), (224, 116, 43), (30, 163, 124)
"""Told apart by colour-blind people, and seen on white and on black."""
HUES = (BLUE, ORANGE, GREEN)
VIEW = 3.7  # of the playground: half its side


def message(words: str) -> str:
    """What a visitor can mend."""
    return f'<p class="message" role="alert">{escape(readable(words))}</p>'


def figure(title: str, content: str, note: str = "", name: str = "") -> str:
    """A titled picture with a sentence below."""
    below = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f'<figure class="{escape(name)}"><h3>{escape(title)}</h3>{content}{below}</figure>'


def bars(names: Sequence[str], shares: Sequence[float], labels: Sequence[str], hues: Sequence[tuple[int, ...]]) -> str:
    """Horizontal bars from 0 to 1, each with its name and what to write beside it."""
    rows = zip(names, shares, labels, hues, strict=True)
    return '<dl class="bars">' + "".join(
        f'<dt>{escape(name)}</dt><dd><span class="bar"><i style="width:{100 * min(max(share, 0), 1):.1f}%;'
        f'background:rgb{hue}"></i></span><b>{escape(label)}</b></dd>'
        for name, share, label, hue in rows
    ) + "</dl>"  # fmt: skip


def signed(names: Sequence[str], values: Sequence[float], most: float, hues: Sequence[tuple[int, ...]]) -> str:
    """Horizontal bars to the left and the right of zero, from `-most` to `most`."""
    rows = []
    for name, value, hue in zip(names, values, hues, strict=True):
        length = 50 * min(abs(value) / max(most, 1e-12), 1)
        start = 50 - length if value < 0 else 50
        rows.append(
            f'<dt>{escape(name)}</dt><dd><span class="bar zero"><i style="margin-left:{start:.1f}%;width:{length:.1f}%;'
            f'background:rgb{hue}"></i></span><b>{value:+.2f}</b></dd>'
        )
    return f'<dl class="bars">{"".join(rows)}</dl>'


def chances(names: Sequence[str], values: Tensor) -> str:
    """Probabilities of classes, the highest in blue."""
    best = int(values.argmax())
    shares = values.tolist()
    grey = (140, 148, 156)
    return bars(
        names, shares, [f"{100 * p:.1f}%" for p in shares], [BLUE if k == best else grey for k in range(len(shares))]
    )


def grey(view: Tensor, alt: str) -> str:
    """An image `[m, n]` in 0..1."""
    return _img((255 * view.clamp(0, 1)).round().byte().numpy(), alt)


def overlaid(view: Tensor, heat: Tensor, alt: str) -> str:
    """An image `[m, n]` in 0..1, not coloured where heat `[m, n]` is least, most where it is greatest."""
    low, high = heat.aminmax()
    strength = ((heat - low) / (high - low).clamp(min=1e-12)).unsqueeze(-1).numpy()
    base = np.repeat(255 * view.clamp(0, 1).unsqueeze(-1).numpy(), 3, -1)
    return _img((base + 0.75 * strength * (np.array(ORANGE) - base)).round().astype(np.uint8), alt)


def matrix(values: Tensor, alt: str, most: float) -> str:
    """Cells `[rows, columns]`, from nothing to full colour at `most`."""
    strength = (values / max(most, 1e-12)).clamp(0, 1).sqrt()  # the root lets small shares show
    cells = np.empty((*values.shape, 4), np.uint8)
    cells[..., :3] = BLUE
    cells[..., 3] = (255 * strength).round().byte().numpy()
    return _img(cells, alt)


def pose(values: Tensor) -> str:
    """A capsule's pose as a table of signed numbers."""
    most = max(float(values.abs().max()), 1e-12)
    rows = "".join(
        "<tr>" + "".join(
            f'<td style="{_tint(v / most)}">{v:z.2f}</td>'
            for v in row
        ) + "</tr>"
        for row in values.tolist()
    )  # fmt: skip
    return f'<table class="pose"><tbody>{rows}</tbody></table>'


def path(points: Tensor, here: Tensor, azimuths: Sequence[int]) -> str:
    """A closed walk `[v, 2]` through the plane, and where one stands `[2]`."""
    every = np.concatenate([points.numpy(), here.numpy()[None]])
    low, high = every.min(0), every.max(0)
    scale = 170 / max(float((high - low).max()), 1e-12)
    x, y = ((every - (low + high) / 2) * scale * (1, -1) + 110).round(1).T.tolist()
    line = " ".join(f"{a},{b}" for a, b in zip(x[:-1], y[:-1], strict=True))
    marks = "".join(
        f'<circle cx="{a}" cy="{b}" r="3.5"/><text x="{a + 6}" y="{b - 5}">{turn}°</text>'
        if turn % 90 == 0 else f'<circle cx="{a}" cy="{b}" r="1.6"/>'
        for a, b, turn in zip(x, y, azimuths, strict=False)
    )  # fmt: skip
    return (
        '<svg class="path" viewBox="5 5 230 210" role="img" aria-label="The pose along a full turn, and the present '
        f'pose"><polygon points="{line}"/><g class="marks">{marks}</g>'
        f'<circle class="here" cx="{x[-1]}" cy="{y[-1]}" r="6.5" fill="rgb{ORANGE}"/></svg>'
    )


def words(tokens: Sequence[str], gains: Tensor) -> str:
    """Tokens in a line, coloured by what they gave `[n]`: blue above zero, orange below."""
    most = max(float(gains.abs().max()), 1e-12)
    spans = [
        f'<span style="{_tint(g / most)}" title="{g:+.2f}">{escape(token)}</span>'
        for token, g in zip(tokens, gains.tolist(), strict=True)
    ]
    return f'<p class="words" dir="auto">{" ".join(spans)}</p>'


def depths(tokens: Sequence[str], values: Tensor, form: str, low: float, high: float) -> str:
    """Tokens by depth: numbers `[n, depth]`, coloured by where they lie between two others."""
    width = max(high - low, 1e-12)
    head = "".join(f'<th scope="col">{k if k else "word"}</th>' for k in range(values.shape[1]))
    rows = "".join(
        f'<tr><th scope="row" dir="auto">{escape(token)}</th>'
        + "".join(f'<td style="{_tint((v - low) / width)}">{v:{form}}</td>' for v in row)
        + "</tr>"
        for token, row in zip(tokens, values.tolist(), strict=True)
    )
    return f'<div class="depths"><table><thead><tr><th>layer</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def playground(
    points: Tensor, votes: Tensor, R: Tensor, mu: Tensor, sig2: Tensor, homes: Sequence[Sequence[float]]
) -> str:
    """Points `[i, 2]` in the colours of the capsules that use them, their votes `[i, j, 2]`, and a model for each."""
    shares = R.numpy()  # [i, j]
    colours = (shares @ np.array(HUES)).round().astype(int)  # [i, 3]
    used = shares.sum(0) / shares.sum() * len(HUES)  # 1 for an equal part
    drawn = [
        f'<circle cx="{x:.2f}" cy="{-y:.2f}" r=".03" fill="rgb{HUES[j]}" opacity="{0.1 + 0.75 * shares[i, j]:.2f}"/>'
        for i, row in enumerate(votes.tolist()) for j, (x, y) in enumerate(row)
    ]  # fmt: skip
    drawn += [
        f'<circle class="point" cx="{x:.2f}" cy="{-y:.2f}" r=".065" fill="rgb{tuple(colour)}"/>'
        for (x, y), colour in zip(points.tolist(), colours.tolist(), strict=True)
    ]
    for j, ((x, y), (u, v)) in enumerate(zip(mu.tolist(), sig2.sqrt().tolist(), strict=True)):
        strength = min(float(used[j]), 1.0)  # a model of nothing is not drawn
        a, b = homes[j]
        drawn.append(
            f'<g stroke="rgb{HUES[j]}" fill="rgb{HUES[j]}"><ellipse cx="{x:.2f}" cy="{-y:.2f}" rx="{2 * u:.2f}" '
            f'ry="{2 * v:.2f}" fill-opacity=".1" opacity="{strength:.2f}"/>'
            f'<path class="home" d="M{a} {-b - 0.13}l.13 .13l-.13 .13l-.13 -.13z"/></g>'
        )
    box = f"{-VIEW} {-VIEW} {2 * VIEW} {2 * VIEW}"
    label = "Points, votes and capsules"
    return f'<svg class="playground" viewBox="{box}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _tint(share: float) -> str:
    """From orange at -1 through nothing to blue at 1."""
    return f"background:rgba{(*(BLUE if share > 0 else ORANGE), round(0.65 * min(abs(share), 1), 3))}"


def _img(pixels: np.ndarray, alt: str) -> str:
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f'<img src="data:image/png;base64,{b64encode(file.getvalue()).decode()}" alt="{escape(alt)}">'
