"""The HTML report of a finished training run."""

from contextlib import suppress
from pathlib import Path

from lightning.fabric import Fabric
from torch import Tensor

from ...nets import SST
from ..errors import UserError
from ..training.evaluate import score_run
from ..training.experiments import make_task, saved_config
from ..training.language import Language
from ..training.runs import RunFolder
from ..training.task import Result
from ..training.vision import Vision
from .image_report import write_image_report
from .sections import RunDetails
from .text_report import write_text_report


def write_run_report(run: RunFolder | Path, fabric: Fabric, *, progress: bool = True) -> tuple[Path, Result]:
    """Score a run's final weights on the test split, write `report.html` into its folder, and return its path."""
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    task = make_task(saved_config(run.read_json("config.json")))
    scores, result = score_run(run, task, fabric, progress=progress)
    page = _report_texts(task, run, scores) if isinstance(task, Language) else _report_images(task, run, scores)
    return page, result


def _report_images(task: Vision, run: RunFolder, scores: Tensor) -> Path:
    config = task.config
    data = "smallNORB" if config.data == "smallnorb" else f"rendered toys, {config.size}x{config.size}"
    steps = [name for name, used in (("mixup", config.mixup), ("random crops", config.padding)) if used]
    trained = f"on images with {' and '.join(steps)}" if steps else "on unaltered images"
    details = _read_details(task, run, scores, data)._replace(trained=trained)
    return write_image_report(run.path, details, task.pairs("test"), task.restore(run.model))


def _report_texts(task: Language, run: RunFolder, scores: Tensor) -> Path:
    config, phrases = task.config, task.phrases("test")
    data = "Stanford Sentiment Treebank" if config.data == "sst" else "generated film reviews"
    details = _read_details(task, run, scores, f"{data}, {config.classes} classes")._replace(
        trained="on phrases with mixup" if config.mixup else "on phrases",
        held_out="sentences of the validation split, which were not trained on",
    )
    network, encoder = task.restore(run.model), None
    if not isinstance(network, SST):
        network = None
    else:
        with suppress(UserError):  # a run can be reported where its encoder is missing: its scores are on disk
            encoder = task.encoder()
    return write_text_report(run.path, details, phrases.text, phrases.label, network, encoder)


def _read_details(task: Vision | Language, run: RunFolder, scores: Tensor, data: str) -> RunDetails:
    config, facts = run.read_json("config.json"), run.read_json("run.json")
    summary = {
        "parameters": facts["parameters"],
        "epochs": config["epochs"],
        "training_seconds": facts.get("seconds"),
        "weights": "final, after the last step",
    }
    logs = (run.training.read(), run.validation.read() or None)
    title = f"{config['experiment']}: {data}"
    return RunDetails(title, scores.numpy(), task.names, config, facts, summary, *logs)
