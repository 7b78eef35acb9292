"""Reports and figures of finished runs."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from ..training.runs import RunFolder
    from ..training.task import Result


def write_run_report(run: "RunFolder | Path", fabric: "Fabric", *, progress: bool = True) -> "tuple[Path, Result]":
    """Score a run's final weights on the test split, write `report.html` into its folder, and return its path."""
    from . import run_report

    return run_report.write_run_report(run, fabric, progress=progress)
