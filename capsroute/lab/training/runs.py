"""The folder of a run: settings, record of the machine, logs, checkpoint, weights."""

import csv
import dataclasses
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic_files import write_atomically
from .config import Config, SettingError

TRAINING = ("step", "epoch", "seconds", "lr", "beta1", "loss", "loss_sd", "accuracy", "accuracy_sd")
VALIDATION = ("step", "epoch", "seconds", "loss", "loss_sd", "accuracy", "accuracy_sd")


class RunFolder:
    """Names of the files in a run's folder, and how to read and write the small ones."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.failure = path / "failure.safetensors"
        self.model = path / "model"
        self.scores = path / "test.safetensors"
        self.training = Log(path / "log.csv", TRAINING)
        self.validation = Log(path / "validation.csv", VALIDATION)

    @classmethod
    def new(cls, config: Config, out: str | None) -> "RunFolder":
        """A folder that does not hold a run yet, named after the run where the user named none."""
        if out:
            run = cls(Path(out))
            if (run.path / "config.json").exists():
                raise SettingError(
                    f"{run.path}: there is a run here; continue it with `capsroute train --resume {run.path}`, "
                    "or choose another folder"
                )
            return run
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        return cls(Path("runs") / f"{config.experiment}-{stamp}-seed{config.seed}")

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, (json.dumps(values, indent=2) + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            return json.loads(file.read_text())
        except FileNotFoundError:
            raise SettingError(f"{self.path}: not the folder of a run, it has no {name}") from None
        except ValueError as error:
            raise SettingError(f"{file}: cannot be read ({error}); was it edited?") from None

    def write_config(self, config: Config) -> None:
        self.write_json("config.json", dataclasses.asdict(config))


class Log:
    """A CSV file that grows by a row at a time, and can be cut back to a step."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        self.path, self.columns = path, columns

    def add(self, **values: float) -> None:
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(values)

    def cut(self, step: int) -> None:
        """Forget what came after a step, and a last line cut short by a kill."""
        if self.path.exists():
            kept = [line for line in self._lines() if float(line.split(",")[0]) <= step]
            write_atomically(self.path, "".join([",".join(self.columns) + "\n", *kept]).encode())

    def read(self) -> dict[str, np.ndarray]:
        """The columns by name; nothing where there is no whole row."""
        rows = [[float(cell) for cell in line.split(",")] for line in self._lines()] if self.path.exists() else []
        return (
            {name: np.array(column) for name, column in zip(self.columns, zip(*rows, strict=True), strict=True)}
            if rows
            else {}
        )

    def _lines(self) -> list[str]:
        """The whole rows."""
        lines = self.path.read_text().splitlines(keepends=True)[1:]
        return [line for line in lines if line.endswith("\n") and line.count(",") == len(self.columns) - 1]
