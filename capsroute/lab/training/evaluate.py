"""Scores of a network on a split, and what they say."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn

from .task import Source

EVAL_BATCH = {"cuda": 200}  # a CPU is fastest while a batch stays in its caches


@torch.inference_mode()
def scores_of(
    network: nn.Module,
    source: Source,
    fabric: Fabric,
    tick: Callable[[int], None] | None = None,
) -> Tensor:
    """Final scores of every sample, [n, classes] on the CPU; processes share the work."""
    was_training = network.training
    network.eval()
    kind = next(network.parameters())
    batch_size = EVAL_BATCH.get(kind.device.type, 20)
    n, world = len(source), fabric.world_size
    each = -(-n // world)
    rows = torch.arange(fabric.global_rank * each, (fabric.global_rank + 1) * each).clamp(
        max=n - 1
    )  # same count for all
    parts = []
    for some in rows.split(batch_size):
        inputs = (x.to(kind.dtype) for x in source.plain(some.to(kind.device)))
        with torch.backends.cudnn.flags(allow_tf32=False):  # results in full precision
            parts.append(network(*inputs).a.float())
        if tick:
            tick(len(some))
    network.train(was_training)
    scores = torch.cat(parts)
    if world > 1:
        gathered = fabric.all_gather(scores)
        assert isinstance(gathered, Tensor)
        scores = gathered.flatten(0, 1)[:n]
    return scores.cpu()


def summarise(scores: Tensor, target: Tensor, batch_size: int) -> dict[str, float]:
    """Loss and accuracy over batches: mean of all samples, and deviation between batches."""
    from torchmetrics.functional.classification import multiclass_accuracy

    target = target.cpu()
    loss = F.cross_entropy(scores, target, reduction="none")
    hit = (scores.argmax(1) == target).float()
    accuracy = multiclass_accuracy(scores, target, num_classes=scores.shape[1], average="micro")
    whole = len(loss) // batch_size * batch_size
    spread = [deviation(t[:whole].reshape(-1, batch_size).mean(1)) for t in (loss, hit)]
    return {
        "loss": loss.mean().item(),
        "loss_sd": spread[0],
        "accuracy": accuracy.item(),
        "accuracy_sd": spread[1],
    }


def deviation(t: Tensor) -> float:
    """Standard deviation, 0 where there is one value or none."""
    return t.std().item() if len(t) > 1 else 0.0
