"""Tables and pictures of `benchmarks/promises.py`, from the files in `results/promises` alone."""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from heads_report import (
    COLOURS,
    GRID,
    INK,
    compare,
    format_difference,
    format_mean,
    mean_and_error,
    read_csv,
    table,
    write_csv,
)
from report import insert

ROOT = Path(__file__).resolve().parents[1]
FOLDER, PAGE = ROOT / "results/promises", ROOT / "docs/promises.md"
PICTURES = ROOT / "docs/pictures"
NETWORKS = {
    "routing": "routing",
    "attention": "attention pooling",
    "mean": "mean pooling",
}
RIVALS = ("attention", "mean")
THIRDS = ("azimuths", "elevations")
MOMENTS = ("matched", "final")
FAMILIAR = {"azimuth": (0, 40, 300, 340), "elevation": (30, 40)}  # ends of the ranges
ROBUST = "azimuths"  # views of the networks that are attacked
SHOWN = {"noise": 0.08, "occlusion": 14, "shift": 3}  # strengths in tables
ATTACK, SHOWN_ATTACK = 0.02, 0.04  # in tables, and in the picture of samples
LADDER = {
    "fgsm": "FGSM",
    "pgd": "PGD, 10 steps",
    "and more steps": "either, or PGD of 50 steps",
    "and restarts": "or three more random starts",
    "and standardised": "or PGD on standardised scores",
    "worst": "or images made against the other networks",
}
TEXT = ("views", "network", "moment", "test")  # columns that hold no numbers
MARKERS = {"routing": "D", "attention": "s", "mean": "o"}

Row = dict[str, Any]


def write_rows(rows: Sequence[Row], name: str) -> None:
    write_csv(FOLDER / f"{name}.csv", rows, digits=5)


def read_rows(name: str) -> list[Row]:
    """Return stored rows with numbers for text, none if there is no file."""
    path = FOLDER / f"{name}.csv"
    if not path.exists():
        return []
    return [{k: v if k in TEXT else json.loads(v) for k, v in row.items() if v} for row in read_csv(path)]


def find_values(rows: list[Row], column: str = "accuracy", **wanted: Any) -> list[float]:
    """Return a column in per cent, a number for each seed, of the rows that have these values."""
    own = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    return [100 * row[column] for row in own if column in row]


def format_cell(values: list[float]) -> str:
    """Format mean and standard error over seeds, or the number of a single seed."""
    return f"{values[0]:.1f}" if len(values) == 1 else format_mean(values)


def format_change(ours: list[float], theirs: list[float]) -> str:
    """Format a difference of means, with standard errors where there are several seeds."""
    if len(ours) == len(theirs) == 1:
        return f"{ours[0] - theirs[0]:+.1f}".replace("-", "−")
    return format_difference(ours, theirs)


def view_table(runs: list[Row], moment: str) -> str:
    """Write test accuracy at familiar and at novel views."""
    columns = list(product(find_thirds(runs), ("familiar", "novel")))
    lines = [
        [title, *(format_cell(find_values(runs, f"{moment}_{k}", views=v, network=name)) for v, k in columns)]
        for name, title in NETWORKS.items()
    ]
    return table(["network", *(f"{views}: {kind}" for views, kind in columns)], lines)


def find_thirds(rows: list[Row]) -> list[str]:
    """Return of which angles there are results of training on a third."""
    return [views for views in THIRDS if any(row["views"] == views for row in rows)]


def difference_table(runs: list[Row]) -> str:
    """Write by how many points routing is better than pooling, and by how many standard errors."""
    lines = []
    for views, moment in product(find_thirds(runs), MOMENTS):
        for rival in RIVALS:
            pairs = [
                [find_values(runs, f"{moment}_{kind}", views=views, network=name) for name in ("routing", rival)]
                for kind in ("familiar", "novel")
            ]
            words = f"{views}, {moment}: routing less {NETWORKS[rival]}"
            lines.append([words, *(format_change(*pair) for pair in pairs)])
    return table(["", "familiar views", "novel views"], lines)


def robust_table(curves: list[Row], moment: str) -> str:
    """Write accuracy of networks trained on a third of the azimuths, at these, undisturbed and disturbed."""
    attacks = {"fgsm": "FGSM", "pgd": "PGD"} | ({"worst": "all attacks"} if moment == "matched" else {})
    columns = [("noise", 0), *SHOWN.items(), *((test, ATTACK) for test in attacks)]
    lines = [
        [title, *(format_cell(find_disturbed(curves, network, moment, *column)) for column in columns)]
        for network, title in NETWORKS.items()
        if find_disturbed(curves, network, moment, "noise", 0)
    ]
    names = [f"noise {SHOWN['noise']}", f"square of {SHOWN['occlusion']}", f"shift by {SHOWN['shift']}"]
    names += [f"{name} {ATTACK}" for name in attacks.values()]
    return table(["network", "undisturbed", *names], lines)


