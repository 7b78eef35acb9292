"""Sections that all reports have, and the page they stand on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import confusion_matrix

from ..analysis.accuracy import wilson_interval
from ..formatting import flat, interval, percent, plain, readable
from ..html import Section, facts, figure, folded, page, panels, paragraph, table, text, tint
from . import charts
from .charts import BLUE, ORANGE, LogTable, embed_chart

INTERVALS = (
    "An interval over samples (Wilson) takes each for an independent trial. Samples of one instance or group are "
    "correlated; an interval over these (bootstrap) says what others of them might give. No interval says what "
    "training with another seed would give."
)


class RunDetails(NamedTuple):
    """What a report says of a run."""

    title: str
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    facts: Mapping[str, str]  # shown below the accuracy
    training: LogTable  # a row for each window of batches
    validation: LogTable  # a row for each epoch; empty where nothing was held out
    trained: str  # on what the training log was measured
    held_out: str  # on what the validation log was measured


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

    def describe(self, which: int) -> tuple[str, str, str]:
        """Return the true class of a sample, the predicted class, and its probability."""
        true, predicted = int(self.true[which]), int(self.probabilities[which].argmax())
        probability = f"{100 * self.probabilities[which, predicted]:.1f}%"
        return readable(self.names[true]), readable(self.names[predicted]), probability

    def worst(self, n: int) -> list[int]:
        """Return at most n wrong answers, those with the highest probability first."""
        wrong = np.flatnonzero(~self.hit)
        return wrong[np.argsort(-self.probabilities.max(1)[wrong], kind="stable")[:n]].tolist()


def write_page(folder: Path, details: RunDetails, answers: Answers, sections: Sequence[Section]) -> Path:
    """Write `folder/report.html` in place of an earlier one, and return its path.

    The given sections follow accuracy, learning curves and confusion matrix.
    """
    shared = [_headline(details, answers), _learning_curves(details), _confusion(answers)]
    content = page(details.title, [*shared, *sections, _settings(details)], "Written by capsroute report.")
    # settings and texts may hold lone surrogates, which UTF-8 cannot encode
    path = Path(folder) / "report.html"
    path.write_text(content, encoding="utf-8", errors="replace")
    return path


def _headline(details: RunDetails, answers: Answers) -> Section:
    right, total = int(answers.hit.sum()), len(answers.hit)
    sentence = f"{right:,} of {total:,} test {answers.samples} classified right."
    parts = [paragraph(percent(right / total), "big"), paragraph(sentence), facts(details.facts), paragraph(INTERVALS)]
    return Section("Test accuracy", parts)


def _learning_curves(details: RunDetails) -> Section:
    logs = [("training", BLUE, details.training), ("held out", ORANGE, details.validation)]
    logs = [(name, colour, log) for name, colour, log in logs if log]
    if not logs:
        return Section("Learning curves", [paragraph("The run ended before it logged anything.")])
    pictures = []
    for column in ("loss", "accuracy"):
        last = "; ".join(f"{name} last {log[column][-1]:.3f}" for name, _, log in logs)
        pictures.append(embed_chart(charts.draw_curves(column, logs), f"Line chart of {column} by epoch: {last}."))
    held_out = f"Held out: {details.held_out}." if details.validation else "Nothing was held out."
    caption = (
        "Mean over a window of training batches, or over all held-out batches; the band is one standard deviation of "
        f"the batches. Training is measured while the network learns, {details.trained}, so it may look worse than the "
        f"network is. {held_out}"
    )
    return Section("Learning curves", [panels(caption, *pictures)])


def _confusion(answers: Answers) -> Section:
    names = answers.names
    counts = confusion_matrix(answers.true, answers.predicted, labels=range(len(names)))  # [true, predicted]
    wrong = counts * (1 - np.eye(len(names), dtype=counts.dtype))
    true, predicted = divmod(int(wrong.argmax()), len(names))
    commonest = "There is no mistake."
    if wrong.any():
        mistake = f"{names[true]} taken for {names[predicted]}, {wrong[true, predicted]:,} times"
        commonest = f"The commonest mistake is {mistake}."
    caption = (
        f"Test {answers.samples} by true class (rows) and predicted class (columns): how many, and as a share of the "
        f"row; right in blue, wrong in orange, shaded by the square root of the share. {commonest}"
    )
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    tints = np.where(np.eye(len(names)), 1, -1) * np.sqrt(shares)  # the root makes rare mistakes visible
    rows = ""
    for name, *row in zip(names, counts, shares, tints, strict=True):
        cells = (f'<td style="{tint(t)}">{n:,}<small>{percent(p)}</small></td>' for n, p, t in zip(*row, strict=True))
        rows += f'<tr><th scope="row">{text(name)}</th>{"".join(cells)}</tr>'
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in ("", *names))
    matrix = f'<div class="wrap confusion"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    headers = ["class", answers.samples, "right", "recall", "95% interval", "precision"]
    numbers = table("By class", headers, [_class_row(name, counts, k) for k, name in enumerate(names)])
    return Section("Confusion matrix", [figure(matrix, caption), folded("Numbers by class", numbers)])


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
