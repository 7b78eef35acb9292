"""Time the fused kernels on a GPU, called one by one and captured in a graph: `python benchmarks/kernels.py --help`."""

import csv
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from capsroute import route
from capsroute.testing import SHAPES, Shape, make_inputs
from memory import cuda_peak
from origin import origin
from records import RESULTS
from rivals import SEED, output_weights

CASES = {
    "smallnorb_1, batch 20": replace(SHAPES["smallnorb_1"], batch=20),
    "smallnorb_1, batch 128": replace(SHAPES["smallnorb_1"], batch=128),
    "sst_1, batch 20": SHAPES["sst_1"],
    "smallnorb_2, batch 20": SHAPES["smallnorb_2"],
    "sst_2, batch 20": SHAPES["sst_2"],
    "wide_out, batch 8": SHAPES["wide_out"],
    "1,000,000 inputs to 64 outputs, 4x4": Shape(1, 1_000_000, 64, 4, 4, 4),
}
SLOW = 10**9
"""Votes from which a case is repeated less."""
COLUMNS: tuple[str, ...] = (
    "case", "impl", "eager_p50_ms", "eager_p20_ms", "eager_p80_ms", "captured_ms", "peak_mib", "of_it_gradients_mib",
)  # fmt: skip


def call_of(shape: Shape, impl: str) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Forward and backward pass of one routing."""
    inputs, weights = make_inputs(shape, SEED, device="cuda"), output_weights(shape, "cuda")
    run = partial(route, **inputs, impl=impl)
    return lambda: torch.autograd.grad(run(), list(inputs.values()), weights)


def eager(call: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of calls, each waited for."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def captured(call: Callable[[], object], repeats: int) -> float:
    """Milliseconds of a call that a graph holds, as training captures it: without what Python takes."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def measure(name: str, impl: str) -> dict[str, Any]:
    """One row."""
    shape = CASES[name]
    call = call_of(shape, impl)
    repeats = 10 if shape.votes * (20 if impl == "reference" else 1) > 20 * SLOW else 50
    for _ in range(3):
        gradients = call()
    size = sum(d.nbytes for d in gradients) / 2**20
    del gradients
    p20, p50, p80 = np.percentile(eager(call, repeats), (20, 50, 80)).tolist()
    peak = cuda_peak(call)
    row = dict(zip(COLUMNS, (name, impl, p50, p20, p80, captured(call, repeats), peak, size), strict=True))
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def main(
    only: Annotated[str | None, typer.Option(help="Compile this case alone, and measure nothing.")] = None,
    impls: Annotated[str, typer.Option(help="Implementations, with commas.")] = "triton,reference",
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default="benchmarks/results/kernels")] = RESULTS
    / "kernels",
    commit: Annotated[str | None, typer.Option(help="Commit to record where git cannot tell.")] = None,
) -> None:
    """Write kernels.csv and kernels.json."""
    if only is not None:
        call_of(CASES[only], "triton")()
        torch.cuda.synchronize()
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / "kernels.json").write_text(json.dumps(origin("cuda", SEED, commit), indent=2) + "\n")
    rows: list[dict[str, Any]] = []
    for name in CASES:
        for impl in impls.split(","):
            try:
                rows.append(measure(name, impl))
            except torch.OutOfMemoryError:
                rows.append({"case": name, "impl": impl})
            torch.cuda.empty_cache()
            print(*rows[-1].values(), sep="  ", flush=True)
            # a run cut short leaves what it has measured
            with (out / "kernels.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    typer.run(main)
