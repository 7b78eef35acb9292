"""The sections that reports of any classifier share; each takes arrays and returns text and pictures."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..analysis.accuracy import GroupAccuracy as Share, confusion_matrix as confusion, wilson_interval
from ..formatting import fact, flat, interval, percent, plain
from . import figures
from .figures import BLUE, ORANGE, Curve
from .page import Album, Html, Section, big, facts, figure, folded, join, paragraph, table

Log = Mapping[str, np.ndarray]
N_CREDITED = 3
CREDIT = {
    "right": f"Right answers: up to {N_CREDITED}, at even distances through the test split.",
    "wrong": f"Wrong answers: up to {N_CREDITED}, those the network was surest of.",
}
"""Whose credit is shown, in words."""


class Answers(NamedTuple):
    """What a network said of the test split, beside the truth."""

    true: np.ndarray  # [n]
    chances: np.ndarray  # [n, k]
    names: Sequence[str]
    things: str  # what is classified, in the plural

    @property
    def predicted(self) -> np.ndarray:
        return self.chances.argmax(1)

    @property
    def sureness(self) -> np.ndarray:
        """The probability of the class predicted."""
        return self.chances.max(1)

    @property
    def hit(self) -> np.ndarray:
        return self.predicted == self.true

    @property
    def interval(self) -> str:
        """Wilson's, which takes the things for independent."""
        return interval(wilson_interval(int(self.hit.sum()), len(self.hit)))

    def said(self, which: int) -> tuple[str, str, str]:
        """The true class of one thing, the class predicted, and the probability of that."""
        true, taken = int(self.true[which]), int(self.chances[which].argmax())
        return self.names[true], self.names[taken], f"{100 * self.chances[which, taken]:.1f}%"


class Breakdown(NamedTuple):
    """Accuracy for each value of a factor, and how its values are written."""

    name: str
    rows: Sequence[Share]
    labels: Sequence[str]


def headline(answers: Answers, intervals: Mapping[str, str], note: str, more: Mapping[str, Any]) -> Section:
    """What came out, before anything else; `note` says what the intervals hold and what they miss."""
    right, total, n_classes = int(answers.hit.sum()), len(answers.hit), len(answers.names)
    shown = {
        **intervals,
        f"chance, {n_classes} classes": percent(1 / n_classes),
        **dict(fact(name, value) for name, value in more.items()),
    }
    parts = [
        big(percent(right / total)),
        paragraph(f"{right:,} of {total:,} test {answers.things} classified right."),
        facts(shown),
        paragraph(note),
    ]
    return Section("Test accuracy", parts)


def learning_curves(training: Log, validation: Log | None, album: Album, trained: str, held_out: str) -> Section:
    """Loss and accuracy over the epochs, with words for what training does to its data and for what is held out."""
    title = "Learning curves"
    logs = [("training", BLUE, training)] + ([("held out", ORANGE, validation)] if validation is not None else [])
    logs = [(name, colour, log) for name, colour, log in logs if len(log["epoch"])]
    if not logs:
        return Section(title, [paragraph("The run ended before it logged anything.")])
    pictures = []
    for column, percents in (("loss", False), ("accuracy", True)):
        drawn = [Curve(name, colour, log["epoch"], log[column], log[f"{column}_sd"]) for name, colour, log in logs]
        last = "; ".join(f"{curve.name} last {_last(curve, percents)}" for curve in drawn)
        alt = f"Line chart of {column} by epoch: {last}."
        drawing = figures.curves(column.capitalize(), drawn, percents)
        pictures.append(album.add(f"curves-{column}", figures.png(drawing), alt, "chart"))
    caption = (
        "Each point is the mean over a window of training batches, or over all held-out batches; one standard "
        f"deviation of the batches is shaded. Training is measured while the network learns, {trained}, so it may look "
        "worse than the network then is."
    )
    if validation is not None:
        caption += f" Held out: {held_out}."
    else:
        caption += " Nothing was held out: all of the training set was trained on."
    return Section(title, [figure(pictures, caption), *_gaps(logs)])


def schedule(training: Log, album: Album) -> Section:
    title = "Learning rate and momentum"
    if not len(training["epoch"]):
        return Section(title, [paragraph("The run ended before it logged anything.")])
    pictures = []
    for column, name in (("lr", "Learning rate"), ("beta1", "Momentum (beta1)")):
        values = training[column][np.isfinite(training[column])]
        ends = f"from {values.min():.4g} to {values.max():.4g}" if len(values) else "no finite value"
        drawing = figures.schedule(name, training["epoch"], training[column])
        alt = f"Line chart of the {name[0].lower()}{name[1:]} by epoch, {ends}."
        pictures.append(album.add(f"schedule-{column}", figures.png(drawing), alt, "chart"))
    caption = "What the optimiser used, as logged; the lowest and the highest value are written on the axis."
    return Section(title, [figure(pictures, caption)])


def confusions(answers: Answers, album: Album) -> Section:
    names, things = answers.names, answers.things
    counts = confusion(answers.true, answers.predicted, len(names))  # [true, predicted]
    wrong = counts * (1 - np.eye(len(names), dtype=counts.dtype))
    true, taken = divmod(int(wrong.argmax()), len(names))
    common = (
        f"The commonest mistake is {names[true]} taken for {names[taken]}, {wrong[true, taken]:,} times."
        if wrong.any()
        else "There is no mistake."
    )
    alt = f"Confusion matrix of {len(names)} classes. {common}"
    drawing = figures.confusion(counts, names)
    caption = (
        f"Each row holds the test {things} of one true class, each column those given that class: how many, and as a "
        f"share of the row; right in blue, wrong in orange, shaded by the square root of the share. {common}"
    )
    rows = [_class_row(name, counts, k) for k, name in enumerate(names)]
    return Section(
        "Confusion matrix",
        [
            figure([album.add("confusion", figures.png(drawing), alt, "chart")], caption),
            folded(
                "Numbers by class",
                table("By class", ["class", things, "right", "recall", "95% interval", "precision"], rows),
            ),
        ],
    )


