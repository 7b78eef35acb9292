"""The picture of a study."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..atomic_files import write_atomically
from .charts import BLUE, INK, PERCENT, encode_figure, new_axes, set_title

ROW = 0.35  # inches


def draw_study(path: Path, title: str, accuracies: Mapping[str, Sequence[float]]) -> Path:
    """Write a chart of the accuracies of each setting, the first on top: a dot for each run, a line at the mean."""
    figure, [[axes]] = new_axes(7.0, 1.2 + ROW * len(accuracies))
    places = np.arange(len(accuracies))[::-1]
    for place, shares in zip(places, accuracies.values(), strict=True):
        values = 100 * np.array(shares)
        axes.plot(values, np.full(len(values), place), "o", color=BLUE, alpha=0.6, markersize=6, markeredgewidth=0)
        axes.plot([values.mean()] * 2, [place - 0.25, place + 0.25], color=INK, linewidth=2)
    axes.set_yticks(places, list(accuracies))
    axes.set_ylim(-0.6, len(accuracies) - 0.4)
    axes.xaxis.set_major_formatter(PERCENT)
    set_title(axes, f"{title}: each run (dots) and their mean (lines)")
    write_atomically(path, encode_figure(figure))
    return path
