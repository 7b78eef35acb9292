"""The gradients of one batch, as plain calls or as one captured graph."""

from collections.abc import Callable

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from .guide import Guided
from .regime import Plan, mix, mixed_loss
from .task import Source

Step = Callable[[Plan], Tensor]  # a batch in, gradients left in the network, [loss, accuracy] out


class PlainStep:
    """Takes this process's share of a batch through the network and back."""

    def __init__(
        self,
        fabric: Fabric,
        network: nn.Module,
        source: Source,
        batch_size: int,
        guided: Guided | None = None,
        guide: float = 0.0,
    ):
        self.fabric, self.network, self.source, self.guided, self.guide = fabric, network, source, guided, guide
        each = batch_size // fabric.world_size
        self.share = slice(fabric.global_rank * each, (fabric.global_rank + 1) * each)

    def __call__(self, batch: Plan) -> Tensor:
        self.network.zero_grad(set_to_none=True)
        return self.gradients(batch)

    def gradients(self, batch: Plan) -> Tensor:
        inputs, target, other, weight = self.samples(batch)
        loss, hit = mixed_loss(self.network(*inputs).a, target, other, weight)
        total = loss
        if self.guided:
            for scores in self.guided.scores:
                total = total + self.guide * mixed_loss(scores, target, other, weight)[0]
        self.fabric.backward(total)
        return torch.stack([loss.detach(), hit])

    def samples(self, batch: Plan) -> tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor]:
        """Mixed inputs, both targets, and the share of the first."""
        partner, weight = batch.partner[self.share], batch.weight[self.share]
        rows, noise = (torch.cat([t[self.share], t[partner]]) for t in (batch.rows, batch.noise))  # at once: same sizes
        halves = [x.chunk(2) for x in self.source.altered(rows, noise)]
        target, other = self.source.target[rows].chunk(2)
        return tuple(mix(x, y, weight) for x, y in halves), target, other, weight


class CapturedStep:
    """The same as one CUDA graph: a single launch, where hundreds would take longer than the work."""

    def __init__(self, plain: PlainStep, example: Plan):
        self.batch = Plan(*(t.clone() for t in example))
        buffers = {name: b.clone() for name, b in plain.network.named_buffers()}
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # lets every library choose and allocate before the capture
                plain(self.batch)
        torch.cuda.current_stream().wait_stream(aside)
        plain.network.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = plain.gradients(self.batch)
        with torch.no_grad():
            for name, b in plain.network.named_buffers():  # the trial runs left their statistics
                b.copy_(buffers[name])

    def __call__(self, batch: Plan) -> Tensor:
        for static, t in zip(self.batch, batch, strict=True):
            static.copy_(t)
        self.graph.replay()
        return self.result


def why_not_captured(fabric: Fabric, source: Source) -> str | None:
    """What keeps a step from being captured, if anything."""
    if fabric.device.type != "cuda":
        return "only a CUDA device has graphs"
    if fabric.world_size > 1:
        return "several processes exchange gradients"
    if not source.resident:
        return "the data does not fit on the device"
    return None