def find_disturbed(curves: list[Row], network: str, moment: str, test: str, strength: float) -> list[float]:
    return find_values(curves, views=ROBUST, network=network, moment=moment, test=test, strength=strength)


def ladder_table(curves: list[Row], moment: str) -> str:
    """Write what share of pairs survives as attacks are added, and how many pairs have no gradient."""
    networks = [name for name in NETWORKS if find_disturbed(curves, name, moment, "pgd", ATTACK)]
    lines = [
        [title, *(format_cell(find_disturbed(curves, name, moment, test, ATTACK)) for name in networks)]
        for test, title in LADDER.items()
    ]
    lines.append(
        [
            "pairs without gradient",
            *(format_cell(find_disturbed(curves, n, moment, "no gradient", 0)) for n in networks),
        ]
    )
    return table([f"right under, bound {ATTACK}", *(NETWORKS[name] for name in networks)], lines)


def transfer_table(curves: list[Row], moment: str) -> str:
    """Write accuracy on images that PGD made against each network, by the network that sees them."""
    networks = [name for name in NETWORKS if find_disturbed(curves, name, moment, "pgd", ATTACK)]
    lines = []
    for source in networks:
        tests = ["pgd" if name == source else f"transfer from {source}" for name in networks]
        cells = [find_disturbed(curves, n, moment, test, ATTACK) for n, test in zip(networks, tests, strict=True)]
        lines.append([NETWORKS[source], *map(format_cell, cells)])
    return table(["made against", *(f"seen by {NETWORKS[name]}" for name in networks)], lines)


def match_table(runs: list[Row]) -> str:
    """Write the targets, and the steps and accuracies on validation of the moments that count."""
    lines = []
    for views, network in product((*THIRDS, "all"), NETWORKS):
        own = [r for r in runs if (r["views"], r["network"]) == (views, network)]
        if own:
            steps = ", ".join(str(r["matched_step"]) for r in own)
            right = [format_cell([100 * r[f"{moment}_validation"] for r in own]) for moment in MOMENTS]
            lines.append([views, NETWORKS[network], f"{100 * own[0]['target']:.0f}", steps, *right])
    return table(["views", "network", "target", "matched steps", "matched", "final"], lines)


def draw_views(curves: list[Row]) -> None:
    """Draw accuracy by viewing angle of networks trained on a third of the angles, which is shaded."""
    thirds = find_thirds(curves)
    figure, grid = new_figure(5.2, 0.6 + 2.9 * len(thirds), len(thirds), 1)
    for axes, views in zip(grid, thirds, strict=True):
        angle = views[:-1]
        own = [r for r in curves if (r["views"], r["moment"], r["test"]) == (views, "matched", angle)]
        degrees = sorted({r["strength"] for r in own})
        turned = sorted(degrees, key=lambda d: (d + 140) % 360) if angle == "azimuth" else degrees
        places = {d: k for k, d in enumerate(turned)}
        familiar = [places[d] for d in turned if is_familiar(angle, d)]
        axes.axvspan(min(familiar) - 0.5, max(familiar) + 0.5, color=GRID, alpha=0.6, linewidth=0)
        for network in NETWORKS:
            draw_line(axes, own, network, turned, places)
        axes.set_xticks(
            range(len(turned))[:: 2 if len(turned) > 9 else 1],
            [f"{d}°" for d in turned][:: 2 if len(turned) > 9 else 1],
        )
        set_axes(axes, f"Accuracy by {angle}, %; trained where it is shaded")
    add_legend(figure, grid[0])
    figure.savefig(PICTURES / "promises_views.png", dpi=200, metadata={"Software": None})


def is_familiar(angle: str, degrees: float) -> bool:
    ends = FAMILIAR[angle]
    return any(low <= degrees <= high for low, high in zip(ends[::2], ends[1::2], strict=True))


def draw_samples() -> None:
    """Draw some test pairs, left eyes alone, as networks see them disturbed, and which class is found."""
    import numpy as np

    from capsroute.lab.data import CATEGORIES

    found = np.load(FOLDER / "samples.npz")
    n_versions, n_toys = found["images"].shape[:2]
    figure, grid = new_figure(5.2, 0.3 + 1.2 * n_toys, n_toys, n_versions)
    titles = ["as it is", f"noise {SHOWN['noise']}", "square", "shift", "attack on\nrouting", "attack on\nattention"]
    for k, axes in enumerate(grid):
        toy, version = divmod(k, n_versions)
        axes.imshow(found["images"][version, toy], cmap="gray", vmin=0, vmax=255)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        if not toy:
            axes.set_title(titles[version], fontsize=8.5, color=INK)
        for name, y in (("routing", -0.04), ("attention", -0.2)):
            right = found[name][version, toy] == found["classes"][toy]
            words, style = CATEGORIES[found[name][version, toy]], {"fontweight": "normal" if right else "bold"}
            place = {"transform": axes.transAxes, "ha": "center", "va": "top", "fontsize": 8.5}
            axes.text(0.5, y, words if right else f"{words} ✗", color=COLOURS[name], **place, **style)
    figure.savefig(PICTURES / "promises_samples.png", dpi=200, metadata={"Software": None})


