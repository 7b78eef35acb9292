"""Charts in one style: colours, axes, PNG files, and the charts of a report. Accuracies are fractions."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from ..analysis.accuracy import GroupAccuracy
from ..atomic_files import write_atomically

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
"""Okabe and Ito's colours, distinct for colour-blind readers."""
INK, FAINT, GRID = "#24292f", "#6e7781", "#e6e8eb"
DPI = 200
HALF = 4.4  # inches of a panel of which two stand side by side: readable on a phone
DASHED: dict[str, Any] = {"color": FAINT, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}
LEGEND = {"frameon": False, "fontsize": 9.5}
PERCENT = "{x:g}%"
PERCENT_TICKS = MaxNLocator(6, steps=(1, 2, 5, 10))

LogTable = Mapping[str, np.ndarray]
"""Columns of numbers of equal length by name."""


def new_axes(
    width: float, height: float, n_rows: int = 1, n_columns: int = 1, **shared: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Create a grid of axes without frames, with faint horizontal lines, in a figure of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, **shared)
    for axes in grid.flat:
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9.5, labelcolor=FAINT)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set(color=FAINT, fontsize=9.5)
    return figure, grid.tolist()


def set_title(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=8)


def annotate(
    axes: Axes, words: str, place: tuple[float, float], colour: str, offset: tuple[float, float], **style: Any
) -> None:
    """Write words at an offset in points from a place."""
    style = {"va": "center", "fontsize": 9, "textcoords": "offset points"} | style
    axes.annotate(words, place, xytext=offset, color=colour, **style)


def encode_figure(figure: Figure, dpi: int = DPI) -> bytes:
    """Encode a figure as PNG of few colours."""
    file, packed = BytesIO(), BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    drawn = Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    drawn.save(packed, "png", optimize=True)
    return packed.getvalue()


def plot_curve(
    axes: Axes,
    x: np.ndarray,
    mean: np.ndarray,
    spread: np.ndarray | float = 0.0,
    colour: str = INK,
    name: str = "",
    percent: bool = False,
) -> None:
    """Draw a mean with a band of its spread, with gaps at values that are not finite."""
    x, mean, spread = (np.ma.masked_invalid(values) for values in (x, mean, spread))
    if percent:
        mean, spread = 100 * mean, 100 * spread
    marker = "o" if (x + mean).count() <= 12 else None  # a line would hide few points, and does not show a single one
    axes.plot(x, mean, color=colour, linewidth=1.5, marker=marker, markersize=3.5, label=name)
    low, high = (mean - spread).clip(0), (mean + spread).clip(max=100.0 if percent else np.inf)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def plot_log(axes: Axes, log: LogTable, column: str, colour: str, name: str = "") -> None:
    """Draw the loss or the accuracy of a log over the epochs."""
    percent = column == "accuracy"
    if percent:
        axes.yaxis.set_major_formatter(PERCENT)
    plot_curve(axes, log["epoch"], log[column], log[f"{column}_sd"], colour, name, percent)


def draw_curves(column: str, logs: Sequence[tuple[str, str, LogTable]]) -> Figure:
    """Draw the loss or the accuracy over the epochs; a log comes with a name, which stands above, and a colour."""
    figure, ((axes,),) = new_axes(HALF, 2.8)
    for name, colour, log in logs:
        plot_log(axes, log, column, colour, name)
    set_title(axes, column.capitalize())
    axes.set_xlabel("epoch")
    axes.margins(x=0.01)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(0, 101 if column == "accuracy" else None)
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 2, "borderpad": 0.1, "handlelength": 1.2}
    axes.legend(**place, **LEGEND, labelcolor="linecolor")
    return figure


def draw_accuracies(title: str, rows: Mapping[str, GroupAccuracy], overall: float, floor: float) -> Figure:
    """Draw a line for each value of a factor: its accuracy, interval, and the accuracy over all values, dashed."""
    figure, ((axes,),) = new_axes(HALF, 0.75 + 0.215 * len(rows))
    y = np.arange(len(rows))
    low, middle, high = (100 * np.array([(row.low, row.accuracy, row.high) for row in rows.values()])).T
    axes.axvline(100 * overall, **DASHED)
    axes.hlines(y, low, high, color=BLUE, alpha=0.45, lw=2)
    axes.plot(middle, y, "o", color=BLUE, markersize=4.5, clip_on=False)
    right = {"xycoords": ("axes fraction", "data"), "ha": "right"}
    for k, accuracy in enumerate(middle):
        annotate(axes, f"{accuracy:.1f}%", (1, k), INK, (50, 0), **right)
    axes.set_yticks(y, rows, color=INK)
    axes.set_xticks(PERCENT_TICKS.tick_values(floor, 100))
    axes.set(xlim=(floor, 100 + 0.01 * (100 - floor)), ylim=(len(rows) - 0.4, -0.6))
    axes.xaxis.set_major_formatter(PERCENT)
    axes.grid(False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    set_title(axes, title)
    return figure


def draw_study(path: Path, title: str, accuracies: Mapping[str, Sequence[float]]) -> Path:
    """Write a chart of the accuracies of each setting, the first on top: a dot for each run, a line at the mean."""
    figure, [[axes]] = new_axes(7.0, 1.2 + 0.35 * len(accuracies))
    places = np.arange(len(accuracies))[::-1]
    for place, shares in zip(places, accuracies.values(), strict=True):
        values = 100 * np.array(shares)
        axes.plot(values, np.full(len(values), place), "o", color=BLUE, alpha=0.6, markersize=6, markeredgewidth=0)
        axes.plot([values.mean()] * 2, [place - 0.25, place + 0.25], color=INK, linewidth=2)
    axes.set_yticks(places, list(accuracies))
    axes.set_ylim(-0.6, len(accuracies) - 0.4)
    axes.xaxis.set_major_formatter(PERCENT)
    set_title(axes, f"{title}: each run (dots) and their mean (lines)")
    write_atomically(path, encode_figure(figure))
    return path


def axis_floor(rows: Sequence[GroupAccuracy]) -> float:
    """Return a round number at or below all intervals, where an axis that ends at 100% may start."""
    low = min(98.0, 100 * min(row.low for row in rows))  # small differences are not magnified further
    return float(PERCENT_TICKS.tick_values(low, 100)[0])
