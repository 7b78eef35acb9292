"""Time `auto` beside plain and compiled PyTorch on shapes of real uses: `python benchmarks/shapes.py --help`.

python benchmarks/shapes.py                    on a CPU, into benchmarks/results/shapes_cpu.csv
python benchmarks/shapes.py --device cuda      on a GPU, into benchmarks/results/shapes_cuda.csv
"""

import csv
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import typer

import capsroute.routing as routing
from capsroute import route
from capsroute.testing import SHAPES, Shape, draw_samples, make_inputs, over_budget
from measure import (
    CHECKED_VOTES,
    Call,
    clear_memory,
    describe_error,
    estimate_bytes,
    free_bytes,
    time_calls,
    time_captured,
)
from memory import measure_cuda_peak
from records import RESULTS, describe_run, write_json

IMPLS = ("reference", "compiled", "auto")
TIMED_S, MIN_TURNS, MAX_TURNS = 0.5, 5, 30
PROCESSES = 16
"""That compile at the same time."""
SEED = 0


class Use(NamedTuple):
    """A shape that someone routes, with the settings of its loop."""

    shape: Shape
    n_iters: int = 3
    agreement: str = "gaussian"


def own(batch: int, n_inp: int, n_out: int, *capsule: int) -> Shape:
    """Return a shape whose inputs have parameters of their own."""
    return Shape(batch, n_inp, n_out, *capsule, fixed_inp=True)


MNIST, POINTS, TOKENS = own(128, 1152, 10, 1, 8, 16), Shape(32, 1024, 40, 1, 64, 32), Shape(20, 888, 64, 1, 64, 2)
USES = {
    # the paper's layers
    "smallnorb_1_b20": Use(replace(SHAPES["smallnorb_1"], batch=20)),
    "smallnorb_1_b128": Use(replace(SHAPES["smallnorb_1"], batch=128)),
    "smallnorb_2": Use(SHAPES["smallnorb_2"]),
    "sst_1": Use(SHAPES["sst_1"]),
    "sst_2": Use(SHAPES["sst_2"]),
    "wide_out": Use(SHAPES["wide_out"]),
    "million": Use(Shape(1, 1_000_000, 64, 4, 4, 4)),
    # capsules of fixed inputs: CapsNet, ConvCaps, second layers
    "capsnet_mnist": Use(MNIST),
    "capsnet_mnist_b1": Use(replace(MNIST, batch=1)),
    "capsnet_mnist_b16": Use(replace(MNIST, batch=16)),
    "capsnet_mnist_b512": Use(replace(MNIST, batch=512)),
    "capsnet_cifar": Use(own(128, 2048, 10, 1, 8, 16)),
    "conv_caps": Use(own(400, 288, 32, 4, 4, 4)),
    "fixed_1x64": Use(own(16, 64, 16, 1, 64, 64)),
    "fixed_1x128": Use(own(16, 64, 16, 1, 128, 128)),
    "fixed_1x128_wide": Use(own(16, 128, 32, 1, 128, 128)),
    "fixed_1x256": Use(own(16, 64, 16, 1, 256, 256)),
    "fixed_1x512": Use(own(8, 8, 8, 1, 512, 512)),
    "fixed_8x8": Use(own(16, 64, 16, 8, 8, 8)),
    "fixed_16x16": Use(own(16, 64, 16, 16, 16, 16)),
    "fixed_b4096": Use(own(4096, 16, 8, 1, 8, 8)),
    # matrix capsules
    "matrix_2x2": Use(Shape(64, 256, 32, 2, 2, 2)),
    "matrix_3x3": Use(Shape(64, 256, 32, 3, 3, 3)),
    "matrix_4x4": Use(Shape(32, 784, 32, 4, 4, 4)),
    "matrix_6x6": Use(Shape(16, 512, 32, 6, 6, 6)),
    "matrix_8x8": Use(Shape(16, 512, 64, 8, 8, 8)),
    "matrix_16x16": Use(Shape(8, 128, 32, 16, 16, 16)),
    "matrix_2x2_b4096": Use(Shape(4096, 64, 10, 2, 2, 2)),
    # vectors
    "vector_8": Use(Shape(64, 512, 32, 1, 8, 8)),
    "vector_16": Use(Shape(32, 512, 64, 1, 16, 16)),
    "vector_32": Use(Shape(16, 512, 64, 1, 32, 32)),
    "vector_64": Use(Shape(8, 2048, 256, 1, 64, 64)),
    "vector_128": Use(Shape(8, 256, 32, 1, 128, 128)),
    "vector_768": Use(Shape(4, 128, 16, 1, 768, 768)),
    "vector_64_b1": Use(Shape(1, 64, 16, 1, 64, 64)),
    # patch tokens, points, graphs, sets
    "patches_256": Use(Shape(32, 197, 64, 1, 256, 32)),
    "patches_384": Use(Shape(32, 196, 10, 1, 384, 64)),
    "patches_512": Use(Shape(64, 49, 100, 1, 512, 16)),
    "patches_577": Use(Shape(8, 577, 1000, 1, 64, 16)),
    "points": Use(POINTS),
    "points_4096": Use(Shape(8, 4096, 32, 1, 32, 16)),
    "points_coordinates": Use(Shape(16, 2048, 16, 1, 3, 16)),
    "graphs": Use(Shape(128, 30, 8, 1, 64, 32)),
    "graphs_b512": Use(Shape(512, 20, 16, 2, 8, 8)),
    "audio": Use(Shape(16, 1000, 35, 1, 80, 16)),
    # many outputs
    "outputs_1000": Use(Shape(8, 512, 1000, 1, 16, 16)),
    "outputs_8192": Use(Shape(64, 12, 8192, 1, 64, 4)),
    "outputs_8192_own": Use(own(16, 12, 8192, 1, 16, 4)),
    "outputs_30000": Use(Shape(32, 8, 30_000, 1, 32, 4)),
    # kinds at places: parts of an image, depths of a transformer, joints over time
    "kinds_64x81": Use(replace(SHAPES["smallnorb_1"], batch=20, n_kinds=64)),
    "kinds_16x49": Use(Shape(64, 784, 10, 1, 32, 16, n_kinds=16)),
    "kinds_32x16": Use(Shape(64, 512, 10, 4, 4, 4, n_kinds=32)),
    "kinds_8x256": Use(Shape(16, 2048, 16, 1, 16, 16, n_kinds=8)),
    "joints_12x32": Use(Shape(64, 384, 20, 1, 16, 16, n_kinds=12)),
    "depths_37x24": Use(replace(TOKENS, n_kinds=37)),
    "depths_13x128": Use(Shape(8, 1664, 5, 1, 768, 16, n_kinds=13)),
    "depths_7x40": Use(Shape(64, 280, 5, 1, 384, 32, n_kinds=7)),
    # iterations, k-means
    "mnist_1_iteration": Use(MNIST, n_iters=1),
    "mnist_10_iterations": Use(replace(MNIST, batch=32), n_iters=10),
    "points_5_iterations": Use(POINTS, n_iters=5),
    "smallnorb_1_5_iterations": Use(SHAPES["smallnorb_1"], n_iters=5),
    "mnist_kmeans": Use(MNIST, agreement="kmeans"),
    "points_kmeans": Use(POINTS, agreement="kmeans"),
    "smallnorb_1_kmeans": Use(SHAPES["smallnorb_1"], agreement="kmeans"),
}


