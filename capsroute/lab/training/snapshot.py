"""Copies of a state that is changed in place."""

from collections.abc import Iterable

import torch
from torch import Tensor


class Snapshot:
    """A copy of tensors, to go back to."""

    def __init__(self, tensors: Iterable[Tensor]):
        self.kinds: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
        for t in tensors:  # by kind, for one launch copies many of a kind
            own, copies = self.kinds.setdefault((t.device, t.dtype), ([], []))
            own.append(t.detach())
            copies.append(t.detach().clone())

    def take(self) -> None:
        """Copy again."""
        for own, copies in self.kinds.values():
            torch._foreach_copy_(copies, own)  # pyright: ignore[reportPrivateImportUsage]

    def restore(self) -> None:
        for own, copies in self.kinds.values():
            torch._foreach_copy_(own, copies)  # pyright: ignore[reportPrivateImportUsage]
