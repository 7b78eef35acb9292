"""Draw time and memory of the implementations on log scales: as dots per case, or as lines over growing shapes."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cases import FAMILIES
from records import Row

COLOURS = {  # Okabe and Ito's, distinct for colour-blind readers
    "reference": "#8c8c8c",
    "compiled": "#56b4e9",
    "moments": "#0072b2",
    "moments compiled": "#cc79a7",
    "blocked": "#e69f00",
    "triton": "#d55e00",
    "auto": "#009e73",
}
MARKERS = dict(zip(COLOURS, "osD^vPX", strict=True))
INK, GRID = "#24292f", "#d8dce1"
WIDTH = 5.2
"""Inches: labels of 8 points stay readable where the picture is 390 pixels wide."""

Value = Callable[[Row], float | None]


def draw_cases(rows: list[Row], time: Value, time_title: str, path: Path) -> None:
    """Draw one line of dots per case, one dot per implementation: time above, memory below."""
    cases = list(dict.fromkeys(row.case for row in rows))
    figure = Figure(
        figsize=(WIDTH, 1.5 + 0.72 * len(cases)),
        layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08),
        facecolor="white",
    )
    panels = figure.subplots(2, 1)
    titles = (time_title, "Peak memory above the inputs, MiB")
    for axes, title, value in zip(panels, titles, (time, peak_memory), strict=True):
        for row in rows:
            if number := value(row):
                axes.plot(number, cases.index(row.case), MARKERS[row.impl], color=COLOURS[row.impl], markersize=7)
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set_yticks(range(len(cases)), cases, fontsize=8, color=INK)
        axes.set_ylim(len(cases) - 0.5, -0.5)
        style(axes)
    add_legend(figure, rows)
    figure.savefig(path, dpi=200, metadata={"Software": None})


def draw_families(rows: list[Row], path: Path) -> None:
    """Draw time in a CUDA graph and memory of growing shapes, one line per implementation."""
    figure = Figure(figsize=(WIDTH, 6.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08), facecolor="white")
    panels = figure.subplots(len(FAMILIES), 2, squeeze=False)
    axis = {"inputs": lambda row: row.n_inp, "outputs": lambda row: row.n_out, "batch": lambda row: row.batch}
    for line, (family, names) in zip(panels, FAMILIES.items(), strict=True):
        own = [row for row in rows if row.case in names]
        for axes, value in zip(line, (captured_time, peak_memory), strict=True):
            for impl in dict.fromkeys(row.impl for row in own):
                points = sorted(
                    (axis[family](row), number) for row in own if row.impl == impl and (number := value(row))
                )
                axes.plot(*zip(*points, strict=True), marker=MARKERS[impl], color=COLOURS[impl], markersize=4)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(format_number))
            axes.set_xlabel(family, fontsize=8, color=INK)
            style(axes)
    panels[0, 0].set_title("Time in a CUDA graph, ms", loc="left", fontsize=9, color=INK)
    panels[0, 1].set_title("Peak memory, MiB", loc="left", fontsize=9, color=INK)
    add_legend(figure, rows)
    figure.savefig(path, dpi=200, metadata={"Software": None})


def captured_time(row: Row) -> float | None:
    return row.captured_ms


def peak_memory(row: Row) -> float | None:
    return row.peak_mib


def style(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10))
    axes.xaxis.set_major_formatter(FuncFormatter(format_number))
    for one in (axes.xaxis, axes.yaxis):
        one.set_minor_formatter(NullFormatter())
    axes.tick_params(which="both", length=0, labelsize=8, labelcolor=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def add_legend(figure: Figure, rows: list[Row]) -> None:
    impls = dict.fromkeys(row.impl for row in rows)
    handles = [Line2D([], [], linestyle="", marker=MARKERS[i], color=COLOURS[i], label=i) for i in impls]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=INK)


def format_number(number: float, _: object = None) -> str:
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return f"{number:g}"