def draw_robustness(curves: list[Row]) -> None:
    """Draw accuracy by strength of attacks and corruptions, at the azimuths of training."""
    figure, grid = new_figure(5.2, 7.4, 3, 2)
    panels = {"fgsm": "FGSM: bound on a pixel", "pgd": "PGD: bound on a pixel", "noise": "noise: deviation"}
    panels |= {"occlusion": "grey square: pixels", "shift": "shift: pixels"}
    grid[-1].axis("off")  # for the legend
    for axes, test in zip(grid, panels, strict=False):
        own = [r for r in curves if (r["views"], r["moment"], r["test"]) == (ROBUST, "matched", test)]
        strengths = sorted({r["strength"] for r in own})
        places = {s: k for k, s in enumerate(strengths)}
        for network in NETWORKS:
            draw_line(axes, own, network, strengths, places)
        axes.set_xticks(range(len(strengths)), [f"{s:g}".replace("0.", ".") for s in strengths])
        set_axes(axes, panels[test])
    grid[-1].legend(*grid[0].get_legend_handles_labels(), loc="center", frameon=False, fontsize=9.5, labelcolor=INK)
    figure.savefig(PICTURES / "promises_robustness.png", dpi=200, metadata={"Software": None})


def new_figure(width: float, height: float, n_rows: int, n_columns: int) -> tuple[Any, list[Any]]:
    """Create a figure on white, readable on light and dark pages and on a phone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    return figure, list(figure.subplots(n_rows, n_columns, squeeze=False).flat)


def draw_line(axes: Any, rows: list[Row], network: str, values: Sequence[float], places: dict[float, int]) -> None:
    """Draw mean and standard error over seeds at each value."""
    found = {v: find_values(rows, network=network, strength=v) for v in values}
    drawn = [(places[v], *(mean_and_error(own) if own[1:] else (own[0], 0))) for v, own in found.items() if own]
    if drawn:
        x, mean, error = zip(*drawn, strict=True)
        style = {"color": COLOURS[network], "marker": MARKERS[network], "markersize": 4, "linewidth": 1.5}
        axes.errorbar(x, mean, error, label=NETWORKS[network], **style)


def set_axes(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.set_ylim(0, 102)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def add_legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9.5, labelcolor=INK)


def check_bars(runs: list[Row], curves: list[Row]) -> Iterator[str]:
    """Yield in words, for each promise, by how many standard errors routing is better than each pooling."""
    for views in THIRDS:  # also those that are not measured
        for rival in RIVALS:
            pair = [find_values(runs, "matched_novel", views=views, network=n) for n in ("routing", rival)]
            yield f"novel {views}, against {NETWORKS[rival]}: {describe(*pair)}"
    for test, strength in (*SHOWN.items(), ("fgsm", ATTACK), ("pgd", ATTACK), ("worst", ATTACK)):
        for rival in RIVALS:
            pair = [find_disturbed(curves, n, "matched", test, strength) for n in ("routing", rival)]
            yield f"{test} {strength}, against {NETWORKS[rival]}: {describe(*pair)}"


def describe(ours: list[float], theirs: list[float]) -> str:
    if len(ours) < 2 or len(theirs) < 2:
        return "not measured"
    difference, error = compare(ours, theirs)
    verdict = "holds" if difference > 2 * error else "does not hold"
    return f"{format_change(ours, theirs)}, {verdict}"


def write_report(check: bool = False) -> list[str]:
    """Write the tables of the page and the pictures, or say what is out of date."""
    runs, curves = read_rows("runs"), read_rows("curves")
    tables = {"match": match_table(runs), "difference": difference_table(runs)}
    for moment in MOMENTS:
        tables[f"{moment} view"] = view_table(runs, moment)
        tables[f"{moment} robust"] = robust_table(curves, moment)
    tables |= {"ladder": ladder_table(curves, "matched"), "transfer": transfer_table(curves, "matched")}
    old = new = PAGE.read_text()
    for name, content in tables.items():
        new = insert(new, f"{name} table", content)
    if check:
        return [] if new == old else [f"{PAGE.name}: tables out of date, run python benchmarks/promises.py --report"]
    PAGE.write_text(new)
    draw_views(curves)
    draw_robustness(curves)
    draw_samples()
    return list(check_bars(runs, curves))
