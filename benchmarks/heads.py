"""Compares heads with equal numbers of parameters on seven tasks, and SST-2: `python benchmarks/heads.py`.

The protocol was written before the first run, and cut for lack of machine time while they ran: to two heads at fixed
rates, and to some tasks for the slower rivals.

- **Heads** are those of `heads_models.py`: within a tenth as many parameters as `RoutingHead` with its defaults has.
- **Tasks** are those of `heads_tasks.py`. Trunks are frozen, or three small convolutions trained with the head.
- **Training**: AdamW with PyTorch's defaults, a constant rate, no groups, no clipping, batches of 32. A seed gives the
  initial weights and the order of samples, which is the same for all heads.
- **Rates**: 3e-4, 1e-3, 3e-3 and 1e-2 for every head and task. The one whose mean accuracy over seeds 0 and 1 is the
  highest on validation after all steps is chosen. There are five seeds at the chosen rate and, for `RoutingHead` and
  attention pooling, at 1e-3 and at 3e-3.
- **Accuracy** is measured after 100 and 300 steps and at the end, on validation. Weights of these moments are kept, and
  read the test split once all runs of the head on the task are done. Test data choose nothing.
- **Robustness**: at the end, test samples without 30% of their places, and test samples with as many places of another
  sample in addition.
- **Time** of a training step of trunk and head is the median of 20, heads in turn in one process, on one core; on two
  for the head alone on 200 tokens of 384 features.

Every run is a row of `results/heads/runs.csv`; those that are there are not trained again. Several processes may share
them: `--tasks` and `--heads` name what one of them does. `--report` makes tables and the picture from the file alone.
SST and MiniLM are read from the folder `CAPSROUTE_DATA`: `sst/trees`, and the encoder as `minilm`.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heads_models import HEADS, count, make_head
from heads_report import FOLDER, RUNS, read_csv, write_csv, write_report
from heads_tasks import TASKS, Convolutions, Split, Task, load_splits
from records import describe_run, write_json

RATES, FIXED = (3e-4, 1e-3, 3e-3, 1e-2), (1e-3, 3e-3)
FIXED_FOR = ("routing", "attention")
SEEDS, FIRST_SEEDS = range(5), range(2)
BATCH = 32
MOMENTS = (100, 300)  # steps after which accuracy is measured, besides the last one
SHARE = 0.3  # of the places of a test sample that are removed, or added from another sample
WORK, STORED = Path("runs/heads"), ("runs", "tests")  # data, and weights and rows of single runs


class Model(nn.Module):
    """A trunk and a head."""

    def __init__(self, task: Task, example: Tensor, head: str):
        super().__init__()
        self.trunk = Convolutions(task.n_channels) if task.n_channels else nn.Identity()
        d = self.trunk(example).shape[-1]
        self.head = make_head(head, d, task.n_classes, task.n_kinds)

    def forward(self, x: Tensor, mask: Tensor, noise: float = 0.0) -> Tensor:
        """Return class scores; with noise each feature of a sample is multiplied by a factor of that deviation."""
        x = self.trunk(x)
        if noise:
            x = x * (1 + noise * torch.randn_like(x[..., :1, :]))
        return self.head(x, mask)


def train(
    name: str, head: str, rate: float, seed: int, splits: list[Split], noise: float = 0.0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the numbers of one run, and the weights after each of the steps at which accuracy is measured."""
    task, (training, validation, _) = TASKS[name], splits
    torch.manual_seed(seed)
    model = Model(task, training.x[:1].float(), head)
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    row: dict[str, Any] = {"task": name, "head": head, "rate": rate, "seed": seed, "parameters": count(model.head)}
    weights, left = {}, torch.empty(0, dtype=torch.long)
    for step in range(1, task.n_steps + 1):
        if len(left) < BATCH:
            left = torch.randperm(len(training.y), generator=order)
        rows, left = left[:BATCH], left[BATCH:]
        x, mask = batch(training, rows)
        optimizer.zero_grad()
        cross_entropy(model(x, mask, noise), training.y[rows]).backward()
        optimizer.step()
        if step in (*MOMENTS, task.n_steps):
            moment = "all" if step == task.n_steps else step
            row[f"validation_{moment}"] = accuracy(model, validation)
            weights[str(moment)] = {key: t.clone() for key, t in model.state_dict().items()}
    return row, weights


