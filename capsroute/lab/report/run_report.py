"""The report of a finished training run."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from ...nets import SST
from ..errors import UserError
from ..training.language import Language
from ..training.runs import RunFolder
from ..training.task import Task
from ..training.vision import Vision
from .report import write_report, write_text_report


def write_run_report(run: RunFolder, task: Task, scores: Tensor) -> Path:
    """Write `report.html` into the run's folder and return its path.

    Args:
        run: The folder of a finished run.
        task: What the run was trained on.
        scores: Final scores on the test split, `[n, classes]`.
    """
    if isinstance(task, Vision):
        return _write_image_report(run, task, scores)
    if isinstance(task, Language):
        return _write_text_report(run, task, scores)
    raise TypeError(f"task: expected Vision or Language, got {type(task).__name__}")


def _write_image_report(run: RunFolder, task: Vision, scores: Tensor) -> Path:
    config = task.config
    source = "smallNORB" if config.data == "smallnorb" else f"rendered toys, {config.size}x{config.size}"
    how = [*(["mixed-up (mixup)"] if config.mixup else []), *(["randomly cropped"] if config.padding else [])]
    return write_report(
        run.path,
        title=f"{config.experiment}: {source}",
        scores=scores.numpy(),
        pairs=task.pairs("test"),
        names=task.names,
        trained="on " + (" and ".join(how) + " images" if how else "images as they are"),
        network=task.restore(run.model),
        **_read_run(run),
    )


def _write_text_report(run: RunFolder, task: Language, scores: Tensor) -> Path:
    phrases, config = task.phrases("test"), task.config
    source = "Stanford Sentiment Treebank" if config.data == "sst" else "generated film reviews"
    network, encoder = task.restore(run.model), None
    if isinstance(network, SST):
        with suppress(UserError):  # scores are on disk, so a run can be reported where its encoder is missing
            encoder = task.encoder()
    return write_text_report(
        run.path,
        title=f"{config.experiment}: {source}, {config.classes} classes",
        scores=scores.numpy(),
        texts=phrases.text,
        label=phrases.label,
        names=task.names,
        trained="on " + ("mixed-up (mixup) phrases" if config.mixup else "phrases"),
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
