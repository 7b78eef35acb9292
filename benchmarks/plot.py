"""The picture of a benchmark: time relative to the reference and peak memory, as bars on log scales."""

import math
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from records import Row
from words import brief, compared, size

MODE = "forward+backward"
COLOURS = {
    "reference": "#a6a6a6",
    "compiled": "#56b4e9",
    "moments": "#0072b2",
    "moments compiled": "#cc79a7",
    "blocked": "#e69f00",
    "triton": "#d55e00",
    "auto": "#009e73",
}
"""Okabe and Ito's colours, which colour-blind people tell apart."""
INK, FAINT = "#24292f", "#848d97"
GAP = 0.8
"""Space between shapes, in bars."""

Places = dict[tuple[str, str], float]


def draw(rows: list[Row], title: str, subtitle: str, path: Path) -> None:
    """Draw the rows of forward and backward passes."""
    rows = [row for row in rows if row.mode == MODE]
    if not rows:
        return
    bars = places(rows)
    figure = Figure(figsize=(9, 1.7 + 0.21 * (max(bars.values()) + 1)), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06, wspace=0.02)  # pyright: ignore
    left, right = figure.subplots(1, 2, sharey=True)
    panel(left, rows, bars, relative_time, time_label, room=0.36)
    panel(right, rows, bars, lambda row: row.peak_mib, lambda row: size(row.peak_mib or 0), room=0.18)
    left.axvline(1, color=FAINT, linewidth=0.8, linestyle=(0, (3, 2)), zorder=0)
    left.set_title("Time, reference = 1", loc="left", fontsize=10, pad=8, color=INK)
    right.set_title("Peak memory above the inputs, MiB", loc="left", fontsize=10, pad=8, color=INK)
    label_shapes(left, rows, bars)
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    figure.text(0.0105, 1 - 0.40 / figure.get_figheight(), subtitle, va="top", fontsize=8.5, color=FAINT)
    colours = colours_of(rows)
    handles = [Patch(color=colour, label=rival) for rival, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    figure.savefig(path, dpi=200, metadata={"Software": None})


def places(rows: list[Row]) -> Places:
    """Height of each bar, from the top, by shape and rival."""
    bars: Places = {}
    shapes = list(dict.fromkeys(row.shape for row in rows))
    for number, row in enumerate(rows):
        bars[row.shape, row.rival] = number + GAP * shapes.index(row.shape)
    return bars


def colours_of(rows: list[Row]) -> dict[str, str]:
    return {rival: COLOURS.get(rival, INK) for rival in dict.fromkeys(row.rival for row in rows)}


def relative_time(row: Row) -> float | None:
    return 1 / row.speedup if row.speedup else None


def time_label(row: Row) -> str:
    if row.rival == "reference":
        return "1"
    picked = f" ({row.picked})" if row.picked else ""
    return compared(row.speedup or 1, "faster", "slower", "as fast") + picked


def panel(
    axes: Axes,
    rows: list[Row],
    bars: Places,
    value: Callable[[Row], float | None],
    label: Callable[[Row], str],
    room: float,
) -> None:
    """One bar per row, its label at its end, for which a share of the width is room; what has no number says why."""
    values = {(row.shape, row.rival): value(row) for row in rows}
    numbers = [number for number in values.values() if number]
    low = 10.0 ** math.floor(math.log10(min(numbers, default=1) / 2))  # the shortest bar stays visible
    high = low * (max(numbers, default=10) / low) ** (1 / (1 - room))
    colours = colours_of(rows)
    for row in rows:
        y, number = bars[row.shape, row.rival], values[row.shape, row.rival]
        if number:
            axes.barh(y, number - low, left=low, height=0.84, color=colours[row.rival])
        text = label(row) if number else "cannot run" if row.skipped else "not compared"
        axes.annotate(
            text,
            (number or low, y),
            xytext=(3, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=7.5,
            color=INK if number else FAINT,
            fontweight="bold" if row.rival == "auto" and number else "normal",
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
    style(axes, low, high)


def style(axes: Axes, low: float, high: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(10))
    axes.xaxis.set_major_formatter(FuncFormatter(brief))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="both", length=0, labelsize=8, labelcolor=FAINT)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def label_shapes(axes: Axes, rows: list[Row], bars: Places) -> None:
    """Each shape's name and sizes at the middle of its bars."""
    shapes = {row.shape: row for row in rows}
    heights = {name: [y for (shape, _), y in bars.items() if shape == name] for name in shapes}
    axes.set_yticks([sum(ys) / len(ys) for ys in heights.values()])
    axes.set_yticklabels(
        [f"{row.shape}\n{row.batch} x {row.n_inp:,} → {row.n_out:,}" for row in shapes.values()], fontsize=9, color=INK
    )
    axes.set_ylim(max(bars.values()) + 0.6, -0.6)
