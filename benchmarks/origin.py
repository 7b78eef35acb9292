"""Where a benchmark's numbers come from: machine, versions, commit, seed, date and command."""

import platform
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import psutil
import torch

import capsroute
from records import ROOT


def origin(device: str, seed: int, commit: str | None) -> dict[str, Any]:
    """All that a reader needs to measure again, and nothing that names a person, a host or their folders.

    A commit that is named counts: where files were copied to be measured, git knows none or another.
    """
    # results of an earlier run do not change what is measured
    changes = None if commit else _git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return {
        "machine": {"cpu": cpu_name(), "cores": torch.get_num_threads()}
        | ({"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda} if device == "cuda" else {}),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "capsroute": capsroute.__version__,
        }
        | ({"triton": version("triton")} if device == "cuda" and find_spec("triton") else {}),
        "commit": commit or _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *map(_relative, sys.argv)]),
        "others_busy": {},  # share of the cores that other programs took, by shape
    }


class Others:
    """A stopwatch of what other programs, and other machines on the same cores, take of them."""

    def __init__(self) -> None:
        self.start, self.spent = time.perf_counter(), self._spent()

    def busy(self) -> float:
        """Their share of all cores since the start."""
        elapsed = time.perf_counter() - self.start
        return max(0.0, self._spent() - self.spent) / (elapsed * (psutil.cpu_count() or 1))

    @staticmethod
    def _spent() -> float:
        everyone, own = psutil.cpu_times(), psutil.Process().cpu_times()
        kinds = ("user", "nice", "system", "irq", "softirq", "steal")
        return sum(getattr(everyone, kind, 0.0) for kind in kinds) - own.user - own.system


def cpu_name() -> str:
    """The model where the system tells it, else the architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """What git answers, or nothing where it or the repository is missing."""
    try:
        ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


def _relative(argument: str) -> str:
    """An argument whose path, if it holds one, starts at the project, or is bare if outside."""
    option, equals, value = argument.rpartition("=")
    path = Path(value)
    if path.is_absolute():
        value = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    return option + equals + value
