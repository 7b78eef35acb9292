"""The command line."""

import dataclasses
import gc
import itertools
import json
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from .. import __version__
from ..nets import SST, SmallNORB
from ..nets.hub import read_weights
from ..pretrained import ALIASES, HOME, SHIPPED
from ..routing import IMPLS, pick
from ..routing.agreement import AGREEMENTS
from ..testing import SHAPES
from . import data as datasets
from .data import smallnorb, sst
from .errors import EXTRAS, StoppedError, UserError, needs_extra
from .formatting import percent
from .training.config import SettingError, change_settings
from .training.environment import Environment, package_version
from .training.experiments import EXPERIMENTS, make_config, make_task, saved_config
from .training.language import LanguageConfig
from .training.runs import RunFolder
from .training.weights import find_weights, training_command


@contextmanager
def error_messages() -> Iterator[None]:
    """Print errors that a user can correct as a message, without a traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        exit_with(str(needs_extra(package, EXTRAS.get(package, "train"))))
    except BrokenPipeError:  # the reader of the output has closed it, like `head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, or Python complains when it exits
        raise typer.Exit(1) from None
    except StoppedError as error:
        exit_with(str(error), 130)
    except (UserError, ValueError, OSError, ImportError) as error:
        exit_with(str(error))
    except KeyboardInterrupt:
        exit_with("stopped at once; files saved before are complete", 130)
    except Exception as error:
        details = vars(error)
        if "possibilities" not in details:  # of typer's errors only that of an unknown option has them
            raise
        hint = "; did you mean " + " or ".join(details["possibilities"]) + "?" if details["possibilities"] else ""
        exit_with(f"{details['option_name']}: no such option{hint}", 2)


def exit_with(message: str, code: int = 1) -> None:
    message = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in message)  # it may quote anything
    Console(stderr=True, highlight=False).print(message, style="red", markup=False, soft_wrap=True)
    raise typer.Exit(code)


class Commands(TyperGroup):
    """Commands whose errors are messages."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with error_messages():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with error_messages():
            return super().invoke(ctx)


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
data_app = typer.Typer(help="Download datasets, or check the files of one.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = Console(highlight=False)

WEIGHTS = f"A run's folder, a folder of weights, or a shipped name: {', '.join([*SHIPPED, *ALIASES])}."
WeightsName = Annotated[str, typer.Argument(metavar="WEIGHTS", help=WEIGHTS)]
EXPERIMENT = typer.Argument(help="Name of the experiment; `capsroute list` shows them.")
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting.")]
Data = Annotated[str | None, typer.Option("--on", help="Experiment whose data to use, if WEIGHTS does not say.")]
Accelerator = Annotated[str, typer.Option(help="cpu, cuda, mps, or auto for the best available.")]
Devices = Annotated[int, typer.Option(min=1, help="Processes on each machine: one per GPU, or several on a CPU.")]
Nodes = Annotated[int, typer.Option(min=1, help="Machines; start the command on each, as Lightning Fabric expects.")]
Strategy = Annotated[str, typer.Option(help="Strategy of several processes, as Lightning Fabric names it.")]
Precision = Annotated[str, typer.Option(help="32-true, 64-true, bf16-mixed, ... as Lightning Fabric names it.")]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile; the default on a GPU.")]
Note = Annotated[str, typer.Option(help="A remark for the record.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DatasetName = Annotated[str, typer.Argument(help="smallnorb or sst.")]
DatasetFolder = Annotated[Path | None, typer.Option("--folder", help="Its folder; by default where training looks.")]


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"capsroute {__version__}")
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=print_version, help="Print it.")] = False) -> None:
    """Routing by agreement for PyTorch: train, test, explain and share the paper's networks."""


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
    from .training.trainer import Trainer

    options = [f"{name}={value}" for name, value in (("seed", seed), ("cache_gb", cache_gb)) if value is not None]
    if resume and (experiment or settings or out or options):
        raise SettingError("--resume takes everything from the run's folder; give no experiment and no settings")
    if not resume and not experiment:
        raise SettingError("name an experiment, see `capsroute list`, or give --resume FOLDER")
    environment = Environment(accelerator, devices, nodes, strategy, precision, compile)
    fabric = environment.launch()
    if resume:
        run = RunFolder(resume)
        config = saved_config(run.read_json("config.json"))
    else:
        config = change_settings(make_config(experiment or ""), [*(settings or []), *options])
        run = RunFolder(Path(fabric.broadcast(str(RunFolder.create(config, out).path))))
    task = make_task(config)
    Trainer(task, run, environment, fabric, console).train(resume=bool(resume), note=note)
    if not fabric.is_global_zero:
        return
    console.print(f"final weights: {run.model}")
    if not report:
        console.print(f"test them and write a report: capsroute report {run.path}")
        return
    from .report.run_report import write_run_report

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
    from .training.replicate import replicate as train_seeds

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


