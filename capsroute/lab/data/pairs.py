"""Labelled stereo pairs, the one form in which images reach training, evaluation and figures."""

from typing import NamedTuple

import numpy as np

CATEGORIES = ("animal", "human", "airplane", "truck", "car")
SPLITS = ("train", "test")


class Pairs(NamedTuple):
    """Stereo pairs with the metadata of smallNORB.

    `info` has a column for each of instance (0 to 9), elevation (0 to 8, five degrees each from 30 on), azimuth (even
    numbers from 0 to 34, ten degrees each) and lighting (0 to 5); -1 means unknown.
    """

    images: np.ndarray  # [n, 2, m, m] uint8, left and right; may be memory-mapped
    category: np.ndarray  # [n] int64, a place in CATEGORIES
    info: np.ndarray  # [n, 4] int64

    @property
    def instance(self) -> np.ndarray:
        return self.info[:, 0]

    @property
    def elevation(self) -> np.ndarray:
        return self.info[:, 1]

    @property
    def azimuth(self) -> np.ndarray:
        return self.info[:, 2]

    @property
    def lighting(self) -> np.ndarray:
        return self.info[:, 3]

    def take(self, which: np.ndarray) -> "Pairs":
        """Some of the pairs: indices or a mask."""
        return Pairs(self.images[which], self.category[which], self.info[which])
