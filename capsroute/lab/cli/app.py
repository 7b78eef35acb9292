"""The command line's application: errors as messages, and the options that commands share."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from ... import __version__
from ...pretrained import ALIASES, SHIPPED
from ..errors import StoppedError, TerminatedError, UserError, needs_extra


@contextmanager
def error_messages() -> Iterator[None]:
    """Print errors that a user can correct as a message, without a traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        exit_with(str(needs_extra((error.name or "").partition(".")[0])))
    except BrokenPipeError:  # the reader of the output has closed it, like `head`
        discard_output()
        raise typer.Exit(1) from None
    except StoppedError as error:
        exit_with(str(error), 128 + error.signal)
    except OSError as error:
        if error.errno == errno.ENOSPC and not error.filename:
            discard_output()
            error.filename = "standard output"
        exit_with(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except (UserError, ValueError, ImportError) as error:
        exit_with(str(error))
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT
        exit_with("stopped at once; files saved before are complete", 128 + number)
    except Exception as error:
        details = vars(error)
        if "possibilities" not in details:  # of typer's errors only that of an unknown option has them
            raise
        hint = "; did you mean " + " or ".join(details["possibilities"]) + "?" if details["possibilities"] else ""
        exit_with(f"{details['option_name']}: no such option{hint}", 2)


def discard_output() -> None:
    """Print nothing more: what is left cannot be written, and Python would complain about it when it exits."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def exit_with(message: str, code: int = 1) -> NoReturn:
    message = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in message)  # it may quote anything
    Console(stderr=True, highlight=False).print(message, style="red", markup=False, soft_wrap=True)
    raise typer.Exit(code)


class Commands(TyperGroup):
    """Commands whose errors are messages."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with error_messages():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, raise_terminated)  # so that files are removed and messages printed then too
        with error_messages():
            return super().invoke(ctx)


def raise_terminated(*_: Any) -> NoReturn:
    raise TerminatedError


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console(highlight=False)

WEIGHTS = f"A run's folder, a folder of weights, or a shipped name: {', '.join([*SHIPPED, *ALIASES])}."
WeightsName = Annotated[str, typer.Argument(metavar="WEIGHTS", help=WEIGHTS)]
EXPERIMENT = typer.Argument(help="images, texts or arrays for your own data, or an experiment of `capsroute list`.")
DATA = typer.Argument(help="Your own data: a folder of images by class, a table of texts, or a file of arrays.")
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting.")]
Data = Annotated[str | None, typer.Option("--on", help="Experiment whose data to use, if WEIGHTS does not say.")]
Accelerator = Annotated[str, typer.Option(help="cpu, cuda, mps, or auto for the best available.")]
Devices = Annotated[int, typer.Option(min=1, help="Processes on each machine: one per GPU, or several on a CPU.")]
Nodes = Annotated[int, typer.Option(min=1, help="Machines; start the command on each, as Lightning Fabric expects.")]
Strategy = Annotated[str, typer.Option(help="Strategy of several processes, as Lightning Fabric names it.")]
Precision = Annotated[str, typer.Option(help="32-true, 64-true, bf16-mixed, ... as Lightning Fabric names it.")]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile; the default on a GPU.")]
Recipe = Annotated[str, typer.Option(help="What training starts from: paper, or ours, for stereo pairs.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time on this machine.")]
Note = Annotated[str, typer.Option(help="A remark for the record.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"capsroute {__version__}")
        raise typer.Exit


def make_table(*columns: str, title: str) -> Table:
    """Return a table that wraps long names instead of cutting them."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=print_version, help="Print it.")] = False) -> None:
    """Routing by agreement for PyTorch: train, test, explain, serve and share networks for images, texts and sets."""
