"""Draw the pictures of README and docs: python docs/make_pictures.py

Each is an SVG on a white card, so that it reads the same on light and dark pages, with text that is large enough at
390 pixels. All of them are drawn from what the library computes.
"""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from capsroute.credit import for_class
from capsroute.lab.data.pairs import CATEGORIES
from capsroute.lab.demo import algorithm, handlers, pictures, vision
from capsroute.lab.demo.pictures import BLUE, HUES, ORANGE, SCENE_SIZE

FOLDER = Path(__file__).parent / "pictures"
WIDTH, MARGIN, GAP = 440, 14, 16
INNER = WIDTH - 2 * MARGIN
HALF, THIRD = (INNER - GAP) / 2, (INNER - 2 * 26) / 3
INK, FAINT, LINE = "#24292f", "#59636e", "#d0d7de"
BETA = 0.2  # of both betas
TOY = ("airplane", 0, 40, 45, 3)  # category, instance, azimuth, elevation, light
SENTENCE = "it is not a bad film"
STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:17px}ellipse{stroke-width:.05}"
    ".home{fill:none;stroke-width:.07}image{image-rendering:pixelated}"
)


def make_svg(height: float, label: str, *drawn: str) -> str:
    """Wrap drawings, whose origin is inside the margin, in a card."""
    total = height + 2 * MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total:g}" role="img"'
    card = f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{total - 1:g}" rx="10" fill="#fff" stroke="{LINE}"/>'
    body = f'<g transform="translate({MARGIN} {MARGIN})">{"".join(drawn)}</g>'
    return f'{head} aria-label="{escape(label)}"><style>{STYLE}</style>{card}{body}</svg>\n'


