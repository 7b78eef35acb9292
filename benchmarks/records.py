"""The rows of a benchmark, the files they are stored in, and a description of where they were measured."""

import csv
import json
import platform
import shlex
import sys
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Row:
    """One implementation on one case in one mode. Times are medians of calls unless named otherwise."""

    case: str
    batch: int
    n_inp: int
    n_out: int
    impl: str
    picked: str  # by `auto`
    mode: str
    p20_ms: float | None = None
    p50_ms: float | None = None
    p80_ms: float | None = None
    one_thread_ms: float | None = None  # backward pass in the thread of the caller
    back_to_back_ms: float | None = None  # without synchronising between calls
    captured_ms: float | None = None  # in a CUDA graph
    peak_mib: float | None = None  # above the inputs, gradients included
    repeats: int | None = None
    skipped: str = ""

    @property
    def overhead_ms(self) -> float | None:
        """What the host adds to a small call: called minus captured."""
        return self.p50_ms - self.captured_ms if self.p50_ms and self.captured_ms else None


def write_rows(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            values = asdict(row).items()
            writer.writerow({name: f"{value:.4f}" if isinstance(value, float) else value for name, value in values})


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    return [Row(**{field.name: _parse(line[field.name], field.type) for field in fields(Row)}) for line in lines]


def _parse(text: str, kind: Any) -> Any:
    if kind in (str, int):
        return kind(text)
    number = int if kind == int | None else float
    return number(text) if text else None


def write_json(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def describe_run(device: str, seed: int, commit: str | None) -> dict[str, Any]:
    """Describe machine, versions, commit, seed and command, without names of persons, hosts or folders.

    Args:
        device: `cpu` or `cuda`.
        seed: Of the inputs.
        commit: To record where the sources were copied without their history; git is asked otherwise.
    """
    import torch

    from capsroute.lab.training.environment import cpu_name, git_commit, package_version  # slow to load

    machine = {"cpu": cpu_name(), "cores": torch.get_num_threads()}
    packages = ["torch", "numpy", "capsroute"]
    if device == "cuda":
        machine |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        packages.append("triton")
    return {
        "machine": machine,
        "versions": {"python": platform.python_version()} | {name: package_version(name) for name in packages},
        "commit": commit or git_commit(),
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_hide_folder, sys.argv[1:])]),
    }


def _hide_folder(argument: str) -> str:
    return Path(argument).name if argument.startswith("/") else argument
