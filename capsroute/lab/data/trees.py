"""Labelled trees in the bracketed format of the Penn Treebank, and the phrases that texts reach training as.

A line holds one tree: `(3 (2 It) (4 (2 's) (4 fun)))`. Every node has a sentiment from 0 to 4 and holds one word or
one or more nodes.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .downloads import DataError

SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")
POLARITIES = ("negative", "positive")
NEUTRAL = 2
MAX_NESTED = 1000  # far deeper than language goes; the texts of a deep tree's phrases grow with its depth squared
TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)  # other spaces are letters: 8 1/2 is one word of SST
ESCAPES = {"(": "-LRB-", ")": "-RRB-", "/": r"\/", "*": r"\*"}
EXPECTED = {  # what may follow what
    "nothing": "a tree, which begins with (",
    "opened": "a label from 0 to 4",
    "label": "a word or (",
    "word": ") after the only word of a leaf",
    "closed": "( or )",
    "whole": "nothing after the tree",
}


class Phrases(NamedTuple):
    """Texts with a class each."""

    text: list[str]
    label: np.ndarray  # [n] int64, a place in SENTIMENTS or POLARITIES

    def take(self, which: np.ndarray) -> "Phrases":
        """Some of the phrases: indices or a mask."""
        rows = np.arange(len(self.text))[which]
        return Phrases([self.text[row] for row in rows], self.label[rows])


class Node(NamedTuple):
    """A phrase of a tree: the words from `start` up to `end`, which is not one of them."""

    label: int
    start: int
    end: int


class Tree(NamedTuple):
    """A sentence and all of its phrases; flat, so that no depth is too deep for it."""

    words: tuple[str, ...]
    nodes: tuple[Node, ...]  # the root first, every node before those inside it

    @property
    def label(self) -> int:
        return self.nodes[0].label

    def text(self, node: Node | None = None) -> str:
        """The words of a node, or of all of the tree."""
        return " ".join(self.words if node is None else self.words[node.start : node.end])

    def __str__(self) -> str:
        """The line that `parse` reads."""
        out: list[str] = []
        ends: list[int] = []  # of the open nodes
        for place, node in enumerate(self.nodes):
            out.append(f"{' ' if place else ''}({node.label}")
            ends.append(node.end)
            after = self.nodes[place + 1] if place + 1 < len(self.nodes) else None
            if after is None or after.start >= node.end:  # nothing inside: a leaf
                out.append(f" {escaped(self.words[node.start])}")
                limit = len(self.words) + 1 if after is None else after.start
                while ends and ends[-1] <= limit:
                    ends.pop()
                    out.append(")")
        return "".join(out)


class TreeError(ValueError):
    """What is wrong with a line, in words that follow its number."""


def parse(line: str) -> Tree:
    """The tree that a line holds; a `TreeError` says what was expected in its place."""
    words: list[str] = []
    nodes: list[tuple[int, int]] = []  # label and start
    ends: list[int] = []
    opened: list[int] = []  # places of the nodes not yet closed
    state = "nothing"
    for token in TOKEN.findall(line):
        if token == "(" and state in ("nothing", "label", "closed"):
            if len(opened) == MAX_NESTED:
                raise TreeError(f"expected at most {MAX_NESTED:,} nested brackets, got more")
            state = "opened"
        elif state == "opened" and token in ("0", "1", "2", "3", "4"):
            opened.append(len(nodes))
            nodes.append((int(token), len(words)))
            ends.append(-1)
            state = "label"
        elif token not in ("(", ")") and state == "label":
            words.append(unescaped(token))
            state = "word"
        elif token == ")" and state in ("word", "closed"):
            ends[opened.pop()] = len(words)
            state = "closed" if opened else "whole"
        else:
            raise TreeError(f"expected {EXPECTED[state]}, got {_short(token)}")
    if state != "whole":
        wanted = ")" if state in ("word", "closed") else EXPECTED[state]
        raise TreeError(f"expected {wanted}, got {'the end of the line' if line.strip() else 'an empty line'}")
    return Tree(tuple(words), tuple(Node(label, start, end) for (label, start), end in zip(nodes, ends, strict=True)))


def read(path: Path) -> list[Tree]:
    """The trees of a file, one on each line."""
    try:
        return decode(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from error


def decode(content: bytes, name: str) -> list[Tree]:
    """The trees that a file holds; errors give its name and the line."""
    lines = content.split(b"\n")
    if not lines[-1]:  # what follows the last line's end
        lines.pop()
    if not lines:
        raise DataError(f"{name}: expected trees, got an empty file")
    trees = []
    for number, line in enumerate(lines, 1):
        try:
            trees.append(parse(line.decode("utf-8")))
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{line[error.start]:02x} at place {error.start + 1}"
            raise DataError(f"{name}, line {number}: expected text in UTF-8, got {wrong}") from error
        except TreeError as error:
            raise DataError(f"{name}, line {number}: {error}") from error
    return trees


def phrases(trees: Iterable[Tree], classes: int = 5, roots_only: bool = False) -> Phrases:
    """What to train on or to test with.

    Either every phrase of the trees, each text once, in the order of their first occurrence: where a text has several
    labels the most frequent one counts, and of equally frequent ones the one seen first. Or the whole sentences, as
    many as there are trees.

    Args:
        trees: Where from.
        classes: 5 for `SENTIMENTS`; 2 for `POLARITIES`, for which neutral phrases are left out before all else.
        roots_only: Whole sentences only.
    """
    check_classes(classes)
    found = (
        (tree.text(node), node.label if classes == 5 else int(node.label > NEUTRAL))
        for tree in trees
        for node in (tree.nodes[:1] if roots_only else tree.nodes)
        if classes == 5 or node.label != NEUTRAL
    )
    if not roots_only:
        found = _once(found)
    texts, labels = [], []
    for text, label in found:
        texts.append(text)
        labels.append(label)
    return Phrases(texts, np.array(labels, dtype=np.int64))


def check_classes(classes: int) -> None:
    if classes not in (5, 2):
        raise ValueError(f"classes: expected 5 or 2, got {classes!r}")


def _once(found: Iterable[tuple[str, int]]) -> Iterable[tuple[str, int]]:
    """Each text once, with its most frequent label."""
    counts: dict[str, dict[int, int]] = {}
    for text, label in found:
        of_text = counts.setdefault(text, {})
        of_text[label] = of_text.get(label, 0) + 1
    # of equals max takes the first, and a dict keeps the order of arrival
    return ((text, max(of_text, key=of_text.__getitem__)) for text, of_text in counts.items())


def escaped(word: str) -> str:
    """A word as it stands in a tree, where brackets mean something else."""
    return "".join(ESCAPES.get(letter, letter) for letter in word)


def unescaped(word: str) -> str:
    for letter, escape in ESCAPES.items():
        word = word.replace(escape, letter)
    return word


def _short(token: str) -> str:
    return repr(token if len(token) <= 40 else f"{token[:40]}…")
