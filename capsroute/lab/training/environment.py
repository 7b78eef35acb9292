"""Where a run computes: devices, processes and precision, as Lightning Fabric names them."""

import dataclasses
import importlib.metadata
import platform
import subprocess
import sys
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UserError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

PACKAGES = ("capsroute", "torch", "numpy", "lightning", "safetensors", "huggingface_hub", "triton")


@dataclass(frozen=True)
class Environment:
    """Devices and precision of a run. They may change when it is resumed; results then differ by rounding alone."""

    accelerator: str = "auto"  # cpu, cuda, mps, or auto for the best available
    devices: int = 1  # processes on each node
    nodes: int = 1
    strategy: str = "auto"  # ddp for several processes
    precision: str = "32-true"
    compile: bool | None = None  # None: on a GPU, if all batches have the same shape
    capture: bool = True  # steps as CUDA graphs, where possible

    def launch(self) -> "Fabric":
        """Start the processes and return their Fabric."""
        from lightning.fabric import Fabric  # takes seconds
        from lightning.fabric.utilities.exceptions import MisconfigurationException

        options: dict[str, Any] = {"accelerator": self.accelerator, "devices": self.devices, "strategy": self.strategy}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*isinstance.*LeafSpec.*")  # lightning, on a newer torch
            try:
                fabric = Fabric(**options, num_nodes=self.nodes, precision=self.precision)  # pyright: ignore[reportArgumentType]
            except (MisconfigurationException, RuntimeError, ValueError) as error:
                settings = ", ".join(f"{name}={value}" for name, value in options.items())
                hint = "--accelerator cpu works everywhere"
                raise UserError(f"{settings}: {' '.join(str(error).split())} ({hint})") from error
        fabric.launch()
        return fabric


def describe_environment(environment: Environment, device: torch.device, note: str) -> dict[str, Any]:
    """Return versions, hardware, commit, command and time, for the record of a run."""
    facts: dict[str, Any] = {"python": platform.python_version()}
    facts |= {name: package_version(name) for name in PACKAGES}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    facts |= {"device": name, "threads": torch.get_num_threads(), "system": platform.system()}
    facts |= {k: v for k, v in dataclasses.asdict(environment).items() if k != "accelerator"}
    facts |= {"commit": git_commit(), "command": " ".join(["capsroute", *sys.argv[1:]])}
    return facts | {"started": datetime.now(UTC).isoformat(timespec="seconds"), "note": note}


def package_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """Return the processor's name as the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def git_commit() -> str:
    """Return the commit of the checkout this file lies in, marked if files differ from it."""
    commands = ["ls-files", "--error-unmatch", __file__], ["rev-parse", "HEAD"], ["status", "--porcelain"]
    options: dict[str, Any] = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "timeout": 10}
    try:
        _, commit, changes = (subprocess.run(["git", *words], check=True, **options).stdout for words in commands)
    except (OSError, subprocess.SubprocessError):
        return "not a checkout"
    return commit.strip() + (" and changes" if changes.strip() else "")
