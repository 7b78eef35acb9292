"""Sets of vectors: points, nodes of graphs, audio frames, tabular tokens, features of a frozen backbone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError


@dataclass(frozen=True)
class SetPreprocessing:
    """Checks sets of vectors `[n, d]` and pads them to a batch."""

    d: int  # size of a vector

    def prepare(self, item: Any) -> np.ndarray:
        """Return a set as float32 `[n, d]`."""
        vectors = np.asarray(item)
        if vectors.ndim != 2 or vectors.shape[1] != self.d or vectors.dtype.kind not in "fiub":
            raise UserError(f"vectors: expected numbers [n, {self.d}], got {vectors.dtype} {list(vectors.shape)}")
        if not np.isfinite(vectors).all():
            raise UserError("vectors: expected finite numbers, got NaN or infinity")
        return vectors.astype(np.float32)

    def collate(self, samples: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return vectors `[b, n, d]`, zero where they are padded, and the mask `[b, n]`."""
        n = max(map(len, samples), default=0)
        x, mask = np.zeros((len(samples), n, self.d), np.float32), np.zeros((len(samples), n), np.float32)
        for row, sample in enumerate(samples):
            x[row, : len(sample)], mask[row, : len(sample)] = sample, 1
        return torch.from_numpy(x), torch.from_numpy(mask)