class Result(NamedTuple):
    """One implementation of one use, forward and backward; times are medians, memory is above the inputs."""

    use: str
    votes: int
    impl: str
    picked: str  # by `auto`
    called_ms: float | None = None
    captured_ms: float | None = None
    peak_mib: float | None = None
    first_s: float | None = None  # the first call, which may compile, on a GPU beside as many as there are workers
    skipped: str = ""


def shape_on(name: str, device: str) -> Shape:
    """Return a use's shape, on a CPU with an eighth of the batch."""
    shape = USES[name].shape
    return shape if device == "cuda" else replace(shape, batch=max(1, shape.batch // 8))


def make_call(name: str, impl: str, device: str) -> Call:
    """Return a function that routes fixed random inputs once, forward and backward."""
    shape, settings = shape_on(name, device), {"n_iters": USES[name].n_iters, "agreement": USES[name].agreement}
    inputs = make_inputs(shape, SEED, device=device)
    capsules = (shape.batch, shape.n_out, shape.d_cov, shape.d_out)
    weights = [torch.ones(size, device=device) for size in (capsules[:2], capsules, capsules)]
    run: Any = partial(route, **inputs, **settings, impl="reference" if impl == "compiled" else impl)
    run = torch.compile(run, dynamic=False) if impl == "compiled" else run
    return lambda: torch.autograd.grad(run(), list(inputs.values()), weights)


def find_pick(name: str, device: str) -> str:
    """Return the implementation that `auto` picks."""
    use = USES[name]
    return routing.pick(replace(shape_on(name, device).case(use.agreement, device), n_iters=use.n_iters))


def find_wrong_results(name: str, device: str) -> str:
    """Return what is over its error budget in a smaller batch by the implementation that `auto` picks."""
    samples, use = draw_samples(shape_on(name, device).at_most(CHECKED_VOTES // 4), device), USES[name]
    wrong = over_budget(samples, find_pick(name, device), n_iters=use.n_iters, agreement=use.agreement)
    return "; ".join(f"{result} {how}" for result, how in wrong.items())


class Candidate:
    """One implementation of one use that is being measured."""

    def __init__(self, name: str, impl: str, device: str):
        picked = find_pick(name, device) if impl == "auto" else ""
        self.row = Result(name, shape_on(name, device).votes, impl, picked)
        self.device, self.times = device, list[float]()
        self.call: Call | None = None
        needed, free = 0 if impl == "auto" else estimate_bytes("reference", shape_on(name, device)), free_bytes(device)
        if needed > free:
            reason = f"needs about {needed / 2**30:.0f} GiB of {free / 2**30:.0f} GiB free"
            self.row = self.row._replace(skipped=reason)

    def prepare(self) -> None:
        """Call it for the first time, and keep the reason where that fails; the next attempt starts anew."""
        if self.call is None and not self.row.skipped.startswith("needs"):
            try:
                call = make_call(self.row.use, self.row.impl, self.device)
                first_s = time_calls(call, self.device, 1)[0] / 1e3
                call()
                self.call, self.row = call, self.row._replace(first_s=first_s, skipped="")
            except Exception as error:
                self.row = self.row._replace(skipped=describe_error(error))

    def time(self) -> None:
        """Time one call."""
        if self.call:
            self.times += time_calls(self.call, self.device, 1)

    def finish(self) -> Result:
        """Return the median of the times, and what else is measured on a GPU."""
        if self.call is None:
            return self.row
        row = self.row._replace(called_ms=float(np.median(self.times)))
        if self.device == "cuda":
            clear_memory()
            row = row._replace(peak_mib=measure_cuda_peak(self.call))
            row = row._replace(captured_ms=time_captured(self.call, len(self.times)))
        self.call = None
        clear_memory()
        return row


def prepare(name: str, impls: list[str], device: str) -> list[Candidate]:
    """Compile all implementations of a use."""
    candidates = [Candidate(name, impl, device) for impl in impls]
    for candidate in candidates:
        candidate.prepare()
    clear_memory()
    return candidates


def measure(candidates: list[Candidate]) -> list[Result]:
    """Time the implementations of a use in turns, so that noise affects all alike."""
    for candidate in candidates:
        candidate.prepare()  # again, where there was too little memory beside others
    ready = [candidate for candidate in candidates if candidate.call]
    n_turns = MAX_TURNS
    for turn in range(MAX_TURNS):
        for candidate in ready[: None if turn < n_turns else 0]:
            candidate.time()
        if turn == 0:
            once = sum(candidate.times[0] for candidate in ready)
            n_turns = max(MIN_TURNS, int(1e3 * TIMED_S / max(once, 1e-3)))
    return [candidate.finish() for candidate in candidates]


def serve_worker(connection: Connection, impls: list[str], device: str) -> None:
    """Prepare the use that comes, and measure it when told to, until there are no more."""
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1  # pyright: ignore[reportAttributeAccessIssue]
    while name := connection.recv():
        candidates = prepare(name, impls, device)
        connection.send("" if "auto" not in impls else find_wrong_results(name, device))
        connection.recv()
        connection.send(measure(candidates))
        torch.compiler.reset()


def measure_on_gpu(names: list[str], impls: list[str]) -> Iterator[Result]:
    """Compile uses side by side, one in each process, then time them alone, one after the other."""
    spawn, n_rounds = multiprocessing.get_context("spawn"), ceil(len(names) / PROCESSES)
    largest_first = sorted(names, key=lambda name: -USES[name].shape.votes)
    pipes = [spawn.Pipe() for _ in range(min(PROCESSES, len(names)))]
    workers = [spawn.Process(target=serve_worker, args=(there, impls, "cuda"), daemon=True) for _, there in pipes]
    for worker in workers:
        worker.start()
    for k in range(n_rounds):
        started = list(zip(largest_first[k::n_rounds], [here for here, _ in pipes], strict=False))
        for name, worker in started:
            worker.send(name)
        for name, worker in started:
            if wrong := worker.recv():
                print(f"{name}: {wrong}", flush=True)
        for _, worker in started:
            worker.send("go")
            yield from worker.recv()
    for worker, _ in pipes:
        worker.send("")


def measure_on_cpu(names: list[str], impls: list[str]) -> Iterator[Result]:
    for name in names:
        if wrong := find_wrong_results(name, "cpu"):
            print(f"{name}: {wrong}", flush=True)
        yield from measure(prepare(name, impls, "cpu"))
        torch.compiler.reset()


def write_results(rows: list[Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Result._fields)
        writer.writerows([f"{value:.4f}" if isinstance(value, float) else value for value in row] for row in rows)


def main(
    device: Literal["cpu", "cuda"] = "cpu",
    uses: Annotated[str | None, typer.Option(help="Names separated by commas; all by default.")] = None,
    impls: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(IMPLS),
    out: Annotated[Path | None, typer.Option(help="CSV file to write, with a JSON file beside it.")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit to record for sources without history.")] = None,
) -> None:
    """Check and time every use, forward and backward, and write a row for each implementation."""
    path = out or RESULTS / f"shapes_{device}.csv"
    names, measure_all = uses.split(",") if uses else list(USES), measure_on_gpu if device == "cuda" else measure_on_cpu
    rows = []
    for row in measure_all(names, impls.split(",")):
        rows.append(row)
        write_results(sorted(rows, key=lambda row: names.index(row.use)), path)  # each time, in case it is interrupted
        numbers = (row.called_ms, row.captured_ms, row.peak_mib, row.first_s)
        cells = "".join(f"{'' if number is None else f'{number:.4g}':>10}" for number in numbers)
        print(f"{row.use:26}{row.impl:11}{row.picked:11}{cells}  {row.skipped}", flush=True)
    write_json(describe_run(device, SEED, commit), path.with_suffix(".json"))


if __name__ == "__main__":
    typer.run(main)
