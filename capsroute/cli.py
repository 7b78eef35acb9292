"""The command line, nothing but the command line."""

import importlib.metadata
import platform
from typing import Annotated

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .routing import IMPLS, pick
from .routing.agreement import AGREEMENTS
from .testing import SHAPES

app = typer.Typer(help="Routing by agreement for PyTorch.", no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Routing by agreement for PyTorch."""


@app.command()
def info(
    device: Annotated[str, typer.Option(help="Device to choose implementations for.")] = "cpu",
    agreement: Annotated[str, typer.Option(help="Model of agreement: gaussian or kmeans.")] = "gaussian",
) -> None:
    """Versions, devices, and which implementations can run each named shape, or why not."""
    if agreement not in AGREEMENTS:
        raise typer.BadParameter(f"agreement: expected one of {list(AGREEMENTS)}, got {agreement!r}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise typer.BadParameter(f"device: expected a name such as cpu, cuda or mps, got {device!r}") from None
    Console().print(_versions(), _devices(), *_implementations(kind, agreement))


def _versions() -> Table:
    table = Table("package", "version", title="Versions", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row("python", platform.python_version())
    for package in ("capsroute", "torch", "numpy", "triton", "onnx", "onnxruntime"):
        try:
            table.add_row(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            table.add_row(package, "not installed")
    return table


def _devices() -> Table:
    table = Table("device", "what", title="Devices", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row("cpu", f"{torch.get_num_threads()} threads")
    for k in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(k).total_memory / 2**30
        table.add_row(f"cuda:{k}", f"{torch.cuda.get_device_name(k)}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        table.add_row("mps", "Apple GPU")
    return table


def _implementations(device: str, agreement: str) -> tuple[Table, str]:
    title = f"Implementations on {device}"
    table = Table("shape", "inputs", "outputs", "capsules", *IMPLS, title=title, box=SIMPLE_HEAD, pad_edge=False)
    notes: list[str] = []
    for name, shape in SHAPES.items():
        case = shape.case(agreement, device)
        cells = []
        for impl, (reasons_against, _) in IMPLS.items():
            reasons = reasons_against(case)
            notes += [reason for reason in reasons if reason not in notes]
            numbers = ", ".join(str(notes.index(reason) + 1) for reason in reasons)
            cells.append(f"no ({numbers})" if reasons else "auto" if impl == pick(case) else "yes")
        inputs = f"{shape.batch} x {shape.n_inp:,}" + (" fixed" if shape.fixed_inp else "")
        sizes = f"{shape.d_cov}x{shape.d_inp} to {shape.d_cov}x{shape.d_out}"
        table.add_row(name, inputs, f"{shape.n_out:,}", sizes, *cells)
    return table, "\n".join(f"({k}) {note}" for k, note in enumerate(notes, start=1))
