"""The command line, nothing but the command line."""

import dataclasses
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..pretrained import HOME, SHIPPED, encoder_of
from ..routing.agreement import AGREEMENTS
from .errors import StoppedError, UserError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from .training.config import Config
    from .training.environment import Machine

app = typer.Typer(
    help="Routing by agreement for PyTorch.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
data_app = typer.Typer(help="Fetch data, or check what is there.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = Console(highlight=False)

Settings = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting.")]
Accelerator = Annotated[str, typer.Option(help="cpu, cuda, mps, or auto for the best there is.")]
Devices = Annotated[int, typer.Option(min=1, help="Processes on each machine: GPUs, or parts of a CPU.")]
Nodes = Annotated[int, typer.Option(min=1, help="Machines; start the command on each, as Lightning Fabric expects.")]
Strategy = Annotated[str, typer.Option(help="How processes share the work, as Lightning Fabric names it.")]
Precision = Annotated[str, typer.Option(help="32-true, 64-true, bf16-mixed, ... as Lightning Fabric names it.")]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile; by default on a GPU.")]
Note = Annotated[str, typer.Option(help="Words to keep in the run's record.")]


@app.callback()
def main() -> None:
    """Routing by agreement for PyTorch."""


@app.command()
def train(
    experiment: Annotated[str | None, typer.Argument(help="Which one; `capsroute list` shows them.")] = None,
    settings: Settings = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same as --set seed=N.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; by default a new one below runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder, bit for bit.")] = None,
    cache_gb: Annotated[float | None, typer.Option(min=0, help="Same as --set cache_gb=N, for texts.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Then test the final weights and write the report.")] = False,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    nodes: Nodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    compile: Compile = None,
    note: Note = "",
) -> None:
    """Train a network: settings, logs, checkpoints and final weights go to the run's folder."""
    with told():
        from .training.config import SettingError, change
        from .training.experiments import config_of, saved_config, task_of
        from .training.loop import train as run_loop
        from .training.runs import RunFolder

        given = [f"{name}={value}" for name, value in (("seed", seed), ("cache_gb", cache_gb)) if value is not None]
        if resume and (experiment or settings or out or given):
            raise SettingError("--resume takes everything from the run's folder; give no experiment and no settings")
        if not resume and not experiment:
            raise SettingError("name an experiment, see `capsroute list`, or give --resume FOLDER")
        machine, fabric = place(accelerator, devices, nodes, strategy, precision, compile)
        if resume:
            run = RunFolder(resume)
            config = saved_config(run.read_json("config.json"))
        else:
            config = change(config_of(experiment or ""), [*(settings or []), *given])
            run = RunFolder(Path(fabric.broadcast(str(RunFolder.new(config, out).path))))
        task = task_of(config)
        run_loop(task, run, machine, fabric, resume=bool(resume), note=note, console=console)
        if not fabric.is_global_zero:
            return
        console.print(f"final weights: {run.model}")
        if not report:
            console.print(f"see how it did: capsroute report {run.path}")
            return
        from .report import write_run_report

        page, result = write_run_report(run, fabric)
        console.print(f"on {task.unseen}: {result.words()}")
        console.print(f"report: {page}")


@app.command()
def replicate(
    experiment: Annotated[str, typer.Argument(help="Which one; `capsroute list` shows them.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with seeds from 0 on.")] = 5,
    settings: Settings = None,
    out: Annotated[str | None, typer.Option(help="Folder of the runs; finished ones in it are kept.")] = None,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    nodes: Nodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    compile: Compile = None,
    note: Note = "",
) -> None:
    """Train once for each seed on all of the training set; test final weights; print mean and deviation."""
    with told():
        from .training.config import change
        from .training.experiments import config_of
        from .training.results import replicate as run_all

        machine, fabric = place(accelerator, devices, nodes, strategy, precision, compile)
        config = change(config_of(experiment), settings or [])
        folder = Path(out or f"runs/replicate-{experiment}")
        summary = run_all(config, folder, seeds, machine, fabric, note=note, console=console)
        if fabric.is_global_zero:
            table = grid("seed", "right", "of", "accuracy", "seconds", title=f"{experiment}, final weights, test split")
            for row in summary["runs"]:
                share = f"{100 * row['accuracy']:.2f}%"
                table.add_row(
                    str(row["seed"]), f"{row['right']:,}", f"{row['total']:,}", share, f"{row['seconds']:.0f}"
                )
            spread = summary["standard deviation"]
            deviation = "" if spread is None else f", standard deviation {100 * spread:.2f}"
            console.print(table, f"mean {100 * summary['mean']:.2f}%{deviation}\n{folder / 'replicate.json'}")


@app.command("eval")
def evaluate(
    what: Annotated[str, typer.Argument(help="A run's folder, a folder of weights, or the name of shipped weights.")],
    on: Annotated[str | None, typer.Option(help="Experiment whose data to use, where the folder does not say.")] = None,
    split: Annotated[str, typer.Option(help="test, train or validation.")] = "test",
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    accelerator: Accelerator = "auto",
) -> None:
    """Accuracy of trained weights."""
    with told():
        from .training.config import SettingError, change
        from .training.experiments import task_of
        from .training.results import score

        if split not in ("test", "train", "validation"):
            raise SettingError(f"split: expected test, train or validation, got {split!r}")
        folder, config = weights_of(what, on)
        given = json.loads((folder / "config.json").read_text()).get("encoder")  # of networks that need one
        named = [f"encoder={encoder_of(folder, given)}"] if given is not None else []
        task = task_of(change(config, [*named, *(settings or [])]))
        _, fabric = place(accelerator)
        result = task.judge(score(task.restore(folder), task, fabric, split=split, progress=not as_json), split)
        if as_json:
            typer.echo(json.dumps(result.facts() | {"split": split}))
        else:
            console.print(f"{what} on {split}: {result.words()}")


@app.command()
def predict(
    what: Annotated[str, typer.Argument(help="sst5, sst2, treebank, the folder of a run, or a folder of weights.")],
    texts: Annotated[list[str] | None, typer.Argument(help="Sentences; none for standard input, one a line.")] = None,
    encoder: Annotated[str | None, typer.Option(help="The encoder's name or folder, if not the usual one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Sentiment of sentences."""
    with told():
        from .predict import Judge, in_batches, lines_of, shown

        judge = Judge({"sst5": "sst5-minilm", "sst2": "sst2-minilm"}.get(what, what), encoder, device)
        if "triton" not in sys.modules:  # which would report whatever is frozen at the end as leaked
            gc.freeze()  # what was loaded stays to the end: no collection need look through it
        lines = iter(texts) if texts else lines_of(sys.stdin.buffer)
        for some in in_batches(lines, 1 if not texts and sys.stdin.isatty() else 32):
            for answer in judge(some):
                typer.echo(shown(answer, as_json))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    accelerator: Accelerator = "auto",
) -> None:
    """Test a run's final weights and write one page that shows the run: report.html in its folder."""
    with told():
        from .report import write_run_report

        _, fabric = place(accelerator)
        page, result = write_run_report(run, fabric)
        console.print(f"{result.words()}\n{page}")


@app.command()
def figures(
    what: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, a folder of weights, or a shipped name.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to; by default figures/ in the run's folder, or here.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where smallNORB lies, if not where training looks for it.")] = None,
    logs: Annotated[
        list[Path] | None, typer.Option(help="Folder of a run, or of its seeds, to draw curves of.")
    ] = None,
    on: Annotated[str | None, typer.Option(help="Experiment whose data to use, where the folder does not say.")] = None,
    accelerator: Accelerator = "auto",
    note: Note = "",
) -> None:
    """Draw the paper's figures for a network that sees stereo pairs."""
    with told():
        from .report.paper_figures import find_logs, write_figures
        from .training.config import change

        weights, config = weights_of(what, on)
        config = change(config, [f"folder={data}"] if data else [])
        _, fabric = place(accelerator)
        out = out or (Path(what) if Path(what).is_dir() else Path()) / "figures"
        logs = logs or find_logs(what)
        if not logs:
            console.print("no curves: these weights come without logs; name some with --logs")
        for path in write_figures(what, weights, config, logs, out, fabric, note):
            console.print(str(path))


@app.command()
def convert(
    official: Annotated[Path, typer.Argument(help="A file of weights published by the paper's author.")],
    out: Annotated[Path, typer.Argument(help="Folder to write, for from_pretrained.")],
) -> None:
    """Turn the author's file into a folder of safetensors and JSON."""
    with told():
        from ..nets import SST, SmallNORB
        from ..nets.hub import read_weights

        kind = SST if "depth_emb" in read_weights(official, SmallNORB) else SmallNORB
        network = kind.from_official(official)
        network.save_pretrained(out)
        console.print(f"{type(network).__name__}, {sum(p.numel() for p in network.parameters()):,} parameters: {out}")


@app.command()
def demo(
    host: Annotated[
        str, typer.Option(help="Where to listen; by default this machine alone can see the page.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 for any that is free.")] = 7860,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = True,
) -> None:
    """Start a page that shows what is routed where: toys, sentences, and the algorithm itself."""
    with told():
        from .demo.page import served

        with served(host, port, open_page=open_page) as address:
            console.print(f"{address}  (stop with Ctrl-C)")
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its files go however it is stopped
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                console.print("stopped")


@app.command("list")
def show() -> None:
    """Experiments with their settings, and the trained networks that come with the package."""
    with told():
        from .training.experiments import EXPERIMENTS

        table = grid("experiment", "what", "settings that are not the paper's", title="Experiments")
        for name, make in EXPERIMENTS.items():
            config = make()
            usual = {field.name: field.default for field in dataclasses.fields(config)}
            values = dataclasses.asdict(config)
            changed = ", ".join(f"{k}={v}" for k, v in values.items() if v != usual[k] and k != "experiment")
            table.add_row(name, make.__doc__ or "", changed)
        shipped = grid("name", "trained by", "card", title='Trained networks, for capsroute.load("name")')
        for name, experiment in SHIPPED.items():
            shipped.add_row(name, f"capsroute train {experiment}", str(HOME / name / "README.md"))
        console.print(table, shipped)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="smallnorb or sst")],
    folder: Annotated[Path | None, typer.Option(help="Where to; by default where training looks for it.")] = None,
) -> None:
    """Download a dataset: resumed where it was cut short, and verified."""
    with told():
        data, place = dataset(name, folder)
        for path in data.fetch(place):
            console.print(f"{path.name}: whole and as published")
        console.print(str(place))


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(help="smallnorb or sst")],
    folder: Annotated[Path | None, typer.Option(help="Where it lies; by default where training looks for it.")] = None,
) -> None:
    """Look at every file of a dataset: missing, broken, or good."""
    with told():
        data, place = dataset(name, folder)
        table = grid("file", "state", title=f"{name} in {place}")
        states = data.check(place)
        for state in states:
            table.add_row(state.name, state.state)
        console.print(table)
        if any(not state.ok for state in states):
            raise typer.Exit(1)


