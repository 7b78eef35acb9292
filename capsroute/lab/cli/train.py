"""Commands that train."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..formatting import percent
from ..training.config import SettingError
from ..training.environment import Environment
from ..training.experiments import complete_config, make_task, read_config
from ..training.own import OwnTask
from ..training.runs import RunFolder
from .app import (
    DATA,
    EXPERIMENT,
    Accelerator,
    Compile,
    Devices,
    Jobs,
    Nodes,
    Note,
    Precision,
    Recipe,
    Settings,
    Strategy,
    app,
    console,
)

READINGS = Path("runs/readings.csv")
GROUP_BY = "What images, texts or sets of one group share: a regular expression for a part of the name, or a column."


def own_option(*names: str, **options: Any) -> Any:
    """Return an option for one's own data, in a panel of its own."""
    return typer.Option(*names, rich_help_panel="Your own data", **options)


@app.command(epilog="Example: capsroute train toys --report, or: capsroute train images FOLDER")
def train(
    experiment: Annotated[str | None, EXPERIMENT] = None,
    data: Annotated[str | None, DATA] = None,
    recipe: Recipe = "paper",
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
    group_by: Annotated[str | None, own_option("--group-by", help=GROUP_BY)] = None,
    backbone: Annotated[str | None, own_option("--backbone", help="Images: a vision model's name or folder.")] = None,
    frozen: Annotated[
        bool | None,
        own_option("--frozen/--unfreeze", help="Images: keep the backbone, or train it; frozen by default."),
    ] = None,
    text: Annotated[str | None, own_option("--text", metavar="COLUMN", help="Texts: their column.")] = None,
    label: Annotated[str | None, own_option("--label", metavar="COLUMN", help="Texts: the column of classes.")] = None,
    encoder: Annotated[str | None, own_option("--encoder", help="Texts: a transformer's name or folder.")] = None,
) -> None:
    """Train a network and write settings, logs, checkpoints and final weights to the run's folder.

    With `images DIR`, `texts FILE` or `arrays FILE` it is trained on your own data, and tested on a part held out.
    """
    from ..training.card import finish_run
    from ..training.trainer import Trainer

    named = {"data": data, "seed": seed, "cache_gb": cache_gb, "group_by": group_by}
    named |= {"backbone": backbone, "frozen": frozen, "text": text, "label": label, "encoder": encoder}
    options = [f"{name}={value}" for name, value in named.items() if value is not None]
    if resume and (experiment or settings or out or options or recipe != "paper"):
        raise SettingError("--resume takes everything from the run's folder; give no experiment and no settings")
    if not resume and not experiment:
        raise SettingError("name an experiment, see `capsroute list`, or give --resume FOLDER")
    environment = Environment(accelerator, devices, nodes, strategy, precision, compile)
    fabric = environment.launch()
    if resume:
        run = RunFolder(resume)
        config = read_config(run)
    else:
        config = complete_config(experiment or "", [*(settings or []), *options], recipe)
        run = RunFolder.create(config, out, fabric)
    task = make_task(config)
    if isinstance(task, OwnTask):
        if resume:
            task.check_unchanged(run.read_record())
        if fabric.is_global_zero:
            console.print(task.summary())
    Trainer(task, run, environment, fabric, console).train(resume=bool(resume), note=note)
    if isinstance(task, OwnTask):
        result = finish_run(run, task, fabric)
        console.print(f"on {task.unseen}: {result.describe()}")
    if not fabric.is_global_zero:
        return
    console.print(f"final weights: {run.model}")
    if not report:
        tested = isinstance(task, OwnTask)
        console.print(f"{'report' if tested else 'test them and write a report'}: capsroute report {run.path}")
        return
    from ..report.run_report import write_run_report

    page, result = write_run_report(run, fabric)
    if not isinstance(task, OwnTask):
        console.print(f"on {task.unseen}: {result.describe()}")
    console.print(f"report: {page}")


@app.command(epilog="Example: capsroute replicate smallnorb --recipe ours --seeds 10")
def replicate(
    experiment: Annotated[str, EXPERIMENT],
    data: Annotated[str | None, DATA] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, with seeds 0, 1, ...")] = 5,
    recipe: Recipe = "paper",
    settings: Settings = None,
    out: Annotated[str | None, typer.Option(help="Folder of the runs; those already in it are not repeated.")] = None,
    jobs: Jobs = 1,
    readings: Annotated[Path, typer.Option(help="Where each reading of test samples is written down.")] = READINGS,
    again: Annotated[bool, typer.Option("--again", help="Test what was tested before once more.")] = False,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    nodes: Nodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    compile: Compile = None,
    note: Note = "",
) -> None:
    """Train once per seed on all of the training set, then test; print test accuracies, their mean and deviation.

    What is tested is written down with the time, and refused a second time, because who takes the best of several test
    results has chosen by test data.
    """
    from ..training.replicate import Readings
    from ..training.replicate import replicate as train_seeds

    environment = Environment(accelerator, devices, nodes, strategy, precision, compile)
    fabric = environment.launch()
    config = complete_config(experiment, [*(settings or []), *([f"data={data}"] if data else [])], recipe)
    folder = Path(out or f"runs/replicate-{experiment}" + ("" if recipe == "paper" else f"-{recipe}"))
    options = {"again": again, "jobs": jobs, "note": note, "console": console}
    summary = train_seeds(config, folder, seeds, environment, fabric, Readings(readings), **options)
    if not fabric.is_global_zero:
        return
    spread = summary["standard deviation"]
    deviation = "" if spread is None else f", standard deviation {100 * spread:.2f}"
    title = f"{experiment}, final weights, test split"
    console.print(f"{title}: mean {percent(summary['mean'])}{deviation}\n{folder / 'replicate.json'}\n{readings}")
