"""The paper's figures for a trained network, in a folder: pictures, and a file of the numbers behind them."""

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric

from ...pretrained import HOME
from ..analysis import poses
from ..atomic_files import write_atomically
from ..data import Pairs
from ..training.config import Config, SettingError
from ..training.environment import Machine, describe, version
from ..training.runs import RunFolder
from ..training.vision import Vision, VisionConfig
from . import gallery, paper

NAMES = {"smallnorb": "smallNORB", "sst5": "SST-5/R", "sst2": "SST-2/R", "toys96": "toys, 96x96", "toys": "toys, 48x48"}
KEPT = {"smallnorb": ("smallnorb", "sst5", "sst2"), "toys": ("toys96",)}
"""Where a checkout's `results/` has the logs of shipped weights and, as in the paper, of the other tasks."""
Bar = Callable[[str, int], Callable[[int], None]]


def draw_figures(
    what: str, weights: Path, config: Config, logs: Sequence[Path], out: Path, fabric: Fabric, note: str = ""
) -> list[Path]:
    """Draw every figure of a network's weights into a folder; `figures.json` there has their numbers and captions.

    Args:
        what: How the weights are called in the record.
        weights: Their folder.
        config: What they were trained by: it says which toys to look at.
        logs: Folders of runs whose curves to draw, or of several runs that differ in their seed.
        out: Where to.
        fabric: What computes.
        note: Words to keep in the record.
    """
    if not isinstance(config, VisionConfig):
        raise SettingError(f"{what}: expected a network that sees stereo pairs, got one that reads sentences")
    began, made = (time.monotonic(), time.process_time()), describe(Machine(), fabric.device, note)
    made |= {name: version(name) for name in ("matplotlib", "scikit-learn")}
    learned = [learning_of(folder) for folder in logs]
    task = Vision(config)
    network = task.restore(weights).to(fabric.device)
    with _bars() as bar:
        pairs = views(task, bar)
        mu, hit = poses.class_poses(network, pairs, bar(f"poses of {len(pairs.category):,} views", len(pairs.category)))
        facts = gallery.facts_of(pairs, mu, hit, learned)
        out.mkdir(parents=True, exist_ok=True)
        advance, paths = bar("drawing", 10), []
        for name, figure in gallery.drawn(pairs, mu, learned, facts):
            paths.append(out / f"{name}.png")
            write_atomically(paths[-1], paper.png(figure, grey=name == "samples"))
            advance(1)
    said = gallery.captions(facts)
    written = {
        "weights": what,
        "data": "test split of " + ("smallNORB" if config.data == "smallnorb" else f"toys of seed {config.toys_seed}"),
        **facts,
        "figures": {path.stem: said[path.stem] for path in paths},
        "made": made | _spent(began),
    }
    paths.append(out / "figures.json")
    write_atomically(paths[-1], (json.dumps(written, indent=2, ensure_ascii=False) + "\n").encode())
    return paths


def logs_of(what: str) -> list[Path]:
    """The logs that belong to weights: those of the run, of all its seeds, or of shipped weights in a checkout."""
    run = Path(what)
    if (run / "run.json").exists():
        return [run.parent if (run.parent / "replicate.json").exists() else run]
    return [folder for name in KEPT.get(what, ()) if (folder := HOME.parents[1] / "results" / name).is_dir()]


def views(task: Vision, bar: Bar) -> Pairs:
    """The test pairs that the figures need; of toys no others are rendered."""
    config = task.config
    if config.data == "smallnorb":
        pairs = task.pairs("test")
        return pairs.take(poses.wanted(pairs.category, pairs.info))
    from ..data import toys

    category, info = toys.labels("test")
    rows = poses.wanted(category, info)
    category, info = category[rows], info[rows]
    names = np.unique(np.stack([category, info[:, 0]], 1), axis=0).tolist()
    advance = bar("rendering toys", len(names))

    def rendered(name: list[int]) -> np.ndarray:
        kind, instance = name
        _, up, around, light = info[(category == kind) & (info[:, 0] == instance)].T
        size, seed = config.size, config.toys_seed
        images = toys.render(kind, instance, 30.0 + 5 * up, 10.0 * around, light, size=size, seed=seed).numpy()
        advance(1)
        return images

    # each core takes toys of its own, as for the whole split
    n_threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return Pairs(np.concatenate(list(pool.map(rendered, names))), category, info)
    finally:
        torch.set_num_threads(n_threads)


