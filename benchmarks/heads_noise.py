"""Compares heads that are regularised alike: `python benchmarks/heads_noise.py`.

On SST `RoutingHead` learns faster than attention pooling and then overfits, and on patches of digits it ends lower.
Does a regulariser close the gap, if all heads have it? The protocol was written before the first run.

- **Regulariser**: in training, each feature that a head gets is multiplied by a random factor of mean 1, the same at
  all places of a sample, as `capsroute train texts` does with an encoder. Deviation 0, 0.3 or 0.6.
- **Tasks, heads**: those of `benchmarks/heads.py` on which `RoutingHead` misses what was asked of it: patches, SST-5
  and SST-2; attention pooling, max pooling and `RoutingHead`, each as it is there. Everything else is as there.
- **Choice**: rate and deviation with the highest mean accuracy on validation over seeds 0 and 1, of twelve for each
  head; of equal ones the least deviation, then the lowest rate. Five seeds there, which read the test split once. Rows
  without noise are those of `results/heads/runs.csv`.
- **Success**: `RoutingHead` is not below attention pooling by more than one standard error on any of the three, and
  better on both of SST, on validation as on test.

Every run is a row of `results/heads/noise.csv`; those that are there are not trained again. `--report` and `--check`
read that file alone.
"""

import argparse
import json
import os
import statistics
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

from heads import FIRST_SEEDS, RATES, SEEDS, Model, accuracy, train
from heads import read_table as read_rows_without_noise
from heads_report import FOLDER, HEADS, PAGE, format_difference, format_mean, read_csv, table, write_csv
from heads_tasks import TASKS as ALL_TASKS
from heads_tasks import load_splits
from report import insert

TASKS, COMPARED, NOISES = ("patches", "sst5", "sst2"), ("attention", "max", "routing"), (0.0, 0.3, 0.6)
WORK, FILE = Path("runs/heads"), FOLDER / "noise.csv"
KEY = ("task", "head", "rate", "noise", "seed")

Row = dict[str, Any]


def read_rows() -> list[Row]:
    """Return a row for every run, with and without noise."""
    rows = [{"noise": 0.0} | row for row in read_rows_without_noise() if row["head"] in COMPARED]
    rows = [row for row in rows if row["task"] in TASKS]
    if FILE.exists():
        words = ("task", "head")
        rows += [{k: v if k in words else json.loads(v) for k, v in row.items() if v} for row in read_csv(FILE)]
    return rows


def find_validation(rows: list[Row], task: str, head: str) -> dict[tuple[float, float], float]:
    """Return mean accuracy on validation over the first seeds by deviation and rate, where all of these are trained."""
    found: dict[tuple[float, float], dict[int, float]] = {}
    for row in rows:
        if (row["task"], row["head"]) == (task, head) and row["seed"] in FIRST_SEEDS:
            found.setdefault((row["noise"], row["rate"]), {})[row["seed"]] = row["validation_all"]
    return {setting: statistics.mean(own.values()) for setting, own in found.items() if len(own) == len(FIRST_SEEDS)}


def choose_setting(rows: list[Row], task: str, head: str) -> tuple[float, float]:
    """Return deviation and rate of the highest accuracy on validation; of equal ones the lowest."""
    found = find_validation(rows, task, head)
    return max(found, key=lambda setting: (found[setting], -setting[0], -setting[1]))


def find_final(rows: list[Row], task: str, head: str) -> list[Row]:
    """Return the tested runs of a head at the chosen setting."""
    noise, rate = choose_setting(rows, task, head)
    own = [r for r in rows if (r["task"], r["head"], r["noise"], r["rate"]) == (task, head, noise, rate)]
    return [row for row in own if "test_all" in row]


def run_all(data: Path) -> None:
    """Train what is missing, then test the chosen settings; rows are written after every run."""
    for task in TASKS:
        splits = load_splits(task, data, WORK / "data")
        for head in COMPARED:
            for noise, rate, seed in product(NOISES[1:], RATES, FIRST_SEEDS):
                run_one(task, head, rate, noise, seed, splits)
            noise, rate = choose_setting(read_rows(), task, head)
            for seed in SEEDS if noise else ():
                run_one(task, head, rate, noise, seed, splits, test=True)


def run_one(task: str, head: str, rate: float, noise: float, seed: int, splits: list, *, test: bool = False) -> None:
    """Train a head, unless its row is there, and with `test` read the test split with it."""
    rows = {tuple(row[name] for name in KEY): row for row in read_rows() if row["noise"]}
    row = rows.get((task, head, rate, noise, seed), {})
    if row and (not test or "test_all" in row):
        return
    start = time.perf_counter()
    found, weights = train(task, head, rate, seed, splits, noise)
    row = dict(zip(KEY, (task, head, rate, noise, seed), strict=True)) | found
    row["seconds"] = round(time.perf_counter() - start, 2)
    if test:
        model = Model(ALL_TASKS[task], splits[0].x[:1].float(), head)
        for moment, values in weights.items():
            model.load_state_dict(values)
            row[f"test_{moment}"] = accuracy(model, splits[2])
    rows[task, head, rate, noise, seed] = row
    write_csv(FILE, list(rows.values()))
    print(*(row[name] for name in KEY), f"{row['validation_all']:.4f}", flush=True)


def noise_table(rows: list[Row]) -> str:
    """Write test accuracy of every head with and without the regulariser, and the differences of `RoutingHead`."""
    lines = []
    for task in TASKS:
        final = {head: percent(find_final(rows, task, head), "test_all") for head in COMPARED}
        validation = {head: percent(find_final(rows, task, head), "validation_all") for head in COMPARED}
        chosen = [f"{choose_setting(rows, task, head)[0]:g}" for head in COMPARED]
        cells = [f"{format_mean(final[head])} ({noise})" for head, noise in zip(COMPARED, chosen, strict=True)]
        differences = [format_difference(own["routing"], own["attention"]) for own in (validation, final)]
        lines.append([ALL_TASKS[task].title, *cells, *differences])
    header = [*(HEADS[head][0] for head in COMPARED), "validation", "test"]
    return table(["task", *header], lines)


def percent(rows: list[Row], name: str) -> list[float]:
    return [100 * row[name] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("CAPSROUTE_DATA", "data"))
    parser.add_argument("--report", action="store_true", help="write the table, and train nothing")
    parser.add_argument("--check", action="store_true", help="compare the table with the runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not (options.report or options.check):
        run_all(options.data)
    old = PAGE.read_text()
    new = insert(old, "noise table", noise_table(read_rows()))
    if options.check and new != old:
        sys.exit(f"{PAGE.name}: table out of date, run python benchmarks/heads_noise.py --report")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
