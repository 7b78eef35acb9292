"""The folder of a run: settings, record, logs, checkpoint, weights."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..atomic_files import write_atomically
from ..errors import UserError
from .config import Config, SettingError

TRAINING = ("step", "epoch", "seconds", "lr", "beta1", "loss", "loss_sd", "accuracy", "accuracy_sd")
VALIDATION = ("step", "epoch", "seconds", "loss", "loss_sd", "accuracy", "accuracy_sd")


class CheckpointError(UserError):
    """Report a checkpoint that is missing or damaged."""


class Log:
    """A CSV file of numbers that grows row by row and can be cut back to a step."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        self.path, self.columns = path, columns

    def add(self, **values: float) -> None:
        with self.path.open("a", newline="") as file:
            row = [str(values[name]) for name in self.columns]
            file.writelines(",".join(line) + "\n" for line in ([row] if file.tell() else [self.columns, row]))

    def truncate(self, step: int) -> None:
        """Remove rows after a step, and a last line that was cut short when the process was killed."""
        if self.path.exists():
            rows = [row for row in self._rows() if float(row[0]) <= step]
            write_atomically(self.path, "".join(",".join(row) + "\n" for row in [self.columns, *rows]).encode())

    def read(self) -> dict[str, np.ndarray]:
        """Return the columns by name, or an empty dict if there is no row."""
        rows = self._rows()
        return dict(zip(self.columns, np.array(rows, float).T, strict=True)) if rows else {}

    def _rows(self) -> list[list[str]]:
        """Return the complete rows as text."""
        text = self.path.read_text() if self.path.exists() else ""
        rows = [line.split(",") for line in text.split("\n")[1:-1]]  # what no newline ends is cut short
        return [row for row in rows if len(row) == len(self.columns)]


class RunFolder:
    """The files of a run, and how to read and write the small ones."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.failure = path / "failure.safetensors"
        self.model = path / "model"
        self.scores = path / "test.safetensors"
        self.training = Log(path / "log.csv", TRAINING)
        self.validation = Log(path / "validation.csv", VALIDATION)

    @classmethod
    def create(cls, config: Config, out: str | None) -> "RunFolder":
        """Return a folder without a run in it: `out`, or a new one below runs/."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        run = cls(Path(out) if out else Path("runs") / f"{config.experiment}-{stamp}-seed{config.seed}")
        if (run.path / "config.json").exists():
            resume = f"continue it with `capsroute train --resume {run.path}`"
            raise SettingError(f"{run.path}: there is a run here; {resume}, or choose another folder")
        return run

    @property
    def finished(self) -> bool:
        return (self.model / "model.safetensors").is_file()

    def final_weights(self) -> Path:
        """Return the folder of a finished run's weights."""
        if not self.finished:
            resume = f"go on with `capsroute train --resume {self.path}`"
            raise CheckpointError(f"{self.path}: the run has not finished; {resume}")
        return self.model

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, (json.dumps(values, indent=2) + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            values = json.loads(file.read_text())
        except FileNotFoundError:
            raise SettingError(f"{self.path}: not the folder of a run, it has no {name}") from None
        except (OSError, ValueError) as error:
            raise SettingError(f"{file}: cannot be read ({error}); was it edited?") from None
        if not isinstance(values, dict):
            raise SettingError(f"{file}: expected a JSON object, got {type(values).__name__}; was it edited?")
        return values


def save_checkpoint(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts to one file, atomically."""
    copy: Any = {"device": "cpu", "copy": True, "memory_format": torch.contiguous_format}
    tensors = {name: t.detach().to(**copy) for name, t in tensors.items()}  # some may share memory
    write_atomically(path, save(tensors, metadata={"facts": json.dumps(facts)}))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint and the facts saved with them."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no checkpoint here; give the folder of a run that has saved one")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["facts"])  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the checkpoint is damaged ({error}); delete it and train again") from error
