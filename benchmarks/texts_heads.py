"""Heads, probes and their training for `benchmarks/texts.py`.

Axes: b texts, k depths, n tokens, d the encoder's width, j classes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from capsroute import RoutingHead
from heads_models import HEADS, Routed, count
from texts_states import States, load_states
from texts_tasks import TASKS

BATCH, MIN_STEPS = 32, 200
N_PARTS = {"best": 64, "all": 16}  # for each depth


class Data(NamedTuple):
    """A task's texts and an encoder's states of them."""

    y: Tensor  # [texts]
    rows: dict[str, Tensor]  # of each split
    states: States
    classes: tuple[str, ...]
    n_epochs: int

    def training_rows(self, size: int, seed: int) -> Tensor:
        """Return the rows of a subset of training texts that the seed gives, or of all."""
        rows = self.rows["train"]
        return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[: size or None]]

    def accuracy(self, found: Tensor, split: str) -> float:
        return (found == self.y[self.rows[split]]).double().mean().item()


def load_data(task: str, encoder: str, folder: Path, work: Path, depths: Sequence[int] | None = None) -> Data:
    """Return a task's texts with their states at some depths, by default all."""
    own = TASKS[task]
    texts = own.load(folder)
    n_training = int(texts.rows["train"][-1]) + 1
    states = load_states(folder / encoder, texts.text, n_training, work / f"{own.states}-{encoder}", depths)
    return Data(texts.y, texts.rows, states, own.classes, own.n_epochs)


class RoundedLinear(nn.Linear):
    """A linear layer whose product is in bfloat16, as its input is."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight.bfloat16()).float() + self.bias


def make_model(head: str, where: str, d: int, n_classes: int, n_depths: int) -> nn.Module:
    """Return a head with as many parameters as `RoutingHead` has, as nearly as its width allows."""
    sizes = (d, n_classes, n_depths if where == "all" else None)
    make, target = HEADS[head][1], count(Routed(*sizes, N_PARTS[where]))
    low, high = (count(make(*sizes, width)) for width in (1, 2))  # counts are linear in the width
    model = make(*sizes, N_PARTS[where] if head == "routing" else max(1, 1 + round((target - low) / (high - low))))
    if abs(count(model) / target - 1) > 0.1:
        raise ValueError(f"{head}: expected about {target} parameters, got {count(model)}")
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    first.__class__ = RoundedLinear  # the product with the states, in all heads
    return model


def fit(
    parameters: list[Tensor], loss: Callable[[Tensor], Tensor], rows: Tensor, n_epochs: int, rate: float, seed: int
) -> None:
    """Minimise the mean loss of batches of rows, in an order that the seed gives."""
    n_steps = max(MIN_STEPS, n_epochs * len(rows) // BATCH)
    optimizer = torch.optim.AdamW(parameters, lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, n_steps)
    order, left = torch.Generator().manual_seed(seed), rows[:0]
    for _ in range(n_steps):
        if len(left) < BATCH:
            left = rows[torch.randperm(len(rows), generator=order)]
        optimizer.zero_grad()
        loss(left[:BATCH]).backward()
        optimizer.step()
        schedule.step()
        left = left[BATCH:]


def train_head(model: nn.Module, data: Data, depths: Sequence[int], size: int, rate: float, seed: int) -> None:
    def loss(rows: Tensor) -> Tensor:
        return cross_entropy(model(*data.states.batch(rows, depths)), data.y[rows])

    fit(list(model.parameters()), loss, data.training_rows(size, seed), data.n_epochs, rate, seed)


@torch.no_grad()
def predict(model: nn.Module, data: Data, split: str, depths: Sequence[int]) -> Tensor:
    """Return the class that the model finds for each text of a split, `[texts of the split]`."""
    rows, found = data.rows[split], torch.empty_like(data.y)
    for batch in rows[data.states.starts.diff()[rows].argsort()].split(2 * BATCH):
        found[batch] = model(*data.states.batch(batch, depths)).argmax(-1)
    return found[rows]


class Probes(nn.Module):
    """A linear readout of the mean over tokens at each of several depths, from `[b, k, d]` to `[b, k, j]`."""

    def __init__(self, n_depths: int, d: int, n_classes: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_depths, d, n_classes) / d)
        self.bias = nn.Parameter(torch.zeros(n_depths, n_classes))

    def forward(self, means: Tensor) -> Tensor:
        return torch.einsum("bkd,kdj->bkj", means, self.weight) + self.bias


def train_probes(means: Tensor, data: Data, size: int, rate: float, seed: int) -> Probes:
    """Train probes of all depths side by side; they share nothing but the order of texts."""
    probes = Probes(means.shape[1], means.shape[2], len(data.classes))

    def loss(rows: Tensor) -> Tensor:
        scores, y = probes(means[rows]), data.y[rows]
        return cross_entropy(scores.flatten(0, 1), y.repeat_interleave(scores.shape[1]), reduction="sum") / len(rows)

    fit(list(probes.parameters()), loss, data.training_rows(size, seed), data.n_epochs, rate, seed)
    return probes


@torch.no_grad()
def find_credit(model: nn.Module, data: Data, depths: Sequence[int]) -> Tensor:
    """Return each depth's mean credit for each class where it is predicted, less that for the others, `[j, k]`."""
    head = next(module for module in model.modules() if isinstance(module, RoutingHead))
    n_classes = len(data.classes)
    total, n = torch.zeros(n_classes, len(depths)), torch.zeros(n_classes, 1)
    for batch in data.rows["test"].split(BATCH):
        x, mask = data.states.batch(batch, depths)
        credit = head.credit(x, mask=mask)
        net, winner = credit.net.sum((2, 3)), credit.scores.argmax(-1)  # [b, k, j], [b]
        own = net[torch.arange(len(winner)), :, winner]
        total.index_add_(0, winner, own - (net.sum(2) - own) / (n_classes - 1))
        n.index_add_(0, winner, torch.ones(len(winner), 1))
    return total / n.clamp(min=1)
