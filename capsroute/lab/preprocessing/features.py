"""Images as features of a frozen vision model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...nets.trunks import find_features
from ..encoders.vision import VisionModel, load_vision_model
from .images import ImagePreprocessing


@dataclass(frozen=True)
class FeaturePreprocessing:
    """Reads images as `ImagePreprocessing` does, and finds their features."""

    backbone: str  # name on a hub, or folder
    rows: int
    columns: int
    views: int = 1
    revision: str | None = None  # commit on the hub; none for the newest
    device: str = "cpu"

    channels = 3

    @cached_property
    def images(self) -> ImagePreprocessing:
        return ImagePreprocessing(self.rows, self.columns, self.channels, self.views)

    @cached_property
    def model(self) -> VisionModel:
        """The vision model, loaded when it is first needed."""
        found = load_vision_model(self.backbone, self.revision)
        found.model.to(self.device).requires_grad_(False)
        return found

    def prepare(self, item: Any) -> np.ndarray:
        """Return bytes `[views * channels, rows, columns]`, see `ImagePreprocessing`."""
        return self.images.prepare(item)

    @torch.no_grad()
    def collate(self, samples: Sequence[np.ndarray]) -> tuple[Tensor, None]:
        """Return features `[b, n, d]`: tokens, or the locations of a feature map by rows; those of all views."""
        found = self.model
        pixels = self.images.collate(samples)[0].to(self.device).unflatten(1, (self.views, self.channels))
        mean, std = (torch.tensor(t, device=self.device)[:, None, None] for t in (found.mean, found.std))
        features = find_features(found.model, ((pixels - mean) / std).flatten(0, 1))
        if found.has_maps:
            features = features.flatten(2).movedim(1, 2)
        return features.unflatten(0, (len(samples), self.views)).flatten(1, 2), None
