"""One step of training: by plain calls, or as a whole by the device alone, which a CUDA graph can hold."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from .auxiliary import Guided
from .radam import FlatRAdam, prime
from .regime import Plan, Regime, mix, mixed_loss
from .snapshot import Snapshot
from .task import Source


class Gradients:
    """Takes this process's share of a batch through the network and back."""

    def __init__(
        self,
        fabric: Fabric,
        network: nn.Module,
        source: Source,
        batch_size: int,
        *,
        guided: Guided | None = None,
        guide: float = 0.0,
        compiled: bool = False,
    ):
        self.fabric, self.network, self.source, self.guided, self.guide = fabric, network, source, guided, guide
        each = batch_size // fabric.world_size
        self.share = slice(fabric.global_rank * each, (fabric.global_rank + 1) * each)
        self.fetch: Callable[..., tuple] = torch.compile(self.samples, dynamic=False) if compiled else self.samples
        self.loss: Callable[..., tuple] = torch.compile(mixed_loss, dynamic=False) if compiled else mixed_loss

    def __call__(self, plan: Plan, step: Tensor) -> Tensor:
        """Leave the gradients of an epoch's step [1] in the network; returns loss and accuracy [2]."""
        self.network.zero_grad(set_to_none=True)
        inputs, *targets = self.fetch(plan, step)
        loss, hit = self.loss(self.network(*inputs).a, *targets)
        total = loss
        if self.guided:
            for scores in self.guided.scores:
                total = total + self.guide * self.loss(scores, *targets)[0]
        self.fabric.backward(total)
        return torch.stack([loss.detach(), hit])

    def samples(self, plan: Plan, step: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor]:
        """Mixed inputs, both targets, and the share of the first."""
        batch = plan.batch(step)
        rows, weight = batch.rows[:, self.share].flatten(), batch.weight[self.share]
        noise = batch.noise[:, self.share].flatten(0, 1)
        halves = [x.chunk(2) for x in self.source.altered(rows, noise)]  # both at once: same sizes
        target, other = self.source.target[rows].chunk(2)
        return tuple(mix(x, y, weight) for x, y in halves), target, other, weight


@dataclass(eq=False)
class PlainStep:
    """A step by as many calls as it takes, anywhere."""

    gradients: Gradients
    optimizer: torch.optim.RAdam
    regime: Regime
    steps: int  # of the whole run
    record: Tensor  # [s, 2] loss and accuracy of the epoch's steps, to be written

    def __post_init__(self) -> None:
        prime(self.optimizer)
        self.number, self.plan = 0, None
        self.at = torch.zeros(2, dtype=torch.long, device=self.record.device)  # next step of the epoch, and of the run

    def open(self, plan: Plan, number: int) -> None:
        """Go to a step of the run, in the epoch of this plan."""
        self.number = number
        self.at.copy_(torch.tensor([number % len(self.record), number]))
        if self.plan is None:
            self.plan = Plan(*(torch.empty_like(t, device=self.record.device) for t in plan))
        for t, new in zip(self.plan, plan, strict=True):
            t.copy_(new)  # where a graph looks for it

    def __call__(self) -> None:
        self.run()
        self.number += 1

    def run(self) -> None:
        """All but the count."""
        assert self.plan is not None
        here = self.at[:1]
        self.record.index_copy_(0, here, self.gradients(self.plan, here)[None].to(self.record))
        self.descend()
        self.at.add_(1)

    def descend(self) -> None:
        self.regime.turn_to(self.optimizer, self.number, self.steps)
        self.optimizer.step()

    def settle(self) -> None:
        """Make the optimizer's state complete."""

    def state(self) -> list[Tensor]:
        """What learning changes."""
        network, states = self.gradients.network, self.optimizer.state.values()
        return [*network.parameters(), *network.buffers(), *chain(*(state.values() for state in states))]


class WholeStep(PlainStep):
    """The same with nothing left to the host but its count: one CUDA graph can hold it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        schedule = [self.regime.cycle(n, self.steps) for n in range(self.steps)]
        self.radam = FlatRAdam(self.optimizer, schedule)

    def descend(self) -> None:
        self.radam.step(self.at[1:])

    def settle(self) -> None:
        self.radam.count(self.number)

    def state(self) -> list[Tensor]:
        network = self.gradients.network
        return [*network.parameters(), *network.buffers(), self.radam.avg, self.radam.avg_sq]

    def capture(self) -> None:
        """From now on a step is a single launch, where hundreds would take longer than the work."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        before, graph = Snapshot([*self.state(), self.record, self.at]), torch.cuda.CUDAGraph()
        try:
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(3):  # lets every library choose and allocate before the capture
                    self.run()
                    before.restore()
            here.wait_stream(aside)
            with torch.cuda.graph(graph):
                self.run()
        finally:
            torch.cuda.set_stream(here)  # a capture that fails leaves its own
            torch.cuda.synchronize()
            before.restore()
        self.run = graph.replay


def why_not_captured(fabric: Fabric, source: Source, network: nn.Module) -> str | None:
    """What keeps a step from being captured, if anything."""
    if fabric.device.type != "cuda":
        return "only a CUDA device has graphs"
    if fabric.world_size > 1:
        return "several processes exchange gradients"
    if not source.resident:
        return "the data does not fit on the device"
    kinds = {p.dtype for p in network.parameters()}
    if kinds not in ({torch.float32}, {torch.float64}):  # step sizes would be rounded to them
        return f"weights are {' and '.join(sorted(map(str, kinds)))}, not all of float32"
    return None
