"""The pictures of a report, each a function from arrays to a figure; accuracies are fractions, shown as per cent."""

import math
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..analysis.accuracy import GroupAccuracy as Share

if TYPE_CHECKING:  # loaded where used: it takes long, and only reports draw
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072b2", "#d55e00"
"""Two of Okabe and Ito's colours, which colour-blind people tell apart."""
INK, FAINT, GRID = "#24292f", "#6e7781", "#e6e8eb"
GREY = "#7a828b"
"""Readable on white and on black."""
DPI = 200
HALF, THIRD = 4.4, 3.3
"""Inches of panels of which two or three stand side by side: narrow enough to be read on a phone."""


class Curve(NamedTuple):
    """A mean and its spread at some places; what is not finite is left out."""

    name: str
    colour: str
    x: np.ndarray
    mean: np.ndarray
    spread: np.ndarray


def png(figure: "Figure") -> bytes:
    """The figure as a file, the same bytes for the same figure."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def curves(title: str, drawn: Sequence[Curve], percent: bool = False) -> "Figure":
    """Lines with a band of one standard deviation; their names, in their colours, stand above."""
    figure, axes = panel(HALF, 2.7)
    scale = 100 if percent else 1
    for curve in drawn:
        x, mean = _finite(curve.x), scale * _finite(curve.mean)
        shown = np.isfinite(x) & np.isfinite(mean)
        axes.plot(x, mean, color=curve.colour, linewidth=1.4, marker=_marker(shown), markersize=3.5)
        spread = scale * _finite(curve.spread)
        low, high = np.maximum(mean - spread, 0), np.minimum(mean + spread, 100 if percent else np.inf)
        axes.fill_between(x, low, high, color=curve.colour, alpha=0.18, linewidth=0)
        if shown.sum() == 1:  # a band needs two points
            axes.vlines(x, low, high, color=curve.colour, alpha=0.4, linewidth=2)
    if not any((np.isfinite(curve.x) & np.isfinite(curve.mean)).any() for curve in drawn):
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", color=FAINT, fontsize=9)
    axes.set_xlabel("epoch")
    axes.margins(x=0.01)
    axes.set_xlim(left=0)
    axes.locator_params(nbins=6)
    if percent:
        axes.set_ylim(0, 101)
        axes.yaxis.set_major_formatter(_percent)
    else:
        axes.set_ylim(bottom=0)
    titled(axes, title)
    _name_curves(axes, drawn)
    return figure


def schedule(title: str, epoch: np.ndarray, values: np.ndarray) -> "Figure":
    """One setting of the optimiser over the epochs, with its lowest and highest value written out."""
    figure, axes = panel(HALF, 2.2)
    epoch, values = _finite(epoch), _finite(values)
    shown = np.isfinite(epoch) & np.isfinite(values)
    axes.plot(epoch, values, color=INK, linewidth=1.4, marker=_marker(shown), markersize=3.5)
    axes.set_xlabel("epoch")
    axes.margins(x=0.01)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)
    titled(axes, title)
    if shown.any():
        # ticks at the ends alone: the values a reader looks for, and no offset to add in the head
        ends = sorted({float(values[shown].min()), float(values[shown].max())})
        axes.set_yticks(ends, [f"{end:.4g}" for end in ends])
        room = 0.08 * (ends[-1] - ends[0]) or 0.5 * abs(ends[0]) or 1.0
        axes.set_ylim(ends[0] - room, ends[-1] + room)
    return figure


def confusion(counts: np.ndarray, names: Sequence[str]) -> "Figure":
    """Counts and shares of each true class: right in blue, wrong in orange."""
    n = len(names)
    side = max(4.2, 0.85 * n)
    figure, axes = panel(side + 0.8, side)
    totals = counts.sum(1, keepdims=True)  # [true, 1]
    shares = counts / np.maximum(totals, 1)
    # the square root lets rare mistakes show beside the diagonal
    strength = np.sqrt(shares)[..., None]
    hue = np.where(np.eye(n, dtype=bool)[..., None], rgb(BLUE), rgb(ORANGE))
    axes.imshow(1 + strength * (hue - 1), aspect="auto")
    for (true, predicted), count in np.ndenumerate(counts):
        if not totals[true, 0]:
            continue
        dark = strength[true, predicted, 0] > 0.6
        colour = "white" if dark else INK if count else FAINT
        label = f"{count:,}\n{100 * shares[true, predicted]:.1f}%" if count else "0"
        axes.text(predicted, true, label, ha="center", va="center", color=colour, fontsize=9, linespacing=1.35)
    axes.grid(False)
    stacked = [name.replace(" ", "\n") for name in names]  # else long ones run into each other
    axes.set_xticks(range(n), stacked)
    axes.set_yticks(range(n), [name if totals[k, 0] else f"{name}\n(none)" for k, name in enumerate(stacked)])
    axes.tick_params(labelsize=9, labelcolor=INK)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("predicted", loc="left")
    axes.set_ylabel("true", loc="top")
    _lines_between_cells(axes, n)
    return figure


def factor(
    title: str, rows: Sequence[Share], labels: Sequence[str], overall: float, floor: float, width: float = THIRD
) -> "Figure":
    """Accuracy for each value of a factor; panels with the same floor share their axis."""
    figure, axes = panel(width, 2.4)
    x = np.arange(len(rows))
    axes.axhline(100 * overall, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.vlines(
        x, [100 * row.low for row in rows], [100 * row.high for row in rows], color=BLUE, alpha=0.45, linewidth=2
    )
    axes.plot(x, [100 * row.accuracy for row in rows], "o", color=BLUE, markersize=4, clip_on=False)
    every = math.ceil(len(rows) / (7 if width <= THIRD else 9))  # labels that there is room for
    axes.set_xticks(x[::every], labels[::every])
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim(floor, 100 + 0.02 * (100 - floor))
    axes.set_yticks(_ticks(floor), [_percent(tick) for tick in _ticks(floor)])
    titled(axes, title)
    return figure


def steps(counts: np.ndarray, labels: Sequence[str]) -> "Figure":
    """How many answers lie so many classes from the truth, as shares of all: right, the first, in blue."""
    figure, axes = panel(HALF, 0.5 + 0.36 * len(counts))
    places, shares = np.arange(len(counts)), 100 * counts / counts.sum()
    axes.barh(places, shares, height=0.62, color=[BLUE] + [ORANGE] * (len(counts) - 1))
    beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8.5, "color": INK}
    for place, share in zip(places, shares, strict=True):
        axes.annotate(f"{share:.2f}%", (share, place), **beside)
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * shares.max())  # room for the numbers
    axes.set_xticks([])
    axes.grid(False)
    return figure


def instances(groups: Sequence[tuple[str, Sequence[Share]]], overall: float, floor: float) -> "Figure":
    """A row for each instance, grouped by category, with its accuracy at the end."""
    shares = [row for _, rows in groups for row in rows]
    labels = [f"{'' if k else name}   {row.value}" for name, rows in groups for k, row in enumerate(rows)]
    gap = 0.8  # in rows, between groups
    places = np.arange(len(shares)) + gap * np.repeat(np.arange(len(groups)), [len(rows) for _, rows in groups])
    figure, axes = panel(5.4, 0.7 + 0.19 * (places[-1] + 1))
    axes.axvline(100 * overall, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    above = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 8, "color": FAINT}
    axes.annotate(f"all {100 * overall:.1f}%", (100 * overall, 1), xycoords=("data", "axes fraction"), **above)
    low, high = ([100 * bound for bound in bounds] for bounds in zip(*((s.low, s.high) for s in shares), strict=True))
    axes.hlines(places, low, high, color=BLUE, alpha=0.45, linewidth=2)
    axes.plot([100 * share.accuracy for share in shares], places, "o", color=BLUE, markersize=4.5, clip_on=False)
    beside = {"xytext": (42, 0), "textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 8}
    for place, share in zip(places, shares, strict=True):
        label = f"{100 * share.accuracy:.1f}%"
        axes.annotate(label, (1, place), xycoords=("axes fraction", "data"), color=INK, **beside)
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.set_xlim(floor, 100 + 0.01 * (100 - floor))
    axes.set_xticks(_ticks(floor), [_percent(tick) for tick in _ticks(floor)])
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    return figure


def samples(rows: Sequence[tuple[str, np.ndarray]], labels: Sequence[str]) -> "Figure":
    """Rows of images `[k, m, m]`, every pixel a whole number of dots, under one label for each column.

    Photographs may not be turned dark, so there is no paper behind them and the words are grey.
    """
    from matplotlib.figure import Figure

    side = rows[0][1].shape[-1]
    n_columns = max(len(images) for _, images in rows)
    zoom, gap = max(1, round(96 / side)), 2
    cell = side + gap
    mosaic = np.zeros((len(rows) * cell - gap, n_columns * cell - gap, 4), np.uint8)  # transparent
    for row, (_, images) in enumerate(rows):
        for column, image in enumerate(images):
            tile = mosaic[row * cell : row * cell + side, column * cell : column * cell + side]
            tile[..., :3], tile[..., 3] = image[..., None], 255
    height, width = (zoom * n for n in mosaic.shape[:2])
    left, top = 190, 44 if labels else 4
    figure = Figure(figsize=((left + width) / DPI, (top + height) / DPI), dpi=DPI, facecolor="none")
    axes = figure.add_axes((left / (left + width), 0, width / (left + width), height / (top + height)))
    axes.imshow(mosaic, interpolation="nearest")
    axes.set_axis_off()
    for row, (name, _) in enumerate(rows):
        axes.text(-8 / zoom, row * cell + side / 2, name, ha="right", va="center", fontsize=9.5, color=GREY)
    for column, label in enumerate(labels):
        axes.text(column * cell + side / 2, -8 / zoom, label, ha="center", va="bottom", fontsize=8, color=GREY)
    return figure


def picture(image: np.ndarray, side: int = 192) -> bytes:
    """A grey image `[m, m]`, enlarged to about that side without smoothing."""
    from matplotlib.image import imsave

    zoom = max(1, round(side / image.shape[-1]))
    enlarged = image.repeat(zoom, 0).repeat(zoom, 1)
    file = BytesIO()
    imsave(file, np.stack([enlarged] * 3, -1), format="png")  # as colours: a map of greys would round
    return file.getvalue()


def floor_of(rows: Sequence[Share]) -> float:
    """Where an axis that ends at 100% begins, so that it holds all intervals: a round number."""
    low = min(98.0, 100 * min(row.low for row in rows))  # no closer, where little differs
    step = _step(low)
    return step * math.floor(low / step)


def panel(width: float, height: float) -> tuple["Figure", "Axes"]:
    """A figure of one pair of axes, without frame, with a faint grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.label.set(color=FAINT, fontsize=8.5)
    axes.yaxis.label.set(color=FAINT, fontsize=8.5)
    return figure, axes


