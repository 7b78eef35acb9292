"""One experiment repeated over seeds."""

import dataclasses
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric import Fabric

from .config import SettingError
from .environment import Environment
from .evaluate import score_run
from .experiments import ExperimentConfig, make_task, read_config
from .runs import RunFolder
from .trainer import Trainer
from .vision import VisionConfig

if TYPE_CHECKING:
    from rich.console import Console


def replicate(
    config: ExperimentConfig,
    out: Path,
    seeds: int,
    environment: Environment,
    fabric: Fabric,
    *,
    note: str = "",
    console: "Console | None" = None,
) -> dict[str, Any]:
    """Train once per seed on all of the training set and return test accuracies, their mean and deviation.

    Runs that `out` already holds are not repeated; unfinished ones are resumed.
    """
    rows: list[dict[str, Any]] = []
    if isinstance(config, VisionConfig):
        config = dataclasses.replace(config, held_out=0)
    for seed in range(seeds):
        run, seeded = RunFolder(out / f"seed-{seed}"), dataclasses.replace(config, seed=seed)
        task = make_task(seeded)
        started = fabric.broadcast((run.path / "config.json").exists())
        if started and read_config(run) != seeded:
            raise SettingError(f"{run.path}: holds a run with other settings; choose another folder")
        if not run.finished:
            Trainer(task, run, environment, fabric, console).train(resume=started, note=note)
        _, result = score_run(run, task, fabric, progress=console is not None)
        counts = {"right": result.right, "total": result.total, "accuracy": result.accuracy}
        rows.append({"seed": seed} | counts | {"seconds": run.read_record()["seconds"]})
        if console and fabric.is_global_zero:
            console.print(f"seed {seed}: {result.describe()}; {rows[-1]['seconds']:.0f} s")
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
