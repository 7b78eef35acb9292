"""The reports of networks that classify stereo pairs or texts: one page in one file, and its pictures beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.accuracy import softmax as probabilities
from ..data import Pairs
from . import texts as language
from . import views
from .page import Album, Section, page
from .sections import Answers, Log, confusions, headline, learning_curves, schedule, settings

if TYPE_CHECKING:
    from ...nets import SST, SmallNORB
    from ..encoders import Encoder

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
    network: "SmallNORB | None" = None,
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
        network: What gave the scores, to show what some of its answers rest on.
    """
    answers = _answers(scores, pairs.category, names, "pairs", "pairs.category")
    _check_pairs(pairs, len(answers.true))
    training, validation = _checked_logs(training, validation)
    album = Album(Path(folder) / "report")
    toys, note = views.by_toys(answers.hit, pairs)
    held_out = "instances of the training set that were not trained on"
    sections = [
        headline(answers, {"95% interval, were pairs independent": answers.interval} | toys, note, summary),
        learning_curves(training, validation, album, trained, held_out),
        confusions(answers, album),
        views.by_viewpoint(answers, pairs, album),
        views.by_instance(answers, pairs, album),
        views.mistakes(answers, pairs, album),
        *([views.credits(answers, pairs, network, album)] if network is not None else []),
        views.sample_images(pairs, names, album),
        schedule(training, album),
        settings(config, versions),
    ]
    return _write(folder, title, sections)


def write_text_report(
    folder: Path,
    *,
    title: str,
    config: Mapping[str, Any],
    versions: Mapping[str, Any],
    training: Log,
    validation: Log | None,
    scores: np.ndarray,
    texts: Sequence[str],
    label: np.ndarray,
    names: Sequence[str],
    summary: Mapping[str, Any],
    trained: str,
    held_out: str,
    network: "SST | None" = None,
    encoder: "Encoder | None" = None,
) -> Path:
    """As `write_report`, of a network that classifies sentences into classes which stand in order.

    Args:
        folder: As there, and so are title, config, versions, training, validation, scores and summary.
        texts: The sentences of the test split, of any origin: nothing in them can act on the page.
        label: Their true classes, `[n]`.
        names: The classes' names, in the order of the scores, from one end of their scale to the other.
        trained: On what texts training was measured, in words, such as `on phrases as they are`.
        held_out: What the validation log was measured on, in words.
        network: What gave the scores, to show what some of its answers rest on.
        encoder: The network's encoder; without it the page says why it cannot show that.
    """
    answers = _answers(scores, label, names, "sentences", "label")
    if len(texts) != len(answers.true):
        raise ValueError(f"texts: expected {len(answers.true)}, as scores, got {len(texts)}")
    training, validation = _checked_logs(training, validation)
    album = Album(Path(folder) / "report")
    sections = [
        headline(answers, *language.as_trials(answers), summary),
        learning_curves(training, validation, album, trained, held_out),
        confusions(answers, album),
        *([language.steps_off(answers, album)] if len(names) > 2 else []),
        language.by_length_and_negation(answers, texts, album),
        language.mistakes(answers, texts),
        *([language.credits(answers, texts, network, encoder, album)] if network is not None else []),
        language.samples(answers, texts),
        schedule(training, album),
        settings(config, versions),
    ]
    return _write(folder, title, sections)


def _write(folder: Path, title: str, sections: Sequence[Section]) -> Path:
    path = Path(folder) / "report.html"
    # settings and texts may hold halves of characters, which no file can
    path.write_text(page(title, sections, "Written by capsroute report."), encoding="utf-8", errors="replace")
    return path


def _answers(scores: np.ndarray, true: np.ndarray, names: Sequence[str], things: str, origin: str) -> Answers:
    """The scores as probabilities, after checking them, the names and the true classes against each other."""
    scores, true = np.asarray(scores), np.asarray(true)
    if scores.ndim != 2:
        raise ValueError(f"scores: expected [n, k], got shape {list(scores.shape)}")
    n, k = scores.shape
    if k != len(names):
        raise ValueError(f"names: expected {k}, one for each column of scores, got {len(names)}")
    if n < 1:
        raise ValueError("scores: expected at least one row, got none")
    if true.shape != (n,):
        raise ValueError(f"{origin}: expected [{n}], as scores, got shape {list(true.shape)}")
    if true.dtype.kind not in "iu":
        raise ValueError(f"{origin}: expected integers, got {true.dtype}")
    low, high = true.min(), true.max()
    if low < 0 or high >= k:
        raise ValueError(f"{origin}: expected 0 to {k - 1}, got {low} to {high}")
    bad = int((~np.isfinite(scores)).sum())
    if bad:
        raise ValueError(f"scores: expected finite numbers, got {bad} that are not")
    return Answers(true.astype(np.int64), probabilities(scores), names, things)


def _check_pairs(pairs: Pairs, n: int) -> None:
    m = pairs.images.shape[-1]
    for name, array, expected in (("images", pairs.images, (n, 2, m, m)), ("info", pairs.info, (n, 4))):
        if array.shape != expected:
            raise ValueError(f"pairs.{name}: expected {list(expected)}, as scores, got shape {list(array.shape)}")


def _checked_logs(training: Log, validation: Log | None) -> tuple[Log, Log | None]:
    held_out = None if validation is None else _checked_log("validation", validation, VALIDATION)
    return _checked_log("training", training, TRAINING), held_out


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
