"""The charts of the paper's figures, each a function from arrays to a figure."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from ..analysis.poses import PoseChange
from .charts import (
    BLUE,
    DASHED,
    FAINT,
    GREEN,
    INK,
    LEGEND,
    ORANGE,
    PERCENT,
    PURPLE,
    LogTable,
    annotate,
    new_axes,
    plot_log,
    set_title,
)

WIDTH = 8.8  # inches of a figure of several panels
PALE, DARK = "#9ec6e0", "#0b2545"
CLIMB_COLOURS = (PALE, BLUE, DARK)  # from the first view to the last
TURN_COLOURS = (BLUE, GREEN, ORANGE, PURPLE, BLUE)  # a turn ends where it began
TRAJECTORY_KEY = (
    "four joined points: the pose\nvectors 1 to 4 of one view\n\n○  vector 1, first view\n\n●  vector 1, last view"
)


class PublishedResult(NamedTuple):
    """Published accuracy of one network on one task, as the paper's tables 2 to 4 report it, or ours."""

    method: str
    year: int
    accuracy: float  # per cent of the test split
    source: str  # publication, or our file under results/
    note: str
    parameters: int | None  # trained ones, where known
    deviation: float | None  # standard deviation over seeds, where there are several

    @property
    def ours(self) -> bool:
        return self.source.startswith("results/")


def read_records(task: str) -> list[PublishedResult]:
    """Read the records of one task from `records.csv`, the paper's and ours last."""
    with Path(__file__).with_name("records.csv").open(encoding="utf-8", newline="") as file:
        return [
            PublishedResult(
                method, int(year), float(accuracy), source, note, int(n) if n else None, float(sd) if sd else None
            )
            for of, method, year, accuracy, source, note, n, sd in csv.reader(file)
            if of == task
        ]


class LearningCurves(NamedTuple):
    """Loss and accuracy over the epochs of a run, or their mean over several runs."""

    name: str
    over: str  # what the curves were measured on
    spread_over: str  # what the band is a standard deviation over
    log: LogTable  # epoch, loss, loss_sd, accuracy, accuracy_sd


def draw_by_parameters(records: Sequence[PublishedResult]) -> Figure:
    """Draw accuracy against the number of parameters."""
    figure, ((axes,),) = new_axes(WIDTH * 0.8, 3.8)
    for record in records:
        if record.parameters:
            place = (record.parameters, record.accuracy)
            dot = ORANGE if record.ours else BLUE
            axes.errorbar(*place, record.deviation, fmt="o", color=dot, markersize=6, capsize=3)
            source = record.note if record.ours else ", ".join(record.source.split(", ")[:2])
            side, align = (-8, "right") if record.parameters > 1_000_000 else (8, "left")
            words, colour = f"{record.method} ({source})", ORANGE if record.ours else INK
            annotate(axes, words, place, colour, (side, 0), ha=align)
    axes.set(xscale="log", xlim=(200_000, 12_000_000), ylim=(97, 99.4), xlabel="parameters")
    axes.set_xticks([3e5, 1e6, 3e6, 1e7], ["300 thousand", "1 million", "3 million", "10 million"])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(PERCENT)
    set_title(axes, "Accuracy on smallNORB against parameters")
    return figure


def draw_by_year(title: str, records: Sequence[PublishedResult]) -> Figure:
    """Draw accuracy against the year of publication; ours, which came later, is a dashed line."""
    figure, ((axes,),) = new_axes(WIDTH * 0.9, 3.8)
    published = [record for record in records if not record.ours]
    years = range(min(r.year for r in published), max(r.year for r in published) + 1)
    low, high = min(r.accuracy for r in records), max(r.accuracy for r in records)
    gap = 0.06 * (high - low)  # about the height of a line of text
    white = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # our line may pass beneath
    for year in years:
        same = sorted((r for r in published if r.year == year), key=lambda r: r.accuracy)
        for record, height in zip(same, space_labels([r.accuracy for r in same], gap), strict=True):
            is_paper = record.method == "the paper"
            axes.plot(year, record.accuracy, "o", color=BLUE if is_paper else FAINT, markersize=7 if is_paper else 5)
            words = f"{record.method}, {record.note}" if record.note else record.method
            annotate(axes, words, (year, height), BLUE if is_paper else INK, (8, 0), bbox=white)
    for record in records:
        if record.ours:
            axes.axhline(record.accuracy, **DASHED).set_color(ORANGE)
            words = f"{record.method}, {record.note}: {record.accuracy:.2f} ± {record.deviation:.2f}%"
            above = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "baseline"}
            annotate(axes, words, (1, record.accuracy), ORANGE, (0, 4), **above)
    axes.set_xticks(years, [str(year) for year in years])
    axes.set(xlim=(years[0] - 0.2, years[-1] + 0.25 * len(years)), ylim=(low - 2 * gap, high + 2 * gap))
    axes.yaxis.set_major_formatter(PERCENT)
    set_title(axes, title)
    return figure


