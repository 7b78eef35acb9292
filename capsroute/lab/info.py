"""What `capsroute info` shows."""

import importlib.metadata
import platform

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..routing import IMPLS, pick, triton
from ..testing import SHAPES


def versions() -> Table:
    """Of the package and of what it uses."""
    table = Table("package", "version", title="Versions")
    table.add_row("python", platform.python_version())
    for package in ("capsroute", "torch", "numpy", "triton", "onnx", "onnxruntime"):
        try:
            table.add_row(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            table.add_row(package, "not installed")
    return table


def devices() -> Table:
    """That PyTorch sees."""
    table = Table("device", "what", title="Devices", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row("cpu", f"{torch.get_num_threads()} threads")
    for k in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(k).total_memory / 2**30
        table.add_row(f"cuda:{k}", f"{torch.cuda.get_device_name(k)}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        table.add_row("mps", "Apple GPU")
    return table


def implementations(device: str, agreement: str) -> tuple[Table, str]:
    """Which can run each named shape, and the reasons why others cannot."""
    title = f"Implementations on {device}"
    columns = "shape", "inputs → outputs", "capsules", *IMPLS
    table = Table(*columns, title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
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


def plain_calls(device: str) -> str:
    """Who starts the fused kernels outside of graphs, if they run; the first time that takes half a minute to tell."""
    triton.look(device)
    if device != "cuda" or triton.FOUND[device]:
        return ""
    lacking = triton.ready()
    return f"plain calls of triton are started by {f'Python: {lacking}' if lacking else 'C++'}"
