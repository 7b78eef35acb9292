"""Tables on the terminal."""

from rich.box import SIMPLE_HEAD
from rich.table import Table


def make_table(*columns: str, title: str) -> Table:
    """Return a table that wraps long names instead of cutting them."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
