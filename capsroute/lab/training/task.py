"""What training needs to know of a task: its network, its samples, and how results on them are measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ...nets.hub import Hub
from ..errors import UserError, first_line
from ..formatting import interval, percent
from .config import Config

Inputs = tuple[Tensor, ...]
SomeNetwork = TypeVar("SomeNetwork", bound=Hub)


class Result(NamedTuple):
    """Accuracy on a split, with 95% intervals over different units of independence, such as images or objects."""

    right: int
    total: int
    intervals: dict[str, tuple[float, float]]

    @property
    def accuracy(self) -> float:
        return self.right / self.total

    def to_dict(self) -> dict[str, Any]:
        return {"right": self.right, "total": self.total, "accuracy": self.accuracy, "intervals": self.intervals}

    def describe(self) -> str:
        """Return the result as a sentence."""
        spans = [f"{interval(bounds)} over {unit}" for unit, bounds in self.intervals.items()]
        share = f"{percent(self.accuracy)} ({self.right:,} of {self.total:,})"
        return f"{share}; 95% interval{'s' if len(spans) > 1 else ''} {', '.join(spans)}"


class Source(Protocol):
    """Samples of one split, as batches on one device; without augmentation unless a subclass adds some."""

    target: Tensor  # [n] class of each sample, on the device
    on_device: bool = False  # whether the samples lie on the device; otherwise each batch is copied there
    fixed_size: bool = False  # whether all batches have the same shape
    n_noise: int = 0  # random numbers that augmenting one sample takes
    class_weights: Tensor | None = None  # of each class in the loss

    def __len__(self) -> int:
        return len(self.target)

    # the network's inputs for these samples
    def batch(self, rows: Tensor) -> Inputs: ...

    # the same, augmented by the random numbers `noise` [b, n_noise]
    def augmented_batch(self, rows: Tensor, noise: Tensor) -> Inputs:
        return self.batch(rows)


class Task(Protocol):
    """The network and data of an experiment."""

    samples: str  # what its samples are called

    # of the classes
    @property
    def names(self) -> Sequence[str]: ...

    # description of the test samples
    @property
    def unseen(self) -> str: ...

    @property
    def config(self) -> Config: ...

    # a new network, initialised from torch's random numbers; its output has class scores as `a`
    def network(self) -> nn.Module: ...

    # a trained one
    def restore(self, folder: Path) -> nn.Module: ...

    # samples of `train`, `validation` or `test`, or None if nothing is held out for validation
    def source(self, split: str, device: torch.device) -> Source | None: ...

    # facts about the data, for the run's record
    def describe(self) -> dict[str, Any]: ...

    # accuracy of scores [n, classes] on a split
    def measure(self, scores: Tensor, split: str) -> Result: ...


def limit_rows(n: int, limit: int | None) -> np.ndarray | slice:
    """Return an index of at most `limit` of `n` samples, the same ones each time."""
    return slice(None) if limit is None or n <= limit else np.sort(np.random.default_rng(0).permutation(n)[:limit])


def load_network(kind: type[SomeNetwork], folder: Path, *class_names: Sequence[str]) -> SomeNetwork:
    """Load a network for evaluation, and refuse one whose number of classes is not that of one of `class_names`."""
    try:
        network = kind.from_pretrained(folder).eval()
    except Exception as error:  # json, safetensors and torch raise unrelated classes
        problem = f"{folder}: expected weights for {kind.task}, cannot load them"
        raise UserError(f"{problem} ({first_line(error)})") from error
    if network.config["n_classes"] not in map(len, class_names):
        expected = " or ".join(f"{len(names)} classes ({', '.join(names)})" for names in class_names)
        raise UserError(f"{folder}: expected a network with {expected}, got one with {network.config['n_classes']}")
    return network
