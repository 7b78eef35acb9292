"""Labelled samples, checked and split into training, validation and test."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import UserError
from ...formatting import readable
from ...progress import print_once

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {"training": "train", "val": "validation", "valid": "validation", "dev": "validation", "testing": "test"}
N_NAMED = 3  # samples named in a message


class Labelled(NamedTuple):
    """Samples with their labels."""

    items: Sequence[Any]  # what preprocessing takes: files, texts, arrays
    labels: Sequence[str]
    places: Sequence[str]  # where each one is, for messages: a file, a row
    groups: Sequence[str] | None = None  # samples of one group are in the same split
    splits: Sequence[str] | None = None  # where the data say so

    def take(self, rows: Sequence[int] | np.ndarray) -> "Labelled":
        """Select samples by indices."""
        columns = (None if column is None else [column[k] for k in rows] for column in self)
        return Labelled(*columns)  # pyright: ignore[reportArgumentType]


def find_split(name: str) -> str | None:
    """Return the split that a folder or a value stands for, such as `val` for validation."""
    name = name.strip().lower()
    return SPLIT_NAMES.get(name, name if name in SPLITS else None)


def find_splits(values: Sequence[str], source: str) -> list[str]:
    """Return the splits that a column of values stands for."""
    splits = [find_split(value) for value in values]
    if None in splits:
        wrong = values[splits.index(None)]
        raise UserError(f"{source}: expected splits {', '.join(SPLITS)}, got {readable(wrong)!r}")
    return [split for split in splits if split]


def match_groups(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the part of each name that a regular expression finds: its first group, or all that it matches."""
    try:
        found = [re.search(pattern, name) for name in names]
    except re.error as error:
        raise UserError(f"group_by: expected a regular expression, got {pattern!r} ({error})") from error
    if None in found:
        name = names[found.index(None)]
        raise UserError(f"group_by: {pattern!r} matches no part of {name}; every name needs a match")
    return [match[1 if match.re.groups else 0] or "" for match in found if match]


def check_classes(data: Labelled, source: Path | str, min_samples: int) -> Labelled:
    """Leave out classes with fewer than `min_samples`, and refuse those that cannot be trained and tested."""
    counts = Counter(data.labels)
    rare = {label for label, n in counts.items() if n < min_samples}
    if rare:
        data = data.take([k for k, label in enumerate(data.labels) if label not in rare])
    if len(counts) - len(rare) < 2:
        names = ", ".join(readable(label) for label in sorted(set(counts) - rare)) or "none"
        raise UserError(f"{source}: expected samples of at least two classes, got {names}")
    units = data.groups or data.places
    per_class: dict[str, set[str]] = {}
    for label, unit in zip(data.labels, units, strict=True):
        per_class.setdefault(label, set()).add(unit)
    for label, found in sorted(per_class.items()):
        if len(found) < 2 and not data.splits:
            where, unit = data.places[data.labels.index(label)], "group" if data.groups else "sample"
            problem = f"class {readable(label)!r} has one {unit} ({where}), needs two, one to train and one to test"
            remedy = "add more, correct its label, or leave small classes out with --set min_samples=2"
            raise UserError(f"{source}: {problem}; {remedy}")
    check_given_splits(data, source)
    return data


def check_given_splits(data: Labelled, source: Path | str) -> None:
    """Refuse splits given by the data that lack training or test samples, or have classes that are not trained."""
    if not data.splits:
        return
    of_split = {s: [k for k, split in enumerate(data.splits) if split == s] for s in SPLITS}
    for split in ("train", "test"):
        if not of_split[split]:
            raise UserError(f"{source}: expected samples to {split}, found none in the split {split!r}")
    trained = {data.labels[k] for k in of_split["train"]}
    for split in SPLITS[1:]:
        unknown = [k for k in of_split[split] if data.labels[k] not in trained]
        if unknown:
            label, where = readable(data.labels[unknown[0]]), data.places[unknown[0]]
            raise UserError(f"{where}: its class {label!r} is in {split} and not in train; add it there or remove it")


def split_samples(data: Labelled, *, test_share: float, validation_share: float, seed: int) -> np.ndarray:
    """Return the split of each sample, as the data say or drawn with equal shares of every class.

    Samples of a group stay together. Where the data name a test split alone, validation is drawn from training.
    """
    splits = np.array(data.splits if data.splits else ["train"] * len(data.labels), dtype="<U10")
    wanted = {} if data.splits else {"test": test_share}
    if "validation" not in splits:
        wanted["validation"] = validation_share / (1 - test_share)  # of what is left
    _, label = np.unique(data.labels, return_inverse=True)
    group = label * 0 + np.arange(len(label)) if data.groups is None else np.unique(data.groups, return_inverse=True)[1]
    for split, share in wanted.items():
        rows = np.flatnonzero(splits == "train")
        held_out = _draw(label[rows], group[rows], share, seed)
        splits[rows[held_out]] = split
    return splits


def _draw(label: np.ndarray, group: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return indices of about a share of the samples, whole groups of every class; each class keeps a group."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    n_groups = len(np.unique(group))
    most = min(n_groups, np.bincount(label).max(initial=0))  # more folds cannot be filled
    n_folds = min(round(1 / share), int(most)) if share else 0
    if n_folds < 2:
        return np.empty(0, int)
    kind = StratifiedGroupKFold if n_groups < len(group) else StratifiedKFold  # the first takes minutes for millions
    folds = kind(n_folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings(action="ignore"):  # small classes cannot be in every fold
        held_out = next(folds.split(label, label, group))[1]
    kept = np.setdiff1d(np.arange(len(label)), held_out)
    only = np.setdiff1d(label, label[kept])  # classes that would not be trained
    back = np.isin(group, group[np.isin(label, only)])
    return held_out[~back[held_out]]


def describe_left_out(what: str, total: int, problems: Sequence[str]) -> str:
    """Return a sentence on samples that cannot be used, with the first of them."""
    more = f", and {len(problems) - N_NAMED} more" if len(problems) > N_NAMED else ""
    named = "; ".join(readable(problem) for problem in problems[:N_NAMED])
    return f"{len(problems):,} of {total:,} {what} left out: {named}{more}"


report_once = cache(print_once)
"""Print what was found in the data: once, however often they are read."""


def check_memory(source: Path | str, n_bytes: int, remedy: str) -> None:
    """Refuse data that would not fit in memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else n_bytes
    if n_bytes > memory:
        raise UserError(f"{source}: would take {n_bytes / 1e9:.1f} GB of {memory / 1e9:.1f} GB memory; {remedy}")
