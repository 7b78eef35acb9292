"""One training step: batch, gradients, update; on a GPU captured as one CUDA graph."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...layers import Routing
from ...routing import Capsules
from .config import Config
from .radam import EPS, ScheduledRAdam
from .regime import EpochPlan, mix, mixed_loss, paste, plan_epoch
from .task import Inputs, Source


class WithAuxiliaryReadouts(nn.Module):
    """A network with a linear readout of each routing layer but the last, for an auxiliary loss during training.

    Class scores start at zero and depend on inputs only through agreement, so a network learns little in its first
    thousand steps. The readouts give the layers below them a direct gradient; they are not saved with the network.
    """

    def __init__(self, network: nn.Module, n_classes: int):
        super().__init__()
        self.network = network
        *inner, _ = (layer for layer in network.modules() if isinstance(layer, Routing))
        sizes = [(layer.n_out or 1) * layer.d_cov * layer.d_out for layer in inner]
        self.readouts = nn.ModuleList([nn.Linear(size, n_classes) for size in sizes])
        self.scores: list[Tensor] = []  # of the readouts in the last forward pass
        for layer, readout in zip(inner, self.readouts, strict=True):
            layer.register_forward_hook(partial(self.read_out, readout))

    def forward(self, *inputs: Tensor) -> Capsules:
        self.scores.clear()
        return self.network(*inputs)

    def read_out(self, readout: nn.Module, layer: nn.Module, inputs: tuple[Tensor, ...], out: Capsules) -> None:
        if self.training:
            self.scores.append(readout(out.mu.flatten(1)))


@torch.no_grad()
def copy_tensors(sources: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
    """Copy values in place, into the memory that parameters and captured graphs use."""
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


class TrainingStep:
    """Runs one step of a training run at each call, from the step that `seek` was given.

    Args:
        fabric: Process group and precision.
        model: The network, with or without readouts, as Fabric wrapped it.
        source: The training samples.
        config: Settings of the run.
        auxiliary: The readouts' module, if the loss has an auxiliary part.
        compiled: Compile what surrounds the network: fetching samples, and the loss.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        source: Source,
        config: Config,
        *,
        auxiliary: WithAuxiliaryReadouts | None = None,
        compiled: bool = False,
    ):
        self.fabric, self.model, self.source, self.config, self.auxiliary = fabric, model, source, config, auxiliary
        self.per_epoch = len(source) // config.batch_size
        self.steps = config.epochs * self.per_epoch
        schedule = [config.schedule(n, self.steps) for n in range(self.steps)]
        decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and "beta_" not in name]
        rates = {"weight_decay": config.weight_decay, "average": config.average}
        self.optimizer = ScheduledRAdam(model.parameters(), schedule, config.beta2, decayed=decayed, **rates)
        each = config.batch_size // fabric.world_size
        self.share = slice(fabric.global_rank * each, (fabric.global_rank + 1) * each)  # of this process
        options: dict[str, Any] = {"label_smoothing": config.label_smoothing, "class_weights": source.class_weights}
        measure = partial(mixed_loss, **options)
        functions: list[Callable[..., tuple]] = [self.fetch_batch, measure]
        self.fetch, self.loss = (torch.compile(f, dynamic=False) if compiled else f for f in functions)
        device = fabric.device
        self.record = torch.zeros(self.per_epoch, 2, device=device)  # loss and accuracy of the epoch's steps
        self.position = torch.zeros(2, dtype=torch.long, device=device)  # next step in the epoch, and in the run
        self.number = 0  # the same as position[1], on the host
        self.plan: EpochPlan | None = None
        self.launch = self.run

    def seek(self, number: int) -> None:
        """Continue with step `number` of the run."""
        self.number = number
        self.position.copy_(torch.tensor([number % self.per_epoch, number]))
        epoch, n_noise = number // self.per_epoch, self.source.n_noise
        plan = plan_epoch(self.config, len(self.source), seed=self.config.seed, epoch=epoch, n_noise=n_noise)
        if self.plan is None:
            self.plan = EpochPlan(*(torch.empty_like(t, device=self.position.device) for t in plan))
        copy_tensors(plan, self.plan)

    def __call__(self) -> None:
        if self.number % self.per_epoch == 0 or self.plan is None:
            self.seek(self.number)
        self.launch()
        self.number += 1

    def run(self) -> None:
        """Run the step at `position` by plain calls."""
        inputs, *targets = self.fetch()
        loss, accuracy = self.compute_gradients(inputs, targets)
        if self.config.sam:  # the gradients of the highest loss nearby, which batch statistics shall not remember
            tensors = [*self.model.parameters(), *self.model.buffers()]
            before = [t.detach().clone() for t in tensors]
            self.climb(self.config.sam)
            self.compute_gradients(inputs, targets)
            copy_tensors(before, tensors)
        row = torch.stack([loss.detach(), accuracy])[None].to(self.record)
        self.record.index_copy_(0, self.position[:1], row)
        self.optimizer.step(self.position[1:])
        self.position.add_(1)

    def compute_gradients(self, inputs: Inputs, targets: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Set the gradients of all parameters; return the loss, without its auxiliary part, and the accuracy."""
        self.model.zero_grad(set_to_none=True)
        loss, accuracy = self.loss(self.model(*inputs).a, *targets)
        total = loss
        for scores in self.auxiliary.scores if self.auxiliary else ():
            total = total + self.config.auxiliary_weight * self.loss(scores, *targets)[0]
        self.fabric.backward(total)
        return loss, accuracy

    @torch.no_grad()
    def climb(self, radius: float) -> None:
        """Move the parameters by a distance in the direction of their gradients."""
        params: list[Any] = [p for p in self.model.parameters() if p.grad is not None]
        grads = [p.grad for p in params]
        norm = torch.stack(torch._foreach_norm(grads)).norm()  # pyright: ignore[reportPrivateImportUsage]
        step = torch._foreach_mul(grads, radius / norm.clamp(min=EPS))  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(params, step)  # pyright: ignore[reportPrivateImportUsage]

    def fetch_batch(self) -> tuple[Inputs, Tensor, Tensor, Tensor]:
        """Return this process's mixed inputs, both targets, and the weight of the first."""
        batch = self.planned_batch()
        weight = batch.weight[self.share]
        if not self.config.mixup:  # partners count for nothing, and inputs may be numbers of words
            rows = batch.rows[0, self.share]
            target = self.source.target[rows]
            return self.source.augmented_batch(rows, batch.noise[0, self.share]), target, target, weight
        rows = batch.rows[:, self.share].flatten()
        noise = batch.noise[:, self.share].flatten(0, 1)
        halves = [x.chunk(2) for x in self.source.augmented_batch(rows, noise)]  # samples and partners in one fetch
        target, other = self.source.target[rows].chunk(2)
        if not self.config.cutmix:
            return tuple(mix(x, y, weight) for x, y in halves), target, other, weight
        box = batch.box[self.share]
        share = torch.where(box[:, 2] > 0, 1.0, weight)  # what is pasted on is not mixed
        return tuple(paste(mix(x, y, share), y, box) for x, y in halves), target, other, weight

    def planned_batch(self) -> EpochPlan:
        """Return the random choices for the batch of the next step."""
        assert self.plan is not None
        return self.plan.batch(self.position[:1])

    def state(self) -> list[Tensor]:
        """Return the tensors that learning changes."""
        moments = self.optimizer.avg, self.optimizer.avg_sq, self.optimizer.mean
        return [*self.model.parameters(), *self.model.buffers(), *moments]

    @torch.no_grad()
    def load_average(self, n_batches: int = 200) -> None:
        """Replace the weights by their running mean, and estimate the statistics of normalisation for it anew."""
        weights = {name: view for name, view in self.optimizer.state().items() if name.endswith(".mean")}
        copy_tensors(weights.values(), self.optimizer.params)
        layers = [layer for layer in self.model.modules() if isinstance(layer, _BatchNorm)]
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches
        self.seek(0)
        for number in range(min(n_batches, self.per_epoch) if layers else 0):
            self.position.fill_(number)
            self.model(*self.fetch()[0])
        self.seek(self.steps)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum

    def capture(self) -> None:
        """Capture a step as a CUDA graph: one launch, where hundreds would take longer than their kernels."""
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        changed, graph = [*self.state(), self.record, self.position], torch.cuda.CUDAGraph()
        before = [t.detach().clone() for t in changed]
        try:
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(3):  # warm-up: libraries choose algorithms and allocate
                    self.run()
                    copy_tensors(before, changed)
            current.wait_stream(side)
            with torch.cuda.graph(graph):
                self.run()
        finally:
            torch.cuda.set_stream(current)  # a failed capture leaves its own
            torch.cuda.synchronize()
            copy_tensors(before, changed)
        self.launch = graph.replay


def find_capture_obstacle(fabric: Fabric, source: Source) -> str | None:
    """Return why a step cannot be captured as a CUDA graph, or None if it can."""
    if fabric.device.type != "cuda":
        return "only a CUDA device has graphs"
    if fabric.world_size > 1:
        return "several processes exchange gradients"
    if not source.on_device:
        return "the data does not fit on the device"
    return None
