"""The report of a network that classifies stereo pairs: one page in one file, and its pictures beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data import Pairs
from . import views
from .accuracy import probabilities
from .page import Album, page
from .sections import Log, confusions, headline, learning_curves, schedule, settings

TRAINING = ("step", "epoch", "seconds", "lr", "beta1", "loss", "loss_sd", "accuracy", "accuracy_sd")
VALIDATION = ("epoch", "step", "loss", "loss_sd", "accuracy", "accuracy_sd")


def write_report(
    folder: Path,
    *,
    title: str,
    config: Mapping[str, Any],
    versions: Mapping[str, Any],
    training: Log,
    validation: Log | None,
    scores: np.ndarray,
    pairs: Pairs,
    names: Sequence[str],
    summary: Mapping[str, Any],
    trained: str = "on mixed-up (mixup) and randomly cropped images",
) -> Path:
    """Write `folder/report.html` and `folder/report/*.png`, and return the page's path.

    Args:
        folder: Made if it is not there; an earlier report in it is replaced.
        title: Heading of the page.
        config: The run's settings, shown as a table.
        versions: Python, packages, device, commit, command, seed and so on, shown as a table.
        training: Columns `step, epoch, seconds, lr, beta1, loss, loss_sd, accuracy, accuracy_sd`, a row for each
            window of batches, means and standard deviations over its batches.
        validation: Columns `epoch, step, loss, loss_sd, accuracy, accuracy_sd`, a row for each epoch; None if all of
            the training set was trained on.
        scores: Final scores on the test split, before the softmax, `[n, k]`.
        pairs: The test split.
        names: The classes' names, in the order of the scores.
        summary: More for the headline, such as parameters, seconds of training, epochs, which weights.
        trained: On what images training was measured, in words.
    """
    scores = _checked_scores(scores, pairs, names)
    training = _checked_log("training", training, TRAINING)
    validation = None if validation is None else _checked_log("validation", validation, VALIDATION)
    chances = probabilities(scores)  # [n, k]
    predicted = chances.argmax(1)
    hit = predicted == pairs.category
    album = Album(Path(folder) / "report")
    toys, note = views.by_toys(hit, pairs)
    sections = [
        headline(hit, len(names), "pairs", toys, note, summary),
        learning_curves(
            training,
            validation,
            album,
            mixed=trained,
            held_out="instances of the training set that were not trained on",
        ),
        confusions(pairs.category, predicted, names, "pairs", album),
        views.by_viewpoint(hit, pairs, album),
        views.by_instance(hit, pairs, names, album),
        views.mistakes(chances, pairs, names, album),
        views.sample_images(pairs, names, album),
        schedule(training, album),
        settings(config, versions),
    ]
    path = Path(folder) / "report.html"
    path.write_text(page(title, sections, "Written by capsroute report."), encoding="utf-8")
    return path


def _checked_scores(scores: np.ndarray, pairs: Pairs, names: Sequence[str]) -> np.ndarray:
    """The scores as an array, after checking them and the pairs against each other."""
    scores = np.asarray(scores)
    if scores.ndim != 2:
        raise ValueError(f"scores: expected [n, k], got shape {list(scores.shape)}")
    n, k = scores.shape
    if k != len(names):
        raise ValueError(f"names: expected {k}, one for each column of scores, got {len(names)}")
    if n < 1:
        raise ValueError("scores: expected at least one row, got none")
    m = pairs.images.shape[-1]
    shapes = {"images": (pairs.images, (n, 2, m, m)), "category": (pairs.category, (n,)), "info": (pairs.info, (n, 4))}
    for name, (array, expected) in shapes.items():
        if array.shape != expected:
            raise ValueError(f"pairs.{name}: expected {list(expected)}, as scores, got shape {list(array.shape)}")
    low, high = pairs.category.min(), pairs.category.max()
    if low < 0 or high >= k:
        raise ValueError(f"pairs.category: expected 0 to {k - 1}, got {low} to {high}")
    bad = int((~np.isfinite(scores)).sum())
    if bad:
        raise ValueError(f"scores: expected finite numbers, got {bad} that are not")
    return scores


def _checked_log(name: str, log: Log, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """The log's columns as arrays of numbers, all there and equally long."""
    missing = [column for column in columns if column not in log]
    if missing:
        raise ValueError(f"{name}: expected columns {list(columns)}, got none for {missing}")
    arrays = {column: np.asarray(log[column], dtype=np.float64) for column in columns}
    n = arrays[columns[0]].size
    for column, array in arrays.items():
        if array.shape != (n,):
            raise ValueError(f"{name}[{column!r}]: expected [{n}], got shape {list(array.shape)}")
    return arrays
