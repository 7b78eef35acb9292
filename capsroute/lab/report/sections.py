"""Sections that reports on images and on texts share, and the frame they stand in."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..analysis.accuracy import GroupAccuracy, confusion_matrix, softmax, wilson_interval
from ..formatting import fact, flat, interval, percent, plain
from ..training.runs import TRAINING, VALIDATION
from . import charts
from .charts import BLUE, ORANGE, Log
from .html import Html, Section, facts, folded, image, page, panels, paragraph, table

NO_LOG = "The run ended before it logged anything."
N_CREDITED = 3
CREDIT = {
    "right": f"Right answers: up to {N_CREDITED}, evenly spaced through the test split.",
    "wrong": f"Wrong answers: up to {N_CREDITED}, those with the highest probability.",
}

Breakdown = Mapping[str, GroupAccuracy]
"""Accuracy for each value of a factor, by the value's label."""


class RunDetails(NamedTuple):
    """What a report says of a run."""

    title: str
    scores: np.ndarray  # on the test split, before the softmax, [n, k]
    names: Sequence[str]  # of the classes, in the order of the scores
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    summary: Mapping[str, Any]  # more facts for the top
    training: Log  # a row for each window of batches
    validation: Log | None  # a row for each epoch; None where nothing was held out
    trained: str = "on images with mixup and random crops"  # what training data were
    held_out: str = "instances of the training set that were not trained on"


class Answers(NamedTuple):
    """Probabilities of the classes for each test sample, and its true class."""

    true: np.ndarray  # [n]
    probabilities: np.ndarray  # [n, k]
    names: Sequence[str]  # of the classes
    samples: str  # what is classified, in the plural

    @property
    def predicted(self) -> np.ndarray:
        return self.probabilities.argmax(1)

    @property
    def hit(self) -> np.ndarray:
        return self.predicted == self.true

    @property
    def interval(self) -> str:
        return interval(wilson_interval(int(self.hit.sum()), len(self.hit)))

    def describe(self, which: int) -> tuple[str, str, str]:
        """Return the true class of a sample, the predicted class, and its probability."""
        true, predicted = int(self.true[which]), int(self.probabilities[which].argmax())
        return self.names[true], self.names[predicted], f"{100 * self.probabilities[which, predicted]:.1f}%"

    def worst(self, n: int) -> list[int]:
        """Return at most n wrong answers, those with the highest probability first."""
        wrong = np.flatnonzero(~self.hit)
        return wrong[np.argsort(-self.probabilities.max(1)[wrong], kind="stable")[:n]].tolist()

    def credited(self) -> dict[str, list[int]]:
        """Return the samples whose credit is shown, see `CREDIT`."""
        return {"right": spread(np.flatnonzero(self.hit), N_CREDITED), "wrong": self.worst(N_CREDITED)}


class Album:
    """Writes pictures to a folder of its own and returns them as markup that embeds them."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.png"):  # of an earlier report, which may have had more
            old.unlink()
        self.folder = folder

    def add(self, name: str, picture: Figure | bytes, alt: str, mode: str = "P") -> Html:
        """Add a PNG file, or a chart to be encoded in Pillow's mode; only charts in mode `P` adapt to a dark page."""
        png = picture if isinstance(picture, bytes) else charts.encode_figure(picture, mode)
        (self.folder / f"{name}.png").write_bytes(png)
        return image(png, alt, "chart" if mode == "P" and picture is not png else "photo")


def write_page(
    folder: Path,
    details: RunDetails,
    answers: Answers,
    intervals: Mapping[str, str],
    note: str,
    make_sections: Callable[[Album], Sequence[Section]],
) -> Path:
    """Write `folder/report.html` and `folder/report/*.png` in place of earlier ones, and return the page's path.

    The intervals, and the note on what they cover, follow the accuracy; the sections made stand between the confusion
    matrix and the learning-rate schedule.
    """
    training = _check_log("training", details.training, TRAINING)
    validation = None
    if details.validation is not None:
        validation = _check_log("validation", details.validation, VALIDATION)
    album, path = Album(Path(folder) / "report"), Path(folder) / "report.html"
    sections = [
        _headline(answers, intervals, note, details.summary),
        _learning_curves(details._replace(training=training, validation=validation), album),
        _confusion(answers, album),
        *make_sections(album),
        _schedule(training, album),
        _settings(details),
    ]
    # settings and texts may hold lone surrogates, which UTF-8 cannot encode
    path.write_text(page(details.title, sections, "Written by capsroute report."), encoding="utf-8", errors="replace")
    return path


