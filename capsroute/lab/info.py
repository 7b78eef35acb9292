"""Tables of `capsroute info`."""

import platform

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..routing import IMPLS, pick
from ..testing import SHAPES
from .training.environment import package_version


def make_table(*columns: str, title: str) -> Table:
    """Return a table that wraps long names instead of cutting them."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def list_versions() -> Table:
    """Return a table of installed packages."""
    table = make_table("package", "version", title="Versions")
    table.add_row("python", platform.python_version())
    for package in ("capsroute", "torch", "numpy", "triton", "onnx", "onnxruntime"):
        table.add_row(package, package_version(package))
    return table


def list_devices() -> Table:
    """Return a table of the devices that PyTorch can use."""
    table = make_table("device", "name", title="Devices")
    table.add_row("cpu", f"{torch.get_num_threads()} threads")
    for k in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(k).total_memory / 2**30
        table.add_row(f"cuda:{k}", f"{torch.cuda.get_device_name(k)}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        table.add_row("mps", "Apple GPU")
    return table


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
