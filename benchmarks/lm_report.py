"""Tables of `benchmarks/lm.py`, from the rows in `results/lm` alone, and the choice of rates."""

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from heads_report import mean_and_error, read_csv, table, write_csv
from report import insert

ROOT = Path(__file__).resolve().parents[1]
FOLDER, PAGE = ROOT / "results/lm", ROOT / "docs/language_models.md"
TITLES = {
    "softmax": "softmax",
    "tied": "softmax, tied",
    "linear": "softmax over all depths",
    "depths": "routed depths",
    "once": "routed depths, one iteration",
    "slices": "routed slices",
    "past": "softmax, with routed past",
}
KEYS = ("text", "preset", "subwords", "model", "rate", "seed")  # columns that name a run
WORDS = {"text", "preset", "model", "device", "torch", "commit", "command"}  # columns that hold no numbers
ROUTED = ("depths", "slices", "once")
SPEED, MEMORY = 1 / 3, 2.0  # bars on a GPU, as multiples of the softmax layer's

Row = dict[str, Any]


def write_rows(rows: Sequence[Row], name: str) -> None:
    write_csv(FOLDER / f"{name}.csv", rows)


def read_rows(name: str) -> list[Row]:
    """Return stored rows with numbers for text, none if there is no file."""
    path = FOLDER / f"{name}.csv"
    if not path.exists():
        return []
    return [{k: v if k in WORDS else json.loads(v) for k, v in row.items() if v} for row in read_csv(path)]


def find_runs(rows: Sequence[Row], setting: Sequence[Any]) -> list[Row]:
    """Return the runs of a setting: a text, a preset, a number of subwords and a model."""
    return [row for row in rows if [row[name] for name in KEYS[:4]] == list(setting)]


def choose_rate(runs: Sequence[Row], rates: Sequence[float]) -> float | None:
    """Return the rate with the fewest bits on validation for the first seed, none while a rate lacks its run."""
    found = {r["rate"]: r["validation"] for r in runs if r["seed"] == 0}
    return min(rates, key=found.__getitem__) if all(rate in found for rate in rates) else None


def find_settings(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Return text, preset and number of subwords of all rows, each once."""
    return list(dict.fromkeys(tuple(row[name] for name in KEYS[:3]) for row in rows))


def format_mean(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "".join(f"{value:.3f}" for value in values) or "–"
    return "{:.3f} ± {:.3f}".format(*mean_and_error(list(values)))


def bits_table(rows: Sequence[Row]) -> str:
    """Write bits per byte of tested runs, mean and standard error over seeds, with steps per second and parameters."""
    lines = []
    for setting, model in product(find_settings(rows), TITLES):
        runs = [row for row in find_runs(rows, [*setting, model]) if "test" in row]
        if runs:
            speeds = [row["steps_per_second"] for row in runs]
            numbers = [f"{runs[0]['parameters']:,}", f"{runs[0]['rate']:g}", str(len(runs))]
            numbers += [format_mean([row[split] for row in runs]) for split in ("validation", "test")]
            lines.append([TITLES[model], f"{setting[2]:,}", *numbers, f"{statistics.median(speeds):.2f}"])
    header = ["last layer", "subwords", "parameters", "rate", "seeds", "validation", "test", "steps per second"]
    return table(header, lines)


def rate_table(rows: Sequence[Row]) -> str:
    """Write bits per byte on validation at every rate, with the first seed."""
    rates, lines = sorted({row["rate"] for row in rows}), []
    for setting, model in product(find_settings(rows), TITLES):
        found = {r["rate"]: r["validation"] for r in find_runs(rows, [*setting, model]) if r["seed"] == 0}
        if found:
            cells = [f"{found[rate]:.3f}" if rate in found else "–" for rate in rates]
            lines.append([TITLES[model], f"{setting[2]:,}", *cells])
    return table(["last layer", "subwords", *(f"{rate:g}" for rate in rates)], lines)


def compare_costs(costs: Sequence[Row]) -> Iterator[tuple[Row, float, float]]:
    """Yield measurements with time and memory as multiples of the softmax layer's, which is not formed in chunks."""
    for row in costs:
        same = [r for r in costs if all(r[name] == row[name] for name in ("preset", "subwords", "device"))]
        rival = next((r for r in same if r["model"] == "softmax"), None)
        if rival is not None:
            yield row, row["milliseconds"] / rival["milliseconds"], row["mib"] / rival["mib"]


def cost_table(costs: Sequence[Row]) -> str:
    """Write time and memory of a training step, as multiples of the softmax layer's too."""
    order, lines = list(TITLES), []
    for row, time, memory in compare_costs(
        sorted(costs, key=lambda r: (r["preset"], r["device"], r["subwords"], order.index(r["model"]), r["chunk"]))
    ):
        numbers = [f"{row['milliseconds']:,.0f}", f"{row['mib']:,.0f}", f"{time:.1f}", f"{memory:.1f}"]
        chunk = str(row["chunk"]) if row["chunk"] and row["model"] in ROUTED else "all"
        lines.append([TITLES[row["model"]], f"{row['subwords']:,}", row["device"], chunk, *numbers])
    header = ["last layer", "subwords", "on", "positions at once", "ms", "MiB", "ms, softmax = 1", "MiB, softmax = 1"]
    return table(header, lines)


def check_bars(costs: Sequence[Row]) -> Iterator[str]:
    """Yield in words whether routed layers reach the bars for speed and memory, which are those of a GPU."""
    for row, time, memory in compare_costs([row for row in costs if row["device"] == "cuda"]):
        if row["model"] in ROUTED and row["subwords"] == max(r["subwords"] for r in costs):
            reached = "reached" if time <= 1 / SPEED and memory <= MEMORY else "missed"
            words = f"{1 / time:.2f} of the speed, {memory:.2f} times the memory of a softmax layer"
            yield f"{TITLES[row['model']]}, {row['subwords']:,} subwords: {words}; bars {reached}"


def bar_list(costs: Sequence[Row]) -> str:
    return "\n".join(f"- {line}." for line in check_bars(costs)) or "- Nothing was measured on a GPU yet."


TABLES: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "bits": ("runs", bits_table),
    "rates": ("runs", rate_table),
    "costs": ("costs", cost_table),
    "bars": ("costs", bar_list),
}
"""The file of each table, and what writes it."""


def write_report(check: bool = False) -> list[str]:
    """Write the tables of the page, or say what is out of date."""
    costs = read_rows("costs")
    old = new = PAGE.read_text()
    for name, (source, write) in TABLES.items():
        new = insert(new, f"{name} table", write(read_rows(source)))
    if check:
        return [] if new == old else [f"{PAGE.name}: tables out of date, run python benchmarks/lm.py --report"]
    PAGE.write_text(new)
    return list(check_bars(costs))
