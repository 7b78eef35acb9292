"""What training and its results need to know of a task: its network, samples by their number, and how to judge them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .config import Config

Inputs = tuple[Tensor, ...]


class Result(NamedTuple):
    """How many samples were classified right, with 95% intervals over what may count as independent trials."""

    right: int
    total: int
    intervals: dict[str, tuple[float, float]]

    @property
    def accuracy(self) -> float:
        return self.right / self.total

    def facts(self) -> dict[str, Any]:
        return {"right": self.right, "total": self.total, "accuracy": self.accuracy, "intervals": self.intervals}

    def words(self) -> str:
        spans = [f"{100 * low:.2f} to {100 * high:.2f}% over {over}" for over, (low, high) in self.intervals.items()]
        share = f"{100 * self.accuracy:.2f}% ({self.right:,} of {self.total:,})"
        return f"{share}; 95% interval{'s' if len(spans) > 1 else ''} {', '.join(spans)}"


class Source(Protocol):
    """Samples of one split, on one device."""

    target: Tensor  # [n] the class of each, on the device
    resident: bool  # whether samples lie on the device, rather than travel there with each batch
    one_size: bool  # whether all batches are of one size
    n_noise: int  # random numbers that altering a sample takes

    def __len__(self) -> int: ...

    def plain(self, rows: Tensor) -> Inputs:
        """What the network gets for these samples."""
        ...

    def altered(self, rows: Tensor, noise: Tensor) -> Inputs:
        """The same, augmented as `noise` [b, n_noise] says."""
        ...


class Task(Protocol):
    """An experiment's network and data."""

    samples: str  # what they are called
    unseen: str  # what test samples are, to a network trained on the others

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def config(self) -> Config: ...

    def network(self) -> nn.Module:
        """A new network, from torch's random numbers; what it returns has the classes' scores as `a`."""
        ...

    def restore(self, folder: Path) -> nn.Module:
        """A trained network."""
        ...

    def source(self, split: str, device: torch.device) -> Source | None:
        """The samples of `train`, `validation` or `test`; none where nothing is held out to validate."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for the record: where data came from."""
        ...

    def judge(self, scores: Tensor, split: str) -> Result:
        """What scores on a split say."""
        ...
