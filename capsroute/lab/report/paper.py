"""The paper's figures, each a function from arrays to a picture."""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..analysis.poses import Change
from ..analysis.records import Record
from . import figures
from .figures import BLUE, FAINT, GRID, INK, ORANGE

if TYPE_CHECKING:  # loaded where used: it takes long
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
WIDE = 8.8
"""Inches of a figure of several panels."""
GREEN, PURPLE = "#009e73", "#cc79a7"
PALE = "#9ec6e0"
"""One toy among others, beneath a mean in dark."""
CLIMB = (PALE, BLUE, "#0b2545")
TURN = (BLUE, GREEN, ORANGE, PURPLE, BLUE)
"""Colours from the first view to the last; a turn ends as it began."""


class Learning(NamedTuple):
    """Curves over the epochs of one run, or the mean of several."""

    name: str
    over: str  # what the curves were measured on
    spread_over: str  # what the band is a standard deviation over
    epoch: np.ndarray  # [s]
    loss: np.ndarray
    loss_sd: np.ndarray
    accuracy: np.ndarray  # fractions
    accuracy_sd: np.ndarray


class Walk(NamedTuple):
    """Where the pose vectors of one toy are on a map, view by view."""

    name: str
    points: np.ndarray  # [s, c, 2]


def by_parameters(records: Sequence[Record]) -> "Figure":
    """Accuracy against the number of parameters, on a logarithmic axis."""
    figure, ((axes,),) = _grid(1, 1, WIDE * 0.8, 3.8)
    known = [(record, record.parameters) for record in records if record.parameters]
    for record, parameters in known:
        colour = ORANGE if record.ours else BLUE
        axes.errorbar(parameters, record.accuracy, record.deviation, fmt="o", color=colour, markersize=6, capsize=3)
        words = f"{record.method} ({_cited(record)})"
        side = "left" if parameters > 1_000_000 else "right"  # where there is room
        _beside(axes, words, (parameters, record.accuracy), colour if record.ours else INK, side)
    axes.set_xscale("log")
    axes.set_xlim(200_000, 12_000_000)
    ticks = (300_000, 1_000_000, 3_000_000, 10_000_000)
    axes.set_xticks(ticks, ["300 thousand", "1 million", "3 million", "10 million"])
    axes.minorticks_off()
    axes.set_ylim(97, 99.4)
    axes.yaxis.set_major_formatter(_percent)
    axes.set_xlabel("parameters")
    _title(axes, "Accuracy on smallNORB against parameters")
    return figure


def by_year(title: str, records: Sequence[Record]) -> "Figure":
    """Accuracy against the year of publication; ours, which is younger and no record, as a line."""
    figure, ((axes,),) = _grid(1, 1, WIDE * 0.9, 3.8)
    published = [record for record in records if not record.ours]
    low, high = min(r.accuracy for r in records), max(r.accuracy for r in records)
    gap = 0.055 * (high - low)  # the height of a line of words
    for year in sorted({record.year for record in published}):
        same = sorted((r for r in published if r.year == year), key=lambda r: r.accuracy)
        for record, height in zip(same, _spaced([r.accuracy for r in same], gap), strict=True):
            chosen = record.method == "the paper"
            axes.plot(year, record.accuracy, "o", color=BLUE if chosen else FAINT, markersize=7 if chosen else 5)
            words = f"{record.method}" + (f", {record.note}" if record.note else "")
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # our line may pass beneath
            _beside(axes, words, (year, height), BLUE if chosen else INK, bbox=paper)
    for record in records:
        if record.ours:
            axes.axhline(record.accuracy, color=ORANGE, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
            words = f"{record.method}, {record.note}: {record.accuracy:.2f} ± {record.deviation:.2f}%"
            above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "right", "fontsize": 8.5}
            axes.annotate(words, (1, record.accuracy), xycoords=("axes fraction", "data"), color=ORANGE, **above)
    years = range(min(r.year for r in published), max(r.year for r in published) + 1)
    axes.set_xticks(years, [str(year) for year in years])
    axes.set_xlim(years[0] - 0.2, years[-1] + 0.25 * len(years))
    axes.set_ylim(low - 2 * gap, high + 2 * gap)
    axes.yaxis.set_major_formatter(_percent)
    _title(axes, title)
    return figure


