"""The HTML report of a finished training run."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from lightning.fabric import Fabric

from ..data.own import list_images
from ..errors import UserError
from ..formatting import interval, percent, readable
from ..html import Section, paragraph
from ..inference import Predictor
from ..training.evaluate import score_run
from ..training.experiments import make_task, read_config
from ..training.language import Language
from ..training.own import OwnTask
from ..training.runs import RunFolder
from ..training.task import Result
from ..training.vision import Vision
from .samples import Samples, show_credit, show_mistakes
from .sections import Answers, RunDetails, write_page
from .viewpoints import describe_view, show_viewpoints

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


def write_run_report(run: RunFolder | Path, fabric: Fabric, *, progress: bool = True) -> tuple[Path, Result]:
    """Score a run's final weights on the test split, write `report.html` into its folder, and return its path."""
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    task = make_task(read_config(run))
    saved, facts = run.read_json("config.json"), run.read_record()
    scores, result = score_run(run, task, fabric, progress=progress)
    true, samples = find_samples(task)
    answers = Answers(true, scores.double().softmax(1).numpy(), task.names, task.samples)
    seen, unseen = ("phrases", "sentences") if isinstance(task, Language) else ("images", "instances")
    if isinstance(task, OwnTask):
        seen = unseen = task.samples
    used = [name for field, name in AUGMENTATIONS.items() if saved.get(field)]
    details = RunDetails(
        title=f"{saved['experiment']}: {DATA.get(saved['data']) or Path(saved['data']).name}",
        config=saved,
        versions=facts,
        facts=compare_accuracy(answers, result, ordered=isinstance(task, Language))
        | {
            "parameters": f"{facts['parameters']:,}",
            "epochs": str(saved["epochs"]),
            "training time": str(timedelta(seconds=round(facts["seconds"]))),
            "weights": "final, after the last step",
        },
        training=run.training.read(),
        validation=run.validation.read(),
        trained=f"on {seen} with {' and '.join(used)}" if used else f"on unaltered {seen}",
        held_out=f"{unseen} that were not trained on",
    )
    sections = [show_viewpoints(answers, task.pairs("test"))] if isinstance(task, Vision) else []
    sections.append(show_mistakes(answers, samples))
    try:
        sections.append(show_credit(answers, samples, Predictor(run.path, device=fabric.device)))
    except UserError as error:  # the encoder is not here, or the network is a baseline, which has no credit
        sections.append(Section("Credit", [paragraph(f"Left out. {error}")]))
    return write_page(run.path, details, answers, sections), result


def find_samples(task: Vision | Language | OwnTask) -> tuple[np.ndarray, Samples]:
    """Return the classes `[n]` of the test samples, and the samples."""
    if isinstance(task, Vision):
        pairs = task.pairs("test")
        names = [describe_view(pairs, k) for k in range(len(pairs.category))]
        return pairs.category, Samples("images", [list(pair) for pair in pairs.images], names)
    if isinstance(task, Language):
        phrases = task.phrases("test")
        return phrases.label, Samples("texts", phrases.text, phrases.text)
    rows = task.rows("test")
    items: list[Any] = [task.data.items[int(k)] for k in rows]
    names = [task.data.places[int(k)] for k in rows]
    if task.kind == "images":  # their files, in the place of what preprocessing has made of them
        listed = list_images(Path(task.config.data), task.config.group_by)
        files = dict(zip(listed.places, listed.items, strict=True))
        items = [files[place] for place in names]
    return task.labels[rows], Samples(task.kind, items, items if task.kind == "texts" else names)


def compare_accuracy(answers: Answers, result: Result, *, ordered: bool) -> dict[str, str]:
    """Return what a test accuracy is to be compared with: its intervals, simple guesses, and near misses."""
    facts = {f"95% interval over {unit}": interval(bounds) for unit, bounds in result.intervals.items()}
    shares = np.bincount(answers.true) / len(answers.true)
    facts[f"always “{readable(answers.names[int(shares.argmax())])}”, the commonest"] = percent(shares.max())
    facts[f"chance, {len(answers.names)} classes"] = percent(1 / len(answers.names))
    if ordered and len(answers.names) > 2:
        near = float((np.abs(answers.predicted - answers.true) <= 1).mean())
        facts["at most one class from the true one"] = percent(near)
    return facts
