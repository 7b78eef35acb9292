"""The section of a report that shows accuracy by toy and by viewpoint."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..analysis.accuracy import accuracy_by_factor
from ..data import Pairs
from ..formatting import interval, percent
from ..html import Section, folded, panels, paragraph, table
from . import charts
from .charts import embed_chart
from .sections import Answers

# smallNORB's codes: elevations are steps of five degrees from 30 on, azimuths tens of degrees
FACTORS: dict[str, Callable[[int], str]] = {
    "azimuth": lambda code: f"{10 * code}°",
    "elevation": lambda code: f"{30 + 5 * code}°",
    "lighting": str,
}


def describe_view(pairs: Pairs, which: int) -> str:
    """Return what is known of a pair: its instance, azimuth, elevation and lighting."""
    columns = {"instance": str} | FACTORS
    codes = {name: int(getattr(pairs, name)[which]) for name in columns}
    return ", ".join(f"{name} {columns[name](code)}" for name, code in codes.items() if code >= 0)


def show_viewpoints(answers: Answers, pairs: Pairs) -> Section:
    """Show the accuracy for each value of each factor on one common axis, and fold the numbers away."""
    toys, which = np.unique(np.stack([pairs.category, pairs.instance]), axis=1, return_inverse=True)
    names = [f"{answers.names[category]} {instance}" for category, instance in toys.T]
    values: dict[str, Any] = {"toy": np.where(pairs.instance < 0, -1, which.ravel())}
    values |= {name: getattr(pairs, name) for name in FACTORS}
    labels = FACTORS | {"toy": names.__getitem__}
    found = {name: accuracy_by_factor(answers.hit, codes) for name, codes in values.items()}
    found = {name: {labels[name](row.value): row for row in rows} for name, rows in found.items() if rows}
    title = "Accuracy by toy and viewpoint"
    if not found:
        return Section(title, [paragraph("Left out, because toys and viewpoints of these pairs are unknown.")])
    floor = charts.axis_floor([row for rows in found.values() for row in rows.values()])
    pictures, tables = [], []
    for name, rows in found.items():
        chart = charts.draw_accuracies(name.capitalize(), rows, float(answers.hit.mean()), floor)
        ends = (pick(rows, key=lambda label: rows[label].accuracy) for pick in (min, max))
        low, high = (f"{percent(rows[label].accuracy)} at {label}" for label in ends)
        pictures.append(embed_chart(chart, f"Dot chart of accuracy by {name}: lowest {low}, highest {high}."))
        headers = [name, answers.samples, "right", "accuracy", "95% interval"]
        cells = (
            (label, f"{r.total:,}", f"{r.right:,}", percent(r.accuracy), interval((r.low, r.high)))
            for label, r in rows.items()
        )
        tables.append(table(f"By {name}", headers, cells))
    caption = (
        f"Accuracy at each known value (dots) with 95% Wilson intervals (bars), and over all {answers.samples} "
        f"(dashed). The axis begins at {floor:g}%. The intervals take pairs for independent; the same toys are behind "
        "every viewpoint, so they compare viewpoints of these toys and do not say how other toys would do."
    )
    return Section(title, [panels(caption, *pictures), folded("Numbers by toy and viewpoint", *tables)])
