"""Tables of `capsroute info`."""

import importlib.metadata
import platform

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..routing import IMPLS, pick
from ..testing import SHAPES


def list_versions() -> Table:
    """Return a table of installed packages."""
    table = Table("package", "version", title="Versions", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row("python", platform.python_version())
    for package in ("capsroute", "torch", "numpy", "triton", "onnx", "onnxruntime"):
        installed = any(importlib.metadata.distributions(name=package))
        table.add_row(package, importlib.metadata.version(package) if installed else "not installed")
    return table


def list_devices() -> Table:
    """Return a table of the devices that PyTorch can use."""
    table = Table("device", "name", title="Devices", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row("cpu", f"{torch.get_num_threads()} threads")
    for k in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(k).total_memory / 2**30
        table.add_row(f"cuda:{k}", f"{torch.cuda.get_device_name(k)}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        table.add_row("mps", "Apple GPU")
    return table


def list_implementations(device: str, agreement: str) -> tuple[Table, str]:
    """Return a table of the implementations that can run each named shape, and why others cannot."""
    columns = "shape", "inputs → outputs", "capsules", *IMPLS
    table = Table(*columns, title=f"Implementations on {device}", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
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