def batch(split: Split, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and mask of some samples, without the padding that none of them needs."""
    x, mask = split.x[rows], split.mask[rows]
    if x.shape[-2] == mask.shape[1]:  # places, not pixels
        n = int(mask.sum(1).max())
        if bool(mask[:, :n].sum() == mask.sum()):
            x, mask = x[..., :n, :], mask[:, :n]
    return x.float(), mask


@torch.no_grad()
def accuracy(model: Model, split: Split, removed: bool = False, stray: bool = False) -> float:
    """Return the share of samples whose class is found, with places removed at random, or those of the next added."""
    right, random = 0, torch.Generator().manual_seed(0)
    for rows in torch.arange(len(split.y)).split(250):
        x, mask = batch(split, rows)
        x = model.trunk(x)
        if removed:
            mask = mask & (torch.rand(mask.shape, generator=random) >= SHARE)
        if stray:
            others = mask.roll(1, 0) & (torch.rand(mask.shape, generator=random) < SHARE)
            x, mask = torch.cat([x, x.roll(1, 0)], -2), torch.cat([mask, others], -1)
        right += int((model.head(x, mask).argmax(-1) == split.y[rows]).sum())
    return right / len(split.y)


def choose_rate(rows: list[dict[str, Any]], name: str, head: str) -> float:
    """Return the rate of the highest mean accuracy on validation over the first seeds; of equal ones the lowest."""

    def mean(rate: float) -> float:
        found = [r for r in rows if (r["task"], r["head"], r["rate"]) == (name, head, rate)]
        return statistics.mean(float(r["validation_all"]) for r in found if r["seed"] in FIRST_SEEDS)

    return max(RATES, key=lambda rate: (mean(rate), -rate))


def wanted_runs(rows: list[dict[str, Any]], name: str, head: str) -> Iterator[tuple[float, int]]:
    """Yield rates and seeds that are not there yet: first those from which the rate is chosen."""
    done = {(r["rate"], r["seed"]): "test_all" in r for r in rows if (r["task"], r["head"]) == (name, head)}
    first = [run for run in product(RATES, FIRST_SEEDS) if run not in done]
    yield from first
    for run in () if first else product(final_rates(rows, name, head), SEEDS):
        if not done.get(run) and not Path(f"{locate_run(name, head, *run)}.pt").exists():
            yield run  # rows that are stored without test accuracy are of no use for the test without their weights


def locate_run(name: str, head: str, rate: float, seed: int) -> Path:
    """Return the path of a run's row and weights, without `.json` and `.pt`."""
    return WORK / "runs" / f"{name}-{head}-{rate:g}-{seed}"


def final_rates(rows: list[dict[str, Any]], name: str, head: str) -> list[float]:
    """Return the rates at which all seeds are trained and tested."""
    return sorted({choose_rate(rows, name, head), *(FIXED if head in FIXED_FOR else ())})


def run_all(names: list[str], heads: list[str], data: Path) -> None:
    """Train what is missing, a task at a time, and store each run."""
    (WORK / "runs").mkdir(parents=True, exist_ok=True)
    for name in names:
        splits = load_splits(name, data, WORK / "data")
        for head, _ in product(heads, range(2)):
            for rate, seed in list(wanted_runs(read_runs(), name, head)):
                path = locate_run(name, head, rate, seed)
                if Path(f"{path}.json").exists():  # by another process, in the meantime
                    continue
                start = time.perf_counter()
                row, weights = train(name, head, rate, seed, splits)
                row["seconds"] = round(time.perf_counter() - start, 2)
                torch.save(weights, f"{path}.pt")
                Path(f"{path}.json").write_text(json.dumps(row))
                print(name, head, f"{rate:g}", seed, [f"{row[k]:.3f}" for k in row if k[:5] == "valid"], flush=True)


def read_runs() -> list[dict[str, Any]]:
    """Return a row for every run: those that are stored, with test accuracy, and those trained and tested since."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    trained = (json.loads(path.read_text()) for stage in STORED for path in sorted((WORK / stage).glob("*.json")))
    for row in (*read_table(), *trained):
        key = tuple(row[name] for name in ("task", "head", "rate", "seed"))
        found[key] = found.get(key, {}) | row
    return list(found.values())


def read_table() -> list[dict[str, Any]]:
    """Return the stored rows with numbers for text."""
    words = ("task", "head")
    return [{k: v if k in words else json.loads(v.lower()) for k, v in r.items() if v} for r in read_csv(RUNS)]


def test_all(names: list[str], heads: list[str], data: Path) -> None:
    """Read the test split with the weights of every run at a final rate, where all of these are trained."""
    (WORK / "tests").mkdir(exist_ok=True)
    rows = read_runs()
    for name in names:
        splits = load_splits(name, data, WORK / "data")
        for head in (head for head in heads if not list(wanted_runs(rows, name, head))):
            rates = final_rates(rows, name, head)
            for row in (r for r in rows if (r["task"], r["head"]) == (name, head) and r["rate"] in rates):
                if "test_all" in row:
                    continue
                path = locate_run(name, head, row["rate"], row["seed"])
                model = Model(TASKS[name], splits[0].x[:1].float(), head)
                found = {key: row[key] for key in ("task", "head", "rate", "seed")}
                for moment, weights in torch.load(f"{path}.pt").items():
                    model.load_state_dict(weights)
                    found[f"test_{moment}"] = accuracy(model, splits[2])
                found["test_removed"] = accuracy(model, splits[2], removed=True)
                found["test_stray"] = accuracy(model, splits[2], stray=True)
                (WORK / "tests" / f"{path.name}.json").write_text(json.dumps(found))


def measure_times(names: list[str], data: Path, n_repeats: int = 20) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of a training step, for each task and head."""
    found = {}
    for name in [*names, "tokens"]:
        torch.set_num_threads(2 if name == "tokens" else 1)
        if name == "tokens":  # 200 of 384 features
            task, x = Task(name, name, 5, load=lambda _: [], n_steps=0), torch.randn(BATCH, 200, 384)
            mask, y = torch.ones(BATCH, 200, dtype=torch.bool), torch.randint(5, (BATCH,))
        else:
            task, training = TASKS[name], load_splits(name, data, WORK / "data")[0]
            (x, mask), y = batch(training, torch.arange(BATCH)), training.y[:BATCH]
        models = {head: Model(task, x, head) for head in HEADS}
        optimizers = {head: torch.optim.AdamW(model.parameters(), fused=True) for head, model in models.items()}
        times: dict[str, list[float]] = {head: [] for head in HEADS}
        for _ in range(n_repeats):
            for head, model in models.items():
                start = time.perf_counter()
                optimizers[head].zero_grad()
                cross_entropy(model(x, mask), y).backward()
                optimizers[head].step()
                times[head].append(1e3 * (time.perf_counter() - start))
        found[name] = {head: round(statistics.median(values), 3) for head, values in times.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="TASK")
    parser.add_argument("--heads", nargs="+", default=list(HEADS), choices=list(HEADS), metavar="HEAD")
    parser.add_argument("--data", type=Path, default=os.environ.get("CAPSROUTE_DATA", "data"))
    for stage, words in STAGES.items():
        parser.add_argument(f"--{stage}", action="store_true", help=f"{words}, and only what else is asked for")
    options = parser.parse_args()
    wanted = [stage for stage in STAGES if getattr(options, stage)] or [stage for stage in STAGES if stage != "check"]
    torch.set_num_threads(1)
    if "train" in wanted:
        run_all(options.tasks, options.heads, options.data)
    if "test" in wanted:
        test_all(options.tasks, options.heads, options.data)
        collect_runs()
    if "times" in wanted:
        record = describe_run("cpu", 0, None) | {"milliseconds": measure_times(options.tasks, options.data)}
        write_json(record, FOLDER / "record.json")
    if "report" in wanted:
        print("\n".join(write_report()))
    if "check" in wanted and (wrong := write_report(check=True)):
        sys.exit("\n".join(wrong))


def collect_runs() -> None:
    """Write the rows of all runs as one file; those of earlier heads and of variants are never the chosen ones."""
    rows = read_runs()
    order = {name: k for k, name in enumerate([*TASKS, *HEADS])}
    for row in rows:
        chosen = row["head"] in HEADS and "test_all" in row
        row["chosen"] = chosen and row["rate"] == choose_rate(rows, row["task"], row["head"])
    rows.sort(key=lambda r: (order[r["task"]], order.get(r["head"], len(order)), r["head"], r["rate"], r["seed"]))
    write_csv(RUNS, rows)


STAGES = {
    "train": "train what is missing",
    "test": "read test data",
    "times": "measure times",
    "report": "write tables and the picture",
    "check": "compare the tables with the runs",
}

if __name__ == "__main__":
    main()
