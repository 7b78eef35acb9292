"""Time and memory of every rival as inputs, outputs or the batch grow: `python benchmarks/scaling.py --help`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cases import FAMILIES, along
from jobs import Clock, console, prepare_all, work_off
from measure import Job
from origin import origin
from records import RESULTS, Row
from rivals import COMPILED, CUDA_RIVALS, MODES, RIVALS, SEED
from run import Record, chosen, end

SLOWEST_MS = 2_000.0
"""A rival that takes longer is not tried on larger shapes."""


class Lines:
    """Which rivals have come to their end in which family."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, str], str] = {}

    def see(self, row: Row) -> None:
        where = f"{along(row.shape, row):,} {row.shape}"  # pyright: ignore (a row has a shape's axes)
        if row.skipped and (row.shape, row.rival) not in self.ended:
            self.ended[row.shape, row.rival] = f"not tried: {row.skipped} at {where}"
        elif row.p50_ms and row.p50_ms > SLOWEST_MS:
            self.ended[row.shape, row.rival] = f"not tried: {row.p50_ms / 1e3:.1f} s a call at {where}"

    def stops(self, job: Job) -> str:
        return self.ended.get((job.name, job.rival), "")


def jobs_of(families: list[str], rivals: list[str], device: str, points: int | None) -> list[Job]:
    """The kernels first, then rivals, from small to large; those compiled, which takes long, on every second shape."""
    return [
        Job(family, shape, rival, MODES[1], device)
        for rival in sorted(rivals, key=lambda rival: rival != "triton")
        for family in families
        for place, shape in enumerate(FAMILIES[family][:points])
        if rival not in COMPILED or (len(FAMILIES[family]) - 1 - place) % 2 == 0
    ]


def main(
    families: Annotated[str | None, typer.Option(help=f"With commas, of {', '.join(FAMILIES)}.")] = None,
    impls: Annotated[str | None, typer.Option(help=f"Rivals, with commas, of {', '.join(RIVALS)}.")] = None,
    device: Literal["cpu", "cuda"] = "cuda",
    points: Annotated[int | None, typer.Option(min=1, help="Only so many of a family's smallest shapes.")] = None,
    budget_s: Annotated[float | None, typer.Option(help="Stop after so many seconds, keeping what there is.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep rows of the same commit and machine.")] = False,
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default="benchmarks/results")] = RESULTS,
    commit: Annotated[str | None, typer.Option(help="Commit to record, of files that were copied.")] = None,
) -> None:
    """Follow each rival until it needs more memory than there is or over two seconds; write scaling_DEVICE.csv."""
    clock, lines = Clock(budget_s), Lines()
    chosen_families = chosen(families, tuple(FAMILIES), tuple(FAMILIES))
    jobs = jobs_of(chosen_families, chosen(impls, RIVALS, CUDA_RIVALS), device, points)
    record = Record(jobs, origin(device, SEED, commit), out / f"scaling_{device}", resume)
    for row in record.sorted():
        lines.see(row)
    todo = record.missing(jobs)
    prepare_all([job for job in todo if not lines.stops(job)], clock, checked=False)

    def done(row: Row) -> None:
        record.add(row)
        lines.see(row)

    end(record, work_off(todo, {}, clock, done, lines.stops))
    console.print(f"{len(record.rows)} rows in {record.path.with_suffix('.csv').name}")


if __name__ == "__main__":
    typer.run(main)
