"""From trained weights to results: scores on the test split, the report, runs repeated over seeds."""

import dataclasses
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning.fabric import Fabric
from torch import Tensor, nn

from ..analysis.accuracy import by_instance_interval, wilson
from ..analysis.report import write_report
from .checkpoint import CheckpointError, write_whole
from .evaluate import scores_of
from .experiments import saved_config, task_of
from .loop import train
from .machine import Machine
from .runs import RunFolder
from .vision import Vision, VisionConfig

if TYPE_CHECKING:
    from rich.console import Console


class Result(NamedTuple):
    """How many test samples were classified right, with 95% intervals: over images, and over whole instances."""

    right: int
    total: int
    images: tuple[float, float]
    instances: tuple[float, float]

    @property
    def accuracy(self) -> float:
        return self.right / self.total

    def words(self) -> str:
        spans = (f"{100 * low:.2f} to {100 * high:.2f}%" for low, high in (self.images, self.instances))
        over_images, over_instances = spans
        share = f"{100 * self.accuracy:.2f}% ({self.right:,} of {self.total:,})"
        return f"{share}; 95% intervals {over_images} over images, {over_instances} over instances"


def score(
    network: nn.Module, config: VisionConfig, fabric: Fabric, *, split: str = "test", progress: bool = True
) -> Tensor:
    """Final scores of a network on a split, [n, classes]."""
    network = network.to(fabric.device)
    source = task_of(config).source(split, fabric.device)
    if source is None:
        raise ValueError(f"split: expected one with samples, {split} has none (held_out=0)")
    if not (progress and fabric.is_global_zero):
        return scores_of(network, source, fabric)
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task(f"scoring {len(source):,} pairs", total=len(source))
        return scores_of(network, source, fabric, tick=lambda n: bar.advance(task, n))


def judge(scores: Tensor, config: VisionConfig, split: str = "test") -> Result:
    """What scores on a split say."""
    pairs = Vision(config).pairs(split)
    hit = scores.argmax(1).numpy() == pairs.category
    right, total = int(hit.sum()), len(hit)
    over_instances = by_instance_interval(hit, pairs.category, pairs.instance)
    return Result(right, total, wilson(right, total), over_instances)


def trained_network(run: RunFolder) -> nn.Module:
    """The final weights of a finished run."""
    from ..nets import SmallNORB

    if not (run.model / "model.safetensors").is_file():
        raise CheckpointError(f"{run.path}: the run has not finished; go on with `capsroute train --resume {run.path}`")
    return SmallNORB.from_pretrained(run.model).eval()


def scored_test(run: RunFolder, fabric: Fabric, *, progress: bool = True) -> tuple[Tensor, Result]:
    """Scores of a run's final weights on the test split: computed once, then read."""
    from safetensors.torch import load_file
    from safetensors.torch import save as serialise

    config = saved_config(run.read_json("config.json"))
    network = trained_network(run)
    if fabric.broadcast(run.scores.exists()):
        scores = load_file(run.scores)["scores"]
    else:
        scores = score(network, config, fabric, progress=progress)
    result = judge(scores, config)
    if fabric.is_global_zero:
        write_whole(run.scores, serialise({"scores": scores.contiguous()}))
        facts = result._asdict() | {"accuracy": result.accuracy, "split": "test", "weights": "final"}
        run.write_json("test.json", facts)
    return scores, result


def report_run(run: RunFolder, fabric: Fabric, *, progress: bool = True) -> tuple[Path, Result]:
    """Write the page that shows a run."""
    config = saved_config(run.read_json("config.json"))
    facts = run.read_json("run.json")
    scores, result = scored_test(run, fabric, progress=progress)
    validation = run.validation.read()
    source = "smallNORB" if config.data == "smallnorb" else f"rendered toys, {config.size}x{config.size}"
    page = write_report(
        run.path,
        title=f"{config.experiment}: {source}",
        config=dataclasses.asdict(config),
        versions=facts,
        training=run.training.read(),
        validation=validation or None,
        scores=scores.numpy(),
        pairs=Vision(config).pairs("test"),
        names=Vision.names,
        summary={
            "parameters": facts["parameters"],
            "epochs": config.epochs,
            "training_seconds": facts.get("seconds"),
            "weights": "final, after the last step",
        },
        trained=f"on {altered_images(config)}",
    )
    return page, result


def altered_images(config: VisionConfig) -> str:
    """What training saw, in words."""
    how = [*(["mixed-up (mixup)"] if config.mixup else []), *(["randomly cropped"] if config.padding else [])]
    return " and ".join(how) + " images" if how else "images as they are"


def replicate(
    config: VisionConfig,
    out: Path,
    seeds: int,
    machine: Machine,
    fabric: Fabric,
    *,
    note: str = "",
    console: "Console | None" = None,
) -> dict[str, Any]:
    """Train once for each seed on all of the training set, test the final weights, and say how they spread.

    A folder that holds some of the runs already is completed: what is there is not run again.
    """
    rows = []
    for seed in range(seeds):
        run = RunFolder(out / f"seed-{seed}")
        one = dataclasses.replace(config, seed=seed, held_out=0)
        if (run.path / "config.json").exists():
            found = saved_config(run.read_json("config.json"))
            if found != one:
                raise ValueError(f"{run.path}: holds a run with other settings; choose another folder")
        if not (run.model / "model.safetensors").exists():
            resume = fabric.broadcast((run.path / "config.json").exists())
            train(task_of(one), run, machine, fabric, resume=resume, note=note, console=console)
        _, result = scored_test(run, fabric, progress=console is not None)
        seconds = run.read_json("run.json")["seconds"]
        counts = {"right": result.right, "total": result.total, "accuracy": result.accuracy}
        rows.append({"seed": seed} | counts | {"seconds": seconds})
        if console and fabric.is_global_zero:
            console.print(f"seed {seed}: {result.words()}; {seconds:.0f} s")
    accuracies = [row["accuracy"] for row in rows]
    summary = {
        "experiment": config.experiment,
        "trained on": "all of the training set",
        "weights": "final, after the last step; nothing was chosen by test data",
        "runs": rows,
        "mean": statistics.mean(accuracies),
        "standard deviation": statistics.stdev(accuracies) if seeds > 1 else None,
    }
    if fabric.is_global_zero:
        RunFolder(out).write_json("replicate.json", summary)
    return summary