@app.command("eval", epilog="Example: capsroute eval smallnorb --split test")
def evaluate(
    name: WeightsName,
    on: Data = None,
    split: Annotated[str, typer.Option(help="test, train or validation.")] = "test",
    settings: Settings = None,
    as_json: AsJson = False,
    accelerator: Accelerator = "auto",
) -> None:
    """Print the accuracy of trained weights."""
    from .training.evaluate import score_network

    if split not in ("test", "train", "validation"):
        raise SettingError(f"split: expected test, train or validation, got {split!r}")
    weights = find_weights(name)
    config, encoder = weights.config(on), weights.encoder()
    own = [f"encoder={encoder}"] if encoder and isinstance(config, LanguageConfig) else []
    task = make_task(change_settings(config, [*own, *(settings or [])]))
    fabric = Environment(accelerator).launch()
    scores = score_network(task.restore(weights.folder), task, fabric, split, progress=not as_json)
    result = task.measure(scores, split)
    if as_json:
        typer.echo(json.dumps(result.to_dict() | {"split": split}))
    else:
        console.print(f"{name} on {split}: {result.describe()}")


@app.command(epilog='Example: capsroute predict sst5 "A film that is never less than charming."')
def predict(
    name: WeightsName,
    texts: Annotated[list[str] | None, typer.Argument(help="Sentences; none for standard input, one a line.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Another place of the encoder: its name or folder.")] = None,
    as_json: AsJson = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Print the sentiment of sentences, by weights trained on texts."""
    from .predict import TextClassifier, format_prediction

    classifier = TextClassifier(name, encoder, device)
    if "triton" not in sys.modules:  # which would report frozen objects as leaked
        gc.freeze()  # what was loaded stays to the end: collections need not visit it
    stdin = (line.decode("utf-8", "replace").rstrip("\r\n") for line in sys.stdin.buffer)
    lines = iter(texts) if texts else stdin
    batch_size = 1 if not texts and sys.stdin.isatty() else 32
    while batch := list(itertools.islice(lines, batch_size)):
        for prediction in classifier(batch):
            typer.echo(format_prediction(prediction, as_json))


@app.command(epilog="Example: capsroute report runs/toys-20260101-120000-seed0")
def report(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    accelerator: Accelerator = "auto",
) -> None:
    """Test a run's final weights and write report.html into its folder."""
    from .report.run_report import write_run_report

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
    from .report.paper_figures import find_logs, write_figures

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


@app.command(epilog="Example: capsroute demo --port 8000 --no-open")
def demo(
    host: Annotated[str, typer.Option(help="Address to listen on; by default only this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 7860,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Serve a page that shows what is routed where: toys, sentences, and the algorithm itself."""
    from .demo.page import serve_page

    with serve_page(host, port, open_page=open_page) as address:
        console.print(f"{address}  (stop with Ctrl-C)")
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its files are removed then too
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            console.print("stopped")


@app.command("list", epilog="Example: capsroute list")
def list_names() -> None:
    """List experiments with their settings, and the trained networks that come with the package."""
    table = make_table("experiment", "description", "settings other than the paper's", title="Experiments")
    for name, make in EXPERIMENTS.items():
        config = make()
        defaults = {field.name: field.default for field in dataclasses.fields(config)}
        values = dataclasses.asdict(config)
        changed = ", ".join(f"{k}={v}" for k, v in values.items() if v != defaults[k] and k != "experiment")
        table.add_row(name, make.__doc__ or "", changed)
    shipped = make_table("name", "trained by", title="Trained networks, for WEIGHTS and capsroute.load(NAME)")
    short = {name: alias for alias, name in ALIASES.items()}
    for name in SHIPPED:
        shipped.add_row(f"{name} or {short[name]}" if name in short else name, training_command(name))
    console.print(table, shipped, f"model cards: {HOME}/NAME/README.md")


@data_app.command(epilog="Example: capsroute data fetch smallnorb")
def fetch(name: DatasetName, folder: DatasetFolder = None) -> None:
    """Download a dataset and verify its checksums."""
    dataset, folder = find_dataset(name, folder)
    for path in dataset.fetch(folder):
        console.print(f"{path.name}: complete and as published")
    console.print(str(folder))


@data_app.command(epilog="Example: capsroute data check sst --folder DOWNLOADS")
def check(name: DatasetName, folder: DatasetFolder = None) -> None:
    """Print the state of every file of a dataset; the exit status is 1 if one is missing or damaged."""
    dataset, folder = find_dataset(name, folder)
    table = make_table("file", "state", title=f"{name} in {folder}")
    states = dataset.check(folder)
    for state in states:
        table.add_row(state.name, state.state)
    console.print(table)
    if any(not state.ok for state in states):
        raise typer.Exit(1)


@app.command(epilog="Example: capsroute info --device cuda")
def info(
    device: Annotated[str, typer.Option(help="Device to choose implementations for.")] = "cpu",
    agreement: Annotated[str, typer.Option(help="Model of agreement: gaussian or kmeans.")] = "gaussian",
) -> None:
    """Print versions, devices, and which implementations can run each named shape, or why not."""
    if agreement not in AGREEMENTS:
        raise typer.BadParameter(f"agreement: expected one of {list(AGREEMENTS)}, got {agreement!r}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise typer.BadParameter(f"device: expected a name such as cpu, cuda or mps, got {device!r}") from None
    versions = make_table("package", "version", title="Versions")
    versions.add_row("python", platform.python_version())
    for package in ("capsroute", "torch", "numpy", "triton", "onnx", "onnxruntime"):
        versions.add_row(package, package_version(package))
    devices = make_table("device", "name", title="Devices")
    devices.add_row("cpu", f"{torch.get_num_threads()} threads")
    for k in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(k).total_memory / 2**30
        devices.add_row(f"cuda:{k}", f"{torch.cuda.get_device_name(k)}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        devices.add_row("mps", "Apple GPU")
    Console().print(versions, devices, *list_implementations(kind, agreement))


def list_implementations(device: str, agreement: str) -> tuple[Table, str]:
    """Return a table of the implementations that can run each named shape, and why others cannot."""
    table = make_table("shape", "inputs → outputs", "capsules", *IMPLS, title=f"Implementations on {device}")
    notes: list[str] = []
    for name, shape in SHAPES.items():
        case = shape.case(agreement, device)
        cells = []
        for impl, row in IMPLS.items():
            reasons = row.reasons_against(case)
            notes += [reason for reason in reasons if reason not in notes]
            numbers = ", ".join(str(notes.index(reason) + 1) for reason in reasons)
            cells.append(f"no ({numbers})" if reasons else "auto" if impl == pick(case) else "yes")
        sizes = f"{shape.batch} x {shape.n_inp:,} → {shape.n_out:,}"
        capsules = f"{shape.d_cov}x{shape.d_inp} → {shape.d_cov}x{shape.d_out}"
        table.add_row(name, sizes, capsules, *cells)
    return table, "\n".join(f"({k}) {note}" for k, note in enumerate(notes, start=1))


def make_table(*columns: str, title: str) -> Table:
    """Return a table that wraps long names instead of cutting them."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def find_dataset(name: str, folder: Path | None) -> tuple[Any, Path]:
    """Return the module that reads a dataset, and its folder."""
    readers = {"smallnorb": smallnorb, "sst": sst}
    if name not in readers:
        made = "toys and the treebank are made when they are first used"
        raise ValueError(f"name: expected one of {', '.join(readers)}, got {name!r}; {made}")
    return readers[name], folder or datasets.folder() / name
