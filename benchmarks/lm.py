"""Compares last layers of a small language model: `python benchmarks/lm.py`.

Does routing a token's depths, or slices of its state, to subwords predict as well as a softmax layer, and what does it
cost? And does routing each position's past help between blocks? The protocol was written before the first run.

- **Models** are those of `capsroute/lab/lm.py`, alike but for their last layer, with as many parameters within a tenth:
  a softmax layer; one tied to the embedding, with wider perceptrons; one over the states at all depths; routed depths,
  with two iterations and with one, in which agreement plays no part; routed slices; and a softmax layer with routing of
  the last 16 positions after half of the blocks.
- **Text**: enwik8, from a package of PyPI, or a file or folder of your own. Training, validation and test are the first
  90% of the bytes, the next 5% and the last 5%, or the start of each. Byte pairs are learned from the training range.
- **Training**: AdamW with betas 0.9 and 0.95, gradients clipped at a norm of 1, a linear start over a twentieth of the
  steps and half a cosine to zero. A seed gives the initial weights and the windows of text, which are the same for all
  models. Where the preset has a `chunk`, scores of routed layers are formed for so many positions at a time, and again
  in the backward pass.
- **Rates**: those of the preset for every model, the one with the fewest bits on validation for seed 0 is chosen; three
  seeds at the chosen rate. These runs alone are tested, once.
- **Bits per byte**: cross entropy of all subwords of a range, each scored once in windows one after the other, in bits,
  over the bytes of the range.
- **Speed**: steps per second after the first ten, in seconds of this process on a CPU, which others may share, and of
  the wall on a GPU. `--measure` takes time and memory of a step in a process for each model: the fastest of five, and
  the memory above weights and the optimizer's state.

`--preset tiny` is for one core; `--preset full`, 8 blocks of 384 and 20 million subwords of vocabularies of 8,192 and
30,000, is for one GPU: add `--device cuda --compile --bfloat16`. Bars on a GPU with 30,000 subwords: a third of the
speed and twice the memory of the softmax layer.

Every run is a row of `results/lm/runs.csv`; those that are there are not trained again. `--report` makes the tables
from the files there alone.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from lm_report import FOLDER, KEYS, TITLES, Row, choose_rate, find_runs, read_rows, write_report, write_rows
from lm_text import Text, load_text
from lm_train import MODELS, Machine, Preset, find_bits, measure_costs, place_model, train_model
from memory import ALLOCATOR
from records import describe_run, write_json

PRESETS = {
    "tiny": Preset(3, 96, 4, 64, 4, 500, (1024,), None, (4_000_000, 100_000, 100_000), (1e-3, 2e-3)),
    "full": Preset(8, 384, 6, 512, 16, 2441, (8192, 30_000), 256, None, (1e-3, 3e-3)),
}
SEEDS = (0, 1, 2)
WORK = Path("runs/lm")
COST_KEYS = ("preset", "subwords", "model", "device", "chunk")  # columns that name a measurement


def read_runs() -> list[Row]:
    """Return a row for every run: those that are stored, and those trained and tested since."""
    found: dict[tuple[Any, ...], Row] = {}
    fresh = (json.loads(path.read_text()) for stage in ("runs", "tests") for path in (WORK / stage).glob("*.json"))
    for row in (*read_rows("runs"), *fresh):
        key = tuple(row[name] for name in KEYS)
        found[key] = found.get(key, {}) | row
    return list(found.values())


def locate(key: tuple[Any, ...], stage: str, suffix: str = ".json") -> Path:
    path = WORK / stage / ("-".join(map(str, key)) + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def wanted_runs(rows: list[Row], setting: tuple[Any, ...], seeds: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the keys of runs that are not there yet: first those from which the rate is chosen."""
    rates, runs = PRESETS[setting[1]].rates, find_runs(rows, setting)
    done = {(row["rate"], row["seed"]): is_kept(row) for row in runs}
    first = [(*setting, rate, 0) for rate in rates if (rate, 0) not in done]
    rate = choose_rate(runs, rates)
    return first or [(*setting, rate, seed) for seed in seeds if not done.get((rate, seed))]


def is_kept(row: Row) -> bool:
    """Say whether a run is tested, or can be, for its weights are here."""
    return "test" in row or locate(tuple(row[name] for name in KEYS), "weights", ".pt").exists()


