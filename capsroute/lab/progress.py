"""The progress bar of the lab, and messages, from the first of several processes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress_bar(
    label: str,
    total: float | None,
    *,
    completed: int = 0,
    show: bool = True,
    in_bytes: bool = False,
    console: "Console | None" = None,
) -> Iterator[Callable[..., None]]:
    """Draw a bar and yield a function that moves it by `n=1` and, if it gets a `label`, replaces the text.

    Nothing is drawn outside a terminal, in processes other than rank 0, or where `rich` is not installed.

    Args:
        label: Text in front of the bar.
        total: Number of steps, or None if unknown.
        completed: Steps done before, by a run that is resumed.
        show: Draw the bar.
        in_bytes: Count in bytes and show the transfer speed.
        console: Where lines are printed while the bar is drawn; standard error by default.
    """
    try:
        from rich import progress
        from rich.console import Console

        console = console or Console(stderr=True)
        show = show and console.is_terminal and is_rank_0()
    except ImportError:
        show = False
    if not show:
        yield lambda n=1, label=None: None
        return
    in_percent, in_units = [progress.TaskProgressColumn()], [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    columns = progress.TextColumn("{task.description}"), progress.BarColumn(), *(in_units if in_bytes else in_percent)
    with progress.Progress(*columns, progress.TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(label, total=total, completed=completed)
        yield lambda n=1, label=None: bar.update(task, advance=n, description=label)


def print_once(line: str) -> None:
    """Print a line on standard error, in rank 0 alone."""
    if is_rank_0():
        print(line, file=sys.stderr)


def is_rank_0() -> bool:
    return not (dist.is_available() and dist.is_initialized() and dist.get_rank())
