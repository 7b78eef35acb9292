"""Sentiment trees in the bracketed format of the Penn Treebank, and the labelled phrases taken from them.

A line holds one tree: `(3 (2 It) (4 (2 's) (4 fun)))`. Every node has a sentiment from 0 to 4 and holds one word or
one or more nodes.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .published import DataError, read_error

SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")
POLARITIES = ("negative", "positive")
NEUTRAL = 2
MAX_DEPTH = 1000  # far deeper than language goes
MAX_CHARACTERS = 100_000  # of all phrases of a tree together, which grow with its depth times its length
TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)  # other spaces are letters: 8 1/2 is one word of SST
ESCAPES = str.maketrans({"(": "-LRB-", ")": "-RRB-", "/": r"\/", "*": r"\*"})
EXPECTED = {  # in each state of the parser
    "start": "a tree, which begins with (",
    "opened": "a label from 0 to 4",
    "label": "a word or (",
    "word": ") after the only word of a leaf",
    "closed": "( or )",
    "end": "nothing after the tree",
}


class Phrases(NamedTuple):
    """Hold texts with a class each."""

    text: list[str]
    label: np.ndarray  # [n] int64, index into SENTIMENTS or POLARITIES

    def take(self, rows: np.ndarray | slice) -> "Phrases":
        """Select phrases by indices, a mask or a slice."""
        index = np.arange(len(self.text))[rows]
        return Phrases([self.text[k] for k in index], self.label[index])


class Node(NamedTuple):
    """Mark a phrase of a tree: its words from `start` up to, but not including, `end`."""

    label: int
    start: int
    end: int


class Tree(NamedTuple):
    """Hold a sentence and all of its phrases in a flat list, so that no depth overflows the stack."""

    words: tuple[str, ...]
    nodes: tuple[Node, ...]  # in pre-order: the root first

    @property
    def label(self) -> int:
        return self.nodes[0].label

    def text(self, node: Node | None = None) -> str:
        """Return the words of a node, or of the whole tree."""
        return " ".join(self.words if node is None else self.words[node.start : node.end])

    def __str__(self) -> str:
        """Return the line that `parse_tree` reads."""
        labels = [""] * len(self.words)  # opened before each word
        for node in self.nodes:
            labels[node.start] += f"({node.label} "
        closed = Counter(node.end for node in self.nodes)
        leaves = zip(labels, self.words, strict=True)
        return " ".join(
            f"{label}{word.translate(ESCAPES)}{')' * closed[k]}" for k, (label, word) in enumerate(leaves, 1)
        )


class TreeError(ValueError):
    """Say what is wrong with a line, in words that follow its number."""


def parse_tree(line: str) -> Tree:
    """Return the tree of a line, or raise a `TreeError` that says what was expected."""
    words: list[str] = []
    nodes: list[Node] = []
    opened: list[int] = []  # indices of the nodes not yet closed
    state = "start"
    for token in TOKEN.findall(line):
        if token == "(" and state in ("start", "label", "closed"):
            if len(opened) == MAX_DEPTH:
                raise TreeError(f"expected at most {MAX_DEPTH:,} nested brackets, got more")
            state = "opened"
        elif state == "opened" and token in ("0", "1", "2", "3", "4"):
            opened.append(len(nodes))
            nodes.append(Node(int(token), len(words), -1))
            state = "label"
        elif token not in ("(", ")") and state == "label":
            for letter, escape in ESCAPES.items():
                token = token.replace(escape, chr(letter))
            words.append(token)
            state = "word"
        elif token == ")" and state in ("word", "closed"):
            k = opened.pop()
            nodes[k] = nodes[k]._replace(end=len(words))
            state = "closed" if opened else "end"
        else:
            raise TreeError(f"expected {EXPECTED[state]}, got {token[:40] + '…' * (len(token) > 40)!r}")
    if state != "end":
        expected = ")" if state in ("word", "closed") else EXPECTED[state]
        raise TreeError(f"expected {expected}, got {'the end of the line' if line.strip() else 'an empty line'}")
    ends = list(accumulate((len(word) + 1 for word in words), initial=0))
    if sum(ends[node.end] - ends[node.start] for node in nodes) > MAX_CHARACTERS:
        raise TreeError(f"expected phrases of at most {MAX_CHARACTERS:,} characters together, got more")
    return Tree(tuple(words), tuple(nodes))


def read_trees(path: Path) -> list[Tree]:
    """Return the trees of a file, one on each line."""
    try:
        return parse_trees(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise read_error(path, error) from error


def parse_trees(content: bytes, name: str) -> list[Tree]:
    """Return the trees in a file's content; errors give its name and the line."""
    lines = content.removesuffix(b"\n").split(b"\n")
    if not content:
        raise DataError(f"{name}: expected trees, got an empty file")
    trees = []
    for number, line in enumerate(lines, 1):
        try:
            trees.append(parse_tree(line.decode("utf-8")))
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{line[error.start]:02x} at place {error.start + 1}"
            raise DataError(f"{name}, line {number}: expected text in UTF-8, got {wrong}") from error
        except TreeError as error:
            raise DataError(f"{name}, line {number}: {error}") from error
    return trees


def extract_phrases(trees: Iterable[Tree], classes: int = 5, roots_only: bool = False) -> Phrases:
    """Return the phrases of trees, each text once, or with `roots_only` all whole sentences.

    Phrases come in the order of their first occurrence. Of several labels the most frequent one counts, and of equally
    frequent ones the first. With two `classes`, negative and positive, neutral phrases are left out before all else.
    """
    found = (
        (tree.text(node), node.label if classes == 5 else int(node.label > NEUTRAL))
        for tree in trees
        for node in (tree.nodes[:1] if roots_only else tree.nodes)
        if classes == 5 or node.label != NEUTRAL
    )
    if not roots_only:
        counts: dict[str, Counter[int]] = {}
        for text, label in found:
            counts.setdefault(text, Counter())[label] += 1
        found = ((text, labels.most_common(1)[0][0]) for text, labels in counts.items())
    rows = list(found)
    return Phrases([text for text, _ in rows], np.array([label for _, label in rows], dtype=np.int64))
