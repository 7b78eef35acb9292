"""The command that compares settings."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from ..formatting import percent
from ..training.environment import Environment
from .app import DATA, EXPERIMENT, Accelerator, Note, Precision, app, console
from .tables import make_table


@app.command(epilog="Example: capsroute sweep images FOLDER --set lr_max=1e-4,3e-4,1e-3 --seeds 3")
def sweep(
    experiment: Annotated[str, EXPERIMENT],
    data: Annotated[str | None, DATA] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE,...", help="Values to compare, or one value for all runs."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination, with seeds 0, 1, ...")] = 1,
    out: Annotated[str | None, typer.Option(help="Folder of the runs; by default below runs/.")] = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    ray: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Train by Ray: local, auto for the cluster here, or HOST:PORT.")
    ] = "",
    cpus: Annotated[int, typer.Option(min=1, help="CPUs of each run, with --ray.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each run, with --ray; without any, on a CPU.")] = 0,
    note: Note = "",
) -> None:
    """Train every combination of settings, and compare them on validation samples.

    The same command goes on after Ctrl-C. Test samples play no part: test the run you choose with `capsroute eval`.
    """
    from ..report.sweep_chart import draw_sweep
    from ..training.cluster import Cluster
    from ..training.sweep import sweep as compare_settings

    if not ray and (cpus, gpus) != (1, 0):
        raise UserError("cpus, gpus: expected --ray with them, got none")
    cluster = Cluster(ray, cpus, gpus) if ray else None
    environment = Environment(accelerator, precision=precision)
    given = [*(settings or []), *([f"data={data}"] if data else [])]
    folder = Path(out or f"runs/sweep-{experiment}")
    found = compare_settings(experiment, given, seeds, folder, environment, cluster, note=note, console=console)
    table = make_table(
        *found[0].settings, "validation accuracy", "deviation", "runs", title=f"{experiment}: best first"
    )
    for row in found:
        deviation = "" if row.deviation is None else f"{100 * row.deviation:.2f}"
        table.add_row(*row.settings.values(), percent(row.mean), deviation, str(len(row.accuracies)))
    console.print(table)
    console.print(str(draw_sweep(folder / "sweep.png", experiment, [(c.name, c.accuracies) for c in found])))
