"""Tables and pictures of `benchmarks/texts.py`, from the rows in `results/texts` alone, and what they are chosen by."""

import csv
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from heads_report import format_difference, format_mean, table
from texts_tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
FOLDER, PAGE = ROOT / "results/texts", ROOT / "docs/texts.md"
PICTURES = ROOT / "docs/pictures"
RATES, SEEDS, FIRST_SEEDS = (5e-4, 2e-3), range(5), range(2)
HEADS = {
    "attention": "attention pooling",
    "routing": "`RoutingHead`",
    "mean": "mean pooling",
    "paper": "routing as in the paper",
}
ENCODERS = {"minilm": "MiniLM", "mpnet": "mpnet"}
BARS = {("sst2", "mpnet"): 91.5, ("sst5", "mpnet"): 52.0, ("sst2", "minilm"): 87.2, ("sst5", "minilm"): 48.7}
TEXT = ("task", "encoder", "head", "where", "depths", "class")  # columns that hold no numbers

Row = dict[str, Any]


def write_rows(rows: Sequence[Row], name: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: round(v, 4) if isinstance(v, float) and k != "rate" else v for k, v in row.items()})


def read_rows(name: str) -> list[Row]:
    """Return stored rows with numbers for text, none if there is no file."""
    path = FOLDER / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{k: v if k in TEXT else json.loads(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def find_runs(rows: list[Row], task: str, encoder: str, head: str, where: str, size: int = 0) -> list[Row]:
    setting = (task, encoder, head, where, size)
    return [r for r in rows if (r["task"], r["encoder"], r["head"], r["where"], r["size"]) == setting]


def choose_rate(runs: list[Row]) -> float:
    """Return the rate of the highest mean accuracy on validation over the first seeds; of equal ones the lower."""

    def mean(rate: float) -> float:
        return statistics.mean(r["validation"] for r in runs if r["rate"] == rate and r["seed"] in FIRST_SEEDS)

    return max(RATES, key=lambda rate: (mean(rate), -rate))


def find_final(rows: list[Row], task: str, encoder: str, head: str, where: str, size: int = 0) -> list[Row]:
    """Return the tested runs of a setting, which are those at the chosen rate."""
    return [r for r in find_runs(rows, task, encoder, head, where, size) if "test" in r]


def choose_depth(rows: list[Row], task: str, encoder: str) -> int:
    """Return the depth whose probe has the highest mean accuracy on validation at its chosen rate."""

    def mean(depth: str) -> float:
        runs = find_runs(rows, task, encoder, "probe", depth)
        rate = choose_rate(runs)
        return statistics.mean(r["validation"] for r in runs if r["rate"] == rate)

    probes = [r for r in rows if (r["task"], r["encoder"], r["head"], r["size"]) == (task, encoder, "probe", 0)]
    return int(max(sorted({r["where"] for r in probes}, key=int), key=mean))


def percent(rows: list[Row], name: str = "test") -> list[float]:
    return [100 * row[name] for row in rows if name in row]


def main_table(rows: list[Row], tasks: Sequence[str]) -> str:
    """Write test accuracy of every head, at the best depth and over depths, by encoder and task."""
    columns = [c for c in product(ENCODERS, tasks) if find_final(rows, c[1], c[0], "attention", "best")]
    lines = []
    for head, where in [("probe", "best"), *product(HEADS, ("best", "all"))]:
        own = []
        for encoder, task in columns:
            depth = str(choose_depth(rows, task, encoder)) if head == "probe" else where
            own.append(format_mean(percent(find_final(rows, task, encoder, head, depth))))
        if any(cell != "–" for cell in own):
            title = HEADS.get(head, "linear probe") + (", all depths" if where == "all" else "")
            lines.append([title, *own])
    return table(["head", *(f"{TASKS[task].title}, {ENCODERS[encoder]}" for encoder, task in columns)], lines)


def write_report(check: bool = False) -> list[str]:
    """Write the tables of the page and the pictures, or say what is out of date."""
    rows = read_rows("runs")
    tables = {"sst": main_table(rows, ("sst5", "sst2"))}
    old = new = PAGE.read_text()
    for name, content in tables.items():
        begin, end = f"<!-- {name} table: begin -->", f"<!-- {name} table: end -->"
        new = re.sub(f"{begin}.*{end}", lambda _, t=f"{begin}\n\n{content}\n\n{end}": t, new, flags=re.DOTALL)
    if check:
        return [] if new == old else [f"{PAGE.name}: tables out of date, run python benchmarks/texts.py --report"]
    PAGE.write_text(new)
    return list(check_bars(rows))


def check_bars(rows: list[Row]) -> Iterator[str]:
    """Yield in words whether `RoutingHead`, at the best depth or over depths as validation has it, reaches the bars."""
    for (task, encoder), bar in BARS.items():
        found = {head: choose_where(rows, task, encoder, head) for head in ("routing", "attention")}
        if all(len(runs) > 1 for runs in found.values()):
            ours, rival = (percent(runs) for runs in found.values())
            missed = statistics.mean(ours) - bar
            yield f"{task}, {encoder}: {missed:+.2f} of the bar {bar}, attention {format_difference(ours, rival)}"


def choose_where(rows: list[Row], task: str, encoder: str, head: str) -> list[Row]:
    """Return the tested runs of a head at the best depth or over depths, whichever validation prefers."""
    both = [find_final(rows, task, encoder, head, where) for where in ("best", "all")]
    return max(both, key=lambda runs: statistics.mean(percent(runs, "validation")) if runs else 0.0)