def learning_of(folder: Path) -> paper.Learning:
    """Curves of a run, or the mean of runs that differ in their seed: of validation where there was one."""
    if (folder / "curves.csv").exists():
        config = json.loads((folder / "config.json").read_text())
        training, validation = (
            read_curves(folder / "curves.csv", "train"),
            read_curves(folder / "curves.csv", "validation"),
        )
    else:
        runs = [RunFolder(path.parent) for path in sorted(folder.glob("seed-*/config.json"))] or [RunFolder(folder)]
        config = runs[0].read_json("config.json")
        validation = [run.validation.read() for run in runs]
        training = [by_epoch(run.training.read()) for run in runs]
    unseen, seen = ("toys", "images") if "toys_seed" in config else ("sentences", "phrases")
    if validation and all(validation):
        tables, over = validation, f"held-out {unseen}"
    else:
        tables = training
        over = f"training, {'mixed-up ' if config['mixup'] else ''}{seen}"
    if not all(tables):
        raise SettingError(f"{folder}: expected runs with logs, some have none")
    n = min(len(table["epoch"]) for table in tables)  # a run that goes on has fewer rows
    stacked = {name: np.stack([table[name][:n] for table in tables]) for name in tables[0]}
    several = len(tables) > 1
    numbers = {}
    for name in ("loss", "accuracy"):
        numbers[name] = stacked[name].mean(0)
        numbers[f"{name}_sd"] = stacked[name].std(0, ddof=1) if several else stacked[f"{name}_sd"][0]
    spread_over = f"{len(tables)} seeds" if several else f"batches of {config['batch_size']}"
    called = NAMES.get(config["experiment"]) or str(config["experiment"])
    return paper.Learning(called, over, spread_over, stacked["epoch"][0], **numbers)


def read_curves(path: Path, split: str) -> list[dict[str, np.ndarray]]:
    """Read the logs of one split from a table in `results/`: a dict of columns per seed, of the first group of runs."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows = [row for row in rows if row["group"] == rows[0]["group"] and row["split"] == split]
    seeds = dict.fromkeys(row["seed"] for row in rows)
    columns = ("epoch", "loss", "loss_sd", "accuracy", "accuracy_sd")
    return [{c: np.array([float(row[c]) for row in rows if row["seed"] == seed]) for c in columns} for seed in seeds]


def by_epoch(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A training log with a row for each whole epoch; as it is where there are few."""
    n = int(table["epoch"][-1]) if table else 0
    if n < 5:
        return table
    rows = [(table["epoch"] > k) & (table["epoch"] <= k + 1) for k in range(n)]
    short = {"epoch": np.arange(1.0, n + 1)}
    for name in ("loss", "accuracy"):
        values, spread = table[name], table[f"{name}_sd"]
        short[name] = np.array([values[row].mean() for row in rows])
        # batches differ within the rows of a log and between them
        short[f"{name}_sd"] = np.array([np.sqrt((spread[row] ** 2).mean() + values[row].var()) for row in rows])
    return short


def _spent(began: tuple[float, float]) -> dict[str, float]:
    """Seconds on the clock and of the processor: where others compute too, the first say little."""
    clock, processor = time.monotonic() - began[0], time.process_time() - began[1]
    return {"seconds": round(clock, 1), "processor seconds": round(processor, 1)}


@contextmanager
def _bars() -> Iterator[Bar]:
    """Progress in a terminal; gives what starts a bar and returns what moves it."""
    from rich.progress import Progress

    with Progress(transient=True, disable=not sys.stdout.isatty()) as progress:

        def start(label: str, total: int) -> Callable[[int], None]:
            row = progress.add_task(label, total=total)
            return lambda n: progress.advance(row, n)

        yield start
