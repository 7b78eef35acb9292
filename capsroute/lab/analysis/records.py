"""Published accuracies on the paper's three tasks, as its tables 2, 3 and 4 report them, and ours."""

import csv
from importlib.resources import files
from typing import NamedTuple


class Record(NamedTuple):
    """Accuracy of one network on one task, a row of `records.csv`."""

    method: str
    year: int
    accuracy: float  # per cent of the test split
    source: str  # publication, or our file under results/
    note: str
    parameters: int | None  # trained ones, where known
    deviation: float | None  # standard deviation over seeds, where there are several

    @property
    def ours(self) -> bool:
        return self.source.startswith("results/")


def _read(task: str) -> tuple[Record, ...]:
    lines = files("capsroute.lab.analysis").joinpath("records.csv").read_text(encoding="utf-8").splitlines()
    return tuple(
        Record(method, int(year), float(accuracy), source, note, int(n) if n else None, float(sd) if sd else None)
        for of, method, year, accuracy, source, note, n, sd in csv.reader(lines)
        if of == task
    )


SMALLNORB, SST5, SST2 = map(_read, ("smallnorb", "sst5", "sst2"))
