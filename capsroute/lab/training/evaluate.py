"""Scores of a network on a split, and accuracy computed from them."""

from contextlib import suppress

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn

from ..progress import progress_bar
from .runs import CheckpointError, RunFolder, read_checkpoint, save_checkpoint
from .task import Result, Source, Task

EVAL_BATCH = {"cuda": 200}  # a CPU is fastest while a batch fits into its caches


@torch.inference_mode()
def compute_scores(network: nn.Module, source: Source, fabric: Fabric, label: str = "") -> Tensor:
    """Return the class scores of every sample, [n, classes] on the CPU, under a progress bar if it has a label."""
    was_training = network.training
    network.eval()
    parameter, n = next(network.parameters()), len(source)
    each = -(-n // fabric.world_size)  # the same for all processes: the last ones repeat the last sample
    rows = torch.arange(fabric.global_rank * each, (fabric.global_rank + 1) * each).clamp(max=n - 1)
    parts = []
    with progress_bar(label, n, show=bool(label)) as advance:
        for batch in rows.split(EVAL_BATCH.get(parameter.device.type, 20)):
            batch_inputs = source.batch(batch.to(parameter.device))
            inputs = (x.to(parameter.dtype) if x.is_floating_point() else x for x in batch_inputs)
            with torch.backends.cudnn.flags(allow_tf32=False):  # results in full precision
                parts.append(network(*inputs).a.float())
            advance(len(batch))
    network.train(was_training)
    scores = fabric.all_gather(torch.cat(parts))  # [processes, each, classes]; one process adds no axis
    assert isinstance(scores, Tensor)
    return scores.flatten(0, -2)[:n].cpu()


def summarise_scores(scores: Tensor, target: Tensor, batch_size: int) -> dict[str, float]:
    """Return mean loss and accuracy of all samples, and their standard deviations between batches."""
    target = target.cpu()
    loss = F.cross_entropy(scores, target, reduction="none")
    hit = (scores.argmax(1) == target).float()
    summary = {}
    for name, values in (("loss", loss), ("accuracy", hit)):
        batches = values[: len(values) // batch_size * batch_size].reshape(-1, batch_size)
        summary |= {name: values.mean().item(), f"{name}_sd": standard_deviation(batches.mean(1))}
    return summary


def standard_deviation(t: Tensor) -> float:
    """Return the standard deviation, 0 for fewer than two values."""
    return t.std().item() if len(t) > 1 else 0.0


def score_network(network: nn.Module, task: Task, fabric: Fabric, split: str, *, progress: bool = True) -> Tensor:
    """Return the class scores of a network on a split, [n, classes]."""
    source = task.source(split, fabric.device)
    if source is None:
        raise ValueError(f"split: expected one with samples, {split} has none (held_out=0)")
    label = f"scoring {len(source):,} {task.samples}" if progress else ""
    return compute_scores(network.to(fabric.device), source, fabric, label)


def score_run(run: RunFolder, task: Task, fabric: Fabric, *, progress: bool = True) -> tuple[Tensor, Result]:
    """Return scores and accuracy of a run's final weights on the test split; scores on disk are read, not computed."""
    network = task.restore(run.final_weights())
    weights = run.read_record()["weights"]
    scores = None
    with suppress(CheckpointError):  # scores that are missing or damaged
        tensors, facts = read_checkpoint(run.scores)
        scores = tensors["scores"] if facts["weights"] == weights else None
    scores = fabric.broadcast(scores)
    if scores is None:
        scores = score_network(network, task, fabric, "test", progress=progress)
    result = task.measure(scores, "test")
    if fabric.is_global_zero:
        save_checkpoint(run.scores, {"scores": scores}, {"weights": weights})
        run.write_json("test.json", result.to_dict() | {"split": "test", "weights": "final"})
    return scores, result
