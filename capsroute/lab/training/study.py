"""A study: settings compared on held-out training samples, one run of each for every fold and seed."""

import csv
import dataclasses
import io
import itertools
import re
import statistics
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..atomic_files import write_atomically
from ..errors import UserError, import_extra
from .config import SettingError, changed_settings, hash_settings
from .environment import Environment
from .experiments import ExperimentConfig, complete_config, make_task, read_config
from .parallel import Cluster, map_calls
from .runs import RunFolder
from .trainer import NonFiniteLossError, Trainer
from .vision import VisionConfig

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from rich.console import Console

TARGET = 0.9  # accuracy whose first step is recorded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Settings by name, each a list of `FIELD=VALUE`, and the runs that compare them."""

    experiment: str
    settings: dict[str, list[str]]
    common: list[str] = dataclasses.field(default_factory=list)  # of all runs
    recipe: str = "paper"
    folds: int = 1  # sets of held-out toys; 1 leaves the setting `fold` as it is
    seeds: int = 1

    def __post_init__(self) -> None:
        given = {
            setting.partition("=")[0] for settings in (self.common, *self.settings.values()) for setting in settings
        }
        for name in {"seed"} | ({"fold"} if self.folds > 1 else set()):
            if name in given:
                raise SettingError(f"{name}: expected no value in a study, which has a number of {name}s")

    @property
    def baseline(self) -> str:
        """The first setting, from which differences are taken."""
        return next(iter(self.settings))

    def runs(self) -> "list[Run]":
        """Return all runs; a mistake in any settings is found here."""
        runs = []
        for name, settings in self.settings.items():
            config = complete_config(self.experiment, [*self.common, *settings], self.recipe)
            for share in ("held_out", "validation_share"):
                if getattr(config, share, 1) == 0:
                    needed = "validation samples are what settings are chosen by"
                    raise SettingError(f"{share}: expected more than 0, as {needed}")
            if self.folds > 1 and not isinstance(config, VisionConfig):
                raise SettingError(f"folds: expected 1 for {self.experiment}, which has no toys, got {self.folds}")
            for fold, seed in itertools.product(range(self.folds), range(self.seeds)):
                varied = {"seed": seed} | ({"fold": fold} if self.folds > 1 else {})
                try:
                    runs.append(Run(name, fold, seed, dataclasses.replace(config, **varied)))
                except ValueError as error:
                    raise SettingError(f"{name}: {error}") from None
        return runs


class Run(NamedTuple):
    """One run of a study."""

    setting: str
    fold: int
    seed: int
    config: ExperimentConfig

    @property
    def names(self) -> dict[str, Any]:
        """What tells it from the others, for tables."""
        return {"setting": self.setting, "fold": self.fold, "seed": self.seed}

    @property
    def name(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^\w.=,+-]+", "_", f"{self.setting}-fold{self.fold}-seed{self.seed}")

    @property
    def key(self) -> str:
        """A hash of its settings, which are those of no other run but a repetition."""
        return hash_settings(changed_settings(self.config))


def read_study(file: Path) -> Study:
    """Return the study that a TOML file describes; the first of its settings is the baseline."""
    try:
        values = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file}: cannot be read as TOML ({error})") from error
    kinds = {"experiment": str, "settings": dict, "common": dict, "recipe": str, "folds": int, "seeds": int}
    for name, value in values.items():
        if name not in kinds:
            raise SettingError(f"{file}: {name}: no such entry, expected some of {', '.join(kinds)}")
        if type(value) is not kinds[name] or (kinds[name] is int and value < 1):
            expected = {str: "text", dict: "a table", int: "a whole number above 0"}[kinds[name]]
            raise SettingError(f"{file}: {name}: expected {expected}, got {value!r}")
    settings = values.get("settings", {})
    if "experiment" not in values or not settings or not all(isinstance(s, dict) for s in settings.values()):
        raise SettingError(
            f"{file}: expected an experiment, and below [settings] a table of FIELD = VALUE for each name"
        )
    settings = {name: assignments(table) for name, table in settings.items()}
    return Study(**values | {"settings": settings, "common": assignments(values.get("common", {}))})