def weights_of(what: str, on: str | None) -> "tuple[Path, Config]":
    """The folder of the weights a user names, and the settings of the data they see."""
    from .training.config import SettingError
    from .training.experiments import config_of, saved_config
    from .training.results import final_weights
    from .training.runs import RunFolder

    folder = Path(what)
    if (folder / "run.json").exists():
        run = RunFolder(folder)
        return final_weights(run), saved_config(run.read_json("config.json"))
    if (folder / "model.safetensors").exists():
        if on is None:
            raise SettingError(f"{folder}: say which data to use, for example --on smallnorb")
        return folder, config_of(on)
    if what in SHIPPED:
        return HOME / what, config_of(SHIPPED[what])
    names = ", ".join(SHIPPED)
    raise SettingError(f"{what}: expected the folder of a run, a folder of weights, or one of {names}")


def dataset(name: str, folder: Path | None) -> tuple[Any, Path]:
    """The module that reads a dataset, and where it lies."""
    from . import data
    from .data import smallnorb, sst

    known = {"smallnorb": smallnorb, "sst": sst}
    if name not in known:
        made = "toys and the treebank are made when they are first used"
        raise ValueError(f"name: expected one of {', '.join(known)}, got {name!r}; {made}")
    return known[name], folder or data.folder() / name


