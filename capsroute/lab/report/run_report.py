"""The HTML report of a finished training run."""

import math
from contextlib import suppress
from pathlib import Path

from lightning.fabric import Fabric

from ...nets import SST
from ..errors import UserError
from ..formatting import duration
from ..inference import Predictor
from ..training.evaluate import score_run
from ..training.experiments import make_task, read_config
from ..training.language import Language
from ..training.own import OwnTask
from ..training.runs import RunFolder
from ..training.task import Result
from ..training.vision import Vision
from .image_report import write_image_report
from .own_report import write_own_report
from .sections import Answers, RunDetails
from .text_report import write_text_report

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
    seen, unseen = ("phrases", "sentences") if isinstance(task, Language) else ("images", "instances")
    if isinstance(task, OwnTask):
        seen = unseen = task.samples
    used = [name for field, name in AUGMENTATIONS.items() if saved.get(field)]
    details = RunDetails(
        title=f"{saved['experiment']}: {DATA.get(saved['data']) or Path(saved['data']).name}",
        config=saved,
        versions=facts,
        summary={
            "parameters": f"{facts['parameters']:,}",
            "epochs": str(saved["epochs"]),
            "training time": duration(facts.get("seconds", math.nan)),
            "weights": "final, after the last step",
        },
        training=run.training.read(),
        validation=run.validation.read(),
        trained=f"on {seen} with {' and '.join(used)}" if used else f"on unaltered {seen}",
        held_out=f"{unseen} that were not trained on",
    )
    probabilities = scores.double().softmax(1).numpy()
    if isinstance(task, OwnTask):
        answers = Answers(task.labels[task.rows("test")], probabilities, task.names, task.samples)
        return write_own_report(run.path, details, answers, task, Predictor(run.path, device=fabric.device)), result
    if isinstance(task, Vision):
        pairs = task.pairs("test")
        answers = Answers(pairs.category, probabilities, task.names, "pairs")
        return write_image_report(run.path, details, answers, pairs, task.restore(run.model)), result
    phrases, network, encoder = task.phrases("test"), task.restore(run.model), None
    answers = Answers(phrases.label, probabilities, task.names, "sentences")
    if not isinstance(network, SST):  # a baseline, which has no credit
        network = None
    else:
        with suppress(UserError):  # a run can be reported where its encoder is missing: its scores are on disk
            encoder = task.encoder()
    return write_text_report(run.path, details, answers, phrases.text, network, encoder), result
