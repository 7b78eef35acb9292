"""A recipe repeated over seeds and tested once, and the record of test readings.

Who tests several recipes and takes the best has chosen by test data. The record makes that visible.
"""

import csv
import dataclasses
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric import Fabric

from ..errors import UserError
from .config import Config, SettingError, changed_settings, hash_settings
from .environment import Environment, git_commit
from .evaluate import score_run
from .experiments import ExperimentConfig, make_task
from .parallel import map_calls
from .runs import RunFolder
from .study import train_run, write_rows
from .vision import VisionConfig

if TYPE_CHECKING:
    from rich.console import Console


class Readings:
    """A CSV file with a row for each reading of a test set.

    Args:
        path: The file, made when the first row is written.
    """

    def __init__(self, path: Path):
        self.path = path

    def rows(self) -> list[dict[str, str]]:
        """Return all readings, the oldest first."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise UserError(f"{self.path}: expected the columns {', '.join(COLUMNS)}; was it edited?")
            return list(reader)

    def check(self, config: Config, seeds: int, folder: Path, *, again: bool = False) -> bool:
        """Return whether this reading is new; one of the same runs is not.

        Raises:
            UserError: If the recipe was tested before, unless `again` is true.
        """
        recipe = recipe_hash(config)
        before = [row for row in self.rows() if row["recipe"] == recipe]
        if any((row["seeds"], row["folder"]) == (str(seeds), str(folder)) for row in before):
            return False
        if before and not again:
            last = before[-1]
            raise UserError(
                f"{self.path}: this recipe was tested on {last['read']}, {last['seeds']} seeds in {last['folder']}; "
                "--again tests it once more and writes that down too"
            )
        return True

    def add(self, config: Config, seeds: int, folder: Path, note: str = "") -> None:
        """Write down that the test set is read now."""
        row = {
            "read": datetime.now(UTC).isoformat(timespec="seconds"),
            "recipe": recipe_hash(config),
            "experiment": config.experiment,
            "settings": " ".join(f"{name}={value}" for name, value in learned_settings(config).items()),
            "seeds": seeds,
            "folder": folder,
            "commit": git_commit(),
            "command": " ".join(["capsroute", *sys.argv[1:]]),
            "note": note,
        }
        write_rows(self.path, [*self.rows(), row])


def learned_settings(config: Config) -> dict[str, object]:
    """Return the settings other than the defaults that change what is learned, whatever the seed."""
    return {name: value for name, value in changed_settings(config).items() if name not in NOT_LEARNED}


def recipe_hash(config: Config) -> str:
    """Return a hash that all seeds of a recipe have in common."""
    return hash_settings(learned_settings(config))


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


NOT_LEARNED = ("seed", "held_out", "fold", "folder", "log_every", "validate_every", "validate_on", "save_every")
COLUMNS = ("read", "recipe", "experiment", "settings", "seeds", "folder", "commit", "command", "note")
