"""Batches of one's own data: images, samples of different lengths, and hidden states."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..encoders import Embeddings
from .task import Inputs, Source


class SampleSource(Source):
    """Batches of prepared samples of different lengths."""

    def __init__(self, samples: Sequence[Any], target: Tensor, weights: Tensor | None, preprocessing: Any):
        self.samples, self.target, self.class_weights = samples, target, weights
        self.preprocessing = preprocessing

    def batch(self, rows: Tensor) -> Inputs:
        return self._collate([self.samples[k] for k in rows.tolist()])

    def _collate(self, samples: Sequence[Any]) -> Inputs:
        inputs = self.preprocessing.collate(samples)
        return tuple(t.to(self.target.device) for t in inputs if t is not None)


class WordSource(SampleSource):
    """Batches of texts, whose words are hashed when they are needed: the numbers take many times their memory."""

    def __init__(
        self,
        samples: Sequence[str],
        target: Tensor,
        weights: Tensor | None,
        preprocessing: Any,
        dropout: float = 0.0,
    ):
        super().__init__(samples, target, weights, preprocessing)
        self.dropout = dropout
        # one number is enough to draw the others from, however long a sample is
        self.n_noise = 1 if dropout else 0

    def batch(self, rows: Tensor) -> Inputs:
        return self._collate(self._prepare(rows))

    def augmented_batch(self, rows: Tensor, noise: Tensor) -> Inputs:
        """Return texts of which a share of the words is hidden."""
        samples = self._prepare(rows)
        for k, number in enumerate(noise.flatten().tolist()):
            rng = np.random.default_rng(int(number * 2**24))
            kept = samples[k][rng.random(len(samples[k])) >= self.dropout]
            samples[k] = kept if len(kept) else samples[k]
        return self._collate(samples)

    def _prepare(self, rows: Tensor) -> list[Any]:
        return [self.preprocessing.prepare(self.samples[k]) for k in rows.tolist()]


class StateSource(Source):
    """Batches of the hidden states of texts; training multiplies each feature of a text by a random factor."""

    def __init__(self, embeddings: Embeddings, target: Tensor, weights: Tensor | None, noise: float = 0.0):
        self.embeddings, self.target, self.class_weights, self.noise = embeddings, target, weights, noise
        self.on_device = embeddings.resident
        self.n_noise = 1 if noise else 0

    def batch(self, rows: Tensor) -> Inputs:
        mask, states = self.embeddings.batch(rows)  # [b, n], [b, n, depth, d]
        return states.movedim(2, 1), mask

    def augmented_batch(self, rows: Tensor, noise: Tensor) -> Inputs:
        """Return the states, whose factors are the same at all tokens: a head that relies on few features fails."""
        states, mask = self.batch(rows)
        if not self.noise:
            return states, mask
        rng = torch.Generator().manual_seed(int(noise[0, 0] * 2**24))
        factors = torch.randn(*states.shape[:2], 1, states.shape[3], generator=rng)  # [b, depth, 1, d]
        return states * (1 + self.noise * factors).to(states), mask