def trajectories(walks: Sequence[Walk], labels: Sequence[str], colours: Sequence[str]) -> "Figure":
    """For each toy a map: every view four connected points, coloured by where the view was taken from.

    A ring marks the first vector of the first view, a filled one that of the last.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    figure, grid = _grid(2, 3, WIDE, 5.6)
    spots = [axes for row in grid for axes in row]
    n = len(labels)
    ramp = LinearSegmentedColormap.from_list("views", list(colours), n)  # a colour for each view
    for axes, walk in zip(spots, walks, strict=False):
        for step, view in enumerate(walk.points):  # [c, 2]
            colour = ramp(step)
            axes.plot(*view.T, color=colour, linewidth=0.7, alpha=0.45)
            axes.plot(*view.T, "o", color=colour, markersize=3.6)
        for step, filled in ((0, "none"), (n - 1, ramp(n - 1))):
            axes.plot(*walk.points[step, 0], "o", markersize=8, markeredgecolor=INK, markerfacecolor=filled)
        axes.set_aspect("equal", "datalim")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_facecolor("#f6f8fa")
        axes.margins(0.1)
        _title(axes, walk.name)
    for axes in spots[len(walks) :]:
        axes.set_axis_off()
    if len(walks) < len(spots):
        key = spots[len(walks)]
        scale = figure.colorbar(
            ScalarMappable(Normalize(-0.5, n - 0.5), ramp), cax=key.inset_axes((0.16, 0.05, 0.07, 0.9))
        )
        scale.set_ticks([0, n // 2, n - 1], labels=[labels[0], labels[n // 2], labels[-1]])
        scale.outline.set_visible(False)
        scale.ax.yaxis.set_ticks_position("left")
        scale.ax.tick_params(length=0, labelsize=9, labelcolor=INK)
        words = (
            "four joined points: the pose\nvectors 1 to 4 of one view",
            "○  vector 1, first view",
            "●  vector 1, last view",
        )
        key.text(0.32, 0.5, "\n\n".join(words), va="center", fontsize=8.5, color=INK, transform=key.transAxes)
    return figure


def pose_change(change: Change, labels: Sequence[str], along: str) -> "Figure":
    """Twelve plots: distance, norm and cosine of four vectors; each toy in light, their mean in dark."""
    n_vectors = change.distance.shape[-1]
    figure, grid = _grid(3, n_vectors, WIDE, 6.2, sharex=True, sharey="row")
    names = ("distance to the first,\nover its norm", "norm,\nover the first", "cosine\nwith the first")
    x = np.arange(len(labels))
    for row, (name, values) in enumerate(zip(names, change, strict=True)):
        for c in range(n_vectors):
            axes = grid[row][c]
            axes.plot(x, values[..., c].T, color=PALE, linewidth=0.7, alpha=0.8)
            axes.plot(x, values[..., c].mean(0), color=CLIMB[-1], linewidth=2)
            if not row:
                _title(axes, f"vector {c + 1}")
            if row == 2:
                every = -(-len(labels) // 4)
                axes.set_xticks(x[::every], labels[::every])
                axes.set_xlabel(along)
        grid[row][0].set_ylabel(name)
        grid[row][0].yaxis.label.set_color(INK)
        # single toys may go far: the axis holds 98 of 100 values, and the note says so
        low, high = np.quantile(values, (0.01, 0.99))
        grid[row][0].set_ylim(min(low, values.mean(0).min()) - 0.04 * (high - low), high + 0.04 * (high - low))
    return figure


def turn_distance(curves: Sequence[tuple[str, str, np.ndarray]]) -> "Figure":
    """Distance between views against the angle between them: name, colour and `[turns, 9]`, means of 1."""
    figure, ((axes,),) = _grid(1, 1, WIDE * 0.7, 3.2)
    angle = np.arange(20, 181, 20)
    axes.axhline(1, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    drawn = []
    for name, colour, values in curves:
        low, high = np.quantile(values, (0.25, 0.75), axis=0)
        axes.fill_between(angle, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(angle, values.mean(0), color=colour, linewidth=1.6, marker="o", markersize=4)
        drawn.append((name, colour, values.mean(0)[-1]))
    gap = 0.05 * np.diff(axes.get_ylim())[0]
    drawn.sort(key=lambda one: one[2])
    for (name, colour, _), height in zip(drawn, _spaced([one[2] for one in drawn], gap), strict=True):
        axes.text(184, height, name, color=colour, fontsize=8.5, va="center", fontweight="bold")
    axes.set_xticks(angle, [f"{value}°" for value in angle])
    axes.set_xlim(15, 222)
    axes.set_xlabel("angle between two views of a turn", loc="left")
    _title(axes, "Distance between views of a toy, over its mean")
    return figure


def learning(panels: Sequence[Learning]) -> "Figure":
    """Loss above, accuracy below, a column for each task, with a band of one standard deviation."""
    figure, grid = _grid(2, len(panels), 0.3 + 2.9 * len(panels), 4.6, sharex="col")
    for column, panel in enumerate(panels):
        few = "o" if len(panel.epoch) <= 12 else None
        rows = ((panel.loss, panel.loss_sd, 1), (panel.accuracy, panel.accuracy_sd, 100))
        for axes, (mean, spread, scale) in zip((line[column] for line in grid), rows, strict=True):
            mean, low, high = (scale * values for values in (mean, mean - spread, mean + spread))
            axes.plot(panel.epoch, mean, color=BLUE, linewidth=1.5, marker=few, markersize=4)
            axes.fill_between(panel.epoch, low, np.minimum(high, 100) if scale == 100 else high, color=BLUE, alpha=0.2)
        top, bottom = (line[column] for line in grid)
        _title(top, f"{panel.name}\n{panel.over}")
        bottom.set_xlabel("epoch")
        bottom.yaxis.set_major_formatter(_percent)
        if few:
            bottom.set_xticks(panel.epoch)
        else:
            bottom.locator_params(axis="x", nbins=6)
    for row, name in enumerate(("loss", "accuracy")):
        grid[row][0].set_ylabel(name)
    return figure


def samples(rows: Sequence[tuple[str, np.ndarray]], labels: Sequence[str]) -> "Figure":
    """Stereo pairs `[k, 2, m, m]` of a toy in two rows, left above right; large ones at half their size."""
    halved = [(name, _halved(images) if images.shape[-1] >= 96 else images) for name, images in rows]
    return figures.samples(
        [line for name, views in halved for line in ((name, views[:, 0]), ("", views[:, 1]))], labels
    )


def png(figure: "Figure", grey: bool = False) -> bytes:
    """The figure as a small file: of few colours, or of all greys."""
    from PIL import Image

    file, packed = BytesIO(), BytesIO()
    figure.savefig(file, format="png", dpi=figures.DPI if grey else DPI)
    drawn = Image.open(file)
    drawn = drawn.convert("LA") if grey else drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    drawn.save(packed, "png", optimize=True)
    return packed.getvalue()


def _grid(n_rows: int, n_columns: int, width: float, height: float, **kwargs: Any) -> "tuple[Figure, list[list[Axes]]]":
    """Axes without frames, with a faint grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, **kwargs)
    for axes in grid.flat:
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=8.5, labelcolor=FAINT)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set(color=FAINT, fontsize=8.5)
    return figure, [list(row) for row in grid]


def _title(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=8)


def _beside(
    axes: "Axes", words: str, place: tuple[float, float], colour: str, side: str = "right", **style: Any
) -> None:
    """Words next to a point, on one of its sides."""
    style |= {"xytext": (8 if side == "right" else -8, 0), "ha": "left" if side == "right" else "right"}
    axes.annotate(words, place, textcoords="offset points", va="center", fontsize=8.5, color=colour, **style)


def _cited(record: Record) -> str:
    """Who and when, short enough to stand beside a point."""
    if record.ours:
        return record.note
    return ", ".join(record.source.split(", ")[:2])


def _spaced(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights, ascending, moved until each is a gap above the one before; their mean stays."""
    out: list[float] = []
    for height in heights:
        out.append(max(height, out[-1] + gap) if out else height)
    shift = (sum(heights) - sum(out)) / len(out)
    return [height + shift for height in out]


def _halved(images: np.ndarray) -> np.ndarray:
    """Half as many pixels on a side: means of squares of four."""
    *front, m, n = images.shape
    return images.reshape(*front, m // 2, 2, n // 2, 2).mean((-3, -1)).round().astype(np.uint8)


def _percent(value: float, _: object = None) -> str:
    return f"{value:g}%"
