"""Time every implementation on the named cases, beside rivals: `python benchmarks/run.py --help`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from cases import CASES, CPU_CASES, CUDA_CASES
from jobs import Clock, console, prepare_all, progress_bar, work_off
from measure import Job, prepare
from origin import origin
from records import RESULTS, Row, earlier, save, with_ratios
from rivals import COMPILED, CPU_RIVALS, CUDA_RIVALS, MODES, RIVALS, SEED
from rounds import measure_rounds

QUIET = 0.05
"""Above this share of the cores in other hands threads wait for each other, some rivals far more than others."""


class Record:
    """The rows so far, in order and on disk."""

    def __init__(self, jobs: list[Job], about: dict[str, Any], path: Path, resume: bool):
        self.about, self.path = about, path
        self.rows = {row.key: row for row in (earlier(path, about) if resume else [])}
        asked = [job.key for job in jobs]
        self.order = [key for key in self.rows if key not in asked] + asked
        self.save()

    def add(self, row: Row) -> None:
        self.rows[row.key] = row
        self.save()

    def save(self) -> None:
        save(self.sorted(), self.about, self.path)

    def sorted(self) -> list[Row]:
        return with_ratios([self.rows[key] for key in self.order if key in self.rows])

    def missing(self, jobs: list[Job]) -> list[Job]:
        return [job for job in jobs if job.key not in self.rows]


def on_cpu(jobs: list[Job], record: Record, repeats: int, clock: Clock) -> int:
    """Measure case by case, and return how many rows are missing."""
    checked = {job.rival: job for job in jobs if job.rival not in ("reference", *COMPILED)}
    for name in dict.fromkeys(job.name for job in jobs):
        for job in (job for job in jobs if job.name == name and job.rival in checked):
            if wrong := prepare(("check", job)):
                console.print(f"[red]Not timed:[/] {job.rival} on {name} is {escape(wrong)}")
                raise typer.Exit(1)
    with progress_bar() as bar:
        task = bar.add_task("", total=len(jobs) + repeats * len({job.name for job in jobs}))
        for name in dict.fromkeys(job.name for job in jobs):
            if clock.left() <= 0:
                break
            bar.update(task, description=name)
            own = [job for job in jobs if job.name == name]
            rows, others_busy = measure_rounds(own, repeats, lambda: bar.advance(task))
            for row in rows:
                record.add(row)
            record.about["others_busy"][name] = round(others_busy, 3)
            record.save()
            if others_busy > QUIET:
                console.print(f"[yellow]{name}: other programs took {others_busy:.0%} of the cores: do not compare[/]")
    return len(record.missing(jobs))


def show(rows: list[Row]) -> None:
    """Print how the rows compare with the reference; the file holds the rest."""
    table = Table("case", "mode", "rival", "speedup", "memory ratio", "captured ms", "", box=None)
    for row in rows:
        numbers = ("" if n is None else f"{n:.2f}" for n in (row.speedup, row.memory_ratio, row.captured_ms))
        table.add_row(row.shape, row.mode, row.rival, *numbers, row.skipped or row.picked)
    console.print(table)


def chosen(names: str | None, among: tuple[str, ...], default: tuple[str, ...]) -> list[str]:
    """Names given with commas between them; an unknown one is an error."""
    if names is None:
        return list(default)
    if unknown := set(names.split(",")) - set(among):
        raise typer.BadParameter(f"expected some of {', '.join(among)}, got {', '.join(sorted(unknown))}")
    return [name for name in among if name in names.split(",")]


def end(record: Record, left: int) -> None:
    """Say how it went; wrong results are an error."""
    show(record.sorted())
    if left:
        console.print(f"[yellow]out of time, {left} rows left: the same command with --resume goes on[/]")
    if any(row.skipped.startswith("wrong: ") for row in record.rows.values()):
        raise typer.Exit(1)


def main(
    cases: Annotated[str | None, typer.Option(help="Named cases, with commas; on a CPU not wide_out.")] = None,
    impls: Annotated[str | None, typer.Option(help=f"Rivals, with commas, of {', '.join(RIVALS)}.")] = None,
    modes: Annotated[str | None, typer.Option(help="Of forward and forward+backward; on a GPU the latter.")] = None,
    device: Literal["cpu", "cuda"] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each rival in each mode, on a CPU.")] = 20,
    budget_s: Annotated[float | None, typer.Option(help="Stop after so many seconds, keeping what there is.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep rows of the same commit and machine.")] = False,
    processes: Annotated[bool, typer.Option("--processes", help="On a CPU too, work as on a GPU.")] = False,
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default="benchmarks/results")] = RESULTS,
    commit: Annotated[str | None, typer.Option(help="Commit to record, of files that were copied.")] = None,
) -> None:
    """Time the rivals on each case, and write DEVICE.csv and DEVICE.json.

    On a CPU rivals take turns in one process. On a GPU, where kernels are compiled first, in as many processes as there
    are cores, one rival is measured after the other in a process that is replaced when it fails.
    """
    on_gpu, clock = device == "cuda", Clock(budget_s)
    names = chosen(cases, tuple(CASES), CUDA_CASES if on_gpu else CPU_CASES)
    rivals = chosen(impls, RIVALS, CUDA_RIVALS if on_gpu else CPU_RIVALS)
    passes = chosen(modes, MODES, MODES[1:] if on_gpu else MODES)
    jobs = [Job(name, CASES[name], rival, mode, device) for name in names for rival in rivals for mode in passes]
    record = Record(jobs, origin(device, SEED, commit), out / device, resume)
    todo = record.missing(jobs)
    if on_gpu or processes:
        wrong = prepare_all(todo, clock, checked=True)
        left = work_off(todo, wrong, clock, record.add, lambda job: "")
    else:
        left = on_cpu(todo, record, repeats, clock)
    end(record, left)


if __name__ == "__main__":
    typer.run(main)
