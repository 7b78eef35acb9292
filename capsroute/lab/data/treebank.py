"""Generated film reviews with a sentiment for each phrase: a treebank that needs no download.

A grammar writes the sentences, and the sentiments of their phrases follow from those of their words by the rules in
`reviews/rules.py`. The depth of a sentence is the largest number of negations and contrasts around one of its words.
In training and validation it is 2 at most; every fifth sentence of the test split has depth 3, the others 2 at most.

A checksum of its words, not the seed, assigns a sentence to a split, and clauses inside training sentences are held to
it too. So no two splits share a sentence, whatever the seeds and sizes.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..atomic_files import write_atomically
from .checks import check_integer, check_split
from .downloads import file_digest, name_write_errors
from .reviews.grammar import Grammar, join_words, pick
from .reviews.rules import label_bracket
from .sst import FILES
from .trees import Phrases, Tree, check_classes, extract_phrases, read_trees

VERSION = 1  # of the sentences: raise it with every change to them, so that no old files are read
DEPTH = 2
MAX_DEPTH = 4  # deeper sentences are rare, and hard to read
SIZES = (3000, 300, 600)  # sentences of the training, validation and test splits
DEEPER_EVERY = 5  # one in this many test sentences is deeper
STARS = ("One star", "Two stars", "Three stars", "Four stars", "Five stars")
BYTES = {"train": range(192), "validation": range(192, 216), "test": range(216, 256)}  # of a checksum's first byte


def generate_sentences(seed: int, split: str, n: int | None = None, *, depth: int = DEPTH) -> Iterator[Tree]:
    """Yield distinct sentences of a split, in equal shares of the five sentiments on average.

    Args:
        seed: 0 or more.
        split: `"train"`, `"validation"` or `"test"`.
        n: Number of sentences, or None for an endless stream that begins with the same ones.
        depth: The largest depth; every fifth sentence of the test split has one more.
    """
    check_split(split, BYTES)
    check_integer("seed", seed, 0)
    check_integer("depth", depth, 0, MAX_DEPTH)
    if n is not None:
        check_integer("n", n, 0)
    return itertools.islice(_generate(seed, split, depth), n)


def generate_reviews(seed: int, n: int) -> list[str]:
    """Return training sentences as text, each followed by the stars that go with its sentiment.

    A language model learns from the stars that words differ in sentiment. It also learns the labels of these
    sentences, so a network trained on its hidden states has seen more labels than those of its own phrases.
    """
    return [f"{tree.text()} {STARS[tree.label]} ." for tree in generate_sentences(seed, "train", n)]


def load(folder: Path, split: str, classes: int = 5, *, seed: int = 0, sizes: Sequence[int] = SIZES) -> Phrases:
    """Return the phrases of a split, generated on first use and then read from files like those of SST.

    Args:
        folder: Holds a folder for each treebank.
        split: `"train"` for each phrase once; `"validation"` or `"test"` for whole sentences.
        classes: 5, or 2 to leave neutral phrases out.
        seed: 0 or more.
        sizes: Sentences of the training, validation and test splits.
    """
    check_split(split, BYTES)
    check_classes(classes)
    path = write_files(folder, seed=seed, sizes=sizes) / FILES[split]
    return extract_phrases(read_trees(path), classes, roots_only=split != "train")


def write_files(folder: Path, *, seed: int = 0, sizes: Sequence[int] = SIZES) -> Path:
    """Write the files of all splits, unless they are there and intact, and return their folder."""
    check_integer("seed", seed, 0)
    size_of = dict(zip(FILES, sizes, strict=True))
    for split, size in size_of.items():
        check_integer(f"sizes.{split}", size, 1)
    target = Path(folder) / f"treebank-{VERSION}-{seed}-{'-'.join(map(str, sizes))}"
    sums = target / "SHA256SUMS"
    if _is_intact(sums):
        return target
    lines = []
    with name_write_errors(target):
        target.mkdir(exist_ok=True)
        for split, size in size_of.items():
            content = "".join(f"{tree}\n" for tree in generate_sentences(seed, split, size)).encode()
            write_atomically(target / FILES[split], content)
            lines.append(f"{hashlib.sha256(content).hexdigest()}  {FILES[split]}\n")
        write_atomically(sums, "".join(lines).encode())  # last, because it vouches for the others
    return target


def _is_intact(sums: Path) -> bool:
    try:
        expected = {name: value for value, name in map(str.split, sums.read_text(encoding="utf-8").splitlines())}
        found = {name: file_digest(sums.with_name(name), "sha256") for name in FILES.values()}
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return found == expected


def _generate(seed: int, split: str, max_depth: int) -> Iterator[Tree]:
    rng = random.Random(f"{VERSION} {seed} {split}")
    seen = set()
    for k in itertools.count():
        deeper = split == "test" and k % DEEPER_EVERY == DEEPER_EVERY - 1
        sentiment = pick(rng, range(-2, 3))
        while True:
            grammar = Grammar(rng)
            body = grammar.sentence(sentiment, max_depth + deeper)
            words = join_words(body)
            clauses = map(join_words, grammar.clauses) if split == "train" else [words]
            checksums = [hashlib.sha256(clause.lower().encode()).digest() for clause in clauses]
            if words in seen or not all(checksum[0] in BYTES[split] for checksum in checksums):
                continue
            tree, depth = label_bracket((body, "."))
            if depth == max_depth + 1 or not deeper:
                break
        seen.add(words)
        yield tree