def draw_trajectories(maps: Sequence[tuple[str, np.ndarray]], labels: Sequence[str], colours: Sequence[str]) -> Figure:
    """Draw up to five maps, each a toy's name and its points `[s, c, 2]`, views in colours from first to last.

    A ring marks the first vector of the first view, a filled circle that of the last.
    """
    figure, (above, (*below, key)) = new_axes(WIDTH, 5.6, 2, 3)
    n = len(labels)
    ramp = LinearSegmentedColormap.from_list("views", list(colours), n)  # a colour for each view
    for axes in (*above, *below, key):
        axes.set_axis_off()
    for axes, (name, points) in zip((*above, *below), maps, strict=False):
        axes.set_axis_on()
        for step, view in enumerate(points):  # [c, 2]
            axes.plot(*view.T, color=ramp(step), linewidth=0.7, alpha=0.45)
            axes.plot(*view.T, "o", color=ramp(step), markersize=3.6)
        for step, fill in ((0, "none"), (n - 1, ramp(n - 1))):
            axes.plot(*points[step, 0], "o", markersize=8, markeredgecolor=INK, markerfacecolor=fill)
        axes.set(aspect="equal", adjustable="datalim", xticks=[], yticks=[], facecolor="#f6f8fa")
        axes.margins(0.1)
        set_title(axes, name)
    scale = figure.colorbar(ScalarMappable(Normalize(-0.5, n - 0.5), ramp), cax=key.inset_axes((0.16, 0.05, 0.07, 0.9)))
    scale.set_ticks([0, n // 2, n - 1], labels=[labels[0], labels[n // 2], labels[-1]])
    scale.outline.set_visible(False)
    scale.ax.yaxis.set_ticks_position("left")
    scale.ax.tick_params(length=0, labelsize=9.5, labelcolor=INK)
    key.text(0.32, 0.5, TRAJECTORY_KEY, va="center", fontsize=9, color=INK, transform=key.transAxes)
    return figure


def draw_pose_change(change: PoseChange, labels: Sequence[str], along: str) -> Figure:
    """Draw distance, norm and cosine of the four pose vectors in twelve panels; each toy pale, the mean dark."""
    n_vectors = change.distance.shape[-1]
    figure, grid = new_axes(WIDTH, 6.2, 3, n_vectors, sharex=True, sharey="row")
    names = ("distance to the first,\nover its norm", "norm,\nover the first", "cosine\nwith the first")
    x, every = np.arange(len(labels)), -(-len(labels) // 4)
    for row, name, values in zip(grid, names, change, strict=True):
        for c, axes in enumerate(row):
            axes.plot(x, values[..., c].T, color=PALE, linewidth=0.7, alpha=0.8)
            axes.plot(x, values[..., c].mean(0), color=DARK, linewidth=2)
        row[0].set_ylabel(name, color=INK)
        low, high = np.quantile(values, (0.01, 0.99))  # without the outliers among single toys
        row[0].set_ylim(min(low, values.mean(0).min()) - 0.04 * (high - low), high + 0.04 * (high - low))
    for c, (top, bottom) in enumerate(zip(grid[0], grid[-1], strict=True), 1):
        set_title(top, f"vector {c}")
        bottom.set_xticks(x[::every], labels[::every])
        bottom.set_xlabel(along)
    return figure


def draw_turn_distance(curves: Sequence[tuple[str, str, np.ndarray]]) -> Figure:
    """Draw the distance between views by the angle between them; a curve is a name, a colour and `[turns, 9]`."""
    figure, ((axes,),) = new_axes(WIDTH * 0.7, 3.2)
    angle = np.arange(20, 181, 20)
    axes.axhline(1, **DASHED)
    for name, colour, values in curves:
        low, high = np.quantile(values, (0.25, 0.75), axis=0)
        axes.fill_between(angle, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(angle, values.mean(0), color=colour, linewidth=1.6, marker="o", markersize=4, label=name)
    axes.legend(**LEGEND, labelcolor="linecolor")
    axes.set_xticks(angle, [f"{value}°" for value in angle])
    axes.set_xlabel("angle between two views of a turn", loc="left")
    set_title(axes, "Distance between views of a toy, over its mean")
    return figure


def draw_learning(tasks: Sequence[LearningCurves]) -> Figure:
    """Draw loss above accuracy, a column for each task, with bands of one standard deviation."""
    figure, grid = new_axes(0.3 + 2.9 * len(tasks), 4.6, 2, len(tasks), sharex="col")
    for row, column in zip(grid, ("loss", "accuracy"), strict=True):
        row[0].set_ylabel(column)
        for axes, task in zip(row, tasks, strict=True):
            plot_log(axes, task.log, column, BLUE)
    for task, top, bottom in zip(tasks, *grid, strict=True):
        set_title(top, f"{task.name}\n{task.over}")
        bottom.set_xlabel("epoch")
        bottom.locator_params(axis="x", nbins=6, integer=True)
    return figure


def draw_samples(toys: Sequence[tuple[str, np.ndarray]], labels: Sequence[str]) -> Figure:
    """Draw stereo pairs `[s, 2, m, m]` of each toy in two rows, left above right."""
    n_views, _, m, _ = toys[0][1].shape
    mosaic = np.concatenate([images.transpose(1, 2, 0, 3).reshape(2 * m, n_views * m) for _, images in toys])
    figure, ((axes,),) = new_axes(0.5 * n_views + 1, len(toys) + 0.5)
    axes.imshow(mosaic, cmap="gray", vmin=0, vmax=255, interpolation="none")
    axes.set_xticks(m * (np.arange(n_views) + 0.5), labels)
    axes.set_yticks(2 * m * (np.arange(len(toys)) + 0.5), [name for name, _ in toys])
    axes.grid(False)
    return figure


def space_labels(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights until neighbours are a gap apart, without moving their mean."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else height)
    shift = (sum(heights) - sum(moved)) / max(len(moved), 1)
    return [height + shift for height in moved]
