"""The HTML report of a training run: a page of sections, each a function of the answers to the test samples."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightning.fabric import Fabric
from sklearn.metrics import confusion_matrix

from .. import html
from ..analysis.accuracy import accuracy_by_factor, wilson_interval
from ..data import Pairs
from ..data.own.images import list_images
from ..errors import UserError
from ..explain import explain, resize_picture
from ..formatting import flat, interval, percent, plain, readable
from ..html import Html, Section, paragraph
from ..inference import Predictor
from ..preprocessing import open_image
from ..training.evaluate import score_run
from ..training.experiments import make_task, read_config
from ..training.language import Language
from ..training.own import OwnTask
from ..training.runs import RunFolder
from ..training.task import Result
from ..training.vision import Vision
from . import charts
from .charts import BLUE, ORANGE, LogTable

DATA = {
    "smallnorb": "smallNORB",
    "toys": "rendered toys",
    "sst": "Stanford Sentiment Treebank",
    "treebank": "generated film reviews",
}
AUGMENTATIONS = {  # settings, and what they do to training samples
    "mixup": "mixup",
    "padding": "random crops",
    "shift": "random shifts",
    "zoom": "random sizes",
    "rotation": "random rotations",
    "flip": "random flips",
    "colour": "random colours",
    "dropout": "words left out at random",
}
# smallNORB's codes: elevations are steps of five degrees from 30 on, azimuths tens of degrees
FACTORS: dict[str, Callable[[int], str]] = {
    "azimuth": lambda code: f"{10 * code}°",
    "elevation": lambda code: f"{30 + 5 * code}°",
    "lighting": str,
}
N_MISTAKES, N_CREDITED = 12, 3
SIDE = 192  # pixels of a picture
SECTIONS: Any = html.TEMPLATES.get_template("report/sections.html").module


class Answers(NamedTuple):
    """Probabilities of the classes for each test sample, and its true class."""

    true: np.ndarray  # [n]
    probabilities: np.ndarray  # [n, k]
    names: Sequence[str]  # of the classes
    samples: str  # what is classified, in the plural
    kind: str = "images"  # of the samples: images, texts or arrays
    items: Sequence[Any] = ()  # the samples as `Predictor` takes them; an image as a list of its views
    titles: Sequence[str] = ()  # what each is called; a text is its own name

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


def write_run_report(run: RunFolder | Path, fabric: Fabric, *, progress: bool = True) -> tuple[Path, Result]:
    """Score a run's final weights on the test split, write `report.html` into its folder, and return its path."""
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    task = make_task(read_config(run))
    saved, record = run.read_json("config.json"), run.read_record()
    scores, result = score_run(run, task, fabric, progress=progress)
    answers = find_answers(task, scores.double().softmax(1).numpy())
    seen, unseen = ("phrases", "sentences") if isinstance(task, Language) else ("images", "instances")
    if isinstance(task, OwnTask):
        seen = unseen = task.samples
    used = [name for field, name in AUGMENTATIONS.items() if saved.get(field)]
    trained = f"on {seen} with {' and '.join(used)}" if used else f"on unaltered {seen}"
    circumstances = {
        "parameters": f"{record['parameters']:,}",
        "epochs": str(saved["epochs"]),
        "training time": str(timedelta(seconds=round(record["seconds"]))),
        "weights": "final, after the last step",
    }
    held_out = f"{unseen} that were not trained on"
    sections = [
        show_accuracy(answers, compare_accuracy(answers, result, ordered=isinstance(task, Language)) | circumstances),
        show_learning(run.training.read(), run.validation.read(), trained, held_out),
        show_confusion(answers),
        *([show_viewpoints(answers, task.pairs("test"))] if isinstance(task, Vision) else []),
        show_mistakes(answers),
    ]
    try:
        sections.append(show_credit(answers, Predictor(run.path, device=fabric.device)))
    except UserError as error:  # the encoder is not here, or the network is a baseline, which has no credit
        sections.append(Section("Credit", [paragraph(f"Left out. {error}")]))
    sections.append(show_settings(saved, record))
    title = f"{saved['experiment']}: {DATA.get(saved['data']) or Path(saved['data']).name}"
    return write_page(run.path, title, sections), result


