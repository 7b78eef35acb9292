"""Text of `benchmarks/lm.py` as subwords: a file or folder of one's own, or enwik8 from a package of PyPI.

A text is cut into three ranges of bytes, each moved to the start of a line, and no byte is changed: subwords are made
of bytes, and decode to the range that was encoded.
"""

import gzip
import hashlib
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from packages import Package, find_package

ENWIK8 = Package(
    "x-transformers==2.3.0",
    "x_transformers-2.3.0.tar.gz",
    "dec6e30199aec15699002cd21057705683ffa0acadc9954e5b6a155b17db7b0e",
    ("--no-binary", ":all:"),  # the wheel lacks the text
)
SPLITS, SHARES = ("train", "validation", "test"), (0.9, 0.05, 0.05)


class Text(NamedTuple):
    """Subwords of a range of a text, and the number of its bytes."""

    ids: Tensor  # [n]
    n_bytes: int


def read_text(path: Path | None, data: Path) -> bytes:
    """Return the bytes of a file, of all files in a folder in order of their names, or of enwik8."""
    if path is None:
        with tarfile.open(find_package(ENWIK8, data)) as archive:
            file = archive.extractfile("x_transformers-2.3.0/data/enwik8.gz")
            assert file
            return gzip.decompress(file.read())
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return b"".join(file.read_bytes() for file in files)


def split_text(text: bytes, sizes: tuple[int, int, int] | None = None) -> dict[str, bytes]:
    """Return the three ranges of a text, or, given sizes, the start of each up to the end of a line."""
    ends = [0, *(find_line(text, round(sum(SHARES[: k + 1]) * len(text))) for k in range(2)), len(text)]
    ranges = [text[start:end] for start, end in pairwise(ends)]
    if sizes is not None:
        ranges = [part[: find_line(part, size)] for part, size in zip(ranges, sizes, strict=True)]
    if not all(ranges):
        raise ValueError("text: expected lines in each of the three ranges, got an empty range")
    return dict(zip(SPLITS, ranges, strict=True))


def find_line(text: bytes, start: int) -> int:
    """Return where the first line begins that does not begin before `start`."""
    return (text.find(b"\n", max(0, start - 1)) + 1) or len(text)


def train_tokenizer(text: bytes, n_subwords: int) -> Tokenizer:
    """Return byte pairs of a text; the last of `n_subwords` is left free for the start of a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=n_subwords - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )  # pyright: ignore
    tokenizer.train_from_iterator(text.decode().splitlines(keepends=True), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, text: bytes) -> Text:
    """Return a range as subwords, or refuse to if they do not decode to it."""
    found = [line.ids for line in tokenizer.encode_batch(text.decode().splitlines(keepends=True))]
    ids = [k for line in found for k in line]
    if tokenizer.decode(ids).encode() != text:
        raise ValueError("text: expected subwords that decode to it, got others")
    return Text(torch.tensor(ids, dtype=torch.int32), len(text))


def load_text(
    path: Path | None, data: Path, work: Path, n_subwords: int, sizes: tuple[int, int, int] | None
) -> dict[str, Text]:
    """Return all ranges as subwords, which are kept in a file; byte pairs are those of the training range."""
    ranges = split_text(read_text(path, data), sizes)
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in ranges.values())).hexdigest()
    stored = work / f"{digest[:16]}-{n_subwords}.pt"
    if not stored.exists():
        tokenizer = train_tokenizer(ranges["train"], n_subwords)
        found = {name: tuple(encode(tokenizer, part)) for name, part in ranges.items()}
        stored.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, stored)
    return {name: Text(*values) for name, values in torch.load(stored).items()}
