"""Compares heads over frozen encoders of text: `python benchmarks/texts.py`.

Does routing all layers of a frozen encoder help, with a real encoder? The protocol was written before the first run.

- **Encoders**: all-MiniLM-L6-v2, 7 hidden states of 384, and all-mpnet-base-v2, 13 of 768, both frozen. They run under
  autocast to bfloat16, and states, standardised by training texts, are stored as bfloat16: on 96 sentences each is off
  by less than a hundredth of a standard deviation.
- **Tasks**: SST-5/R and SST-2/R, trained on **root sentences alone**, 8,544 and 6,920; three tasks of
  `texts_tasks.py`, with sentences of packages of PyPI; and, added later, SST trained on **all phrases** as in the
  paper, 159,274 and 77,616, each text once.
- **Heads**: a linear probe of the mean over tokens, for every depth; mean pooling, attention pooling and `RoutingHead`
  at the best depth, which is the one whose probe has the highest validation accuracy; the same three over depths, which
  are kinds for `RoutingHead`, and routing as in the paper. **Over depths means four**: of every second depth those with
  the best probes on validation, 0, 2, 4, 6 of MiniLM and 6, 8, 10, 12 of mpnet. There `RoutingHead` has 16 parts for
  each depth, and 64, its default, at one depth. Rivals are those of `heads_models.py`, as wide as gives them as many
  parameters within a tenth.
- **Training**: AdamW with PyTorch's defaults, batches of 32, two epochs and at least 200 steps, the rate falling
  linearly to zero. The product of states and the first layer is in bfloat16 for all heads. A seed gives the initial
  weights and the order of texts, which is the same for all heads.
- **Rates**: 5e-4 and 2e-3, chosen by mean accuracy on validation over seeds 0 and 1; five seeds at the chosen rate.
  These runs alone are tested, once.
- **Cuts for lack of machine time**, made while runs were under way and before any test data were read: seven depths to
  four, as above; 2e-3 alone (`--rates` takes more), after it was better on validation in each of the first four
  settings, both heads on SST-5/R with MiniLM and on SST-2/R with mpnet. `results/texts/README.md` lists the cells that
  this left empty, and where both rates were tried.
- **Fewer labels**: 100, 300, 1,000 and 3,000 root sentences, five subsets, seeds 0 to 4, the same for all heads; probe,
  attention pooling and `RoutingHead`, at the depth and the rate chosen with all sentences. Validation has all of its
  sentences, which chose depth and rate.
- **Groups**: test accuracy by number of words, and for sentences with a negation and with a contrast.
- **Depths**: credit of each depth for the predicted class, less its mean credit for the other classes, over test texts.

- **All phrases**: written after the rest was tested and before the first run on phrases. Nothing is chosen anew: three
  epochs as in the paper, everything else as with root sentences, the same depths (the best one is that of the probes of
  root sentences), both rates. Cut to MiniLM, and to what validation preferred on root sentences: over depths on
  SST-2/R; at one depth on SST-5/R, there for attention pooling over depths, too, before any run on phrases had ended.
  Cut to three seeds after the first one had, as a run took 200 seconds.

Bars for `RoutingHead`, at the best depth or over depths as validation has it: with mpnet 91.5% on SST-2/R and 52% on
SST-5/R and not below attention pooling, so chosen, by more than one standard error; with MiniLM 87.2 and 48.7. On all
phrases the same, and with MiniLM better than attention pooling on validation and test.

Every run is a row of `results/texts/runs.csv`; those that are there are not trained again, and several processes may
share them. `--report` makes tables and pictures from the files there alone. SST, the encoders and packages once
downloaded are read from the folder `CAPSROUTE_DATA`: `sst/trees`, `minilm`, `mpnet`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heads_models import count
from records import describe_run, write_json
from texts_heads import Data, Probes, find_credit, load_data, make_model, predict, train_head, train_probes
from texts_report import (
    FIRST_SEEDS,
    FOLDER,
    HEADS,
    RATES,
    SEEDS,
    SIZES,
    Row,
    choose_depth,
    choose_rate,
    find_runs,
    read_rows,
    write_report,
    write_rows,
)
from texts_tasks import TASKS, find_groups

ENCODERS = {"minilm": (0, 2, 4, 6), "mpnet": (6, 8, 10, 12)}  # depths of heads over depths
FEW_LABELS = ("attention", "routing")
WORK, STORED = Path("runs/texts"), ("runs", "tests")


class Run(NamedTuple):
    """What is trained."""

    task: str
    encoder: str
    head: str
    where: str  # "best" depth, "all" depths, or the depth of a probe
    size: int  # training texts, 0 for all
    rate: float
    seed: int

    def path(self, stage: str, suffix: str) -> Path:
        return WORK / stage / ("-".join(str(value) for value in self) + suffix)


def read_runs() -> list[Row]:
    """Return a row for every run: those that are stored, and those trained and tested since."""
    found: dict[tuple[Any, ...], Row] = {}
    fresh = (json.loads(path.read_text()) for stage in STORED for path in sorted((WORK / stage).glob("*.json")))
    for row in (*read_rows("runs"), *fresh):
        key = tuple(row[name] for name in Run._fields)
        found[key] = found.get(key, {}) | row
    return list(found.values())


def is_kept(row: Row) -> bool:
    """Say whether a run is tested, or can be, for its weights are here."""
    return "test" in row or Run(*(row[name] for name in Run._fields)).path("weights", ".pt").exists()


def train(run: Run, data: Data, depths: Sequence[int]) -> None:
    """Train a head and store its weights and its accuracy on validation."""
    start = time.perf_counter()
    torch.manual_seed(run.seed)
    model = make_model(run.head, run.where, data.states.flat.shape[2], len(data.classes), len(depths))
    train_head(model, data, depths, run.size, run.rate, run.seed)
    found = predict(model, data, "validation", depths)
    store(run, depths, data.accuracy(found, "validation"), model, start)


def train_all_probes(run: Run, data: Data, means: Tensor) -> None:
    """Train the probes of all depths, and store them like heads."""
    start = time.perf_counter()
    torch.manual_seed(run.seed)
    probes, rows = train_probes(means, data, run.size, run.rate, run.seed), data.rows["validation"]
    for depth in range(means.shape[1]):
        found = means[rows, depth] @ probes.weight[depth] + probes.bias[depth]
        own = Probes(1, means.shape[2], len(data.classes))
        own.load_state_dict({name: value[depth : depth + 1] for name, value in probes.state_dict().items()})
        validation = data.accuracy(found.argmax(-1), "validation")
        store(run._replace(where=str(depth)), [depth], validation, own, start)


def store(run: Run, depths: Sequence[int], validation: float, model: nn.Module, start: float) -> None:
    numbers = {"depths": " ".join(map(str, depths)), "parameters": count(model), "validation": validation}
    row = run._asdict() | numbers | {"seconds": round(time.perf_counter() - start, 2)}
    torch.save(model.state_dict(), run.path("weights", ".pt"))
    run.path("runs", ".json").write_text(json.dumps(row))
    if run.head != "probe":
        print(*run, f"{validation:.4f}", f"{row['seconds']:.0f} s", flush=True)


def load(task: str, encoder: str, folder: Path) -> Data:
    """Return a task's texts and their states; of all phrases, only at the depths that heads read."""
    depths = None
    if TASKS[task].depths_of:
        sharing = [name for name in TASKS if TASKS[name].states == TASKS[task].states]
        depths = sorted({*ENCODERS[encoder], *(choose_depth(read_runs(), name, encoder) for name in sharing)})
    return load_data(task, encoder, folder, WORK / "states", depths)