def place(
    accelerator: str,
    devices: int = 1,
    nodes: int = 1,
    strategy: str = "auto",
    precision: str = "32-true",
    compile: bool | None = None,
) -> "tuple[Machine, Fabric]":
    """The processes that compute; started here, where there are several."""
    from .training.environment import Machine

    machine = Machine(
        accelerator=accelerator, devices=devices, nodes=nodes, strategy=strategy, precision=precision, compile=compile
    )
    fabric = machine.fabric()
    fabric.launch()
    return machine, fabric


@contextmanager
def told() -> Iterator[None]:
    """Turn what a user can mend into one message, without a traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        stop(f"{error.name} is missing: pip install {error.name}")
    except BrokenPipeError:  # whoever read the output has enough of it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, so that Python's exit finds nothing to complain about
        raise typer.Exit(1) from None
    except StoppedError as error:
        stop(str(error), 130)
    except (UserError, ValueError, OSError, ImportError) as error:
        stop(str(error))
    except KeyboardInterrupt:
        stop("stopped at once; what was saved before is whole", 130)


def stop(message: str, code: int = 1) -> None:
    message = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in message)  # it may quote anything
    Console(stderr=True, highlight=False).print(message, style="red", markup=False, soft_wrap=True)
    raise typer.Exit(code)


def grid(*columns: str, title: str) -> Table:
    return Table(*columns, title=title, box=SIMPLE_HEAD, pad_edge=False)


@app.command()
def info(
    device: Annotated[str, typer.Option(help="Device to choose implementations for.")] = "cpu",
    agreement: Annotated[str, typer.Option(help="Model of agreement: gaussian or kmeans.")] = "gaussian",
) -> None:
    """Versions, devices, and which implementations can run each named shape, or why not."""
    if agreement not in AGREEMENTS:
        raise typer.BadParameter(f"agreement: expected one of {list(AGREEMENTS)}, got {agreement!r}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise typer.BadParameter(f"device: expected a name such as cpu, cuda or mps, got {device!r}") from None
    from .info import devices, implementations, plain_calls, versions

    console = Console()
    console.print(versions(), devices(), *implementations(kind, agreement))
    with console.status("how triton is called"):
        said = plain_calls(kind)
    if said:
        console.print(said, markup=False)