def make_answers(details: RunDetails, true: np.ndarray, samples: str, origin: str) -> Answers:
    """Turn the scores of a run into probabilities, after checking them against names and true classes."""
    scores, names, true = np.asarray(details.scores), details.names, np.asarray(true)
    if scores.ndim != 2 or not len(scores):
        raise ValueError(f"scores: expected [n, k], got shape {list(scores.shape)}")
    n, k = scores.shape
    if k != len(names):
        raise ValueError(f"names: expected {k}, one for each column of scores, got {len(names)}")
    check_shape(origin, true, n)
    if true.dtype.kind not in "iu":
        raise ValueError(f"{origin}: expected integers, got {true.dtype}")
    if true.min() < 0 or true.max() >= k:
        raise ValueError(f"{origin}: expected 0 to {k - 1}, got {true.min()} to {true.max()}")
    if not np.isfinite(scores).all():
        raise ValueError(f"scores: expected finite numbers, got {(~np.isfinite(scores)).sum()} that are not")
    return Answers(true.astype(np.int64), softmax(scores), names, samples)


def check_shape(name: str, array: np.ndarray, *shape: int) -> None:
    if array.shape != shape:
        raise ValueError(f"{name}: expected {list(shape)}, as scores, got shape {list(array.shape)}")


def spread(members: np.ndarray, n: int) -> list[int]:
    """Return at most n of the members, evenly spaced."""
    places = ((np.arange(n) + 0.5) / n * len(members)).astype(int)
    return members[np.unique(places)].tolist() if len(members) else []


def describe_mistakes(answers: Answers, n_shown: int, how: str = "") -> str:
    """Say how many samples were classified wrong, and which of them are shown."""
    n_wrong = int((~answers.hit).sum())
    if not n_wrong:
        return f"None: all {len(answers.hit):,} {answers.samples} were classified right."
    if n_wrong == 1:
        one = answers.samples.removesuffix("s")
        return f"The only {one} classified wrong, with the probability (softmax of the scores) of the wrong class."
    return (
        f"Of {n_wrong:,} {answers.samples} classified wrong, the {n_shown} with the highest probability (softmax of "
        f"the scores) on the wrong class, highest first{how}."
    )


def show_breakdowns(
    answers: Answers, found: Mapping[str, Breakdown], note: str, summary: str, album: Album
) -> list[Html]:
    """Draw the accuracy by some factors on one common axis, and fold the numbers away under a summary."""
    floor = charts.axis_floor([row for rows in found.values() for row in rows.values()])
    width = charts.THIRD if len(found) > 2 else charts.HALF
    pictures, tables = [], []
    for name, rows in found.items():
        chart = charts.draw_accuracies(name.capitalize(), rows, float(answers.hit.mean()), floor, width)
        low, high = (f"{percent(rows[k].accuracy)} at {k}" for k in lowest_and_highest(rows))
        alt = f"Dot chart of accuracy by {name}: lowest {low}, highest {high}."
        pictures.append(album.add(name.replace(" ", "-"), chart, alt))
        headers = [name, answers.samples, "right", "accuracy", "95% interval"]
        cells = (
            (label, f"{r.total:,}", f"{r.right:,}", percent(r.accuracy), interval((r.low, r.high)))
            for label, r in rows.items()
        )
        tables.append(table(f"By {name}", headers, cells))
    caption = (
        f"Accuracy at each value (dots) with 95% Wilson intervals (bars), and over all {answers.samples} (dashed). The "
        f"axis begins at {floor:g}%. {note}"
    )
    return [panels(caption, *pictures), folded(summary, *tables)]


def lowest_and_highest(rows: Breakdown) -> tuple[str, str]:
    """Return the labels of the lowest and the highest accuracy."""
    return min(rows, key=lambda label: rows[label].accuracy), max(rows, key=lambda label: rows[label].accuracy)


def _headline(answers: Answers, intervals: Mapping[str, str], note: str, summary: Mapping[str, Any]) -> Section:
    right, total, n_classes = int(answers.hit.sum()), len(answers.hit), len(answers.names)
    shown = dict(intervals) | {f"chance, {n_classes} classes": percent(1 / n_classes)}
    shown |= dict(fact(name, value) for name, value in summary.items())
    sentence = f"{right:,} of {total:,} test {answers.samples} classified right."
    parts = [paragraph(percent(right / total), "big"), paragraph(sentence), facts(shown), paragraph(note)]
    return Section("Test accuracy", parts)