def train_all(task: str, encoder: str, options: argparse.Namespace) -> None:
    """Train what is missing for a task and an encoder, probes first."""
    data = load(task, encoder, options.data)
    most = 1 if TASKS[task].depths_of else len(data.rows["train"])  # few labels are for root sentences alone
    sizes = [size for size in options.sizes if size < most]
    done = {tuple(row[name] for name in Run._fields) for row in read_runs() if row["size"] == 0 or is_kept(row)}
    settings = product(sizes, options.rates, SEEDS)  # cheap, so that all seeds have all rates
    probes = [run for run in (Run(task, encoder, "probe", "0", *own) for own in settings) if run not in done]
    probes = [] if TASKS[task].depths_of else probes
    means = data.states.means(torch.arange(len(data.y))) if probes else torch.empty(0)
    for run in probes:
        train_all_probes(run, data, means)
    del means
    depths = {"best": [choose_depth(read_runs(), task, encoder)], "all": ENCODERS[encoder]}
    for size, where, head, _ in product(sizes, options.where, options.heads, range(2)):
        if (head, where) == ("paper", "best") or (size and head not in FEW_LABELS):
            continue
        for rate, seed in wanted_runs(read_runs(), options.rates, task, encoder, head, where, size):
            run = Run(task, encoder, head, where, size, rate, seed)
            if not run.path("runs", ".json").exists():  # trained by another process in the meantime
                train(run, data, depths[where])