def write_page(folder: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write `folder/report.html` in place of an earlier one, and return its path."""
    path = Path(folder) / "report.html"
    # settings and texts may hold lone surrogates, which UTF-8 cannot encode
    path.write_text(html.page(title, sections, "Written by capsroute report."), encoding="utf-8", errors="replace")
    return path


def find_answers(task: Vision | Language | OwnTask, probabilities: np.ndarray) -> Answers:
    """Return the answers to the test samples, with the samples."""
    if isinstance(task, Vision):
        pairs = task.pairs("test")
        titles = [describe_view(pairs, k) for k in range(len(pairs.category))]
        true, kind, items = pairs.category, "images", [list(pair) for pair in pairs.images]
    elif isinstance(task, Language):
        phrases = task.phrases("test")
        true, kind, items, titles = phrases.label, "texts", phrases.text, phrases.text
    else:
        found = task.data.take(task.rows("test"))
        true, kind, items, titles = task.labels[task.rows("test")], task.kind, found.items, found.places
        if kind == "images":  # their files, in the place of what preprocessing has made of them
            listed = list_images(Path(task.config.data), task.config.group_by)
            files = dict(zip(listed.places, listed.items, strict=True))
            items = [files[place] for place in titles]
        elif kind == "texts":
            titles = items
    return Answers(true, probabilities, task.names, task.samples, kind, items, titles)


def compare_accuracy(answers: Answers, result: Result, *, ordered: bool) -> dict[str, str]:
    """Return what a test accuracy is to be compared with: its intervals, simple guesses, and near misses."""
    found = {f"95% interval over {unit}": interval(bounds) for unit, bounds in result.intervals.items()}
    shares = np.bincount(answers.true) / len(answers.true)
    found[f"always “{readable(answers.names[int(shares.argmax())])}”, the commonest"] = percent(shares.max())
    found[f"chance, {len(answers.names)} classes"] = percent(1 / len(answers.names))
    if ordered and len(answers.names) > 2:
        near = float((np.abs(answers.predicted - answers.true) <= 1).mean())
        found["at most one class from the true one"] = percent(near)
    return found


def show_accuracy(answers: Answers, comparison: Mapping[str, str]) -> Section:
    """Show the accuracy above what it is to be compared with."""
    right, total = int(answers.hit.sum()), len(answers.hit)
    return Section("Test accuracy", [SECTIONS.accuracy(right, total, answers.samples, comparison)])


def show_learning(training: LogTable, validation: LogTable, trained: str, held_out: str) -> Section:
    """Show loss and accuracy over the epochs.

    Args:
        training: A row for each window of batches.
        validation: A row for each epoch; empty where nothing was held out.
        trained: On what training was measured.
        held_out: On what validation was measured.
    """
    logs = [("training", BLUE, training), ("held out", ORANGE, validation)]
    logs = [(name, colour, log) for name, colour, log in logs if log]
    if not logs:
        return Section("Learning curves", [paragraph("The run ended before it logged anything.")])
    pictures = []
    for column in ("loss", "accuracy"):
        last = "; ".join(f"{name} last {log[column][-1]:.3f}" for name, _, log in logs)
        chart = charts.encode_figure(charts.draw_curves(column, logs))
        pictures.append(html.image(chart, f"Line chart of {column} by epoch: {last}.", "chart"))
    return Section("Learning curves", [SECTIONS.learning(pictures, trained, held_out if validation else "")])


def show_confusion(answers: Answers) -> Section:
    """Show how often each class was taken for each other, and fold recall and precision away."""
    names = answers.names
    counts = confusion_matrix(answers.true, answers.predicted, labels=range(len(names)))  # [true, predicted]
    wrong = counts * (1 - np.eye(len(names), dtype=counts.dtype))
    true, predicted = divmod(int(wrong.argmax()), len(names))
    mistake = f"{names[true]} taken for {names[predicted]}, {wrong[true, predicted]:,} times" if wrong.any() else ""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    tints = np.where(np.eye(len(names)), 1, -1) * np.sqrt(shares)  # the root makes rare mistakes visible
    cells, by_class = [list(zip(*row, strict=True)) for row in zip(counts, shares, tints, strict=True)], []
    for k, name in enumerate(names):
        right, total, taken = int(counts[k, k]), int(counts[k].sum()), int(counts[:, k].sum())
        recall = (percent(right / total), interval(wilson_interval(right, total))) if total else ("none", "none")
        by_class.append((name, f"{total:,}", f"{right:,}", *recall, percent(right / taken) if taken else "none"))
    return Section("Confusion matrix", [SECTIONS.confusion(answers.samples, names, cells, mistake, by_class)])


def describe_view(pairs: Pairs, which: int) -> str:
    """Return what is known of a pair: its instance, azimuth, elevation and lighting."""
    columns = {"instance": str} | FACTORS
    codes = {name: int(getattr(pairs, name)[which]) for name in columns}
    return ", ".join(f"{name} {columns[name](code)}" for name, code in codes.items() if code >= 0)


def show_viewpoints(answers: Answers, pairs: Pairs) -> Section:
    """Show the accuracy for each value of each factor on one common axis, and fold the numbers away."""
    toys, which = np.unique(np.stack([pairs.category, pairs.instance]), axis=1, return_inverse=True)
    names = [f"{answers.names[category]} {instance}" for category, instance in toys.T]
    values: dict[str, Any] = {"toy": np.where(pairs.instance < 0, -1, which.ravel())}
    values |= {name: getattr(pairs, name) for name in FACTORS}
    labels = FACTORS | {"toy": names.__getitem__}
    found = {name: accuracy_by_factor(answers.hit, codes) for name, codes in values.items()}
    found = {name: {labels[name](row.value): row for row in rows} for name, rows in found.items() if rows}
    title = "Accuracy by toy and viewpoint"
    if not found:
        return Section(title, [paragraph("Left out, because toys and viewpoints of these pairs are unknown.")])
    floor = charts.axis_floor([row for rows in found.values() for row in rows.values()])
    pictures, tables = [], []
    for name, rows in found.items():
        figure = charts.draw_accuracies(name.capitalize(), rows, float(answers.hit.mean()), floor)
        ends = (pick(rows, key=lambda label: rows[label].accuracy) for pick in (min, max))
        low, high = (f"{percent(rows[label].accuracy)} at {label}" for label in ends)
        alt = f"Dot chart of accuracy by {name}: lowest {low}, highest {high}."
        pictures.append(html.image(charts.encode_figure(figure), alt, "chart"))
        headers = [name, answers.samples, "right", "accuracy", "95% interval"]
        cells = (
            (label, f"{r.total:,}", f"{r.right:,}", percent(r.accuracy), interval((r.low, r.high)))
            for label, r in rows.items()
        )
        tables.append(html.table(f"By {name}", headers, cells))
    return Section(title, [SECTIONS.viewpoints(answers.samples, pictures, tables, floor)])


def show_mistakes(answers: Answers) -> Section:
    """Show the wrong answers with the highest probability."""
    worst, n_wrong = answers.worst(N_MISTAKES), int((~answers.hit).sum())
    rows = [(readable(answers.titles[k]), *answers.describe(k)) for k in worst]
    pictures = []
    for k, (name, true, predicted, _) in zip(worst, rows, strict=True) if answers.kind == "images" else ():
        pixels = np.asarray(resize_picture(open_image(answers.items[k][0]).convert("RGB"), SIDE))
        pictures.append(html.image(html.encode_png(pixels), f"{name}: {true}, taken for {predicted}."))
    shown = SECTIONS.mistakes(answers.samples, len(answers.hit), n_wrong, rows, pictures)
    return Section("Worst mistakes", [shown])


def show_credit(answers: Answers, predictor: Predictor) -> Section:
    """Show what spoke for the predicted class in right answers, evenly spaced, and in the worst wrong ones."""
    right = np.flatnonzero(answers.hit)
    spaced = np.unique(((np.arange(N_CREDITED) + 0.5) / N_CREDITED * len(right)).astype(int))[: len(right)]
    groups: list[list[Html]] = []
    for which in (right[spaced].tolist(), answers.worst(N_CREDITED)):
        groups.append([])
        for k in which:
            true, predicted, probability = answers.describe(k)
            answer = f"{predicted}, {probability}" + ("." if answers.hit[k] else f"; true: {true}.")
            caption = answer if answers.kind == "texts" else f"{readable(answers.titles[k])}: {answer}"
            groups[-1].append(explain(predictor, answers.items[k], name=answers.titles[k]).figure(caption))
    return Section("Credit", [SECTIONS.credit(answers.kind, N_CREDITED, *groups)])


def show_settings(config: Mapping[str, Any], versions: Mapping[str, Any]) -> Section:
    """Show all settings of a run, and its circumstances."""
    parts = []
    for caption, values in (("Configuration", config), ("Versions and circumstances", versions)):
        rows = [(name, plain(value)) for name, value in flat(values).items()]
        parts.append(html.table(caption, ["name", "value"], rows, "settings"))
    return Section("Configuration and versions", parts)
