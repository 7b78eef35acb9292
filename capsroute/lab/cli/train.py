"""Commands that train."""

from pathlib import Path
from typing import Annotated

import typer

from ..formatting import percent
from ..training.config import SettingError, change_settings
from ..training.environment import Environment
from ..training.experiments import make_config, make_task, read_config
from ..training.runs import RunFolder
from .app import EXPERIMENT, Accelerator, Compile, Devices, Nodes, Note, Precision, Settings, Strategy, app, console


@app.command(epilog="Example: capsroute train toys --report")
def train(
    experiment: Annotated[str | None, EXPERIMENT] = None,
    settings: Settings = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same as --set seed=N.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; by default a new one below runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder, bit for bit.")] = None,
    cache_gb: Annotated[float | None, typer.Option(min=0, help="Same as --set cache_gb=N, for texts.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Then test the final weights and write a report.")] = False,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    nodes: Nodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    compile: Compile = None,
    note: Note = "",
) -> None:
    """Train a network and write settings, logs, checkpoints and final weights to the run's folder."""
    from ..training.trainer import Trainer

    options = [f"{name}={value}" for name, value in (("seed", seed), ("cache_gb", cache_gb)) if value is not None]
    if resume and (experiment or settings or out or options):
        raise SettingError("--resume takes everything from the run's folder; give no experiment and no settings")
    if not resume and not experiment:
        raise SettingError("name an experiment, see `capsroute list`, or give --resume FOLDER")
    environment = Environment(accelerator, devices, nodes, strategy, precision, compile)
    fabric = environment.launch()
    if resume:
        run = RunFolder(resume)
        config = read_config(run)
    else:
        config = change_settings(make_config(experiment or ""), [*(settings or []), *options])
        run = RunFolder.create(config, out, fabric)
    task = make_task(config)
    Trainer(task, run, environment, fabric, console).train(resume=bool(resume), note=note)
    if not fabric.is_global_zero:
        return
    console.print(f"final weights: {run.model}")
    if not report:
        console.print(f"test them and write a report: capsroute report {run.path}")
        return
    from ..report.run_report import write_run_report

    page, result = write_run_report(run, fabric)
    console.print(f"on {task.unseen}: {result.describe()}\nreport: {page}")


@app.command(epilog="Example: capsroute replicate smallnorb --seeds 5")
def replicate(
    experiment: Annotated[str, EXPERIMENT],
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, with seeds 0, 1, ...")] = 5,
    settings: Settings = None,
    out: Annotated[str | None, typer.Option(help="Folder of the runs; those already in it are not repeated.")] = None,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    nodes: Nodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    compile: Compile = None,
    note: Note = "",
) -> None:
    """Train once per seed on all of the training set; print the test accuracies, their mean and deviation."""
    from ..training.replicate import replicate as train_seeds

    environment = Environment(accelerator, devices, nodes, strategy, precision, compile)
    fabric = environment.launch()
    config = change_settings(make_config(experiment), settings or [])
    folder = Path(out or f"runs/replicate-{experiment}")
    summary = train_seeds(config, folder, seeds, environment, fabric, note=note, console=console)
    if not fabric.is_global_zero:
        return
    spread = summary["standard deviation"]
    deviation = "" if spread is None else f", standard deviation {100 * spread:.2f}"
    title = f"{experiment}, final weights, test split"
    console.print(f"{title}: mean {percent(summary['mean'])}{deviation}\n{folder / 'replicate.json'}")
