"""The folder of a run: settings, record, logs, checkpoint, weights."""

import atexit
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..atomic_files import write_atomically
from ..data.published import file_digest
from ..errors import UserError
from .config import Config, SettingError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

TRAINING = ("step", "epoch", "seconds", "lr", "beta1", "loss", "loss_sd", "accuracy", "accuracy_sd")
VALIDATION = ("step", "epoch", "seconds", "loss", "loss_sd", "accuracy", "accuracy_sd")
RECORD: dict[str, tuple[Any, str]] = {  # what is read again of run.json
    "parameters": (int, "a whole number"),
    "seconds": (int | float, "a number"),
    "resumed": (list, "a list"),
    "weights": (str, "a hash"),
}


class CheckpointError(UserError):
    """Report a checkpoint that is missing or damaged."""


class Log:
    """A CSV file of numbers that grows row by row and can be cut back to a step."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        self.path, self.columns = path, columns

    def add(self, **values: float) -> None:
        try:
            with self.path.open("a", newline="") as file:
                row = [str(values[name]) for name in self.columns]
                file.writelines(",".join(line) + "\n" for line in ([row] if file.tell() else [self.columns, row]))
        except OSError as error:
            error.filename = str(self.path)  # a full disk's error has none
            raise

    def truncate(self, step: int) -> None:
        """Remove rows after a step, and a last line that was cut short when the process was killed."""
        if self.path.exists():
            done = self.read().get("step", [])
            rows = [line for line, number in zip(self._lines(), done, strict=True) if number <= step]
            write_atomically(self.path, "".join(f"{line}\n" for line in [",".join(self.columns), *rows]).encode())

    def read(self) -> dict[str, np.ndarray]:
        """Return the columns by name, or an empty dict if there is no row."""
        lines = self._lines()
        try:
            table = np.array([line.split(",") for line in lines], float).reshape(len(lines), len(self.columns))
        except ValueError as error:
            expected = f"{len(self.columns)} numbers separated by commas in each line"
            raise UserError(f"{self.path}: expected {expected}; the log is damaged, delete it") from error
        return dict(zip(self.columns, table.T, strict=True)) if lines else {}

    def _lines(self) -> list[str]:
        """Return the rows as text; what no newline ends was cut short."""
        return self.path.read_text(errors="replace").split("\n")[1:-1] if self.path.exists() else []


class RunFolder:
    """The files of a run, and how to read and write the small ones.

    `config.json` is the first file of a run, and the hash of its weights in `run.json` the last thing written.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.failure = path / "failure.safetensors"
        self.model = path / "model"
        self.weights = self.model / "model.safetensors"
        self.scores = path / "test.safetensors"
        self.training = Log(path / "log.csv", TRAINING)
        self.validation = Log(path / "validation.csv", VALIDATION)

    @classmethod
    def create(cls, config: Config, out: str | None, fabric: "Fabric") -> "RunFolder":
        """Return a folder without a run in it, the same in all processes: `out`, or a new one below runs/."""
        if out:
            run = cls(Path(out))
            run.check_new()
            return run
        path = ""
        if fabric.is_global_zero:
            stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
            path = str(_create_folder(Path("runs") / f"{config.experiment}-{stamp}-seed{config.seed}"))
        return cls(Path(fabric.broadcast(path)))

    @property
    def started(self) -> bool:
        """Whether there is a run here; one killed at its very start has settings but no record."""
        if (self.path / "run.json").exists():
            return True
        with suppress(SettingError):
            return "experiment" in self.read_json("config.json")
        return False

    @property
    def finished(self) -> bool:
        return self.started and "weights" in self.read_record() and self.weights.is_file()

    def check_new(self) -> None:
        """Raise if there is a run here."""
        if (self.path / "config.json").exists():
            resume = f"continue it with `capsroute train --resume {self.path}`"
            raise SettingError(f"{self.path}: there is a run here; {resume}, or choose another folder")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder and keep other processes from writing to it; the lock of a killed process is void."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self.path / ".lock", blocking=False).acquire()
        except Timeout:
            raise UserError(f"{self.path}: another process is training here; wait until it ends") from None
        with lock:
            yield

    def final_weights(self) -> Path:
        """Return the folder of a finished run's weights, after checking that they are those it ended with."""
        resume = f"`capsroute train --resume {self.path}`"
        if not self.finished:
            raise CheckpointError(f"{self.path}: the run has not finished; go on with {resume}")
        if file_digest(self.weights, "sha256") != self.read_record()["weights"]:
            raise CheckpointError(f"{self.weights}: not the weights the run ended with; {resume} writes them again")
        return self.model

    def read_record(self) -> dict[str, Any]:
        """Return run.json, or an empty dict if the run was killed before it was written."""
        if not (self.path / "run.json").exists():
            return {}
        record = self.read_json("run.json")
        for name, (kind, expected) in RECORD.items():
            value = record.get(name)
            if not isinstance(value, kind) and (name in record or name == "parameters"):
                file = self.path / "run.json"
                raise SettingError(f"{file}: {name}: expected {expected}, got {value!r}; was it edited?")
        return record

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, (json.dumps(values, indent=2) + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            values = json.loads(file.read_text())
        except FileNotFoundError:
            raise SettingError(f"{self.path}: not the folder of a run, it has no {name}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise SettingError(f"{file}: cannot be read ({error}); was it edited?") from None
        if not isinstance(values, dict):
            raise SettingError(f"{file}: expected a JSON object, got {type(values).__name__}; was it edited?")
        return values


def save_checkpoint(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors, facts and a checksum of both to one file, atomically."""
    copy: Any = {"device": "cpu", "copy": True, "memory_format": torch.contiguous_format}
    tensors = {name: t.detach().to(**copy) for name, t in tensors.items()}  # some may share memory
    text = json.dumps(facts)
    write_atomically(path, save(tensors, metadata={"facts": text, "checksum": _checksum(tensors, text)}))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint and the facts saved with them."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no checkpoint here; give the folder of a run that has saved one")
    try:
        with safe_open(path, framework="pt") as file:
            tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        if _checksum(tensors, metadata["facts"]) != metadata["checksum"]:
            raise ValueError("its checksum differs")
        return tensors, json.loads(metadata["facts"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the checkpoint is damaged ({error}); delete it and train again") from error


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return a checksum of facts and of names, shapes, dtypes and values of tensors."""
    checksum = zlib.crc32(facts.encode())
    for name, t in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name}{t.dtype}{list(t.shape)}".encode(), checksum)
        checksum = zlib.crc32(t.flatten().view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"


def _create_folder(path: Path) -> Path:
    """Create a folder, under a name with a number if another process has just done so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for k in itertools.count(1):
        new = path if k == 1 else path.with_name(f"{path.name}-{k}")
        with suppress(FileExistsError):
            new.mkdir()
            break
    atexit.register(_remove_empty, new)  # if the run cannot start, say for want of data
    return new


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