def _step(floor: float) -> float:
    """Between the ticks of an axis from there to 100%: five or six of them at most."""
    return next(step for step in (0.5, 1, 2, 5, 10, 20) if 100 - floor <= 6 * step)


def _ticks(floor: float) -> np.ndarray:
    return np.arange(100, floor - 1e-9, -_step(floor))


def titled(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=8)


def _marker(shown: np.ndarray) -> str | None:
    """For few points, which a line would hide, and one alone would have no line."""
    return "o" if shown.sum() <= 12 else None


def _name_curves(axes: "Axes", drawn: Sequence[Curve]) -> None:
    """The curves' names in a line at the right, above the axes, each in its colour."""
    end = 0.0
    for curve in reversed(drawn):
        axes.annotate(
            curve.name,
            (1, 1),
            xycoords="axes fraction",
            xytext=(end, 9),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            fontweight="bold",
            color=curve.colour,
        )
        end -= 6.2 * len(curve.name) + 8  # wide enough for bold letters of this size


def _lines_between_cells(axes: "Axes", n: int) -> None:
    for edge in np.arange(-0.5, n):
        axes.axhline(edge, color=GRID, linewidth=0.8)
        axes.axvline(edge, color=GRID, linewidth=0.8)


def _finite(values: np.ndarray) -> np.ndarray:
    """With NaN for whatever is not finite, which leaves a gap in a line."""
    values = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255


def _percent(value: float, _: object = None) -> str:
    return f"{value:g}%"