def assignments(table: dict[str, Any]) -> list[str]:
    """Return the entries of a TOML table as `FIELD=VALUE`."""
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in table.items()]


def make_grid(experiment: str, settings: Sequence[str], seeds: int, recipe: str = "paper") -> Study:
    """Return the study of every combination of settings, each `FIELD=VALUE` or `FIELD=VALUE,VALUE,...`."""
    split = [(setting, setting.partition("=")) for setting in settings]
    several = {name: list(dict.fromkeys(filter(None, values.split(",")))) for _, (name, _, values) in split}
    grid = {name: values for name, values in several.items() if len(values) > 1}
    if not grid:
        raise SettingError("settings: expected one with several values, such as --set lr_max=1e-4,1e-3, got none")
    combinations = [list(map("=".join, zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]
    common = [setting for setting, (name, _, _) in split if name not in grid]
    named = {", ".join(combination): combination for combination in combinations}
    return Study(experiment=experiment, settings=named, common=common, recipe=recipe, seeds=seeds)


def run_study(
    study: Study,
    folder: Path,
    environment: Environment,
    cluster: Cluster | None = None,
    *,
    jobs: int = 1,
    note: str = "",
    console: "Console | None" = None,
) -> list[dict[str, Any]]:
    """Train the runs of a study that have not ended yet, and return a row for each; test samples play no part.

    Unfinished runs are resumed. Optuna records those that have ended; `runs.csv` and `comparison.csv` are written anew
    after each.

    Args:
        study: Settings, folds and seeds.
        folder: Where runs and records go.
        environment: Device and precision of each run.
        cluster: Machines to train on, if not this one; where it gives runs no GPU they train on a CPU.
        jobs: Runs at a time on this machine.
        note: A remark for the record.
        console: Where to show progress.
    """
    if cluster:
        import_extra("ray")
        accelerator = "cpu" if environment.accelerator == "auto" and not cluster.gpus else environment.accelerator
        environment = dataclasses.replace(environment, accelerator=accelerator)
    else:
        environment.launch()  # so that a device that is missing is found now
    runs, record = study.runs(), open_record(folder / "optuna.log")
    ended = {trial.user_attrs["key"]: trial.user_attrs["result"] for trial in record.trials}
    left = [run for run in runs if run.key not in ended]
    alone = console if jobs == 1 and not cluster else None  # of several at a time none has the terminal
    calls = [(run.config, folder / run.name, environment, note, alone) for run in left]
    rows = write_tables(study, runs, ended, folder)
    for k, result in map_calls(measure_run, calls, cluster, jobs):
        run = left[k]
        add_to_record(record, run, result)
        ended[run.key] = result
        rows = write_tables(study, runs, ended, folder)
        if console:
            words = result.get("problem") or f"validation accuracy {result['accuracy']:.2%}"
            console.print(f"run {len(rows)} of {len(runs)}, {run.name}, has ended: {words}")
    return rows


def write_tables(
    study: Study, runs: Sequence[Run], ended: dict[str, dict[str, Any]], folder: Path
) -> list[dict[str, Any]]:
    """Write `runs.csv`, a row for each run that has ended, and `comparison.csv`; return the rows of the first."""
    rows = [run.names | ended[run.key] for run in runs if run.key in ended]
    if rows:
        write_rows(folder / "runs.csv", rows)
        write_rows(folder / "comparison.csv", compare(rows, study.baseline))
    return rows


def train_run(
    config: ExperimentConfig,
    folder: Path,
    environment: Environment,
    note: str,
    console: "Console | None" = None,
    fabric: "Fabric | None" = None,
) -> RunFolder:
    """Train a run, go on with it, or find it finished."""
    run, fabric = RunFolder(folder), fabric or environment.launch()
    started, finished = fabric.broadcast((run.started, run.finished))
    if started and read_config(run) != config:
        raise SettingError(f"{run.path}: holds a run with other settings; choose another folder")
    if not finished:
        Trainer(make_task(config), run, environment, fabric, console).train(resume=started, note=note)
    return run


def measure_run(*arguments: Any) -> dict[str, Any]:
    """Train a run as `train_run` does; return its validation accuracy and costs, or what the problem is."""
    try:
        run = train_run(*arguments)
    except NonFiniteLossError as error:  # as rates that are too high give it; others of the study go on
        return {"problem": str(error)}
    validation, facts = run.validation.read(), run.read_record()
    if not validation:
        raise UserError(f"{run.path}: expected validation results, found none")
    good = validation["accuracy"] >= TARGET
    row: dict[str, Any] = {"accuracy": float(validation["accuracy"][-1])}
    row["step at 90%"] = int(validation["step"][good.argmax()]) if good.any() else None
    names = ("parameters", "steps", "seconds", "peak MiB", "device", "torch", "capsroute", "commit", "started")
    return row | {name: facts[name] for name in names if name in facts}


def open_record(file: Path) -> Any:
    """Return the record of the runs that have ended: a study of Optuna's, which its dashboard shows too."""
    optuna = import_extra("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file.parent.mkdir(parents=True, exist_ok=True)
    journal = import_extra("optuna.storages.journal")
    backend = journal.JournalFileBackend(str(file), journal.JournalFileOpenLock(str(file)))
    storage = optuna.storages.JournalStorage(backend)
    return optuna.create_study(storage=storage, study_name="runs", direction="maximize", load_if_exists=True)


def add_to_record(record: Any, run: Run, result: dict[str, Any]) -> None:
    """Add a run that has ended; one without an accuracy has failed."""
    from optuna import create_trial
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState

    outcome: dict[str, Any] = {"value": result["accuracy"]} if "accuracy" in result else {"state": TrialState.FAIL}
    distributions: Any = {name: CategoricalDistribution([value]) for name, value in run.names.items()}
    attributes = {"key": run.key, "result": result}
    record.add_trial(create_trial(**outcome, params=run.names, distributions=distributions, user_attrs=attributes))


def compare(rows: Sequence[dict[str, Any]], baseline: str) -> list[dict[str, Any]]:
    """Return a row for each setting, the best first: means over its runs, and their difference from the baseline.

    Differences are paired: each is that of two runs with the same fold and seed. Where there are several folds, those
    of one are averaged first, and the standard error is over folds, because new data would bring other toys.

    Args:
        rows: A row for each run, with `setting`, `fold`, `seed` and, unless it failed, `accuracy`.
        baseline: The setting to compare with.
    """
    good = [row for row in rows if "accuracy" in row]
    paired = {(row["fold"], row["seed"]): row["accuracy"] for row in good if row["setting"] == baseline}
    table = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        runs = [row for row in good if row["setting"] == name]
        by_fold: dict[int, list[float]] = {}
        for run in runs if name != baseline else ():
            if (run["fold"], run["seed"]) in paired:
                difference = run["accuracy"] - paired[run["fold"], run["seed"]]
                by_fold.setdefault(run["fold"], []).append(difference)
        units = [statistics.mean(values) for values in by_fold.values()]
        units = units if len(units) > 1 else [value for values in by_fold.values() for value in values]
        accuracies = [run["accuracy"] for run in runs]
        table.append(
            {
                "setting": name,
                "accuracy": mean(accuracies),
                "deviation": deviation(accuracies),
                "runs": len(runs),
                "failed": sum(row["setting"] == name for row in rows) - len(runs),
                "difference": mean(units),
                "standard error": deviation(units, len(units)),
                "step at 90%": mean(run.get("step at 90%") for run in runs),
                "seconds": mean(run.get("seconds") for run in runs),
            }
        )
    return sorted(table, key=lambda row: -(row["accuracy"] or 0))


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; none of no values, or if one is missing."""
    known = list(values)
    return None if None in known or not known else statistics.mean(known)  # pyright: ignore[reportArgumentType]


def deviation(values: Sequence[float], n: int = 1) -> float | None:
    """Return the standard deviation of the mean of `n` values; none of fewer than two."""
    return statistics.stdev(values) / n**0.5 if len(values) > 1 else None


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as CSV, with every column that one of them has."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())