def breakdowns(answers: Answers, found: Sequence[Breakdown], note: str, fold: str, album: Album) -> list[Html]:
    """Accuracy by some factors, in charts with one axis for all, and the numbers folded under `fold`."""
    things, overall = answers.things, float(answers.hit.mean())
    floor = figures.floor_of([row for one in found for row in one.rows])
    pictures = []
    for one in found:
        width = figures.THIRD if len(found) > 2 else figures.HALF
        drawing = figures.factor(one.name.capitalize(), one.rows, one.labels, overall, floor, width)
        pictures.append(album.add(one.name.replace(" ", "-"), figures.png(drawing), _ends(one), "chart"))
    caption = (
        f"Share of {things} classified right at each value (dots) with 95% Wilson intervals (bars), and over all "
        f"{things} (dashed). All panels share the axis, which begins at {floor:g}%. {note}"
    )
    tables = [
        shares_table(f"By {one.name}", one.name, list(zip(one.labels, one.rows, strict=True)), things) for one in found
    ]
    return [figure(pictures, caption), folded(fold, join(tables))]


def worst_mistakes(answers: Answers, n: int, shown: str = "") -> tuple[np.ndarray, str]:
    """The wrong answers of which the network was surest, at most n, and a sentence on how they are `shown`."""
    wrong = np.flatnonzero(~answers.hit)
    worst = wrong[np.argsort(-answers.sureness[wrong], kind="stable")[:n]]
    if not len(wrong):
        return worst, f"None: all {len(answers.hit):,} {answers.things} were classified right."
    if len(wrong) == 1:
        one = answers.things.removesuffix("s")
        return (
            worst,
            f"The only {one} classified wrong, with the probability (softmax of the scores) of the wrong class.",
        )
    return worst, (
        f"Of {len(wrong):,} {answers.things} classified wrong, the {len(worst)} with the highest probability (softmax "
        f"of the scores) on the wrong class, surest first{shown}."
    )


def right_and_wrong(answers: Answers) -> dict[str, list[int]]:
    """Whose credit is shown, see `CREDIT`."""
    right = np.flatnonzero(answers.hit)
    places = ((np.arange(N_CREDITED) + 0.5) / N_CREDITED * len(right)).astype(int)
    worst, _ = worst_mistakes(answers, N_CREDITED)
    return {"right": right[np.unique(places)].tolist() if len(right) else [], "wrong": worst.tolist()}


def settings(config: Mapping[str, Any], versions: Mapping[str, Any]) -> Section:
    """All that is needed to do it again."""
    parts = []
    for caption, values in (("Configuration", config), ("Versions and circumstances", versions)):
        rows = [(name, plain(value)) for name, value in flat(values).items()]
        parts.append(table(caption, ["name", "value"], rows, "settings"))
    return Section("Configuration and versions", parts)


def shares_table(caption: str, header: str, rows: Sequence[tuple[str, Share]], things: str) -> Html:
    return table(
        caption,
        [header, things, "right", "accuracy", "95% interval"],
        [(name, f"{s.total:,}", f"{s.right:,}", percent(s.accuracy), interval((s.low, s.high))) for name, s in rows],
    )


def _ends(one: Breakdown) -> str:
    """The lowest and the highest accuracy, for those who cannot see the chart."""
    accuracy = [row.accuracy for row in one.rows]
    low, high = (f"{percent(end)} at {one.labels[accuracy.index(end)]}" for end in (min(accuracy), max(accuracy)))
    return f"Dot chart of accuracy by {one.name}: lowest {low}, highest {high}."


def _class_row(name: str, counts: np.ndarray, k: int) -> tuple[str, ...]:
    right, total, given = int(counts[k, k]), int(counts[k].sum()), int(counts[:, k].sum())
    recall = (percent(right / total), interval(wilson_interval(right, total))) if total else ("none", "none")
    return name, f"{total:,}", f"{right:,}", *recall, percent(right / given) if given else "none"


def _last(curve: Curve, percents: bool) -> str:
    """The last finite value and its spread, in words."""
    finite = np.flatnonzero(np.isfinite(curve.mean))
    if not len(finite):
        return "no finite value"
    mean, spread = float(curve.mean[finite[-1]]), float(curve.spread[finite[-1]])
    return f"{percent(mean)}, deviation {percent(spread)}" if percents else f"{mean:.3f}, deviation {spread:.3f}"


def _gaps(logs: Sequence[tuple[str, str, Log]]) -> list[Html]:
    """A sentence for each log that holds values which cannot be drawn."""
    sentences = []
    for name, _, log in logs:
        drawn = np.stack([log[column] for column in ("epoch", "loss", "accuracy")])
        bad = int((~np.isfinite(drawn)).any(0).sum())
        if bad:
            sentences.append(f"Left out as not finite: {bad:,} of {drawn.shape[1]:,} rows of the {name} log.")
    return [paragraph(sentence) for sentence in sentences]
