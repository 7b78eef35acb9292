"""Tables and the picture of `benchmarks/heads.py`, from the rows in `results/heads` alone."""

import csv
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from heads_models import HEADS
from heads_tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
FOLDER, PAGE = ROOT / "results/heads", ROOT / "docs/heads.md"
RUNS, PICTURE = FOLDER / "runs.csv", ROOT / "docs/pictures/heads.png"
OURS, RIVAL = "routing", "attention"
SEVEN = [name for name in TASKS if name != "sst2"]  # SST-2 is not one of the seven tasks
COLOURS = {  # Okabe and Ito's, distinct for colour-blind readers
    "mean": "#8c8c8c",
    "max": "#56b4e9",
    "attention": "#0072b2",
    "token": "#e69f00",
    "slots": "#cc79a7",
    "paper": "#009e73",
    "routing": "#d55e00",
}
MARKERS = dict(zip(COLOURS, "<>osPXD", strict=True))
INK, GRID = "#24292f", "#d8dce1"

Row = dict[str, str]


def write_csv(path: Path, rows: Sequence[dict[str, Any]], digits: int = 4) -> None:
    """Write rows whose numbers, but for rates, are rounded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {k: round(v, digits) if isinstance(v, float) and k != "rate" else v for k, v in row.items()}
            )


def read_csv(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def find(rows: list[Row], task: str, head: str, rate: str | None = None) -> list[Row]:
    """Return the tested runs of a head at a rate, or at the chosen one."""
    own = [r for r in rows if (r["task"], r["head"]) == (task, head) and r["test_all"]]
    return [r for r in own if (r["rate"] == rate if rate else r["chosen"] == "True")]


def percent(rows: list[Row], name: str) -> list[float]:
    return [100 * float(row[name]) for row in rows]


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def compare(one: list[float], other: list[float]) -> tuple[float, float]:
    """Return the difference between means and its standard error."""
    (a, error_a), (b, error_b) = mean_and_error(one), mean_and_error(other)
    return a - b, (error_a**2 + error_b**2) ** 0.5


def format_mean(values: list[float]) -> str:
    return "{:.1f} ± {:.1f}".format(*mean_and_error(values)) if len(values) > 1 else "–"


def format_difference(one: list[float], other: list[float]) -> str:
    if len(one) < 2 or len(other) < 2:
        return "–"
    difference, error = compare(one, other)
    return f"{difference:+.1f} ({difference / max(error, 0.01):+.1f})".replace("-", "−")


def table(header: list[str], lines: list[list[str]]) -> str:
    rules = f"|---|{'---:|' * (len(header) - 1)}"
    return "\n".join([f"| {' | '.join(header)} |", rules, *(f"| {' | '.join(line)} |" for line in lines)])


def final_table(rows: list[Row]) -> str:
    """Write test accuracy after all steps at the rate chosen on validation, the best of a task in bold."""
    names = [name for name in TASKS if find(rows, name, OURS)]
    lines = []
    for head, (title, _) in HEADS.items():
        found = {name: percent(find(rows, name, head), "test_all") for name in names}
        lines.append([title, *(format_mean(values) for values in found.values())])
    return table(["head", *(TASKS[name].short for name in names)], lines)


def early_table(rows: list[Row]) -> str:
    """Write by how many points `RoutingHead` is better than attention pooling, and by how many standard errors."""
    columns = [(f"300 steps, {rate}", rate, "test_300") for rate in ("0.001", "0.003")]
    columns += [
        (words, None, f"test_{moment}") for words, moment in (("chosen, 100", 100), ("300", 300), ("all", "all"))
    ]
    columns += [("places removed", None, "test_removed"), ("stray places", None, "test_stray")]
    lines = []
    for name, task in TASKS.items():
        pairs = [[percent(find(rows, name, h, rate), at) for h in (OURS, RIVAL)] for _, rate, at in columns]
        lines.append([task.title, *(format_difference(*pair) for pair in pairs)])
    return table(["task", *(words for words, *_ in columns)], lines)


def pair_table(rows: list[Row], first: str, second: str) -> str:
    """Write two mean accuracies of every head and task, at the chosen rate."""
    names = [name for name in TASKS if find(rows, name, OURS)]
    lines = []
    for head, (title, _) in HEADS.items():
        found = [[percent(find(rows, n, head), f"test_{at}") for at in (first, second)] for n in names]
        lines.append([title, *(" / ".join(f"{statistics.mean(v):.1f}" for v in pair if v) or "–" for pair in found)])
    return table(["head", *(TASKS[name].short for name in names)], lines)


def times_table(times: dict[str, dict[str, float]]) -> str:
    """Write the time of a training step of each head as a multiple of attention pooling's."""
    names = {name: TASKS[name].short if name in TASKS else "200 of 384" for name in times}
    lines = [[title, *(f"{t[head] / t[RIVAL]:.1f}" for t in times.values())] for head, (title, _) in HEADS.items()]
    return table(["head", *names.values()], lines)


