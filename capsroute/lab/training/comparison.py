"""What the runs of a study say: a row for each setting, with differences from a baseline on the same samples."""

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..atomic_files import write_atomically


def compare(rows: Sequence[dict[str, Any]], baseline: str) -> list[dict[str, Any]]:
    """Return a row for each setting, the best first: means over its runs, and their difference from the baseline.

    Differences are paired: each is that of two runs with the same fold and seed. Where there are several folds, those
    of one are averaged first, and the standard error is over folds, because new data would bring other toys.

    Args:
        rows: A row for each run, with `setting`, `fold`, `seed` and, unless it failed, `accuracy`.
        baseline: The setting to compare with.
    """
    good = [row for row in rows if "accuracy" in row]
    paired = {(row["fold"], row["seed"]): row["accuracy"] for row in good if row["setting"] == baseline}
    table = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        runs = [row for row in good if row["setting"] == name]
        by_fold: dict[int, list[float]] = {}
        for run in runs if name != baseline else ():
            if (run["fold"], run["seed"]) in paired:
                difference = run["accuracy"] - paired[run["fold"], run["seed"]]
                by_fold.setdefault(run["fold"], []).append(difference)
        units = [statistics.mean(values) for values in by_fold.values()]
        units = units if len(units) > 1 else [value for values in by_fold.values() for value in values]
        accuracies = [run["accuracy"] for run in runs]
        table.append(
            {
                "setting": name,
                "accuracy": mean(accuracies),
                "deviation": deviation(accuracies),
                "runs": len(runs),
                "failed": sum(row["setting"] == name for row in rows) - len(runs),
                "difference": mean(units),
                "standard error": deviation(units, len(units)),
                "step at 90%": mean(run.get("step at 90%") for run in runs),
                "seconds": mean(run.get("seconds") for run in runs),
            }
        )
    return sorted(table, key=lambda row: -(row["accuracy"] or 0))


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; none of no values, or if one is missing."""
    known = list(values)
    return None if None in known or not known else statistics.mean(known)  # pyright: ignore[reportArgumentType]


def deviation(values: Sequence[float], n: int = 1) -> float | None:
    """Return the standard deviation of the mean of `n` values; none of fewer than two."""
    return statistics.stdev(values) / n**0.5 if len(values) > 1 else None


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as CSV, with every column that one of them has."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())
