"""From trained weights to results: scores on the test split, the report, runs repeated over seeds."""

import dataclasses
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric import Fabric
from torch import Tensor, nn

from ..atomic_files import write_atomically
from .checkpoint import CheckpointError
from .config import Config
from .environment import Machine
from .evaluate import scores_of
from .experiments import saved_config, task_of
from .loop import train
from .runs import RunFolder
from .task import Result, Task

if TYPE_CHECKING:
    from rich.console import Console


def score(network: nn.Module, task: Task, fabric: Fabric, *, split: str = "test", progress: bool = True) -> Tensor:
    """Final scores of a network on a split, [n, classes]."""
    network = network.to(fabric.device)
    source = task.source(split, fabric.device)
    if source is None:
        raise ValueError(f"split: expected one with samples, {split} has none (held_out=0)")
    if not (progress and fabric.is_global_zero):
        return scores_of(network, source, fabric)
    from rich.progress import Progress

    with Progress(transient=True, disable=not sys.stdout.isatty()) as bar:
        row = bar.add_task(f"scoring {len(source):,} {task.samples}", total=len(source))
        return scores_of(network, source, fabric, tick=lambda n: bar.advance(row, n))


def final_weights(run: RunFolder) -> Path:
    """The folder of a finished run's weights."""
    if not (run.model / "model.safetensors").is_file():
        raise CheckpointError(f"{run.path}: the run has not finished; go on with `capsroute train --resume {run.path}`")
    return run.model


def scored_test(run: RunFolder, task: Task, fabric: Fabric, *, progress: bool = True) -> tuple[Tensor, Result]:
    """Scores of a run's final weights on the test split: computed once, then read."""
    from safetensors.torch import load_file
    from safetensors.torch import save as serialise

    network = task.restore(final_weights(run))
    if fabric.broadcast(run.scores.exists()):
        scores = load_file(run.scores)["scores"]
    else:
        scores = score(network, task, fabric, progress=progress)
    result = task.judge(scores, "test")
    if fabric.is_global_zero:
        write_atomically(run.scores, serialise({"scores": scores.contiguous()}))
        run.write_json("test.json", result.facts() | {"split": "test", "weights": "final"})
    return scores, result


def replicate(
    config: Config,
    out: Path,
    seeds: int,
    machine: Machine,
    fabric: Fabric,
    *,
    note: str = "",
    console: "Console | None" = None,
) -> dict[str, Any]:
    """Train once for each seed on all of the training set, test the final weights, and say how they spread.

    A folder that holds some of the runs already is completed: what is there is not run again.
    """
    rows = []
    for seed in range(seeds):
        run = RunFolder(out / f"seed-{seed}")
        one = dataclasses.replace(config.on_everything(), seed=seed)
        task = task_of(one)
        if (run.path / "config.json").exists():
            found = saved_config(run.read_json("config.json"))
            if found != one:
                raise ValueError(f"{run.path}: holds a run with other settings; choose another folder")
        if not (run.model / "model.safetensors").exists():
            resume = fabric.broadcast((run.path / "config.json").exists())
            train(task, run, machine, fabric, resume=resume, note=note, console=console)
        _, result = scored_test(run, task, fabric, progress=console is not None)
        seconds = run.read_json("run.json")["seconds"]
        counts = {"right": result.right, "total": result.total, "accuracy": result.accuracy}
        rows.append({"seed": seed} | counts | {"seconds": seconds})
        if console and fabric.is_global_zero:
            console.print(f"seed {seed}: {result.words()}; {seconds:.0f} s")
    accuracies = [row["accuracy"] for row in rows]
    summary = {
        "experiment": config.experiment,
        "trained on": "all of the training set",
        "weights": "final, after the last step; nothing was chosen by test data",
        "runs": rows,
        "mean": statistics.mean(accuracies),
        "standard deviation": statistics.stdev(accuracies) if seeds > 1 else None,
    }
    if fabric.is_global_zero:
        RunFolder(out).write_json("replicate.json", summary)
    return summary
