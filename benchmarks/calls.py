"""What a call of the fused kernels costs beside what they do: `python benchmarks/calls.py --help`.

A function of the same arguments that launches nothing takes what Python and PyTorch take, which differs by machine. It
takes turns with a call whose launches are Python's, as they are where `native.cpp` was not compiled, and with a plain
call, each waited for. Then all of them in a row; and the same with the backward pass in the caller's thread, as
`torch.autograd.set_multithreading_enabled(False)` has it, instead of PyTorch's thread of the device.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from rich.table import Table
from torch import Tensor
from torch.autograd import Function

from capsroute.routing.triton.native import Kernels
from capsroute.testing import make_inputs
from cases import BARS, CASES
from jobs import console
from measure import REPEATS, WARM_UPS, captured, eager, in_a_row
from origin import origin
from records import RESULTS, write_table
from rivals import MODES, SEED, make_call, output_weights


class Nothing(Function):
    """Makes room for outputs and gradients, and leaves it as it is."""

    @staticmethod
    def forward(ctx: Any, weights: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*inputs)
        return tuple([torch.empty_like(w) for w in weights])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *[torch.empty_like(t) for t in ctx.saved_tensors]


def in_turns(calls: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Median milliseconds of each."""
    times = [[eager(call, device, 1)[0] for call in calls.values()] for _ in range(WARM_UPS + repeats)][WARM_UPS:]
    return dict(zip(calls, np.median(times, 0).tolist(), strict=True))


def row_of(case: str, repeats: int, device: str) -> dict[str, Any]:
    shape = CASES[case]
    inputs, weights = make_inputs(shape, SEED, device=device), output_weights(shape, device)
    leaves = list(inputs.values())
    route = make_call("triton", MODES[1], inputs, weights)

    def nothing() -> object:
        return torch.autograd.grad(Nothing.apply(weights, *leaves), leaves, weights)

    def by_python() -> object:
        native = Kernels.direct
        Kernels.direct = lambda self, inputs: None
        try:
            return route()
        finally:
            Kernels.direct = native

    calls: dict[str, Callable[[], object]] = {"nothing": nothing, "by Python": by_python, "": route}
    row: dict[str, Any] = {"case": case} | timed(calls, repeats, device)
    with torch.autograd.set_multithreading_enabled(False):
        row |= {f"own thread, {name}": ms for name, ms in timed(calls, repeats, device).items()}
    return row if device == "cpu" else row | {"captured ms": captured(route, repeats)}


def timed(calls: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Each waited for, and in a row."""
    row = {f"{name} ms".strip(): ms for name, ms in in_turns(calls, repeats, device).items()}
    if device == "cpu":
        return row
    return row | {f"{name} in a row ms".strip(): in_a_row(call, repeats) for name, call in calls.items()}


def main(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="A CPU interprets the kernels: for tests.")] = "cuda",
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each.")] = REPEATS,
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default="benchmarks/results")] = RESULTS,
    commit: Annotated[str | None, typer.Option(help="Commit to record, of files that were copied.")] = None,
) -> None:
    """Time them on every case that has a bar, and write calls.csv."""
    rows = [row_of(case, repeats, device) for case in BARS]
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    rounded = [{name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()} for row in rows]
    write_table(rounded, out / "calls.csv")
    (out / "calls.json").write_text(json.dumps(origin(device, SEED, commit), indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
