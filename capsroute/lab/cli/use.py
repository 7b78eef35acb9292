"""Commands that use trained weights."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ...nets import SST, SmallNORB
from ...nets.hub import read_weights
from ..errors import UserError
from ..formatting import percent, readable
from ..training.config import SettingError, change_settings
from ..training.environment import Environment
from ..training.experiments import find_weights, make_task
from ..training.language import LanguageConfig
from ..training.own import OwnConfig, OwnTask, load_classifier
from .app import DATA, Accelerator, AsJson, Data, Note, Settings, WeightsName, app, console, make_table


@app.command("eval", epilog="Example: capsroute eval smallnorb --split test, or: capsroute eval RUN DATA")
def evaluate(
    name: WeightsName,
    data: Annotated[str | None, DATA] = None,
    on: Data = None,
    split: Annotated[str, typer.Option(help="test, train or validation.")] = "test",
    settings: Settings = None,
    as_json: AsJson = False,
    accelerator: Accelerator = "auto",
) -> None:
    """Print the accuracy of trained weights, and of a network for your own data that of each class.

    New data in the form of those it was trained on are used whole, unless they have a test split of their own.
    """
    from ..training.evaluate import score_network

    if split not in ("test", "train", "validation"):
        raise SettingError(f"split: expected test, train or validation, got {split!r}")
    weights = find_weights(name)
    config, encoder = weights.config(on), weights.encoder()
    own = [f"encoder={encoder}"] if encoder and isinstance(config, LanguageConfig) else []
    if data:
        if not isinstance(config, OwnConfig):
            raise SettingError(f"{data}: {name} was not trained on your own data; see --on")
        own = [f"data={data}", "group_by="]
    config = change_settings(config, [*own, *(settings or [])])
    trained = isinstance(config, OwnConfig) and (data or not weights.run)
    task = make_task(config, load_classifier(weights.folder) if trained else None)
    fabric = Environment(accelerator).launch()
    scores = score_network(task.restore(weights.folder), task, fabric, split, progress=not as_json)
    result = task.measure(scores, split)
    if as_json:
        classes = {"classes": task.measure_classes(scores, split)} if isinstance(task, OwnTask) else {}
        typer.echo(json.dumps(result.to_dict() | {"split": split} | classes))
        return
    console.print(f"{name} on {data or split}: {result.describe()}")
    if isinstance(task, OwnTask):
        table = make_table("class", task.samples, "precision", "recall", "F1", title="By class")
        for label, row in task.measure_classes(scores, split).items():
            shares = (percent(row[key]) for key in ("precision", "recall", "f1-score"))
            table.add_row(readable(label), f"{row['support']:,.0f}", *shares)
        console.print(table)


@app.command(epilog="Example: capsroute report runs/toys-20260101-120000-seed0")
def report(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    accelerator: Accelerator = "auto",
) -> None:
    """Test a run's final weights and write report.html into its folder."""
    from ..report.run_report import write_run_report

    weights = find_weights(name)
    if weights.run is None:
        raise UserError(f"{name}: these weights come without a run to report on; try `capsroute eval {name}`")
    page, result = write_run_report(weights.run, Environment(accelerator).launch())
    console.print(f"{result.describe()}\n{page}")


@app.command(epilog="Example: capsroute figures smallnorb --out figures")
def figures(
    name: WeightsName,
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default figures/ in the run's folder.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of smallNORB, if not where training looks.")] = None,
    logs: Annotated[list[Path] | None, typer.Option(help="Folder of a run, or of its seeds, for the curves.")] = None,
    on: Data = None,
    accelerator: Accelerator = "auto",
    note: Note = "",
) -> None:
    """Draw the paper's figures for a network that takes stereo pairs."""
    from ..report.paper_figures import find_logs, write_figures

    weights = find_weights(name)
    config = change_settings(weights.config(on), [f"folder={data}"] if data else [])
    fabric = Environment(accelerator).launch()
    out = out or (Path(name) if Path(name).is_dir() else Path()) / "figures"
    logs = logs or find_logs(name)
    if not logs:
        console.print("no curves: these weights come without logs; name some with --logs")
    for path in write_figures(name, weights.folder, config, logs, out, fabric, note):
        console.print(str(path))


@app.command(epilog="Example: capsroute convert smallNORB_pretrained_model_state_dict.pt smallnorb-official")
def convert(
    official: Annotated[Path, typer.Argument(help="A file of weights published by the paper's author.")],
    out: Annotated[Path, typer.Argument(help="Folder to write, for from_pretrained.")],
) -> None:
    """Convert the author's file to a folder of safetensors and JSON."""
    kind = SST if "depth_emb" in read_weights(official, SmallNORB) else SmallNORB
    network = kind.from_official(official)
    network.save_pretrained(out)
    console.print(f"{type(network).__name__}, {sum(p.numel() for p in network.parameters()):,} parameters: {out}")
