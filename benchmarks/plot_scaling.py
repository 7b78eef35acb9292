"""The picture of scaling: time and peak memory against inputs, outputs and batch, a line per rival, on log scales."""

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cases import FAMILIES, along
from plot import COLOURS, FAINT, INK
from records import Row
from words import brief, short

TITLES = {
    "inputs": "inputs, 64 outputs, 4x4",
    "outputs": "outputs, 8 x 1,024 inputs",
    "batch": "batch of smallnorb_1",
}
ROOM = 0.42
"""Share of a panel's width for the labels at the ends of lines."""
HIGHEST = 0.97
LEAST_GAP = 0.075
"""Between labels, as a share of the panel's height."""

Line = list[tuple[float, float]]


def draw_scaling(rows: list[Row], subtitle: str, path: Path) -> None:
    """Two rows of panels: time above, memory below."""
    families = [family for family in FAMILIES if any(row.shape == family for row in rows)]
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06, wspace=0.02, hspace=0.04)  # pyright: ignore
    panels = figure.subplots(2, len(families), squeeze=False, sharex="col", sharey="row")
    time, time_title = timed(rows)
    for column, family in enumerate(families):
        own = [row for row in rows if row.shape == family]
        for axes, field in zip(panels[:, column], (time, "peak_mib"), strict=True):
            panel(axes, lines_of(own, field))
        panels[1, column].set_xlabel(TITLES[family], fontsize=9, color=INK)
    for axes, name in zip(panels[:, 0], (time_title, "Peak memory above the inputs, MiB"), strict=True):
        axes.set_title(name, loc="left", fontsize=10, pad=6, color=INK)
    figure.canvas.draw()
    for axes in panels.flat:
        label_ends(axes)
    title = "As the problem grows, forward and backward"
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    figure.text(0.0105, 1 - 0.40 / figure.get_figheight(), subtitle, va="top", fontsize=8.5, color=FAINT)
    figure.savefig(path, dpi=200, metadata={"Software": None})


def timed(rows: list[Row]) -> tuple[str, str]:
    """Which time to draw, and its title: the GPU's own where measured, for a small call takes what Python takes."""
    if any(row.captured_ms for row in rows):
        return "captured_ms", "Time in a CUDA graph, ms"
    return "p50_ms", "Time of a call, ms"


def lines_of(rows: list[Row], field: str) -> dict[str, Line]:
    """By rival the points that were measured."""
    lines: dict[str, Line] = {}
    for row in rows:
        value = getattr(row, field)
        if value:
            place = along(row.shape, row)  # pyright: ignore (a row has a shape's axes)
            lines.setdefault(row.rival, []).append((place, value))
    return {rival: sorted(points) for rival, points in lines.items()}


def panel(axes: Axes, lines: dict[str, Line]) -> None:
    for rival, points in lines.items():
        strong = rival == "triton"
        axes.plot(
            *zip(*points, strict=True),
            color=COLOURS.get(rival, INK),
            linewidth=2.2 if strong else 1.4,
            marker="o",
            markersize=3.5 if strong else 2.5,
            zorder=3 if strong else 2,
            label=rival,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    places = [x for points in lines.values() for x, _ in points]
    if places:
        low, high = min(places), max(places)
        axes.set_xlim(low / 1.3, low * max(high / low, 2) ** (1 / (1 - ROOM)))
        axes.set_xticks([10.0**k for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)])
    axes.yaxis.set_major_locator(LogLocator(10))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(brief))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="both", length=0, labelsize=8, labelcolor=FAINT)
    axes.grid(color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def label_ends(axes: Axes) -> None:
    """Each rival's name and last number where its line ends, moved apart where they would overlap."""
    low, high = (math.log10(y) for y in axes.get_ylim())
    ends = []
    for line in axes.get_lines():
        x, y = float(line.get_xdata()[-1]), float(line.get_ydata()[-1])  # pyright: ignore (arrays)
        ends.append((x, y, (math.log10(y) - low) / (high - low), line))
    ends.sort(key=lambda end: end[2])
    heights = apart([height for *_, height, _ in ends])
    for (x, y, _, line), height in zip(ends, heights, strict=True):
        axes.annotate(
            f"{line.get_label()} {short(y)}",
            (x, 10 ** (low + height * (high - low))),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=line.get_color(),
            fontweight="bold" if line.get_label() == "triton" else "normal",
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )


def apart(heights: list[float]) -> list[float]:
    """Ascending heights, the least moved that keeps them apart: pushed up, then back below the top."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + LEAST_GAP) if placed else height)
    ceiling = HIGHEST
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at], ceiling)
        ceiling = placed[at] - LEAST_GAP
    return placed