def write(x: float, y: float, words: str, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def draw_dots(places: Sequence[Sequence[float]], colour: str, radius: float, opacity: Sequence[float]) -> str:
    return "".join(
        f'<circle cx="{x:.2f}" cy="{-y:.2f}" r="{radius}" fill="{colour}" opacity="{o:.2f}"/>'
        for (x, y), o in zip(places, opacity, strict=True)
    )


def draw_ring(place: Sequence[float], half: float) -> str:
    """Draw a ring of the same size in every panel, whatever half of the panel's side is in its coordinates."""
    (x, y), radius, width = place, 0.07 * half, 0.03 * half
    return (
        f'<circle cx="{x:.2f}" cy="{-y:.2f}" r="{radius:.3f}" fill="none" stroke="{INK}" stroke-width="{width:.3f}"/>'
    )


def draw_panel(x: float, y: float, side: float, content: str, half: float) -> str:
    """Draw a square whose content has coordinates from -half to half."""
    place = f'x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}"'
    return (
        f'<rect {place} rx="6" fill="none" stroke="{LINE}"/>'
        f'<svg {place} viewBox="{-half} {-half} {2 * half} {2 * half}">{content}</svg>'
    )


def draw_home(j: int, colour: str, half: float) -> str:
    """Draw a diamond, to be seen on top of dots."""
    (x, y), r = algorithm.HOMES[j], 0.11 * half
    shape = f"M{x} {-y - r:.3f}l{r:.3f} {r:.3f}l-{r:.3f} {r:.3f}l-{r:.3f} -{r:.3f}z"
    return f'<path d="{shape}" fill="none" stroke="{colour}" stroke-width="{0.025 * half:.3f}"/>'


def draw_image(html: str, x: float, y: float, width: float, height: float) -> str:
    """Place an `img` of the demo in an SVG."""
    source = re.search(r'src="([^"]+)"', html)
    assert source is not None
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" preserveAspectRatio="none"'
    return f'<image {place} href="{source[1]}"/>'


def draw_routing() -> str:
    """Draw inputs, all of their votes, and the votes that agree after five iterations; one input is ringed."""
    scene = algorithm.route_points("Three groups", 4, 5, BETA, BETA)
    last, ringed, near, far = scene.steps[-1], 3, 2.0, 3.7
    winner = int(last.R[ringed].argmax())
    inputs = draw_dots(scene.points.tolist(), FAINT, 0.08, [0.9] * algorithm.N_POINTS)
    votes, outputs = "", ""
    for j, hue in enumerate(HUES):
        mine = scene.votes[:, j].tolist()
        votes += draw_dots(mine, f"rgb{hue}", 0.1, [0.55] * algorithm.N_POINTS) + draw_ring(mine[ringed], far)
        (x, y), (u, v) = last.mu[j, 0].tolist(), last.sig2[j, 0].sqrt().tolist()
        outputs += draw_dots(mine, f"rgb{hue}", 0.1, (0.06 + 0.8 * last.R[:, j]).tolist())
        outputs += (
            f'<ellipse cx="{x:.2f}" cy="{-y:.2f}" rx="{2.4 * u:.2f}" ry="{2.4 * v:.2f}" fill="rgb{hue}" '
            f'fill-opacity=".15" stroke="rgb{hue}"/>'
        )
    outputs += draw_ring(scene.votes[ringed, winner].tolist(), far)
    panels = (
        ("inputs", ("each votes for", "every output"), inputs + draw_ring(scene.points[ringed].tolist(), near), near),
        ("votes", ("some agree,", "others scatter"), votes, far),
        ("outputs", ("formed where", "votes agree"), outputs, far),
    )
    drawn = []
    for k, (title, words, content, half) in enumerate(panels):
        x, middle = k * (THIRD + 26), k * (THIRD + 26) + THIRD / 2
        drawn.append(f'<g font-weight="600">{write(middle, 17, title, "middle")}</g>')
        drawn.append(draw_panel(x, 28, THIRD, content, half))
        drawn += [write(middle, THIRD + 52 + 22 * line, part, "middle", FAINT) for line, part in enumerate(words)]
        if k:
            drawn.append(
                f'<path d="M{x - 20} {28 + THIRD / 2:g}h13m-6 -6l6 6l-6 6" fill="none" stroke="{INK}" '
                'stroke-width="2"/>'
            )
    label = "Inputs vote for every output; most votes scatter; votes that agree form the outputs"
    return make_svg(THIRD + 80, label, *drawn)


def draw_votes() -> str:
    """Draw points, and their votes for the first capsule."""
    scene = algorithm.route_points("Three groups", 0, 1, BETA, BETA)
    strength = [1.0 if i < algorithm.N_POINTS // 3 else 0.4 for i in range(algorithm.N_POINTS)]  # of the first group
    near, far = 1.9, 3.3
    left = draw_dots(scene.points.tolist(), FAINT, 0.06, [0.6] * algorithm.N_POINTS)
    left += "".join(draw_home(j, f"rgb{hue}", near) for j, hue in enumerate(HUES))
    right = draw_dots(scene.votes[:, 0].tolist(), f"rgb{BLUE}", 0.09, strength) + draw_home(0, INK, far)
    return make_svg(
        HALF + 30,
        "Points around three homes, and their votes for the first capsule, of which those of its own group agree",
        write(0, 17, "the parts") + draw_panel(0, 28, HALF, left, near),
        write(HALF + GAP, 17, "votes for capsule 1") + draw_panel(HALF + GAP, 28, HALF, right, far),
    )


def draw_iterations() -> str:
    """Draw the points in the colours of the capsules that use them, iteration by iteration."""
    scene = algorithm.route_points("Three groups", 0, 5, BETA, BETA)
    drawn = []
    for place, k in enumerate((1, 2, 3, 5)):
        step = scene.steps[k - 1]
        content = re.sub(r"^<svg[^>]*>|</svg>$", "", pictures.show_scene(scene, step)).replace('r=".03"', 'r=".05"')
        x, y = (place % 2) * (HALF + GAP), (place // 2) * (HALF + 28 + GAP)
        drawn.append(write(x, y + 17, f"iteration {k}") + draw_panel(x, y + 28, HALF, content, SCENE_SIZE))
    return make_svg(2 * (HALF + 28) + GAP, "Points settle on one of three capsules within five iterations", *drawn)


def draw_shares() -> str:
    """Draw the data each capsule uses where there are two groups and three capsules."""
    scene = algorithm.route_points("Two groups", 0, 5, BETA, BETA)
    used = [step.D_use.sum(0).tolist() for step in scene.steps]  # [t, j]
    left, right, top, bottom, most = 34, INNER - 92, 40, 240, 24
    xs = [left + (right - left) * t / (len(used) - 1) for t in range(len(used))]
    drawn = [write(0, 17, "points used")]
    for tick in (0, 8, 16, 24):
        y = bottom - (bottom - top) * tick / most
        drawn.append(
            f'<path d="M{left} {y:g}H{right}" stroke="{LINE}"/>' + write(left - 8, y + 6, str(tick), "end", FAINT)
        )
    for j, hue in enumerate(HUES):
        ys = [bottom - (bottom - top) * row[j] / most for row in used]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        dash = ' stroke-dasharray="9 7"' if j == 1 else ""  # it lies on the first
        drawn.append(f'<polyline points="{line}" fill="none" stroke="rgb{hue}" stroke-width="3"{dash}/>')
        drawn.append(write(right + 8, ys[-1] + (-6, 18, 6)[j], f"capsule {j + 1}", colour=f"rgb{hue}"))
    drawn += [write(x, bottom + 26, str(t), "middle", FAINT) for t, x in enumerate(xs, 1)]
    drawn.append(write((left + right) / 2, bottom + 50, "iteration", "middle", FAINT))
    return make_svg(bottom + 56, "Two capsules come to use all of the data, the third none", *drawn)


def draw_toy() -> str:
    """Draw a toy, what its class used of it, and the second routing layer."""
    result = vision.recognise_toy(*TOY)
    side, left, row = (INNER - 2 * GAP) / 3, 84, 20
    shown = (
        ("left view", pictures.show_grey(result.images[0], "")),
        ("right view", pictures.show_grey(result.images[1], "")),
        (f"{CATEGORIES[result.winner]} used", pictures.show_heat(result.images[0], result.heat, "")),
    )
    drawn = []
    for k, (title, picture) in enumerate(shown):
        x = k * (side + GAP)
        drawn.append(write(x, 17, title) + draw_image(picture, x, 28, side, side))
    y = side + 68
    for t, step in enumerate(result.to_classes, 1):
        drawn.append(write(0, y - 10, f"iteration {t}"))
        for k, name in enumerate(CATEGORIES):
            colour = f"rgb{BLUE}" if k == result.winner else FAINT
            drawn.append(write(left - 8, y + row * (k + 0.8), name, "end", colour))
        matrix = pictures.show_matrix(step.T, "", float(result.to_classes.max()))
        drawn.append(draw_image(matrix, left, y, INNER - left, 5 * row))
        frame = f'x="{left}" y="{y:g}" width="{INNER - left}" height="{5 * row}"'
        drawn.append(f'<rect {frame} fill="none" stroke="{LINE}"/>')
        y += 5 * row + 40
    return make_svg(y - 40, "A toy airplane, what its class used of it, and 64 parts that settle on classes", *drawn)


def draw_sentence() -> str:
    """Draw the credit of each word for the answer, against the other classes."""
    tokens, credit = handlers.classify_text(SENTENCE)
    net, probabilities = credit.net[0], credit.scores[0].softmax(0)
    values = for_class(net.flatten(0, 1), net.sum((0, 1))).unflatten(0, net.shape[:2]).sum(1).tolist()
    name = handlers.load_predictor().classes[int(probabilities.argmax())]
    answer = f"{name}, {100 * float(probabilities.max()):.1f}%"
    width, base, tall = INNER / len(values), 170, 110
    drawn = [write(0, 17, f"what speaks for “{answer}”")]
    for k, (token, value) in enumerate(zip(tokens.pieces, values, strict=True)):
        middle, height = (k + 0.5) * width, tall * abs(value) / max(map(abs, values))
        top = base - height if value > 0 else base
        hue = BLUE if value > 0 else ORANGE
        drawn.append(f'<rect x="{middle - 20:.1f}" y="{top:.1f}" width="40" height="{height:.1f}" fill="rgb{hue}"/>')
        drawn.append(write(middle, top - 8, f"{value:+.1f}", "middle") + write(middle, base + 26, token, "middle"))
    drawn.append(f'<path d="M0 {base}H{INNER}" stroke="{FAINT}"/>')
    return make_svg(base + 34, f"Credit of the words of: {SENTENCE}", *drawn)


PICTURES: dict[str, Callable[[], str]] = {
    "routing": draw_routing,
    "votes": draw_votes,
    "iterations": draw_iterations,
    "shares": draw_shares,
    "toy": draw_toy,
    "sentence": draw_sentence,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())
