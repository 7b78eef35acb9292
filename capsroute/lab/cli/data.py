"""Commands for datasets."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import data as datasets
from ..data import smallnorb, sst
from .app import app, console, make_table

data_app = typer.Typer(help="Download datasets, or check the files of one.", no_args_is_help=True)
app.add_typer(data_app, name="data")
DatasetName = Annotated[str, typer.Argument(help="smallnorb or sst.")]
DatasetFolder = Annotated[Path | None, typer.Option("--folder", help="Its folder; by default where training looks.")]


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


def find_dataset(name: str, folder: Path | None) -> tuple[Any, Path]:
    """Return the module that reads a dataset, and its folder."""
    readers = {"smallnorb": smallnorb, "sst": sst}
    if name not in readers:
        made = "toys and the treebank are made when they are first used"
        raise ValueError(f"name: expected one of {', '.join(readers)}, got {name!r}; {made}")
    return readers[name], folder or datasets.folder() / name