def _learning_curves(details: RunDetails, album: Album) -> Section:
    logs = [("training", BLUE, details.training), ("held out", ORANGE, details.validation)]
    logs = [(name, colour, log) for name, colour, log in logs if log is not None and len(log["epoch"])]
    if not logs:
        return Section("Learning curves", [paragraph(NO_LOG)])
    pictures = []
    for column in ("loss", "accuracy"):
        last = "; ".join(f"{name} last {_last_value(log, column)}" for name, _, log in logs)
        chart = charts.draw_curves(column, logs)
        pictures.append(album.add(f"curves-{column}", chart, f"Line chart of {column} by epoch: {last}."))
    held_out = "Nothing was held out: all of the training set was trained on."
    if details.validation is not None:
        held_out = f"Held out: {details.held_out}."
    caption = (
        "Mean over a window of training batches, or over all held-out batches; the band is one standard deviation of "
        f"the batches. Training is measured while the network learns, {details.trained}, so it may look worse than the "
        f"network is. {held_out}"
    )
    parts = [panels(caption, *pictures)]
    for name, _, log in logs:
        finite = np.isfinite(log["epoch"]) & np.isfinite(log["loss"]) & np.isfinite(log["accuracy"])
        if not finite.all():
            bad = f"{(~finite).sum():,} of {len(finite):,} rows of the {name} log"
            parts.append(paragraph(f"Left out as not finite: {bad}."))
    return Section("Learning curves", parts)


def _last_value(log: Log, column: str) -> str:
    finite = np.flatnonzero(np.isfinite(log[column]))
    if not len(finite):
        return "no finite value"
    mean, spread = (float(log[name][finite[-1]]) for name in (column, f"{column}_sd"))
    form = percent if column == "accuracy" else "{:.3f}".format
    return f"{form(mean)}, deviation {form(spread)}"


def _schedule(training: Log, album: Album) -> Section:
    title = "Learning rate and momentum"
    if not len(training["epoch"]):
        return Section(title, [paragraph(NO_LOG)])
    pictures = []
    for column, name in (("lr", "Learning rate"), ("beta1", "Momentum (beta1)")):
        values = training[column][np.isfinite(training[column])]
        ends = f"from {values.min():.4g} to {values.max():.4g}" if len(values) else "no finite value"
        alt = f"Line chart of the {name[0].lower()}{name[1:]} by epoch, {ends}."
        chart = charts.draw_schedule(name, training["epoch"], training[column])
        pictures.append(album.add(f"schedule-{column}", chart, alt))
    return Section(title, [panels("As logged; the axis marks the lowest and the highest value.", *pictures)])


def _confusion(answers: Answers, album: Album) -> Section:
    names = answers.names
    counts = confusion_matrix(answers.true, answers.predicted, len(names))  # [true, predicted]
    wrong = counts * (1 - np.eye(len(names), dtype=counts.dtype))
    true, predicted = divmod(int(wrong.argmax()), len(names))
    commonest = "There is no mistake."
    if wrong.any():
        mistake = f"{names[true]} taken for {names[predicted]}, {wrong[true, predicted]:,} times"
        commonest = f"The commonest mistake is {mistake}."
    alt = f"Confusion matrix of {len(names)} classes. {commonest}"
    caption = (
        f"Test {answers.samples} by true class (rows) and predicted class (columns): how many, and as a share of the "
        f"row; right in blue, wrong in orange, shaded by the square root of the share. {commonest}"
    )
    headers = ["class", answers.samples, "right", "recall", "95% interval", "precision"]
    numbers = table("By class", headers, [_class_row(name, counts, k) for k, name in enumerate(names)])
    chart = album.add("confusion", charts.draw_confusion(counts, names), alt)
    return Section("Confusion matrix", [panels(caption, chart), folded("Numbers by class", numbers)])


def _class_row(name: str, counts: np.ndarray, k: int) -> tuple[str, ...]:
    right, total, predicted = int(counts[k, k]), int(counts[k].sum()), int(counts[:, k].sum())
    recall = (percent(right / total), interval(wilson_interval(right, total))) if total else ("none", "none")
    return name, f"{total:,}", f"{right:,}", *recall, percent(right / predicted) if predicted else "none"


def _settings(details: RunDetails) -> Section:
    parts = []
    for caption, values in (("Configuration", details.config), ("Versions and circumstances", details.versions)):
        rows = [(name, plain(value)) for name, value in flat(values).items()]
        parts.append(table(caption, ["name", "value"], rows, "settings"))
    return Section("Configuration and versions", parts)


def _check_log(name: str, log: Log, columns: Sequence[str]) -> Log:
    """Return the columns as float arrays, after checking that all are there and equally long."""
    missing = [column for column in columns if column not in log]
    if missing:
        raise ValueError(f"{name}: expected columns {list(columns)}, got none for {missing}")
    arrays = {column: np.asarray(log[column], dtype=np.float64) for column in columns}
    n = arrays[columns[0]].size
    for column, array in arrays.items():
        if array.shape != (n,):
            raise ValueError(f"{name}[{column!r}]: expected [{n}], got shape {list(array.shape)}")
    return arrays
