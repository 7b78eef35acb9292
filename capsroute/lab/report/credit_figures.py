"""Pictures of credit: over the pixels of an image, over the tokens of a text, and how faithful it is."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..analysis.deletion import Deletion
from .figures import BLUE, DPI, FAINT, GREY, HALF, INK, ORANGE, panel, rgb, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"credit": BLUE, "gradient times input": ORANGE, "random": FAINT}
COLUMNS = ("left\nimage", "used", "not\nused", "for,\nagainst", "by kind\nof part")
TOP, ABOVE, SIDE, GAP = 84, 54, 192, 6  # dots: the columns' names, a row's label, about a picture, between pictures
MOST_TOKENS = 48


class Row(NamedTuple):
    """One stereo pair and its credit for the class predicted."""

    label: str
    image: np.ndarray  # [m, m] bytes, the left one
    used: np.ndarray  # [m, m] data used, of all parts
    unused: np.ndarray  # [m, m] data not used
    owed: np.ndarray  # [m, m] part in the class's odds, above zero for, below against
    by_part: np.ndarray  # [parts] the same, of all locations


def image_credits(rows: Sequence[Row]) -> "Figure":
    """A row of pictures for each pair, under the columns' names; blue for the class, orange against it.

    Photographs may not be turned dark, so there is no paper behind them and the words are grey.
    """
    from matplotlib.figure import Figure

    side = rows[0].image.shape[-1]
    side *= max(1, round(SIDE / side))
    down, right = ABOVE + side + GAP, side + GAP  # from one picture to the next
    mosaic = np.zeros((len(rows) * down - GAP, len(COLUMNS) * right - GAP, 4))  # transparent
    for place, row in enumerate(rows):
        top = place * down + ABOVE
        for column, picture in enumerate(_pictures(row)):
            tile = mosaic[top : top + side, column * right : column * right + side]
            tile[..., :3], tile[..., 3] = _enlarged(picture, side), 1
    height, width = mosaic.shape[:2]
    figure = Figure(figsize=(width / DPI, (TOP + height) / DPI), dpi=DPI, facecolor="none")
    axes = figure.add_axes((0, 0, 1, height / (TOP + height)))
    axes.imshow(mosaic, interpolation="nearest")
    axes.set_axis_off()
    for place, row in enumerate(rows):
        axes.text(0, place * down + ABOVE - 8, row.label, va="bottom", fontsize=10.5, color=GREY)
    for column, name in enumerate(COLUMNS):
        middle = column * right + side / 2
        axes.text(middle, -TOP / 2 + 6, name, ha="center", va="center", fontsize=10.5, color=GREY)
    return figure


def text_credits(pieces: Sequence[str], used: np.ndarray, owed: np.ndarray) -> "Figure":
    """Tokens by depth: what was used `[n, depth]`, from none to all, and what it did for the class `[n, depth]`."""
    n, depth = min(len(pieces), MOST_TOKENS), used.shape[1]
    from matplotlib.figure import Figure

    figure = Figure(figsize=(HALF, 0.75 + 0.19 * n), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    most = float(np.abs(owed).max()) or 1.0
    _cells(left, _between(np.ones(3), rgb(BLUE), used[:n]), "Used", depth)
    _cells(right, _signed(np.ones((n, depth, 3)), owed[:n] / most), "For, against", depth)
    left.set_yticks(range(n), [_short(piece) for piece in pieces[:n]])
    left.tick_params(axis="y", labelcolor=INK, labelsize=8.5)
    return figure


def deletion_curves(title: str, found: Deletion) -> "Figure":
    """Probability of the class predicted at first by the share removed, with bands of two standard errors."""
    figure, axes = panel(HALF + 0.6, 3.4)
    x = 100 * found.fractions.numpy()
    for name, colour in COLOURS.items():
        mean, error = (100 * np.array(column) for column in zip(*found.curve(name), strict=True))
        area = found.area(name)
        words = f"{name}, area {area.mean:.3f} ± {area.error:.3f}"
        axes.plot(x, mean, color=colour, linewidth=1.4, label=words)
        axes.fill_between(x, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.18, linewidth=0)
    figure.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="outside lower left")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 101)
    axes.set_xlabel("removed, highest first, % of inputs")
    axes.set_ylabel("probability of the class, %")
    titled(axes, title)
    return figure


def tint(strength: float) -> str:
    """A background for a word, from -1, against, to 1, for; seen through on light and on dark paper."""
    red, green, blue = (round(255 * part) for part in rgb(BLUE if strength > 0 else ORANGE))
    return f"rgba({red},{green},{blue},{0.6 * min(1.0, abs(strength)):.2f})"


def _pictures(row: Row) -> list[np.ndarray]:
    """The columns' pictures, colours in 0..1."""
    grey = np.repeat(row.image[..., None] / 255.0, 3, -1)
    faded = 0.45 + 0.55 * grey  # so that colours show on it
    data = float((row.used + row.unused).max()) or 1.0
    side = math.ceil(math.sqrt(len(row.by_part)))
    parts = np.zeros(side * side)
    parts[: len(row.by_part)] = row.by_part
    return [
        grey,
        _between(faded, rgb(BLUE), 0.85 * row.used / data),
        _between(faded, np.zeros(3), 0.85 * row.unused / data),
        _signed(faded, 0.85 * row.owed / (float(np.abs(row.owed).max()) or 1.0)),
        _signed(np.ones((side, side, 3)), parts.reshape(side, side) / (float(np.abs(parts).max()) or 1.0)),
    ]


def _enlarged(picture: np.ndarray, side: int) -> np.ndarray:
    """The nearest pixel for each dot."""
    places = np.arange(side) * picture.shape[0] // side
    return picture[places][:, places]


def _between(paper: np.ndarray, colour: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """From the paper's colour, at strength 0, to another, at 1."""
    return paper + strength[..., None] * (colour - paper)


def _signed(paper: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Blue above zero, orange below."""
    hue = np.where(strength[..., None] > 0, rgb(BLUE), rgb(ORANGE))
    return paper + np.abs(strength)[..., None] * (hue - paper)


def _cells(axes: "Axes", colours: np.ndarray, title: str, depth: int) -> None:
    axes.imshow(colours, aspect="auto", interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=FAINT)
    every = math.ceil(depth / 8)
    axes.set_xticks(range(0, depth, every), [str(k) for k in range(0, depth, every)])
    axes.set_xlabel("depth", color=FAINT, fontsize=8.5)
    titled(axes, title)
    for edge in np.arange(0.5, len(colours) - 1):
        axes.axhline(edge, color="white", linewidth=0.7)


def _short(piece: str) -> str:
    """As a label: what matplotlib would take for a formula is none."""
    return (piece if len(piece) <= 16 else piece[:15] + "…").replace("$", r"\$")
