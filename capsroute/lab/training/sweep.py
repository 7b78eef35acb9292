"""A sweep: every combination of some settings, several seeds each, compared on validation samples alone."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError, needs_extra
from .cluster import Cluster, import_ray, map_on_cluster
from .config import SettingError
from .environment import Environment
from .experiments import ExperimentConfig, complete_config, make_task, read_config
from .runs import RunFolder
from .trainer import Trainer

if TYPE_CHECKING:
    from rich.console import Console

STORAGE, SUMMARY = "sweep.log", "sweep.json"


class Combination(NamedTuple):
    """Settings that were compared, and the validation accuracies of their runs."""

    settings: dict[str, str]
    accuracies: list[float]

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def name(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def sweep(
    experiment: str,
    settings: Sequence[str],
    seeds: int,
    folder: Path,
    environment: Environment,
    cluster: Cluster | None = None,
    *,
    note: str = "",
    console: "Console | None" = None,
) -> list[Combination]:
    """Train every combination of settings once per seed, and return them, the best first.

    Runs that the folder already holds are not repeated; unfinished ones are resumed.

    Args:
        experiment: Its name.
        settings: `FIELD=VALUE`, or `FIELD=VALUE,VALUE,...` for one of several.
        seeds: Number of runs of each combination, with seeds 0, 1, ...
        folder: Where runs and the record of trials go.
        environment: Device and precision of each run.
        cluster: Machines to train on, if not in this process; where it gives runs no GPU they train on a CPU.
        note: A remark for the record.
        console: Where to show progress.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    except ImportError as error:
        raise needs_extra("optuna", "sweep") from error
    if environment.devices * environment.nodes > 1:
        raise SettingError("devices: expected one process for a sweep; run replicate for several")
    if cluster:
        import_ray()
        accelerator = "cpu" if environment.accelerator == "auto" and not cluster.gpus else environment.accelerator
        environment = dataclasses.replace(environment, accelerator=accelerator)
    else:
        environment.launch()  # so that a device that is missing is found now
    fixed, grid = split_settings(settings)
    configs = {}  # all of them first, so that a mistake is found before the first run
    for values in itertools.product(*grid.values()):
        config = complete_config(experiment, [*fixed, *map("=".join, zip(grid, values, strict=True))])
        check_validation(config)
        configs[values] = config
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = str(folder / STORAGE)
    storage = JournalStorage(JournalFileBackend(file, JournalFileOpenLock(file)))
    name = " ".join([experiment, *sorted(fixed)])  # trials of other fixed settings are others
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    trials = [dict(zip([*grid, "seed"], [*values, k], strict=True)) for values in configs for k in range(seeds)]
    finished = [trial.params for trial in study.trials if trial.value is not None]
    waiting = [trial.system_attrs["fixed_params"] for trial in study.trials if trial.state.name == "WAITING"]
    left = [params for params in trials if params not in finished]
    for params in left:
        if params not in waiting:  # new, or interrupted: its run is resumed
            study.enqueue_trial(params)

    def start_trial(trial: Any) -> tuple[ExperimentConfig, Path, Environment, str]:
        values = tuple(trial.suggest_categorical(name, choices) for name, choices in grid.items())
        seed = trial.suggest_int("seed", 0, seeds - 1)  # a range may grow, unlike a list
        place = folder / run_name(list(grid), values, seed)
        return dataclasses.replace(configs[values], seed=seed), place, environment, note

    def report(place: Path, happens: str = "") -> None:
        if console:
            done = sum(trial.value is not None for trial in study.trials)
            console.print(f"run {done + 1} of {len(trials)}: {place.name}{happens}")

    def train_trial(trial: Any) -> float:
        arguments = start_trial(trial)
        report(arguments[1])
        return train_run(*arguments, console)

    if left and cluster:
        started = [study.ask() for _ in left]
        calls = [start_trial(trial) for trial in started]
        for k, accuracy in map_on_cluster(cluster, train_run, calls):
            report(calls[k][1], " has ended")
            study.tell(started[k], accuracy)
    elif left:
        study.optimize(train_trial, n_trials=len(left))
    found: dict[tuple[Any, ...], dict[int, float]] = {values: {} for values in configs}
    for trial in study.trials:
        values = tuple(trial.params.get(name) for name in grid)
        if trial.value is not None and trial.params in trials:
            found[values][trial.params["seed"]] = trial.value
    combinations = [
        Combination(dict(zip(grid, values, strict=True)), [of_seed[seed] for seed in sorted(of_seed)])
        for values, of_seed in found.items()
    ]
    combinations.sort(key=lambda combination: -combination.mean)
    rows = [c._asdict() | {"mean": c.mean, "standard deviation": c.deviation} for c in combinations]
    RunFolder(folder).write_json(
        SUMMARY, {"experiment": experiment, "fixed": fixed, "chosen on": "validation", "combinations": rows}
    )
    return combinations


def split_settings(settings: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return settings with one value, and the values of those with several."""
    fixed, grid = [], {}
    for setting in settings:
        name, equals, values = setting.partition("=")
        several = [value for value in values.split(",") if value]
        if equals and len(several) > 1:
            grid[name] = list(dict.fromkeys(several))
        else:
            fixed.append(setting)
    if not grid:
        raise SettingError("settings: expected one with several values, such as --set lr_max=1e-4,1e-3, got none")
    if "seed" in grid:
        raise SettingError("seed: expected --seeds N in a sweep")
    return fixed, grid


def check_validation(config: ExperimentConfig) -> None:
    """Refuse settings that hold nothing out to choose by."""
    values = dataclasses.asdict(config)
    for name in ("held_out", "validation_share"):
        if values.get(name, 1) == 0:
            raise SettingError(f"{name}: expected more than 0 in a sweep, which chooses on validation samples, got 0")


def run_name(names: Sequence[str], values: Sequence[str], seed: int) -> str:
    """Return the name of a run's folder."""
    words = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    return "-".join([*words, f"seed{seed}"]).replace("/", "_")


def train_run(
    config: ExperimentConfig, folder: Path, environment: Environment, note: str, console: "Console | None" = None
) -> float:
    """Train a run, or go on with it, and return the validation accuracy of its final weights."""
    run = RunFolder(folder)
    if run.started and read_config(run) != config:
        raise SettingError(f"{run.path}: holds a run with other settings; choose another folder")
    if not run.finished:
        Trainer(make_task(config), run, environment, environment.launch(), console).train(resume=run.started, note=note)
    accuracy = run.validation.read().get("accuracy")
    if accuracy is None or not len(accuracy):
        raise UserError(f"{run.path}: expected validation results, found none")
    return float(accuracy[-1])
