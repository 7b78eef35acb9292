"""What a user names on the command line as inputs of a network: files, folders, tables, texts, standard input."""

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .data.own.arrays import array_error, load_arrays, split_sets
from .data.own.images import SUFFIXES, find_images, pair_views
from .data.own.tables import SUFFIXES as TABLES
from .data.own.tables import TEXT_NAMES, Columns, check_columns, describe_names, read_table
from .errors import UserError
from .inference import BYTE_ORDER_MARK, MAX_CHARACTERS

SETS = (".npz", ".npy", ".safetensors")
LINE_BYTES = 4 * MAX_CHARACTERS  # of a line, that are kept: no text reads more of it
STDIN = "-"


class Input(NamedTuple):
    """An input, and what to call it."""

    name: str
    value: Any


def read_inputs(
    kind: str, words: Iterable[str], stdin: BinaryIO | None, column: str = "", *, views: int = 1
) -> Iterator[Input]:
    """Yield the inputs that words of a command name.

    Args:
        kind: What the network takes: `"images"`, `"texts"` or `"arrays"`.
        words: Texts, files, folders of images, or `-` for the lines of standard input.
        stdin: Standard input; none if it is closed.
        column: The column of texts in a table, if it cannot be guessed.
        views: Images that the network takes of one thing: 2 for stereo pairs, which are found by their names. A line of
            standard input is an input by itself, so that each can be answered before the next is written.
    """
    read = {"images": read_images, "texts": read_texts, "arrays": read_sets}[kind]

    def read_words(words: Iterable[str]) -> Iterator[Input]:
        found = (one for word in words for one in read(word, column))
        return pair_images(found) if views == 2 else found

    for from_stdin, some in itertools.groupby(words, STDIN.__eq__):
        if not from_stdin:
            yield from read_words(some)
            continue
        if stdin is None:
            raise UserError("standard input: expected lines, it is closed; give inputs as arguments")
        for line in read_lines(stdin):
            yield from [Input(line, line)] if kind == "texts" else read_words([line])


def read_images(word: str, _: str = "") -> Iterator[Input]:
    """Yield an image file, or those in a folder and in the folders below it, sorted."""
    if not os.path.isdir(word):  # unlike Path.is_dir, it takes names of any length
        yield Input(word, word)
        return
    files = find_images(Path(word))
    if not files:
        raise UserError(f"{word}: expected images ({', '.join(SUFFIXES)}) in this folder, found none")
    yield from (Input(str(file), str(file)) for file in files)


def pair_images(images: Iterable[Input]) -> Iterator[Input]:
    """Yield image files, those of a stereo pair as one input that is named after both."""
    images = list(images)
    given = {Path(image.value): image for image in images}
    for pair in pair_views(Path(image.value) for image in images):
        found = [given[path] for path in pair]
        yield found[0] if len(found) == 1 else Input(", ".join(one.name for one in found), [one.value for one in found])


def read_texts(word: str, column: str = "") -> Iterator[Input]:
    """Yield a text itself, the lines of a .txt file, or the texts in the rows of a table."""
    path = Path(word) if len(word) < 1000 else Path()  # no file has so long a name
    if path.suffix.lower() not in (*TABLES, ".txt") or any(c.isspace() for c in path.suffix):
        yield Input(word, word)
        return
    if not path.is_file():
        if len(word.split()) == 1:
            raise UserError(f"{word}: expected a file, found none there")
        yield Input(word, word)
        return
    if path.suffix.lower() != ".txt":
        yield from (Input(text, text) for text in read_column(path, column))
        return
    with path.open("rb") as file:
        yield from (Input(text, text) for text in read_lines(file))


def read_column(path: Path, column: str = "") -> list[str]:
    """Return the texts in a column of a table, read as for training."""
    table = read_table(path)
    names = [str(name) for name in table.columns]
    known = (name for wanted in TEXT_NAMES for name in names if name.strip().lower() == wanted)
    column = column or (names[0] if len(names) == 1 else next(known, ""))
    if not column:
        raise UserError(f"{path}: which column holds the texts? Name it with --text: {describe_names(names)}")
    check_columns(path, table, Columns(column, ""))
    return table[column].tolist()


def read_sets(word: str, _: str = "") -> Iterator[Input]:
    """Yield the sets of vectors in a file of arrays: `x [n, i, d]` with a `mask`, `x [i, d]`, or `x` with `offsets`."""
    path = Path(word)
    if path.suffix.lower() not in SETS:
        raise UserError(f"{word}: expected a file of sets of vectors ({', '.join(SETS)})")
    arrays = load_arrays(path)
    if len(arrays) == 1:
        arrays = {"x": next(iter(arrays.values()))}
    if "x" not in arrays:
        raise array_error(path, arrays, "x", "an array of this name")
    if arrays["x"].ndim == 2 and "offsets" not in arrays:
        arrays = {"x": arrays["x"][None]}
    for k, vectors in enumerate(split_sets(path, arrays)):
        yield Input(f"{word}[{k}]", vectors)


def read_lines(file: BinaryIO) -> Iterator[str]:
    """Yield lines of UTF-8 without their ends; of a very long line only its beginning is kept in memory."""
    first = True
    while line := file.readline(LINE_BYTES):
        rest = line
        while len(rest) == LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LINE_BYTES)
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        yield text.removeprefix(BYTE_ORDER_MARK) if first else text
        first = False
