"""Time the implementations on named cases: `python benchmarks/run.py --help`.

python benchmarks/run.py                                  all on a CPU, into benchmarks/results/cpu.csv
python benchmarks/run.py --device cuda                    all on a GPU, into benchmarks/results/cuda.csv
python benchmarks/run.py --device cuda --impls auto --compare benchmarks/results/cuda.csv
"""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import track

from cases import CASES, COMPILED, DEFAULT_CASES, DEFAULT_IMPLS, DEFAULT_MODES, FAMILIES, IMPLS, MODES, SEED
from measure import PROCESSES, Job, check_result, compile_ahead, describe_error, measure, measure_in_rounds
from records import RESULTS, Row, describe_run, read_rows, write_json, write_rows

JOB_SECONDS, PREPARE_SECONDS = 120, 300
SPAWN = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
console = Console()


def prepare(task: tuple[str, Job]) -> str:
    """Compile or check one job; return what went wrong."""
    step, job = task
    try:
        return compile_ahead(job) if step == "compile" else check_result(job)
    except Exception as error:
        return describe_error(error)


def prepare_jobs(jobs: list[Job], check: bool) -> dict[Job, str]:
    """Compile in parallel and check results; return the jobs whose results are wrong, and how."""
    tasks = [("compile", job) for job in jobs if job.impl in ("triton", "auto", *COMPILED)]
    tasks += [("check", job) for job in jobs if check]
    with SPAWN.Pool(max(1, min(len(tasks), PROCESSES, (os.cpu_count() or 1) - 2))) as pool:
        messages = pool.map_async(prepare, tasks, chunksize=1).get(PREPARE_SECONDS)
    for (step, job), message in zip(tasks, messages, strict=True):
        if message:
            console.print(f"{step} {job.case} {job.impl}: {message}", style="yellow", markup=False)
    return {job: message for (step, job), message in zip(tasks, messages, strict=True) if message and step == "check"}


def measure_on_gpu(jobs: list[Job], wrong: dict[Job, str]) -> Iterator[Row]:
    """Measure one job after the other in a process that is replaced after a failure."""
    pool = None
    for job in track(sorted(jobs, key=lambda job: job.impl in COMPILED), "measure", console=console):
        if job in wrong:
            yield job.skip(f"wrong: {wrong[job]}")
            continue
        pool = pool or SPAWN.Pool(1)
        try:
            row = pool.apply_async(measure, (job,)).get(JOB_SECONDS)
        except multiprocessing.TimeoutError:
            row = job.skip(f"took more than {JOB_SECONDS} s, or its process died")
        if row.captured_ms is None:  # a capture that failed may affect later ones
            pool.terminate()
            pool = None
        yield row


def measure_on_cpu(jobs: list[Job], wrong: dict[Job, str], repeats: int) -> Iterator[Row]:
    yield from (job.skip(f"wrong: {message}") for job, message in wrong.items())
    for case in track(dict.fromkeys(job.case for job in jobs), "measure", console=console):
        yield from measure_in_rounds([job for job in jobs if job.case == case and job not in wrong], repeats)


def print_rows(rows: list[Row]) -> None:
    """Print times, and what an eager call adds to the time in a CUDA graph."""
    print(f"{'case':18}{'mode':18}{'impl':18}{'called ms':>10}{'captured ms':>13}{'difference':>12}{'peak MiB':>10}")
    for row in rows:
        numbers = zip((row.p50_ms, row.captured_ms, row.overhead_ms, row.peak_mib), (10, 13, 12, 10), strict=True)
        cells = "".join(f"{'' if number is None else f'{number:.4g}':>{width}}" for number, width in numbers)
        print(f"{row.case:18}{row.mode:18}{row.impl:18}{cells}  {row.skipped or row.picked}")


def print_comparison(rows: list[Row], committed: list[Row]) -> None:
    """Print times divided by those of a file, for the same implementation or the one that `auto` picked."""
    print(f"\n{'new / old':18}{'':18}{'':18}{'captured':>30}{'called':>30}{'memory':>30}")
    for row in rows:
        same = [old for old in committed if (old.case, old.mode) == (row.case, row.mode)]
        old = next((old for name in (row.impl, row.picked) for old in same if old.impl == name), None)
        if old:
            pairs = ((row.captured_ms, old.captured_ms), (row.p50_ms, old.p50_ms), (row.peak_mib, old.peak_mib))
            cells = (f"{a / b:.3f} = {a:.4g} / {b:.4g}" if a and b else "" for a, b in pairs)
            print(f"{row.case:18}{row.mode:18}{row.impl:18}" + "".join(f"{cell:>30}" for cell in cells))


def select(names: str | None, known: tuple[str, ...], default: tuple[str, ...]) -> list[str]:
    """Split names at commas and expand those of families; an unknown name is an error."""
    if names is None:
        return list(default)
    selected = [one for name in names.split(",") for one in FAMILIES.get(name, [name])]
    if unknown := set(selected) - set(known):
        raise typer.BadParameter(f"expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    return selected


def main(
    device: Literal["cpu", "cuda"] = "cpu",
    cases: Annotated[str | None, typer.Option(help=f"Separated by commas; also {', '.join(FAMILIES)}.")] = None,
    impls: Annotated[str | None, typer.Option(help=f"Separated by commas, of {', '.join(IMPLS)}.")] = None,
    modes: Annotated[str | None, typer.Option(help=f"Separated by commas, of {', '.join(MODES)}.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls, on a CPU.")] = 20,
    check: Annotated[bool, typer.Option(help="Check results against float64 before timing.")] = True,
    compare: Annotated[Path | None, typer.Option(help="Print ratios to this CSV file; write nothing.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write, with a JSON file beside it.")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit to record for sources without history.")] = None,
) -> None:
    """Time implementations on cases, and write the rows and a description of the machine."""
    path = out or RESULTS / f"{device}.csv"
    selected = (
        select(cases, tuple(CASES), DEFAULT_CASES[device]),
        select(impls, IMPLS, DEFAULT_IMPLS[device]),
        select(modes, MODES, DEFAULT_MODES[device]),
    )
    jobs = [Job(case, impl, mode, device) for case in selected[0] for impl in selected[1] for mode in selected[2]]
    if device == "cuda":
        measured = measure_on_gpu(jobs, prepare_jobs(jobs, check))
    else:
        wrong = {job: message for job in jobs if check and (message := check_result(job))}
        measured = measure_on_cpu(jobs, wrong, repeats)
    rows = {}
    for row in measured:
        rows[row.case, row.impl, row.mode] = row
        ordered = [rows[key] for job in jobs if (key := (job.case, job.impl, job.mode)) in rows]
        if not compare:
            write_rows(ordered, path)  # after each row, so that an interrupted run leaves what it has
    print_rows(ordered)
    if compare:
        print_comparison(ordered, read_rows(compare))
    else:
        write_json(describe_run(device, SEED, commit), path.with_suffix(".json"))
    if any(row.skipped.startswith("wrong: ") for row in ordered):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
