"""The rows of a benchmark: how they compare with the reference, and their file."""

import csv
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LEAST_MIB = 1.0
"""A smaller peak is within what the system's count of pages misses, so it makes no ratio."""
DECIMALS = 3


@dataclass(frozen=True)
class Row:
    """One rival on one shape in one mode."""

    shape: str
    batch: int
    n_inp: int
    n_out: int
    rival: str
    picked: str
    mode: str
    p20_ms: float | None = None
    p50_ms: float | None = None
    p80_ms: float | None = None
    peak_mib: float | None = None
    speedup: float | None = None
    memory_ratio: float | None = None
    skipped: str = ""


def with_ratios(rows: list[Row]) -> list[Row]:
    """The rows, compared with the reference's on the same shape in the same mode."""
    references = {(row.shape, row.mode): row for row in rows if row.rival == "reference"}

    def compared(row: Row) -> Row:
        reference = references.get((row.shape, row.mode))
        if reference is None:
            return row
        memory = [peak if peak and peak >= LEAST_MIB else None for peak in (reference.peak_mib, row.peak_mib)]
        return replace(row, speedup=_ratio(reference.p50_ms, row.p50_ms), memory_ratio=_ratio(*memory))

    return [compared(row) for row in rows]


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def write_rows(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            values = asdict(row).items()
            writer.writerow({name: f"{v:.{DECIMALS}f}" if isinstance(v, float) else v for name, v in values})


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    return [Row(**{field.name: _parse(line[field.name], field.type) for field in fields(Row)}) for line in lines]


def _parse(text: str, kind: Any) -> Any:
    if kind in (str, int):
        return kind(text)
    return float(text) if text else None