def wanted_runs(rows: list[Row], rates: Sequence[float], *setting: Any) -> list[tuple[float, int]]:
    """Return rates and seeds that are not there yet: first those from which the rate is chosen.

    The setting is a task, an encoder, a head, where it is, and the number of training texts.
    """
    *others, size = setting
    found = find_runs(rows, *others)
    first = [run for run in product(rates, FIRST_SEEDS) if run not in {(r["rate"], r["seed"]) for r in found}]
    if first:
        return [] if size else first
    done = {(r["rate"], r["seed"]) for r in find_runs(rows, *setting) if is_kept(r)}
    seeds = range(TASKS[others[0]].n_seeds)
    return [run for run in product([choose_rate(found)], seeds) if run not in done]


@torch.no_grad()
def test_all(task: str, encoder: str, options: argparse.Namespace) -> None:
    """Read the test split with all runs at a chosen rate, of settings that have all their runs."""
    data, rows = load(task, encoder, options.data), read_runs()
    means, texts = data.states.means(data.rows["test"]), TASKS[task].load(options.data).text
    groups = find_groups([texts[k] for k in data.rows["test"].tolist()])
    for row in rows:
        run = Run(*(row[name] for name in Run._fields))
        setting = run[:4]
        if setting[:2] != (task, encoder) or "test" in row or wanted_runs(rows, options.rates, *setting, 0):
            continue
        if run.rate != choose_rate(find_runs(rows, *setting)) or wanted_runs(rows, options.rates, *setting, run.size):
            continue
        depths, weights = [int(depth) for depth in row["depths"].split()], torch.load(run.path("weights", ".pt"))
        if run.head == "probe":
            model = Probes(1, means.shape[2], len(data.classes))
            model.load_state_dict(weights)
            found = model(means[:, depths])[:, 0].argmax(-1)
        else:
            model = make_model(run.head, run.where, means.shape[2], len(data.classes), len(depths))
            model.load_state_dict(weights)
            found = predict(model, data, "test", depths)
        tested: Row = run._asdict() | {"test": data.accuracy(found, "test")}
        if run.size == 0 and run.head != "probe":
            right = found == data.y[data.rows["test"]]
            tested |= {f"test_{name}": right[rows].double().mean().item() for name, rows in groups.items()}
        if (run.head, run.where, run.size) == ("routing", "all", 0):
            tested["credit"] = find_credit(model, data, depths).tolist()  # [j, k]
        run.path("tests", ".json").write_text(json.dumps(tested))


def collect() -> None:
    """Write the rows of all runs, and credit, as files of their own."""
    rows, order = read_runs(), {name: k for k, name in enumerate([*TASKS, *ENCODERS, "probe", *HEADS])}
    rows.sort(key=lambda r: [order.get(r[name], r[name]) for name in Run._fields if name != "where"])
    fresh = {(row["task"], row["encoder"], row["seed"]) for row in rows if "credit" in row}
    shares = [row for row in read_rows("credit") if (row["task"], row["encoder"], row["seed"]) not in fresh]
    for row in rows:
        depths = [int(depth) for depth in str(row["depths"]).split()]
        for name, values in zip(TASKS[row["task"]].classes, row.pop("credit", []), strict=False):
            own = {"task": row["task"], "encoder": row["encoder"], "seed": row["seed"], "class": name}
            shares += [own | {"depth": depth, "credit": value} for depth, value in zip(depths, values, strict=True)]
    write_rows(rows, "runs")
    if shares:
        write_rows(shares, "credit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = {"tasks": list(TASKS), "encoders": list(ENCODERS), "heads": list(HEADS), "where": ["best", "all"]}
    for name, values in choices.items():
        parser.add_argument(f"--{name}", nargs="+", default=values, choices=values)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, choices=SIZES)
    parser.add_argument("--rates", nargs="+", type=float, default=RATES[-1:], choices=RATES)
    parser.add_argument("--data", type=Path, default=os.environ.get("CAPSROUTE_DATA", "data"))
    for stage, words in STAGES.items():
        parser.add_argument(f"--{stage}", action="store_true", help=f"{words}, and only what else is asked for")
    options = parser.parse_args()
    wanted = [stage for stage in STAGES if getattr(options, stage)] or [stage for stage in STAGES if stage != "check"]
    torch.set_num_threads(1)
    for name in ("runs", "tests", "weights"):
        (WORK / name).mkdir(parents=True, exist_ok=True)
    for stage, do in {"train": train_all, "test": test_all}.items():
        for task, encoder in product(options.tasks, options.encoders) if stage in wanted else ():
            do(task, encoder, options)
    if "test" in wanted:
        collect()
        write_json(describe_run("cpu", 0, None), FOLDER / "record.json")
    if "report" in wanted or "check" in wanted:
        messages = write_report(check="check" in wanted)
        if messages and "check" in wanted:
            sys.exit("\n".join(messages))
        print("\n".join(messages))


STAGES = {
    "train": "train what is missing",
    "test": "read test data",
    "report": "write tables and pictures",
    "check": "compare the tables with the runs",
}

if __name__ == "__main__":
    main()
