"""Charts in one style: colours, axes, PNG files, and the charts of a report. Accuracies are fractions."""

import math
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..analysis.accuracy import GroupAccuracy
from ..analysis.deletion import Deletion
from ..errors import needs_extra

if TYPE_CHECKING:  # imported where used: it is slow, and an extra
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
"""Okabe and Ito's colours, distinct for colour-blind readers."""
INK, FAINT, GRID = "#24292f", "#6e7781", "#e6e8eb"
GREY = "#7a828b"  # readable on white and on black
DPI = 200
HALF, THIRD = 4.4, 3.3  # inches of a panel of which two or three stand side by side: readable on a phone
DASHED = {"color": FAINT, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}
TILE = 192  # pixels of a tile of a mosaic, about
MAX_TOKENS = 48


class Curve(NamedTuple):
    """A mean and its spread at some positions; values that are not finite leave a gap."""

    name: str
    colour: str
    x: np.ndarray
    mean: np.ndarray
    spread: np.ndarray


def new_figure(width: float, height: float, *, layout: str | None = "constrained", **style: Any) -> "Figure":
    """Create an empty figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise needs_extra("matplotlib", "report") from None
    return Figure(figsize=(width, height), layout=layout, **style)  # pyright: ignore[reportArgumentType]


def new_axes(
    width: float, height: float, n_rows: int = 1, n_columns: int = 1, **shared: Any
) -> "tuple[Figure, list[list[Axes]]]":
    """Create a grid of axes without frames, with faint horizontal lines."""
    figure = new_figure(width, height)
    grid = figure.subplots(n_rows, n_columns, squeeze=False, **shared)
    for axes in grid.flat:
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9.5, labelcolor=FAINT)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set(color=FAINT, fontsize=9.5)
    return figure, [list(row) for row in grid]


def set_title(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=8)


def encode_figure(figure: "Figure", mode: str = "P", dpi: int = DPI) -> bytes:
    """Encode a figure as PNG in Pillow's mode: `P` for charts of few colours, `LA` for grey images, or `RGBA`."""
    from PIL import Image

    file, packed = BytesIO(), BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    drawn = Image.open(file)
    drawn = drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE) if mode == "P" else drawn.convert(mode)
    drawn.save(packed, "png", optimize=True)
    return packed.getvalue()


def plot_curve(axes: "Axes", curve: Curve, percent: bool = False) -> None:
    """Draw a line with a band of its spread, and with markers where points are few."""
    scale, top = (100, 100.0) if percent else (1, np.inf)
    x, mean, spread = (finite_or_nan(t) for t in (curve.x, scale * curve.mean, scale * curve.spread))
    n_points = int((np.isfinite(x) & np.isfinite(mean)).sum())
    marker = "o" if n_points <= 12 else None  # a line would hide few points, and does not show a single one
    axes.plot(x, mean, color=curve.colour, linewidth=1.5, marker=marker, markersize=3.5, label=curve.name)
    low, high = np.maximum(mean - spread, 0), np.minimum(mean + spread, top)
    axes.fill_between(x, low, high, color=curve.colour, alpha=0.18, linewidth=0)
    if n_points == 1:  # a band needs two points
        axes.vlines(x, low, high, color=curve.colour, alpha=0.4, linewidth=2)


def draw_curves(title: str, curves: Sequence[Curve], percent: bool = False) -> "Figure":
    """Draw curves over the epochs, with their names above in their colours."""
    figure, ((axes,),) = new_axes(HALF, 2.8)
    for curve in curves:
        plot_curve(axes, curve, percent)
    if not any((np.isfinite(curve.x) & np.isfinite(curve.mean)).any() for curve in curves):
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", color=FAINT, fontsize=9.5)
    _set_epochs(axes)
    axes.set_ylim(0, 101 if percent else None)
    if percent:
        axes.yaxis.set_major_formatter(format_percent)
    set_title(axes, title)
    names = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 2, "borderpad": 0.1, "handlelength": 1.2}
    axes.legend(**names, frameon=False, fontsize=9.5, labelcolor="linecolor")
    return figure


def draw_schedule(title: str, epoch: np.ndarray, values: np.ndarray) -> "Figure":
    """Draw a setting of the optimiser over the epochs, with ticks at its lowest and highest value."""
    figure, ((axes,),) = new_axes(HALF, 2.2)
    plot_curve(axes, Curve(title, INK, epoch, values, np.zeros_like(values)))
    _set_epochs(axes)
    set_title(axes, title)
    finite = values[np.isfinite(epoch) & np.isfinite(values)]
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        axes.set_yticks(sorted({low, high}), [f"{end:.4g}" for end in sorted({low, high})])
        margin = 0.08 * (high - low) or 0.5 * abs(low) or 1.0
        axes.set_ylim(low - margin, high + margin)
    return figure


