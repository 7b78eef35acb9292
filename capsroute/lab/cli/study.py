"""The commands that compare settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from ..training.environment import Environment
from .app import DATA, EXPERIMENT, Accelerator, Compile, Jobs, Note, Precision, Recipe, app, console, make_table

if TYPE_CHECKING:
    from ..training.study import Study

Out = Annotated[str | None, typer.Option(help="Folder of the runs; by default below runs/.")]
Ray = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Train by Ray: local, auto for the cluster here, or HOST:PORT.")
]
Cpus = Annotated[int, typer.Option(min=1, help="CPUs of each run, with --ray.")]
Gpus = Annotated[float, typer.Option(min=0, help="GPUs of each run, with --ray; without any, on a CPU.")]

POINTS = {"accuracy": "", "deviation": "", "difference": "+", "standard error": ""}  # columns in per cent, their signs


@app.command(epilog="Example: capsroute study STUDY.toml --jobs 4")
def study(
    files: Annotated[list[Path], typer.Argument(metavar="CONFIGS...", help="TOML files that describe a study each.")],
    jobs: Jobs = 1,
    out: Out = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    compile: Compile = None,
    ray: Ray = "",
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    note: Note = "",
) -> None:
    """Compare settings on held-out toys: train each once for every fold and seed, and print one table.

    The same command goes on after Ctrl-C. Test samples play no part: test the recipe you choose with
    `capsroute replicate`.
    """
    from ..training.study import read_study

    environment = Environment(accelerator, precision=precision, compile=compile)
    studies = {file: read_study(file) for file in files}  # all of them first, so that a mistake is found now
    for file, one in studies.items():
        folder = Path(out or "runs") / f"study-{file.stem}"
        compare_settings(one, folder, environment, jobs, (ray, cpus, gpus), note)


@app.command(epilog="Example: capsroute sweep images FOLDER --set lr_max=1e-4,3e-4,1e-3 --seeds 3")
def sweep(
    experiment: Annotated[str, EXPERIMENT],
    data: Annotated[str | None, DATA] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE,...", help="Values to compare, or one value for all runs."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination, with seeds 0, 1, ...")] = 1,
    recipe: Recipe = "paper",
    jobs: Jobs = 1,
    out: Out = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    compile: Compile = None,
    ray: Ray = "",
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    note: Note = "",
) -> None:
    """Train every combination of settings, and compare them on validation samples.

    The same command goes on after Ctrl-C. Test samples play no part: test the run you choose with `capsroute eval`.
    """
    from ..training.study import make_grid

    given = [*(settings or []), *([f"data={data}"] if data else [])]
    folder, environment = (
        Path(out or f"runs/sweep-{experiment}"),
        Environment(accelerator, precision=precision, compile=compile),
    )
    compare_settings(make_grid(experiment, given, seeds, recipe), folder, environment, jobs, (ray, cpus, gpus), note)


def compare_settings(
    study: "Study", folder: Path, environment: Environment, jobs: int, ray: tuple[str, int, float], note: str
) -> None:
    """Run a study, on a cluster if Ray has an address, and print its table and the files it wrote."""
    from ..report.charts import draw_study
    from ..training.parallel import Cluster
    from ..training.study import compare, run_study

    address, *shares = ray
    if not address and shares != [1, 0]:
        raise UserError("cpus, gpus: expected --ray with them, got none")
    if address and jobs > 1:
        raise UserError(f"jobs: expected --cpus and --gpus with --ray, which say how many runs fit, got {jobs}")
    cluster = Cluster(*ray) if address else None
    rows = run_study(study, folder, environment, cluster, jobs=jobs, note=note, console=console)
    found = compare(rows, study.baseline)
    title = f"{study.experiment}: validation accuracy in %, best first; differences from {study.baseline}"
    table = make_table("setting", *POINTS, "runs", "90% at step", title=title)
    for row in found:
        runs = f"{row['runs']}, {row['failed']} failed" if row["failed"] else str(row["runs"])
        step = "" if row["step at 90%"] is None else f"{row['step at 90%']:,.0f}"
        shares = ("" if row[name] is None else f"{100 * row[name]:{sign}.2f}" for name, sign in POINTS.items())
        table.add_row(row["setting"], *shares, runs, step)
    console.print(table)
    accuracies = {row["setting"]: [] for row in found if row["runs"]}
    for row in rows:
        if "accuracy" in row:
            accuracies[row["setting"]].append(row["accuracy"])
    draw_study(folder / "comparison.png", f"{study.experiment}: validation accuracy", accuracies)
    for name in ("runs.csv", "comparison.csv", "comparison.png"):
        console.print(str(folder / name))