def train_all(setting: tuple[Any, ...], options: argparse.Namespace, machine: Machine) -> None:
    """Train what is missing of a text, a preset, a number of subwords and a model."""
    _, name, n_subwords, model_name = setting
    for _ in range(2):
        for key in wanted_runs(read_runs(), setting, options.seeds):
            if locate(key, "runs").exists() and locate(key, "weights", ".pt").exists():  # by another process
                continue
            texts, preset, start = find_text(options, n_subwords), PRESETS[name], time.perf_counter()
            if machine.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            model, speed = train_model(model_name, key[4], key[5], texts["train"], n_subwords, preset, machine)
            row = dict(zip(KEYS, key, strict=True))
            row |= {"parameters": sum(p.numel() for p in model.parameters()), "steps": preset.n_steps}
            row |= {"tokens": preset.n_steps * preset.batch * preset.length, "steps_per_second": speed}
            row["validation"] = find_bits(model, texts["validation"], n_subwords, preset, machine)
            row["seconds"] = round(time.perf_counter() - start, 1)
            if machine.device == "cuda":
                row["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
            row |= describe(machine)
            torch.save(model.state_dict(), locate(key, "weights", ".pt"))
            locate(key, "runs").write_text(json.dumps(row))
            print(*key, f"{row['validation']:.4f}, {row['seconds']:.0f} s", flush=True)


def describe(machine: Machine) -> Row:
    """Return the columns that tell where and by what a run was made."""
    record = describe_run(machine.device, 0, None)
    settings = {"device": machine.device, "compiled": int(machine.compiled), "bfloat16": int(machine.bfloat16)}
    return settings | {"torch": record["versions"]["torch"], "commit": record["commit"], "command": record["command"]}


def find_text(options: argparse.Namespace, n_subwords: int) -> dict[str, Text]:
    return load_text(options.text, options.data, WORK / "texts", n_subwords, PRESETS[options.preset].sizes)


def test_all(setting: tuple[Any, ...], options: argparse.Namespace, machine: Machine) -> None:
    """Read the test range with the runs at the chosen rate, once all of them are there."""
    _, name, n_subwords, model_name = setting
    rows, preset = read_runs(), PRESETS[name]
    runs = find_runs(rows, setting)
    if wanted_runs(rows, setting, options.seeds):
        return
    rate = choose_rate(runs, preset.rates)
    for row in (row for row in runs if row["rate"] == rate and "test" not in row):
        key = tuple(row[name] for name in KEYS)
        model = place_model(model_name, n_subwords, preset, machine)
        model.load_state_dict(torch.load(locate(key, "weights", ".pt"), map_location=machine.device))
        bits = find_bits(model, find_text(options, n_subwords)["test"], n_subwords, preset, machine)
        locate(key, "tests").write_text(json.dumps(dict(zip(KEYS, key, strict=True)) | {"test": bits}))


def measure_all(options: argparse.Namespace, machine: Machine) -> None:
    """Measure time and memory of a step of each model, each in a process of its own, and store them."""
    costs = {tuple(row[name] for name in COST_KEYS): row for row in read_rows("costs")}
    preset = PRESETS[options.preset]
    for n_subwords, model in product(options.subwords or preset.subwords, options.models):
        command = [sys.executable, __file__, "--one", model, "--subwords", str(n_subwords), "--preset", options.preset]
        command += ["--chunk", str(options.chunk)] if options.chunk else []
        command += ["--device", machine.device, *("--compile",) * machine.compiled, *("--bfloat16",) * machine.bfloat16]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | ALLOCATOR, check=True)
        key = (options.preset, n_subwords, model, machine.device, options.chunk or preset.chunk or 0)
        costs[key] = dict(zip(COST_KEYS, key, strict=True)) | json.loads(done.stdout) | describe(machine)
        print(*key, done.stdout.strip(), flush=True)
        write_rows(list(costs.values()), "costs")


def collect() -> None:
    """Write the rows of all runs as one file."""
    order = {name: k for k, name in enumerate([*PRESETS, *TITLES])}
    rows = sorted(read_runs(), key=lambda row: [order.get(row[name], row[name]) for name in KEYS])
    write_rows(rows, "runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--subwords", nargs="+", type=int, help="numbers of subwords, by default those of the preset")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--text", type=Path, help="a file or a folder of text in UTF-8, by default enwik8")
    parser.add_argument("--data", type=Path, default=os.environ.get("CAPSROUTE_DATA", "data"))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--compile", action="store_true", help="compile the last layer and the cross entropy")
    parser.add_argument("--bfloat16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--chunk", type=int, help="positions of routed scores at once, where a step is measured")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    for stage, words in STAGES.items():
        parser.add_argument(f"--{stage}", action="store_true", help=f"{words}, and only what else is asked for")
    options = parser.parse_args()
    wanted = [stage for stage in STAGES if getattr(options, stage)] or ["train", "test", "report"]
    machine = Machine(options.device, options.compile, options.bfloat16)
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")  # TensorFloat-32
    if options.one:
        preset = PRESETS[options.preset]
        preset = preset._replace(chunk=options.chunk or preset.chunk)
        print(json.dumps(measure_costs(options.one, options.subwords[0], preset, machine)))
        return
    if "measure" in wanted:
        measure_all(options, machine)
    text = options.text.name if options.text else "enwik8"
    settings = product([text], [options.preset], options.subwords or PRESETS[options.preset].subwords, options.models)
    for setting in settings:
        for stage, do in (("train", train_all), ("test", test_all)):
            if stage in wanted:
                do(setting, options, machine)
                collect()
    if "train" in wanted:
        write_json(describe_run(options.device, 0, None), FOLDER / "record.json")
    if "report" in wanted or "check" in wanted:
        messages = write_report(check="check" in wanted)
        if messages and "check" in wanted:
            sys.exit("\n".join(messages))
        print("\n".join(messages))


STAGES = {
    "train": "train what is missing",
    "test": "read the test range",
    "measure": "measure time and memory of a step",
    "report": "write tables",
    "check": "compare the tables with the runs",
}

if __name__ == "__main__":
    main()
