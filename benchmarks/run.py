"""Time every implementation on the named shapes, beside rivals, in one process: `python benchmarks/run.py --help`."""

import gc
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from capsroute.testing import SHAPES, make_inputs, over_budget
from memory import cpu_peak, cuda_peak
from origin import Others, origin
from records import RESULTS, Row, with_ratios, write_rows
from rivals import MODES, RIVALS, SEED, impl_of, make_call, output_weights, reason_to_skip

CPU_SHAPES = tuple(name for name in SHAPES if name != "wide_out")
"""What a CPU is timed on unless told otherwise: `wide_out` takes it a minute per call."""
WARM_UPS = 2
CHECKED_VOTES, FEW_VOTES = 2**20, 2**16
QUIET = 0.05
"""Above this share of the cores in other hands threads wait for each other, some rivals far more than others."""

Calls = dict[tuple[str, str], Callable[[], object]]
console = Console()


def check(shape: str, rivals: list[str], device: str) -> None:
    """Stop before anything is timed if an implementation's results are wrong."""
    case = SHAPES[shape].case(device=device)
    small = SHAPES[shape].at_most(CHECKED_VOTES)
    # errors vary more where there is less to sum
    samples = [make_inputs(small, seed, device=device) for seed in range(12 if small.votes < FEW_VOTES else 2)]
    for impl in sorted({impl_of(r, case) for r in rivals if not reason_to_skip(r, SHAPES[shape], device)}):
        if wrong := over_budget(samples, impl, torch.float32):
            results = "; ".join(f"{name} {how}" for name, how in wrong.items())
            console.print(f"[red]Not timed:[/] {impl} on {shape} differs from the float64 reference: {results}")
            raise typer.Exit(1)


def warm_up(calls: Calls) -> dict[tuple[str, str], str]:
    """Run every call, compiling what has to be, and return why those that cannot run fail."""
    failed = {}
    for key, call in calls.items():
        try:
            for _ in range(WARM_UPS):
                call()
        except RuntimeError as error:
            # a message may hold paths, so the kind of error has to do
            failed[key] = "out of memory" if isinstance(error, torch.OutOfMemoryError) else type(error).__name__
            console.print(f"[yellow]{' '.join(key)} failed:[/] {escape(str(error))}")
    return failed


def time_calls(calls: Calls, device: str, repeats: int, tick: Callable[[], None]) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of each call, one of each per round, so that noise hits all rivals alike."""
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    shuffler = random.Random(SEED)
    for _ in range(repeats):
        # shuffled, for a call also pays for the caches and memory that the one before it leaves
        for key in shuffler.sample(list(calls), len(calls)):
            synchronize()
            start = time.perf_counter()
            calls[key]()
            synchronize()
            times[key].append(1e3 * (time.perf_counter() - start))
        tick()
    return times


def measure(
    shape: str, rivals: list[str], device: str, repeats: int, tick: Callable[[], None]
) -> tuple[list[Row], float]:
    """Rows of all rivals on one shape, and the share of the cores that other programs took meanwhile."""
    sizes = SHAPES[shape]
    inputs, weights = make_inputs(sizes, SEED, device=device), output_weights(sizes, device)
    skipped = {(r, mode): reason_to_skip(r, sizes, device) for r in rivals for mode in MODES}
    calls = {key: make_call(*key, inputs, weights) for key, reason in skipped.items() if not reason}
    skipped |= warm_up(calls)
    calls = {key: call for key, call in calls.items() if not skipped[key]}
    others = Others()
    times = time_calls(calls, device, repeats, tick)
    others_busy = others.busy()

    picked = impl_of("auto", sizes.case(device=device))
    rows = []
    for rival, mode in skipped:
        named = (shape, sizes.batch, sizes.n_inp, sizes.n_out, rival, picked if rival == "auto" else "", mode)
        if reason := skipped[rival, mode]:
            rows.append(Row(*named, skipped=reason))
        else:
            p20, p50, p80 = np.percentile(times[rival, mode], (20, 50, 80)).tolist()
            peak = cuda_peak(calls[rival, mode]) if device == "cuda" else cpu_peak(shape, rival, mode)
            rows.append(Row(*named, p20, p50, p80, peak))
        tick()
    return with_ratios(rows), others_busy


def save(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Write what is measured so far, so that a run cut short leaves whole shapes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(rows, path.with_suffix(".csv"))
    path.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")


def show(rows: list[Row]) -> None:
    """Print how the rows compare with the reference; the file holds the rest."""
    table = Table("shape", "mode", "rival", "speedup", "memory ratio", "picked", box=None)
    for row in rows:
        ratios = ("" if ratio is None else f"{ratio:.2f}" for ratio in (row.speedup, row.memory_ratio))
        table.add_row(row.shape, row.mode, row.rival, *ratios, "skipped" if row.skipped else row.picked)
    console.print(table)


def chosen(names: str | None, among: tuple[str, ...], default: tuple[str, ...]) -> list[str]:
    """Names given with commas between them; an unknown one is an error."""
    if names is None:
        return list(default)
    if unknown := set(names.split(",")) - set(among):
        raise typer.BadParameter(f"expected some of {', '.join(among)}, got {', '.join(sorted(unknown))}")
    return [name for name in among if name in names.split(",")]


def main(
    shapes: Annotated[str | None, typer.Option(help="Named shapes, with commas; on a CPU not wide_out.")] = None,
    impls: Annotated[str | None, typer.Option(help=f"Rivals, with commas, of {', '.join(RIVALS)}.")] = None,
    device: Literal["cpu", "cuda"] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each rival in each mode.")] = 20,
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default="benchmarks/results")] = RESULTS,
    commit: Annotated[str | None, typer.Option(help="Commit to record where git cannot tell.")] = None,
) -> None:
    """Time the rivals on each shape, forward and backward, and write DEVICE.csv and DEVICE.json."""
    names = chosen(shapes, tuple(SHAPES), CPU_SHAPES if device == "cpu" else tuple(SHAPES))
    rivals = chosen(impls, RIVALS, RIVALS)
    about = origin(device, SEED, commit)
    for name in names:
        check(name, rivals, device)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(names) * (repeats + len(MODES) * len(rivals)))
        for name in names:
            progress.update(task, description=name)
            torch.compiler.reset()  # or the sizes of an earlier shape count against its limit of recompilations
            gc.collect()
            torch.cuda.empty_cache()  # what PyTorch keeps for later does not count as free
            found, others_busy = measure(name, rivals, device, repeats, lambda: progress.advance(task))
            rows += found
            about["others_busy"][name] = round(others_busy, 3)
            if others_busy > QUIET:
                console.print(f"[yellow]{name}: other programs took {others_busy:.0%} of the cores: do not compare[/]")
            save(rows, about, out / device)
    show(rows)


if __name__ == "__main__":
    typer.run(main)