def draw_confusion(counts: np.ndarray, names: Sequence[str]) -> "Figure":
    """Draw counts `[true, predicted]` and their share of each row: right in blue, wrong in orange."""
    n = len(names)
    side = max(4.2, 0.85 * n)
    figure, ((axes,),) = new_axes(side + 0.6, side)
    totals = counts.sum(1, keepdims=True)  # [true, 1]
    shares = counts / np.maximum(totals, 1)
    strength = np.sqrt(shares)[..., None]  # the root makes rare mistakes visible
    hue = np.where(np.eye(n, dtype=bool)[..., None], parse_colour(BLUE), parse_colour(ORANGE))
    axes.imshow(1 + strength * (hue - 1), aspect="auto")
    for (true, predicted), count in np.ndenumerate(counts):
        if totals[true, 0]:
            dark = strength[true, predicted, 0] > 0.6
            label = f"{count:,}\n{100 * shares[true, predicted]:.1f}%" if count else "0"
            colour = "white" if dark else INK if count else FAINT
            axes.text(predicted, true, label, ha="center", va="center", color=colour, fontsize=9.5, linespacing=1.35)
    axes.grid(False)
    labels = [name.replace(" ", "\n") for name in names]  # in two lines, so that neighbours do not overlap
    axes.set_xticks(range(n), labels)
    axes.set_yticks(range(n), [name if totals[k, 0] else f"{name}\n(none)" for k, name in enumerate(labels)])
    axes.tick_params(labelcolor=INK, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("predicted", loc="left")
    axes.set_ylabel("true", loc="top")
    for edge in np.arange(-0.5, n):
        axes.axhline(edge, color=GRID, linewidth=0.8)
        axes.axvline(edge, color=GRID, linewidth=0.8)
    return figure


def draw_accuracies(
    title: str, rows: Sequence[GroupAccuracy], labels: Sequence[str], overall: float, floor: float, width: float = HALF
) -> "Figure":
    """Draw a line for each value of a factor: its accuracy, interval, and the accuracy over all values, dashed."""
    figure, ((axes,),) = new_axes(width, 0.75 + 0.215 * len(rows))
    y = np.arange(len(rows))
    axes.axvline(100 * overall, **DASHED)
    axes.hlines(y, [100 * row.low for row in rows], [100 * row.high for row in rows], color=BLUE, alpha=0.45, lw=2)
    axes.plot([100 * row.accuracy for row in rows], y, "o", color=BLUE, markersize=4.5, clip_on=False)
    place = {"xytext": (50, 0), "textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 9}
    for k, row in enumerate(rows):
        axes.annotate(f"{100 * row.accuracy:.1f}%", (1, k), xycoords=("axes fraction", "data"), color=INK, **place)
    axes.set_yticks(y, labels)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(floor, 100 + 0.01 * (100 - floor))
    axes.set_xticks(_ticks(floor), [format_percent(tick) for tick in _ticks(floor)])
    axes.grid(False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    set_title(axes, title)
    return figure


def draw_steps(counts: np.ndarray, labels: Sequence[str]) -> "Figure":
    """Draw the share of answers by distance from the true class; the first, no distance, in blue."""
    figure, ((axes,),) = new_axes(HALF, 0.5 + 0.36 * len(counts))
    y, shares = np.arange(len(counts)), 100 * counts / counts.sum()
    bars = axes.barh(y, shares, height=0.62, color=[BLUE] + [ORANGE] * (len(counts) - 1))
    axes.bar_label(bars, [f"{share:.2f}%" for share in shares], padding=4, fontsize=9.5, color=INK)
    axes.set_yticks(y, labels)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * shares.max())  # margin for the numbers
    axes.set_xticks([])
    axes.grid(False)
    return figure


def draw_mosaic(rows: Sequence[tuple[str, Sequence[np.ndarray]]], columns: Sequence[str], tile: int = TILE) -> "Figure":
    """Draw rows of grey bytes `[m, m]` or colours `[m, m, 3]` in 0..1, each pixel a whole number of dots.

    A row's label stands above it. Without a background, and with words in grey, it serves light and dark pages.
    """
    zoom = max(1, round(tile / rows[0][1][0].shape[0]))
    side, gap = zoom * rows[0][1][0].shape[0], 6
    above = [52 if label else 0 for label, _ in rows]
    tops = np.cumsum([above[0], *(side + gap + space for space in above[1:])])
    n_columns = max(len(tiles) for _, tiles in rows)
    mosaic = np.zeros((tops[-1] + side, n_columns * (side + gap) - gap, 4))  # transparent
    for top, (_, tiles) in zip(tops, rows, strict=True):
        for column, pixels in enumerate(tiles):
            left = column * (side + gap)
            colours = pixels[..., None] / 255 if pixels.ndim == 2 else pixels
            place = np.arange(side) * len(pixels) // side
            mosaic[top : top + side, left : left + side] = 1
            mosaic[top : top + side, left : left + side, :3] = colours[place][:, place]
    head = 84 if any("\n" in name for name in columns) else 44 if columns else 4
    height, width = mosaic.shape[:2]
    figure = new_figure(width / DPI, (head + height) / DPI, layout=None, dpi=DPI, facecolor="none")
    axes = figure.add_axes((0, 0, 1, height / (head + height)))
    axes.imshow(mosaic, interpolation="nearest")
    axes.set_axis_off()
    for top, (label, _) in zip(tops, rows, strict=True):
        axes.text(0, top - 8, escape_mathtext(label), va="bottom", fontsize=11, color=GREY)
    for column, name in enumerate(columns):
        axes.text(column * (side + gap) + side / 2, -head / 2, name, ha="center", va="center", fontsize=10, color=GREY)
    return figure


def mix_colours(paper: np.ndarray, colour: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Blend from the paper's colour at strength 0 to another at 1."""
    return paper + strength[..., None] * (colour - paper)


def tint_pixels(paper: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Blend the paper's colour with blue where strength is positive and with orange where it is negative."""
    hue = np.where(strength[..., None] > 0, parse_colour(BLUE), parse_colour(ORANGE))
    return mix_colours(paper, hue, np.abs(strength))


def draw_text_credit(tokens: Sequence[str], used: np.ndarray, net: np.ndarray) -> "Figure":
    """Draw tokens by depth: the share used, from none to all, and the credit for the class, `[n, depth]` each."""
    n, depth = min(len(tokens), MAX_TOKENS), used.shape[1]
    figure, (both,) = new_axes(HALF, 0.8 + 0.21 * n, 1, 2, sharey=True)
    largest = float(np.abs(net).max()) or 1.0
    cells = (
        mix_colours(np.ones(3), parse_colour(BLUE), used[:n]),
        tint_pixels(np.ones((n, depth, 3)), net[:n] / largest),
    )
    for axes, colours, title in zip(both, cells, ("Used", "For, against"), strict=True):
        axes.imshow(colours, aspect="auto", interpolation="nearest")
        axes.grid(False)
        axes.set_xticks(range(0, depth, math.ceil(depth / 6)))
        axes.set_xlabel("depth")
        set_title(axes, title)
        for edge in np.arange(0.5, n - 1):
            axes.axhline(edge, color="white", linewidth=0.7)
    shown = (token if len(token) <= 16 else token[:15] + "…" for token in tokens[:n])
    both[0].set_yticks(range(n), [escape_mathtext(token) for token in shown])
    both[0].tick_params(axis="y", labelcolor=INK)
    return figure


def draw_deletion(title: str, deletion: Deletion) -> "Figure":
    """Draw deletion curves with bands of two standard errors."""
    figure, ((axes,),) = new_axes(HALF + 0.6, 3.6)
    for name, colour in {"credit": BLUE, "gradient times input": ORANGE, "random": FAINT}.items():
        mean, error = (np.array(column) for column in zip(*deletion.curve(name), strict=True))
        area = deletion.area(name)
        label = f"{name}, area {area.mean:.3f} ± {area.error:.3f}"
        plot_curve(axes, Curve(label, colour, 100 * deletion.fractions.numpy(), mean, 2 * error), percent=True)
    figure.legend(frameon=False, fontsize=9.5, labelcolor=INK, loc="outside lower left")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 101)
    axes.set_xlabel("removed, highest first, % of inputs")
    axes.set_ylabel("probability of the class, %")
    set_title(axes, title)
    return figure


def axis_floor(rows: Sequence[GroupAccuracy]) -> float:
    """Return a round number at or below all intervals, where an axis that ends at 100% may start."""
    low = min(98.0, 100 * min(row.low for row in rows))  # small differences are not magnified further
    return _tick_step(low) * math.floor(low / _tick_step(low))


def finite_or_nan(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def parse_colour(colour: str) -> np.ndarray:
    """Return red, green and blue in 0..1."""
    return np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255


def escape_mathtext(label: str) -> str:
    return label.replace("$", r"\$")


def format_percent(value: float, _: object = None) -> str:
    return f"{value:g}%"


def _set_epochs(axes: "Axes") -> None:
    axes.set_xlabel("epoch")
    axes.margins(x=0.01)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)


def _tick_step(floor: float) -> float:
    """Return the distance of five or six ticks between a number and 100%."""
    return next(step for step in (0.5, 1, 2, 5, 10, 20) if 100 - floor <= 6 * step)


def _ticks(floor: float) -> np.ndarray:
    return np.arange(100, floor - 1e-9, -_tick_step(floor))
