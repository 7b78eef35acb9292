"""Where a run computes: Fabric's devices, nodes, strategy and precision."""

import dataclasses
import importlib.metadata
import platform
import subprocess
import sys
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

PACKAGES = ("capsroute", "torch", "numpy", "lightning", "torchmetrics", "safetensors", "huggingface_hub", "triton")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What computes, and how. It may change when a run is resumed; what is learned then differs by rounding alone."""

    accelerator: str = "auto"  # cpu, cuda, mps, or the best there is
    devices: int = 1  # processes on each machine
    nodes: int = 1
    strategy: str = "auto"  # ddp for several processes
    precision: str = "32-true"
    compile: bool | None = None  # by default on a GPU, where all batches have one size

    def fabric(self, loggers: Any = None) -> Fabric:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*isinstance.*LeafSpec.*")  # lightning, on a newer torch
            return Fabric(
                accelerator=self.accelerator,
                devices=self.devices,
                num_nodes=self.nodes,
                strategy=self.strategy,
                precision=self.precision,  # pyright: ignore[reportArgumentType]
                loggers=loggers,
            )

    def compiles(self, device: torch.device, one_size: bool) -> bool:
        """By default where it pays: batches of many sizes would each be compiled anew."""
        return device.type == "cuda" and one_size if self.compile is None else self.compile


def describe(machine: Machine, device: torch.device, note: str) -> dict[str, Any]:
    """What a result needs beside it to be believed: versions, hardware, commit, command, time."""
    facts: dict[str, Any] = {"python": platform.python_version()}
    facts |= {name: version(name) for name in PACKAGES}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    facts |= {"device": name, "threads": torch.get_num_threads(), "system": platform.system()}
    facts |= {k: v for k, v in dataclasses.asdict(machine).items() if k != "accelerator"}
    facts |= {"commit": commit(), "command": " ".join(["capsroute", *sys.argv[1:]])}
    return facts | {"started": datetime.now(UTC).isoformat(timespec="seconds"), "note": note}


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """The processor as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def commit() -> str:
    """The commit of the checkout this file lies in, marked where files differ from it."""
    here = Path(__file__).parent
    try:
        answers = [
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout
            for words in (["ls-files", "--error-unmatch", __file__], ["rev-parse", "HEAD"], ["status", "--porcelain"])
        ]
    except (OSError, subprocess.SubprocessError):
        return "not a checkout"
    return answers[1].strip() + (" and changes" if answers[2].strip() else "")