def check_bars(rows: list[Row]) -> Iterator[str]:
    """Yield in words how `RoutingHead` compares with attention pooling."""
    for rate in ("0.001", "0.003"):
        pairs = [[percent(find(rows, n, h, rate), "test_300") for h in (OURS, RIVAL)] for n in SEVEN]
        differences = [compare(*pair)[0] for pair in pairs if all(len(p) > 1 for p in pair)]
        good = sum(d >= 0 for d in differences)
        yield f"{rate}, 300 steps: as good on {good} of {len(differences)}, least {min(differences):+.2f} points"
    pairs = {n: [percent(find(rows, n, h), "test_all") for h in (OURS, RIVAL)] for n in TASKS}
    ratios = {n: compare(*p)[0] / compare(*p)[1] for n, p in pairs.items() if all(len(v) > 1 for v in p)}
    yield f"chosen rate, all steps: {', '.join(f'{n} {ratio:+.1f}' for n, ratio in ratios.items())} standard errors"


def draw(rows: list[Row]) -> None:
    """Draw errors on the test split: after 300 steps at one rate for all, and after all steps at the chosen rate."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    names = [name for name in TASKS if find(rows, name, OURS)]
    figure = Figure(figsize=(5.2, 6.4), layout="constrained", facecolor="white")
    views = [("Errors after 300 steps at rate 0.001, %", "0.001", "test_300")]
    views += [("Errors after all steps at the chosen rate, %", None, "test_all")]
    for axes, (title, rate, at) in zip(figure.subplots(2, 1), views, strict=True):
        for k, name in enumerate(names):
            for head in COLOURS if rate is None else (RIVAL, OURS):
                if values := percent(find(rows, name, head, rate), at):
                    size = 8 if head == OURS else 6
                    error = 100 - statistics.mean(values)
                    axes.plot(error, k, MARKERS[head], color=COLOURS[head], markersize=size, alpha=0.9)
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10, 20, 50]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yticks(range(len(names)), [TASKS[name].short for name in names], fontsize=8, color=INK)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(which="both", length=0, labelsize=8, labelcolor=INK)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
    handles = [
        Line2D([], [], linestyle="", marker=MARKERS[h], color=COLOURS[h], label=HEADS[h][0].strip("`"))
        for h in reversed(COLOURS)
        if any(find(rows, name, h) for name in names)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8, labelcolor=INK)
    figure.savefig(PICTURE, dpi=200, metadata={"Software": None})


def write_report(check: bool = False) -> list[str]:
    """Write the tables of the page and the picture, or say what is out of date."""
    rows, record = read_csv(RUNS), json.loads((FOLDER / "record.json").read_text())
    tables = {"final": final_table(rows), "early": early_table(rows), "steps": pair_table(rows, "100", "300")}
    tables["robust"] = pair_table(rows, "removed", "stray")
    tables["times"] = times_table(record["milliseconds"])
    old = new = PAGE.read_text()
    for name, content in tables.items():
        begin, end = f"<!-- {name} table: begin -->", f"<!-- {name} table: end -->"
        new = re.sub(f"{begin}.*{end}", lambda _, t=f"{begin}\n\n{content}\n\n{end}": t, new, flags=re.DOTALL)
    if check:
        return [] if new == old else [f"{PAGE.name}: tables out of date, run python benchmarks/heads.py --report"]
    PAGE.write_text(new)
    draw(rows)
    return list(check_bars(rows))
