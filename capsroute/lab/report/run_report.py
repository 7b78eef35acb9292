"""The HTML report of a finished training run."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from torch import Tensor

from ...nets import SST
from ..errors import UserError
from ..training.experiments import saved_config, task_of
from ..training.language import Language
from ..training.results import scored_test
from ..training.runs import RunFolder
from ..training.task import Result
from ..training.vision import Vision
from .report import write_report, write_text_report


def write_run_report(run: RunFolder | Path, fabric: Fabric, *, progress: bool = True) -> tuple[Path, Result]:
    """Score a run's final weights on the test split, write `report.html` into its folder, and return its path."""
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    task = task_of(saved_config(run.read_json("config.json")))
    scores, result = scored_test(run, task, fabric, progress=progress)
    if isinstance(task, Language):
        return _report_texts(task, run, scores), result
    if isinstance(task, Vision):
        return _report_images(task, run, scores), result
    raise UserError(f"{run.path}: expected a run on images or texts, got {type(task).__name__}")


def _report_images(task: Vision, run: RunFolder, scores: Tensor) -> Path:
    config = task.config
    data = "smallNORB" if config.data == "smallnorb" else f"rendered toys, {config.size}x{config.size}"
    steps = [name for name, used in (("mixup", config.mixup), ("random crops", config.padding)) if used]
    return write_report(
        run.path,
        title=f"{config.experiment}: {data}",
        scores=scores.numpy(),
        pairs=task.pairs("test"),
        names=task.names,
        trained=f"on images with {' and '.join(steps)}" if steps else "on unaltered images",
        network=task.restore(run.model),
        **_read_run(run),
    )


def _report_texts(task: Language, run: RunFolder, scores: Tensor) -> Path:
    config, phrases = task.config, task.phrases("test")
    data = "Stanford Sentiment Treebank" if config.data == "sst" else "generated film reviews"
    network, encoder = task.restore(run.model), None
    if isinstance(network, SST):
        with suppress(UserError):  # a run can be reported where its encoder is missing: its scores are on disk
            encoder = task.encoder()
    return write_text_report(
        run.path,
        title=f"{config.experiment}: {data}, {config.classes} classes",
        scores=scores.numpy(),
        texts=phrases.text,
        label=phrases.label,
        names=task.names,
        trained="on phrases with mixup" if config.mixup else "on phrases",
        held_out="whole sentences of the validation split, which were not trained on",
        network=network if isinstance(network, SST) else None,
        encoder=encoder,
        **_read_run(run),
    )


def _read_run(run: RunFolder) -> dict[str, Any]:
    """Return settings, versions, logs and headline facts of a run as arguments of a report."""
    config, facts = run.read_json("config.json"), run.read_json("run.json")
    summary = {
        "parameters": facts["parameters"],
        "epochs": config["epochs"],
        "training_seconds": facts.get("seconds"),
        "weights": "final, after the last step",
    }
    logs = {"training": run.training.read(), "validation": run.validation.read() or None}
    return {"config": config, "versions": facts, "summary": summary, **logs}
