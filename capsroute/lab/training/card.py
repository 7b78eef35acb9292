"""What a trained folder says of itself: model card, metrics and provenance of a network for one's own data."""

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
CIRCUMSTANCES = ("command", "started", "seconds", "device", "commit", "python", "capsroute", "torch", "parameters")
USE = """```python
import capsroute

network = capsroute.load("FOLDER")
network.classes  # {classes}
```

```sh
capsroute predict FOLDER {example}
capsroute eval FOLDER DATA
```
"""
EXAMPLES = {"images": "image.png", "texts": '"a text"', "arrays": "sets.npz"}
INPUTS = {
    "images": "images [b, channels, rows, columns] in 0..1",
    "features": "features [b, n, d] of the frozen backbone",
    "words": "numbers of words [b, n, pieces], and a mask [b, n]",
    "texts": "hidden states [b, depth, n, d] of the frozen encoder, and a mask [b, n]",
    "sets": "vectors [b, n, d], and a mask [b, n]",
}


def finish_run(run: RunFolder, task: OwnTask, fabric: Fabric) -> Result:
    """Test a run's final weights, write metrics, provenance and a model card beside them, and return the result."""
    _, test = score_run(run, task, fabric)
    results = {"test": test}
    network = task.restore(run.model)
    if len(task.rows("validation")):
        scores = score_network(network, task, fabric, "validation", progress=False)
        results["validation"] = task.measure(scores, "validation")
    if fabric.is_global_zero:
        write_provenance(run, task, network, results)
    return test


def write_provenance(run: RunFolder, task: OwnTask, network: Classifier, results: dict[str, Result]) -> None:
    """Write `training.json` and the model card beside a run's weights."""
    facts, config = run.read_record(), run.read_json("config.json")
    metrics = {split: result.to_dict() for split, result in results.items()}
    settings = {**config, "data": Path(config["data"]).name}  # no path of the machine it was trained on
    values = {"metrics": metrics, "data": task.describe(), "settings": settings}
    values |= {"circumstances": {name: facts[name] for name in CIRCUMSTANCES if name in facts}}
    write_atomically(run.model / PROVENANCE, (json.dumps(values, indent=2) + "\n").encode())
    write_atomically(run.model / CARD, write_card(network, task, results, values).encode())


def write_card(network: Classifier, task: OwnTask, results: dict[str, Result], values: dict[str, Any]) -> str:
    """Return the model card: data, split, results, how to use it, and how it was trained."""
    from huggingface_hub import EvalResult, ModelCardData

    data, name = values["data"], readable(values["data"]["data"])
    metric: dict[str, Any] = {"metric_type": "accuracy", "metric_value": results["test"].accuracy}
    evaluated = EvalResult(network.task, "own-data", name, **metric, dataset_split="test")
    front = ModelCardData(
        library_name="capsroute",
        pipeline_tag=None if network.task == "other" else network.task,
        tags=["capsroute", "capsules", "routing"],
        model_name=f"capsroute {task.kind}: {name}",
        eval_results=[evaluated],
    )
    classes = [readable(c) for c in network.classes]
    preprocessing = network.config["preprocessing"]
    parts = [
        f"---\n{front.to_yaml()}\n---\n\n# capsroute {task.kind}: {name}\n",
        f"Classifies {task.samples} into {len(classes)} classes by a routing head, which finds parts in features and "
        f"routes them by agreement to classes.\n",
        "## Results\n",
        _table(("split", task.samples, "right", "accuracy", "95% interval"), [_row(*row) for row in results.items()]),
        "Test data chose nothing; the weights are those after the last step.\n",
        "## Data\n",
        _table(("split", task.samples), data["samples by split"].items()),
        _table(("class", task.samples), ((readable(c), n) for c, n in data["samples by class"].items())),
        f"How they were split: {data['split']}. Checksum of names and labels: `{data['checksum']}`.\n",
        "## Use\n",
        USE.format(classes=", ".join(classes[:8]) + (", ..." if len(classes) > 8 else ""), example=EXAMPLES[task.kind]),
        f"The network takes {INPUTS[preprocessing['name']]}; the commands make them from files.\n",
        "## Network\n",
        _settings({"parameters": sum(p.numel() for p in network.parameters()), **_network_facts(network)}),
        "## Training\n",
        _settings(values["circumstances"]),
        _settings(values["settings"]),
        "## Limits\n",
        f"It knows only these {len(classes)} classes, and answers with one of them whatever it is given. Accuracy was "
        "measured on samples like those it was trained on; others may fare worse. No licence has been named yet.\n",
    ]
    return "\n".join(parts)


def _network_facts(network: Classifier) -> dict[str, Any]:
    sections = ("trunk", "head", "preprocessing")
    found = flat({name: network.config[name] for name in sections})
    return {name: value for name, value in found.items() if not name.startswith("trunk.config.")}


def _row(split: str, result: Result) -> tuple[str, ...]:
    spans = ", ".join(f"{interval(bounds)} over {unit}" for unit, bounds in result.intervals.items())
    return split, f"{result.total:,}", f"{result.right:,}", percent(result.accuracy), spans


def _settings(values: dict[str, Any]) -> str:
    return _table(("name", "value"), ((f"`{name}`", readable(plain(value), 2000)) for name, value in values.items()))


def _table(columns: tuple[str, ...], rows: Any) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |\n" for line in lines)
