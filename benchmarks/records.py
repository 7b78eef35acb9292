"""The rows of a benchmark: how they compare with the reference, and their files."""

import csv
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LEAST_MIB = 1.0
"""A smaller peak is within what the system's count of pages misses, so it makes no ratio."""
DECIMALS = 4

Key = tuple[str, int, int, int, str, str]


@dataclass(frozen=True)
class Row:
    """One rival on one case, or one shape of a family, in one mode."""

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
    in_a_row_ms: float | None = None
    captured_ms: float | None = None
    peak_mib: float | None = None
    returned_mib: float | None = None
    speedup: float | None = None
    memory_ratio: float | None = None
    repeats: int | None = None
    skipped: str = ""

    @property
    def key(self) -> Key:
        """What no two rows share."""
        return self.shape, self.batch, self.n_inp, self.n_out, self.rival, self.mode


def with_ratios(rows: list[Row]) -> list[Row]:
    """The rows, compared with the reference's on the same shape in the same mode."""
    references = {(*row.key[:4], row.mode): row for row in rows if row.rival == "reference"}

    def compared(row: Row) -> Row:
        reference = references.get((*row.key[:4], row.mode))
        if reference is None:
            return row
        memory = [peak if peak and peak >= LEAST_MIB else None for peak in (reference.peak_mib, row.peak_mib)]
        return replace(row, speedup=ratio(reference.p50_ms, row.p50_ms), memory_ratio=ratio(*memory))

    return [compared(row) for row in rows]


def ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def save(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Write rows and where they come from; before the first row too, so that a run cut short says what it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(rows, path.with_suffix(".csv"))
    path.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")


def earlier(path: Path, about: dict[str, Any]) -> list[Row]:
    """Rows that a run of the same commit on the same kind of machine left there, but for those it had no time for."""
    csv_path, json_path = path.with_suffix(".csv"), path.with_suffix(".json")
    if not (csv_path.exists() and json_path.exists() and about["commit"]):
        return []
    was = json.loads(json_path.read_text())
    same = all(was.get(name) == about[name] for name in ("commit", "machine", "versions"))
    return [row for row in read_rows(csv_path) if not row.skipped.startswith("took ")] if same else []


def write_rows(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            values = asdict(row).items()
            writer.writerow({name: f"{v:.{DECIMALS}f}" if isinstance(v, float) else v for name, v in values})


def write_table(rows: list[dict[str, Any]], path: Path) -> None:
    """Rows of any columns, the same in all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    """Rows of a file, which may lack columns that are newer than it."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    return [Row(**{f.name: _parse(line.get(f.name, ""), f.type) for f in fields(Row)}) for line in lines]


def _parse(text: str, kind: Any) -> Any:
    if kind in (str, int):
        return kind(text)
    number = int if kind == int | None else float
    return number(text) if text else None
