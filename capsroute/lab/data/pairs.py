"""Labelled stereo pairs: the form in which images reach training, evaluation and figures."""

from typing import NamedTuple

import numpy as np

CATEGORIES = ("animal", "human", "airplane", "truck", "car")
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}  # smallNORB is split by toy


class Pairs(NamedTuple):
    """Hold stereo pairs with the metadata of smallNORB.

    The columns of `info` are instance (0 to 9), elevation (0 to 8, from 30 degrees in steps of 5), azimuth (even
    numbers from 0 to 34, in steps of 10 degrees) and lighting (0 to 5); -1 means unknown.
    """

    images: np.ndarray  # [n, 2, m, m] uint8, left and right; may be memory-mapped
    category: np.ndarray  # [n] int64, index into CATEGORIES
    info: np.ndarray  # [n, 4] int64

    instance = property(lambda self: self.info[:, 0])
    elevation = property(lambda self: self.info[:, 1])
    azimuth = property(lambda self: self.info[:, 2])
    lighting = property(lambda self: self.info[:, 3])

    def take(self, rows: np.ndarray | slice) -> "Pairs":
        """Select pairs by indices, a mask or a slice."""
        return Pairs(self.images[rows], self.category[rows], self.info[rows])
