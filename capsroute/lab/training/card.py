"""Model card, metrics and provenance of a network for one's own data, written beside its weights."""

import json
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from ...nets import Classifier
from ...nets.hub import CARD
from ..atomic_files import write_atomically
from ..formatting import flat, interval, percent, plain, readable
from .evaluate import score_network, score_run
from .own import OwnTask
from .runs import RunFolder
from .task import Result

PROVENANCE = "training.json"
TEMPLATE = str(Path(__file__).with_name("card.md"))
CIRCUMSTANCES = ("command", "started", "seconds", "device", "commit", "python", "capsroute", "torch", "parameters")


def finish_run(run: RunFolder, task: OwnTask, fabric: Fabric) -> Result:
    """Test a run's final weights, write metrics, provenance and a model card beside them, and return the result."""
    _, test = score_run(run, task, fabric)
    results = {"test": test}
    network = task.restore(run.model)
    if len(task.rows("validation")):
        scores = score_network(network, task, fabric, "validation", progress=False)
        results["validation"] = task.measure(scores, "validation")
    if not fabric.is_global_zero:
        return test
    facts, config = run.read_record(), run.read_json("config.json")
    metrics = {split: result.to_dict() for split, result in results.items()}
    settings = {**config, "data": Path(config["data"]).name}  # no path of the machine it was trained on
    values = {"metrics": metrics, "data": task.describe(), "settings": settings}
    values |= {"circumstances": {name: facts[name] for name in CIRCUMSTANCES if name in facts}}
    write_atomically(run.model / PROVENANCE, (json.dumps(values, indent=2) + "\n").encode())
    write_atomically(run.model / CARD, write_card(network, task, results, values).encode())
    return test


def write_card(network: Classifier, task: OwnTask, results: dict[str, Result], values: dict[str, Any]) -> str:
    """Return the model card: data, split, results, how to use it, and how it was trained."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    data, name = values["data"], readable(values["data"]["data"])
    metric: dict[str, Any] = {"metric_type": "accuracy", "metric_value": results["test"].accuracy}
    front = ModelCardData(
        library_name="capsroute",
        pipeline_tag=None if network.task == "other" else network.task,
        tags=["capsroute", "capsules", "routing"],
        model_name=f"capsroute {task.kind}: {name}",
        eval_results=[EvalResult(network.task, "own-data", name, **metric, dataset_split="test")],
    )
    sections = flat({section: network.config[section] for section in ("trunk", "head", "preprocessing")})
    facts = {key: value for key, value in sections.items() if not key.startswith("trunk.config.")}
    rows = []
    for split, result in results.items():
        spans = ", ".join(f"{interval(bounds)} over {unit}" for unit, bounds in result.intervals.items())
        rows.append((split, f"{result.total:,}", f"{result.right:,}", percent(result.accuracy), spans))
    card = ModelCard.from_template(
        front,
        TEMPLATE,
        model_name=front.model_name,
        samples=task.samples,
        classes=[readable(c) for c in network.classes],
        results=rows,
        data=data,
        counts=[(readable(c), n) for c, n in data["samples by class"].items()],
        kind=task.kind,
        preprocessing=network.config["preprocessing"]["name"],
        network=_setting_rows({"parameters": sum(p.numel() for p in network.parameters())} | facts),
        circumstances=_setting_rows(values["circumstances"]),
        settings=_setting_rows(values["settings"]),
    )
    return f"{card.content}\n"


def _setting_rows(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f"`{name}`", readable(plain(value), 2000)) for name, value in values.items()]
