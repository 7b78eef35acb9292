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
from collections.abc import Iterator

from .reviews.grammar import Grammar, join_words, pick
from .reviews.rules import label_bracket
from .trees import Phrases, Tree, extract_phrases

VERSION = 1  # of the sentences: raise it with every change to them
DEPTH = 2
SIZES = {"train": 3000, "validation": 300, "test": 600}  # sentences
DEEPER_EVERY = 5  # one in this many test sentences is deeper
STARS = ("One star", "Two stars", "Three stars", "Four stars", "Five stars")
BYTES = {"train": range(192), "validation": range(192, 216), "test": range(216, 256)}  # of a checksum's first byte


def generate_sentences(seed: int, split: str, n: int | None = None) -> Iterator[Tree]:
    """Yield distinct sentences of a split, in equal shares of the five sentiments on average.

    Args:
        seed: 0 or more.
        split: `"train"`, `"validation"` or `"test"`.
        n: Number of sentences, or None for an endless stream that begins with the same ones.
    """
    rng = random.Random(f"{VERSION} {seed} {split}")
    seen = set()
    for k in itertools.count() if n is None else range(n):
        deeper = split == "test" and k % DEEPER_EVERY == DEEPER_EVERY - 1
        sentiment = pick(rng, range(-2, 3))
        while True:
            grammar = Grammar(rng)
            body = grammar.sentence(sentiment, DEPTH + deeper)
            words = join_words(body)
            clauses = map(join_words, grammar.clauses) if split == "train" else [words]
            checksums = [hashlib.sha256(clause.lower().encode()).digest() for clause in clauses]
            if words in seen or not all(checksum[0] in BYTES[split] for checksum in checksums):
                continue
            tree, depth = label_bracket((body, "."))
            if depth == DEPTH + 1 or not deeper:
                break
        seen.add(words)
        yield tree


def generate_reviews(seed: int, n: int) -> list[str]:
    """Return training sentences as text, each followed by the stars that go with its sentiment.

    A language model learns from the stars that words differ in sentiment. It also learns the labels of these
    sentences, so a network trained on its hidden states has seen more labels than those of its own phrases.
    """
    return [f"{tree.text()} {STARS[tree.label]} ." for tree in generate_sentences(seed, "train", n)]


def load(split: str, classes: int = 5, *, seed: int = 0) -> Phrases:
    """Return the phrases of a split, generated in a second or two.

    Args:
        split: `"train"` for each phrase once; `"validation"` or `"test"` for whole sentences.
        classes: 5, or 2 to leave neutral phrases out.
        seed: 0 or more.
    """
    return extract_phrases(generate_sentences(seed, split, SIZES[split]), classes, roots_only=split != "train")
