"""A recipe repeated over seeds, and tested once."""

import dataclasses
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric import Fabric

from .config import SettingError
from .environment import Environment
from .evaluate import score_run
from .experiments import ExperimentConfig, make_task
from .readings import Readings
from .runs import RunFolder
from .study import map_calls, train_run
from .vision import VisionConfig

if TYPE_CHECKING:
    from rich.console import Console


def replicate(
    config: ExperimentConfig,
    out: Path,
    seeds: int,
    environment: Environment,
    fabric: Fabric,
    readings: Readings,
    *,
    again: bool = False,
    jobs: int = 1,
    note: str = "",
    console: "Console | None" = None,
) -> dict[str, Any]:
    """Train once per seed on all of the training set, then test the final weights; return accuracies and their mean.

    Runs that `out` already holds are not repeated; unfinished ones are resumed.

    Args:
        config: The recipe.
        out: Folder of the runs.
        seeds: Number of runs, with seeds 0, 1, ...
        environment: Devices and precision.
        fabric: The same, launched.
        readings: Where it is written down that the test set is read, and which recipes were tested before.
        again: Test a recipe that was tested before.
        jobs: Runs at a time on this machine.
        note: A remark for the record.
        console: Where to show progress.
    """
    if jobs > 1 and fabric.world_size > 1:
        raise SettingError(f"jobs: expected 1 where each run takes {fabric.world_size} processes, got {jobs}")
    if isinstance(config, VisionConfig):
        config = dataclasses.replace(config, held_out=0)
    is_new = readings.check(config, seeds, out, again=again)
    seeded = {out / f"seed-{seed}": dataclasses.replace(config, seed=seed) for seed in range(seeds)}
    alone = (console, fabric) if jobs == 1 else ()  # of several at a time none has the terminal
    calls = [(one, path, environment, note, *alone) for path, one in seeded.items()]
    for seed, run in map_calls(train_run, calls, jobs=jobs):
        if console and jobs > 1:
            console.print(f"seed {seed}: trained in {run.read_record()['seconds']:.0f} s")
    if is_new and fabric.is_global_zero:
        readings.add(config, seeds, out, note)
    rows: list[dict[str, Any]] = []
    for path, one in seeded.items():
        run = RunFolder(path)
        _, result = score_run(run, make_task(one), fabric, progress=console is not None)
        counts = {"right": result.right, "total": result.total, "accuracy": result.accuracy}
        rows.append({"seed": one.seed} | counts | {"seconds": run.read_record()["seconds"]})
        if console and fabric.is_global_zero:
            console.print(f"seed {one.seed}: {result.describe()}; {rows[-1]['seconds']:.0f} s")
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
