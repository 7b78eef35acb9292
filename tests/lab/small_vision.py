"""Noise in place of rendered toys, for tests of commands."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from capsroute.lab.data import Pairs
from capsroute.lab.data.toys import make_labels

SplitLog = list[str]


def load_noise(log: SplitLog) -> Callable[..., Pairs]:
    """Return a function in the place of `toys.load`, which notes the splits it is asked for."""

    def load(folder: Path, split: str, size: int, **_: object) -> Pairs:
        log.append(split)
        category, info = make_labels(split)
        rows = np.arange(0, len(category), 40)
        images = np.random.default_rng(0).integers(0, 256, (len(rows), 2, size, size), dtype=np.uint8)
        return Pairs(images, category[rows], info[rows])

    return load
