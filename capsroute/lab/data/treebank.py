"""Generated film reviews with a sentiment for each of their phrases: the treebank that needs no download.

A grammar writes the sentences, and the sentiments of their phrases follow from those of their words by a few rules,
see `reviews/rules.py`; nothing in them is left to chance. The depth of a sentence is the largest number of negations
and contrasts around one of its words. In training and validation it is 2 at most; every fifth sentence of the test
split has depth 3, the others 2 at most.

A checksum of its words, not the seed, says to which split a sentence may belong, and clauses inside training
sentences are held to it too. So no two splits share a sentence, whatever the seeds and however many there are.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..atomic_files import write_atomically
from . import downloads as files
from . import trees
from .reviews.grammar import Grammar, drawn, text
from .reviews.rules import labelled
from .sst import FILES
from .trees import Phrases, Tree

VERSION = 1  # of the sentences: to be raised with every change of them, so that no old files are read
DEPTH = 2
MAX_DEPTH = 4  # deeper ones are hard to find, and hard to read
EVERY = 5  # of this many test sentences one is deeper
STARS = ("One star", "Two stars", "Three stars", "Four stars", "Five stars")
SHARES = {"train": range(192), "validation": range(192, 216), "test": range(216, 256)}  # of a checksum's first byte


class Sizes(NamedTuple):
    """Sentences in each split."""

    train: int = 3000
    validation: int = 300
    test: int = 600


SIZES = Sizes()


def sentences(seed: int, split: str, n: int | None = None, *, depth: int = DEPTH) -> Iterator[Tree]:
    """Sentences of a split, none twice, in equal shares of the five sentiments on average.

    Args:
        seed: Which ones, 0 or more.
        split: `"train"`, `"validation"` or `"test"`.
        n: How many, or None for no end of them. More begin with the same ones.
        depth: The largest; every fifth sentence of the test split has one more.
    """
    if split not in SHARES:
        raise ValueError(f"split: expected one of {list(SHARES)}, got {split!r}")
    _check_whole("seed", seed, 0)
    _check_whole("depth", depth, 0, MAX_DEPTH)
    if n is not None:
        _check_whole("n", n, 0)
    return itertools.islice(_sentences(seed, split, depth), n)


def texts(seed: int, n: int) -> list[str]:
    """Sentences of the training split as text, for a language model to learn from."""
    return [tree.text() for tree in sentences(seed, "train", n)]


def reviews(seed: int, n: int) -> list[str]:
    """The same sentences, each with the stars that go with its sentiment, as newspapers print them.

    They show a language model that words differ in sentiment, which `texts` hardly do. But they also tell it the
    labels of these sentences: what is trained on it has seen more labels than those of the phrases it is trained with.
    """
    return [f"{tree.text()} {STARS[tree.label]} ." for tree in sentences(seed, "train", n)]


def load(
    folder: Path, split: str, classes: int = 5, *, seed: int = 0, sizes: Sizes | tuple[int, int, int] = SIZES
) -> Phrases:
    """The phrases of a split, generated on first use and then read from files like those of SST.

    Args:
        folder: Where treebanks lie, each in a folder of its own.
        split: `"train"`, of which each phrase comes once; `"validation"` or `"test"`, of which whole sentences do.
        classes: 5, or 2 without what is neutral.
        seed: Which sentences, 0 or more.
        sizes: How many sentences the three splits have.
    """
    if split not in SHARES:
        raise ValueError(f"split: expected one of {list(SHARES)}, got {split!r}")
    trees.check_classes(classes)
    path = make(folder, seed=seed, sizes=sizes) / FILES[split]
    return trees.phrases(trees.read(path), classes, roots_only=split != "train")


def make(folder: Path, *, seed: int = 0, sizes: Sizes | tuple[int, int, int] = SIZES) -> Path:
    """Generate the files of all splits unless they are there and as they were written; the folder they lie in."""
    _check_whole("seed", seed, 0)
    sizes = Sizes(*sizes)
    for name, size in sizes._asdict().items():
        _check_whole(f"sizes.{name}", size, 1)
    place = Path(folder) / f"treebank-{VERSION}-{seed}-{'-'.join(map(str, sizes))}"
    sums = place / "SHA256SUMS"
    if _intact(sums):
        return place
    lines = []
    try:
        place.mkdir(parents=True, exist_ok=True)
        for split, size in sizes._asdict().items():
            content = "".join(f"{tree}\n" for tree in sentences(seed, split, size)).encode()
            write_atomically(place / FILES[split], content)
            lines.append(f"{hashlib.sha256(content).hexdigest()}  {FILES[split]}\n")
        write_atomically(sums, "".join(lines).encode())  # last: it vouches for the others
    except OSError as error:
        raise files.unwritable(place, error) from error
    return place


def _intact(sums: Path) -> bool:
    """Whether all files are there and as they were written."""
    try:
        expected = {name: value for value, name in map(str.split, sums.read_text(encoding="utf-8").splitlines())}
        found = {name: files.digest(sums.with_name(name), "sha256") for name in FILES.values()}
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return found == expected


def _sentences(seed: int, split: str, limit: int) -> Iterator[Tree]:
    rng = random.Random(f"{VERSION} {seed} {split}")
    seen = set()
    for place in itertools.count():
        deeper = split == "test" and place % EVERY == EVERY - 1
        sentiment = drawn(rng, range(-2, 3))
        while True:
            grammar = Grammar(rng)
            body = grammar.sentence(sentiment, limit + deeper)
            words = text(body)
            held = map(text, grammar.clauses) if split == "train" else [words]
            if words in seen or not all(_byte(clause) in SHARES[split] for clause in held):
                continue
            tree, depth = labelled((body, "."))
            if depth == limit + 1 or not deeper:
                break
        seen.add(words)
        yield tree


def _byte(words: str) -> int:
    """The first of a checksum."""
    return hashlib.sha256(words.lower().encode()).digest()[0]


def _check_whole(name: str, value: int, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name}: expected {wanted}, got {value}")
