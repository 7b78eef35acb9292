"""Texts and their labels from CSV, TSV, JSON lines and Parquet."""

import codecs
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import UserError, first_line, import_extra, needs_extra
from ...formatting import readable
from .labelled import Labelled, check_memory, describe_left_out, find_splits, match_groups, report_once

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
DELIMITERS = ",;\t|"
TEXT_NAMES = ("text", "sentence", "content", "review", "message", "body", "comment", "question", "utterance", "title")
LABEL_NAMES = ("label", "class", "category", "target", "sentiment", "intent", "topic", "y")
GUESSED_FROM = 1000  # rows
MEMORY_FACTOR = 6  # of a table in memory to its file, about
FALLBACK = "capsroute-cp1252"


class Columns(NamedTuple):
    text: str
    label: str


def read_texts(file: Path, columns: Columns, group_by: str = "") -> Labelled:
    """Return the texts of a table with their labels; rows without either are left out, counted and named.

    A column `split` with the values train, validation and test splits them.

    Args:
        file: The table.
        columns: Which of its columns are texts and labels.
        group_by: A column, or a regular expression whose match in a text is its group.
    """
    table = read_table(file)
    check_columns(file, table, columns)
    texts, labels = (table[name].astype(str).tolist() for name in columns)
    empty = [k for k, pair in enumerate(zip(texts, labels, strict=True)) if not all(map(str.strip, pair))]
    places = [f"{file.name}, row {k}" for k in range(1, len(table) + 1)]
    if empty:
        report_once(describe_left_out("rows without text or label", len(table), [places[k] for k in empty]))
    groups = splits = None
    if group_by:
        groups = table[group_by].tolist() if group_by in table.columns else match_groups(group_by, texts)
    if "split" in table.columns and "split" not in columns:
        splits = find_splits(table["split"].tolist(), str(file))
    data = Labelled(texts, [label.strip() for label in labels], places, groups, splits)
    return data.take(sorted(set(range(len(table))) - set(empty))) if empty else data


def find_columns(file: Path, text: str = "", label: str = "") -> Columns:
    """Return the columns of texts and labels: those that are named, others by their names and by what is in them."""
    table = read_table(file).head(GUESSED_FROM)
    check_columns(file, table, Columns(text, label))
    names = [str(name) for name in table.columns]
    lengths = {name: sum(map(len, table[name])) for name in names}
    distinct = {name: len(set(table[name])) for name in names}

    def guess(known: tuple[str, ...], others: list[str]) -> str:
        by_name = [name for wanted in known for name in names if name.strip().lower() == wanted]
        return next((name for name in by_name if name in others), "")

    label = label or guess(LABEL_NAMES, [name for name in names if name != text])
    text = text or guess(TEXT_NAMES, [name for name in names if name != label])
    text = text or max((name for name in names if name != label), key=lengths.__getitem__, default="")
    few = [name for name in names if name != text and 2 <= distinct[name] <= max(2, len(table) // 2)]
    label = label or min(few, key=distinct.__getitem__, default="")
    if not text or not label:
        problem = f"{file}: cannot tell which columns are texts and labels, it has {describe_names(names)}"
        raise UserError(f"{problem}; name them with --text and --label")
    if label in set(table[label]):
        problem = f"{file}: expected a header, its first line looks like data ({readable(text)!r}, {readable(label)!r})"
        raise UserError(f"{problem}; put names of the columns above it, such as text and label")
    return Columns(text, label)


def check_columns(file: Path, table: "pd.DataFrame", columns: Columns) -> None:
    for option, name in columns._asdict().items():
        if name and name not in table:
            found = describe_names([str(column) for column in table.columns])
            raise UserError(f"{file}: has no column {name!r}; its columns are {found}: choose by --{option}")


def describe_names(names: list[str]) -> str:
    return ", ".join(readable(name, 40) for name in names[:20]) or "none"


def read_table(file: Path) -> "pd.DataFrame":
    """Read a table; all values are text, as they stand in the file."""
    if not file.is_file():
        raise UserError(
            f"{file}: expected a file ({', '.join(SUFFIXES)}), found {'a folder' if file.is_dir() else 'none'}"
        )
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"{file}: expected one of {', '.join(SUFFIXES)}, got {file.suffix or 'no suffix'!r}")
    remedy = "train on a part of it, for example its first million rows"
    check_memory(file, MEMORY_FACTOR * file.stat().st_size, remedy)
    pandas = import_extra("pandas")
    try:
        if file.suffix.lower() == ".parquet":
            table = pandas.read_parquet(file)
        elif file.suffix.lower() in (".jsonl", ".ndjson"):
            table = pandas.DataFrame(_read_lines(file))
        else:
            content = _decode(file)
            options: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skipinitialspace": True}
            table = pandas.read_csv(io.StringIO(content), sep=_find_delimiter(file, content), **options)
    except ImportError as error:
        raise UserError(f"{file}: {needs_extra('pyarrow')}") from error
    except (ValueError, OSError) as error:  # pandas' and Arrow's own are ValueErrors
        raise UserError(f"{file}: cannot be read as a table ({first_line(error)}); correct the file") from error
    if not len(table):
        raise UserError(f"{file}: expected rows below a header, found none")
    return table.where(table.notna(), "").astype(str)


def _read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines."""
    rows = []
    for number, line in enumerate(_decode(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}, line {number}: expected JSON, cannot read it ({error})") from error
        if not isinstance(row, dict):
            raise UserError(f"{file}, line {number}: expected a JSON object, got {type(row).__name__}")
        rows.append(row)
    return rows


def _find_delimiter(file: Path, content: str) -> str:
    """Return what separates the columns of the header."""
    if file.suffix.lower() == ".tsv":
        return "\t"
    header = content.partition("\n")[0]
    try:
        return csv.Sniffer().sniff(header, DELIMITERS).delimiter
    except csv.Error:
        return ","


def _decode(file: Path) -> str:
    """Decode UTF-8 or UTF-16; bytes that are not UTF-8 count as Windows-1252, which is said."""
    content = file.read_bytes()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        report_once(f"{file}: not UTF-8 from line {row} on; such bytes are read as Windows-1252")
    codecs.register_error(FALLBACK, lambda e: (e.object[e.start : e.end].decode("cp1252", "replace"), e.end))  # pyright: ignore
    return content.decode("utf-8-sig", FALLBACK)
