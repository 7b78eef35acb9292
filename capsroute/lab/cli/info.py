"""Commands that list what there is, and that fetch and check datasets."""

import platform
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from ...pretrained import ALIASES, HOME, SHIPPED
from ...routing import IMPLS, pick
from ...routing.agreement import AGREEMENTS
from ...testing import SHAPES
from .. import data as datasets
from ..data import smallnorb, sst
from ..training.config import changed_settings
from ..training.environment import package_version
from ..training.experiments import EXPERIMENTS, training_command
from .app import app, console, make_table

data_app = typer.Typer(help="Download datasets, or check the files of one.", no_args_is_help=True)
app.add_typer(data_app, name="data")
DatasetName = Annotated[str, typer.Argument(help="smallnorb or sst.")]
DatasetFolder = Annotated[Path | None, typer.Option("--folder", help="Its folder; by default where training looks.")]


@data_app.command(epilog="Example: capsroute data fetch smallnorb")
def fetch(name: DatasetName, folder: DatasetFolder = None) -> None:
    """Download a dataset and verify its checksums."""
    dataset, folder = find_dataset(name, folder)
    for path in dataset.fetch(folder):
        console.print(f"{path.name}: complete and as published")
    console.print(str(folder))


@data_app.command(epilog="Example: capsroute data check sst --folder DOWNLOADS")
def check(name: DatasetName, folder: DatasetFolder = None) -> None:
    """Print the state of every file of a dataset; the exit status is 1 if one is missing or damaged."""
    dataset, folder = find_dataset(name, folder)
    table = make_table("file", "state", title=f"{name} in {folder}")
    states = dataset.check(folder)
    for state in states:
        table.add_row(state.name, state.state)
    console.print(table)
    if any(not state.ok for state in states):
        raise typer.Exit(1)


def find_dataset(name: str, folder: Path | None) -> tuple[Any, Path]:
    """Return the module that reads a dataset, and its folder."""
    readers = {"smallnorb": smallnorb, "sst": sst}
    if name not in readers:
        made = "toys and the treebank are made when they are first used"
        raise ValueError(f"name: expected one of {', '.join(readers)}, got {name!r}; {made}")
    return readers[name], folder or datasets.folder() / name


@app.command("list", epilog="Example: capsroute list")
def list_names() -> None:
    """List experiments with their settings, and the trained networks that come with the package."""
    table = make_table("experiment", "description", "settings other than the paper's", title="Experiments")
    for name, make in EXPERIMENTS.items():
        changed = changed_settings(make())
        del changed["experiment"]
        table.add_row(name, make.__doc__ or "", ", ".join(f"{field}={value}" for field, value in changed.items()))
    shipped = make_table("name", "trained by", title="Trained networks, for WEIGHTS and capsroute.load(NAME)")
    short = {name: alias for alias, name in ALIASES.items()}
    for name in SHIPPED:
        shipped.add_row(f"{name} or {short[name]}" if name in short else name, training_command(name))
    console.print(table, shipped, f"model cards: {HOME}/NAME/README.md")


@app.command(epilog="Example: capsroute info --device cuda")
def info(
    device: Annotated[str, typer.Option(help="Device to choose implementations for.")] = "cpu",
    agreement: Annotated[str, typer.Option(help="Model of agreement: gaussian or kmeans.")] = "gaussian",
) -> None:
    """Print versions, devices, and which implementations can run each named shape, or why not."""
    if agreement not in AGREEMENTS:
        raise typer.BadParameter(f"agreement: expected one of {list(AGREEMENTS)}, got {agreement!r}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise typer.BadParameter(f"device: expected a name such as cpu, cuda or mps, got {device!r}") from None
    versions = make_table("package", "version", title="Versions")
    versions.add_row("python", platform.python_version())
    for package in ("capsroute", "torch", "numpy", "triton", "onnx", "onnxruntime"):
        versions.add_row(package, package_version(package))
    devices = make_table("device", "name", title="Devices")
    devices.add_row("cpu", f"{torch.get_num_threads()} threads")
    for k in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(k).total_memory / 2**30
        devices.add_row(f"cuda:{k}", f"{torch.cuda.get_device_name(k)}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        devices.add_row("mps", "Apple GPU")
    Console().print(versions, devices, *list_implementations(kind, agreement))


def list_implementations(device: str, agreement: str) -> tuple[Table, str]:
    """Return a table of the implementations that can run each named shape, and why others cannot."""
    table = make_table("shape", "inputs → outputs", "capsules", *IMPLS, title=f"Implementations on {device}")
    notes: list[str] = []
    for name, shape in SHAPES.items():
        case = shape.case(agreement, device)
        cells = []
        for impl, row in IMPLS.items():
            reasons = row.reasons_against(case)
            notes += [reason for reason in reasons if reason not in notes]
            numbers = ", ".join(str(notes.index(reason) + 1) for reason in reasons)
            cells.append(f"no ({numbers})" if reasons else "auto" if impl == pick(case) else "yes")
        sizes = f"{shape.batch} x {shape.n_inp:,} → {shape.n_out:,}"
        capsules = f"{shape.d_cov}x{shape.d_inp} → {shape.d_cov}x{shape.d_out}"
        table.add_row(name, sizes, capsules, *cells)
    return table, "\n".join(f"({k}) {note}" for k, note in enumerate(notes, start=1))
