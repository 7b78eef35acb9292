"""Draws the pictures of `explained.md`: python docs/make_pictures.py

Each is one SVG without a background, in colours that are seen on white and on black, for a page may be either.
"""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from torch import Tensor

from capsroute.credit import for_class
from capsroute.lab.data.pairs import CATEGORIES
from capsroute.lab.demo import algorithm, language, pictures, vision
from capsroute.lab.demo.pictures import BLUE, HUES, ORANGE

FOLDER = Path(__file__).parent / "pictures"
WIDE, GAP = 640, 20  # of a picture, which a phone shows at about half its size
PANEL = (WIDE - GAP) // 2
GREY, FAINT = "#7a828b", "#7a828b55"
BETA = 0.2  # both of them: a capsule is paid for half of the data and more
TOY = ("airplane", 0, 40, 45, 2)  # category, instance, azimuth, elevation, lighting
SENTENCE = "it is not a bad film"
STYLE = (
    f"text{{font:20px system-ui,sans-serif;fill:{GREY}}}.playground ellipse{{stroke-width:.04}}"
    ".home{fill:none;stroke-width:.06}image{image-rendering:pixelated}"
)


def svg(height: float, label: str, *drawn: str) -> str:
    """A whole picture."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {WIDE + 2} {height + 2:g}" role="img"'
    return f'{head} aria-label="{escape(label)}"><style>{STYLE}</style>{"".join(drawn)}</svg>\n'


def words(x: float, y: float, what: str, anchor: str = "start", colour: str = GREY) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" style="fill:{colour}">{escape(what)}</text>'


def dots(places: Sequence[Sequence[float]], colour: str, radius: float, opacity: Sequence[float]) -> str:
    return "".join(
        f'<circle cx="{x:.2f}" cy="{-y:.2f}" r="{radius}" fill="{colour}" opacity="{o:.2f}"/>'
        for (x, y), o in zip(places, opacity, strict=True)
    )


def panel(x: float, y: float, title: str, content: str, half: float) -> str:
    """A square with a title above, in the coordinates of the points."""
    inner = f'<svg class="playground" viewBox="{-half} {-half} {2 * half} {2 * half}"'
    frame = f'<rect x="{x}" y="{y + 32}" width="{PANEL}" height="{PANEL}" rx="6" fill="none" stroke="{FAINT}"/>'
    place = f'x="{x}" y="{y + 32}" width="{PANEL}" height="{PANEL}"'
    return words(x, y + 20, title) + frame + f"{inner} {place}>{content}</svg>"


def homes(which: Sequence[int]) -> str:
    marks = []
    for j in which:
        x, y = algorithm.HOMES[j]
        marks.append(f'<path class="home" stroke="rgb{HUES[j]}" d="M{x} {-y - 0.2}l.2 .2l-.2 .2l-.2 -.2z"/>')
    return "".join(marks)


def votes() -> str:
    """Points, and where they think the first capsule is."""
    scene = algorithm.scene("Three groups", 0, 1, BETA, BETA)
    near = [i < algorithm.N_POINTS // 3 for i in range(algorithm.N_POINTS)]  # of the first group
    strength = [1.0 if own else 0.5 for own in near]
    left = homes((0, 1, 2)) + dots(scene.points.tolist(), GREY, 0.065, [0.9] * algorithm.N_POINTS)
    right = homes((0,)) + dots(scene.votes[:, 0].tolist(), f"rgb{BLUE}", 0.075, strength)
    return svg(
        PANEL + 32,
        "Points around three homes, and their votes for the first capsule, of which those of its own group agree",
        panel(0, 0, "the parts", left, 2.3),
        panel(PANEL + GAP, 0, "their votes for capsule 1", right, 3.3),
    )


def iterations() -> str:
    """The same points in the colours of the capsules they go to, iteration by iteration."""
    scene = algorithm.scene("Three groups", 0, 5, BETA, BETA)
    drawn = []
    for place, k in enumerate((1, 2, 3, 5)):
        step = scene.steps[k - 1]
        arguments = (scene.points, scene.votes, step.R, step.mu.squeeze(-2), step.sig2.squeeze(-2), algorithm.HOMES)
        inside = re.sub(r"^<svg[^>]*>|</svg>$", "", pictures.playground(*arguments))
        x, y = (place % 2) * (PANEL + GAP), (place // 2) * (PANEL + 32 + GAP)
        drawn.append(panel(x, y, f"iteration {k}", inside, pictures.VIEW))
    return svg(2 * (PANEL + 32) + GAP, "Points settle on one of three capsules within five iterations", *drawn)


def shares() -> str:
    """How much data each capsule uses where there are two groups and three capsules."""
    scene = algorithm.scene("Two groups", 0, 5, BETA, BETA)
    used = [step.D_use.sum(0).tolist() for step in scene.steps]  # [t, j]
    left, right, top, foot, most = 60, WIDE - 130, 40, 300, 24
    xs = [left + (right - left) * t / (len(used) - 1) for t in range(len(used))]
    drawn = [words(0, 20, "points used")]
    for tick in (0, 8, 16, 24):
        y = foot - (foot - top) * tick / most
        drawn.append(f'<path d="M{left} {y:g}H{right}" stroke="{FAINT}"/>' + words(left - 12, y + 7, str(tick), "end"))
    for j, hue in enumerate(HUES):
        ys = [foot - (foot - top) * row[j] / most for row in used]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        dash = ' stroke-dasharray="9 7"' if j == 1 else ""  # it lies on the first
        drawn.append(f'<polyline points="{line}" fill="none" stroke="rgb{hue}" stroke-width="3.5"{dash}/>')
        drawn.append(words(right + 12, ys[-1] + (-8, 18, 7)[j], f"capsule {j + 1}", colour=f"rgb{hue}"))
    drawn += [words(x, foot + 30, str(t), "middle") for t, x in enumerate(xs, 1)]
    drawn.append(words((left + right) / 2, foot + 60, "iteration", "middle"))
    return svg(foot + 70, "Two capsules come to use all of the data, the third none", *drawn)


def toy() -> str:
    """A toy through both routing layers."""
    seen = vision.look_at_toy(*TOY)
    side, left = (WIDE - 2 * GAP) / 3, 110
    shown = (
        ("left view", pictures.grey(seen.images[0], "")),
        ("right view", pictures.grey(seen.images[1], "")),
        (f"used by “{CATEGORIES[seen.winner]}”", pictures.overlaid(seen.images[0], seen.heat, "")),
    )
    drawn = []
    for k, (title, picture) in enumerate(shown):
        drawn.append(words(k * (side + GAP), 20, title) + image(picture, k * (side + GAP), 32, side, side))
    row, y = 22, side + 80
    for t, step in enumerate(seen.to_classes, 1):
        drawn.append(words(0, y - 10, f"iteration {t}"))
        for k, name in enumerate(CATEGORIES):
            colour = f"rgb{BLUE}" if k == seen.winner else GREY
            drawn.append(words(left - 12, y + row * (k + 0.8), name, "end", colour))
        drawn.append(image(pictures.matrix(step.T, "", float(seen.to_classes.max())), left, y, WIDE - left, 5 * row))
        drawn.append(
            f'<rect x="{left}" y="{y}" width="{WIDE - left}" height="{5 * row}" fill="none" stroke="{FAINT}"/>'
        )
        y += 5 * row + 46
    return svg(y - 40, "A toy airplane, what its class used of it, and 64 parts that settle on classes", *drawn)


def sentence() -> str:
    """What each word did for the answer, against the others."""
    found = language.read(SENTENCE)
    assert found is not None
    net: Tensor = found.net
    gains = for_class(net.flatten(0, 1), net.sum((0, 1))).unflatten(0, net.shape[:2]).sum(1).tolist()
    answer = f"{found.names[found.winner]}, {100 * float(found.chances.max()):.1f}%"
    width, base, tall = WIDE / len(gains), 170, 120
    drawn = [words(0, 20, f"what speaks for “{answer}”")]
    for k, (token, gain) in enumerate(zip(found.tokens, gains, strict=True)):
        middle, height = (k + 0.5) * width, tall * gain / max(gains)
        colour = f"rgb{BLUE if gain > 0 else ORANGE}"
        drawn.append(
            f'<rect x="{middle - 22}" y="{base - height:.1f}" width="44" height="{height:.1f}" fill="{colour}"/>'
        )
        drawn.append(
            words(middle, base - height - 8, f"{gain:+.1f}", "middle") + words(middle, base + 28, token, "middle")
        )
    drawn.append(f'<path d="M0 {base}H{WIDE}" stroke="{GREY}"/>')
    return svg(base + 42, f"Credit of the words of: {SENTENCE}", *drawn)


def image(html: str, x: float, y: float, width: float, height: float) -> str:
    """A picture of the demo, an `img`, inside an SVG."""
    source = re.search(r'src="([^"]+)"', html)
    assert source is not None
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" preserveAspectRatio="none"'
    return f'<image {place} href="{source[1]}"/>'


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for draw in (votes, iterations, shares, toy, sentence):
        (FOLDER / f"{draw.__name__}.svg").write_text(draw())
