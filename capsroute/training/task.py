"""What the loop needs to know of a task: its network, and samples by their number."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .config import Config

Inputs = tuple[Tensor, ...]


class Source(Protocol):
    """Samples of one split, on one device."""

    target: Tensor  # [n] the class of each, on the device
    resident: bool  # whether samples lie on the device, rather than travel there with each batch
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

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def config(self) -> Config: ...

    def network(self) -> nn.Module:
        """A new network, from torch's random numbers; it returns Capsules, one for each class."""
        ...

    def source(self, split: str, device: torch.device) -> Source | None:
        """The samples of `train`, `validation` or `test`; none where nothing is held out to validate."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for the record: where data came from, how many samples."""
        ...
