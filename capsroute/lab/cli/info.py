"""Commands that list what there is."""

import platform
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from ...pretrained import ALIASES, HOME, SHIPPED
from ...routing import IMPLS, pick
from ...routing.agreement import AGREEMENTS
from ...testing import SHAPES
from ..training.config import changed_settings
from ..training.environment import package_version
from ..training.experiments import EXPERIMENTS, training_command
from .app import app, console, make_table


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
