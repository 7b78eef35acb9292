"""Write the speed tables of README.md and docs/benchmarks.md, and draw their plots: `python benchmarks/report.py`.

With `--check` nothing is written; the exit status is 1 if a table is out of date or a limit is exceeded.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from records import RESULTS, ROOT, Row, read_rows

MODE = "forward+backward"
NAMES = {"reference": "`reference`", "compiled": "compiled", "triton": "Triton"}
README_ROWS = [("cuda", "smallnorb_1_b20"), ("cuda", "sst_1"), ("cuda", "wide_out"), ("cuda", "million_inp")]
README_ROWS += [("cpu", "smallnorb_1")]
CPU_LIMITS = {"smallnorb_1": 40, "sst_1": 4, "smallnorb_2": 1 / 1.1, "sst_2": 1 / 1.1}
"""How many times as fast as `reference` the implementation picked by `auto` must be."""
CPU_MEMORY_LIMITS = {"smallnorb_1": 15}
GPU_LIMITS = {
    "smallnorb_1_b20": (0.45, 40),
    "smallnorb_1_b128": (1.1, 250),
    "sst_1": (0.40, None),
    "smallnorb_2": (0.30, None),
    "wide_out": (60, 4096),
    "million_inp": (8, 1024),
}
"""Most milliseconds in a CUDA graph and most MiB on an H200, forward and backward."""


def find(rows: list[Row], case: str, *impls: str, mode: str = MODE) -> Row | None:
    """Return the first of the implementations that was measured on a case."""
    same = [row for row in rows if (row.case, row.mode) == (case, mode) and (row.p50_ms or row.captured_ms)]
    return next((row for impl in impls for row in same if row.impl == impl), None)


def ratio(old: float | None, new: float | None) -> float | None:
    return old / new if old and new else None


def format_number(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:.2f}" if number < 1 else f"{number:.1f}" if number < 10 else f"{number:,.0f}"


def format_ratio(number: float | None) -> str:
    return "–" if number is None else f"{format_number(number)}x"


def format_memory(mib: float | None) -> str:
    return f"{format_number(mib / 1024)} GiB" if mib and mib >= 1024 else f"{format_number(mib)} MiB"


def describe(origin: dict[str, Any]) -> str:
    machine, versions = origin["machine"], origin["versions"]
    name = machine.get("gpu") or f"{machine['cores']} {machine['cpu'].removesuffix(' Processor')} cores"
    triton = f", Triton {versions['triton']}" if "triton" in versions else ""
    return f"{name.replace('(R)', '')}, PyTorch {versions['torch'].split('+')[0]}{triton}"


def markdown_table(header: list[str], rows: list[list[str]], n_text: int) -> str:
    rules = f"|{'---|' * n_text}{'---:|' * (len(header) - n_text)}"
    lines = [f"| {' | '.join(line)} |" for line in [header, *rows]]
    return "\n".join([lines[0], rules, *lines[1:]])


def sizes(row: Row) -> str:
    return f"{row.batch}×{row.n_inp:,} → {row.n_out:,}"


def write_summary(rows: dict[str, list[Row]], origins: dict[str, dict[str, Any]]) -> str:
    """Write the short table of the README."""
    lines = []
    for device, case in README_ROWS:
        column, on = ("captured_ms", "H200") if device == "cuda" else ("p50_ms", "CPU")
        fast = find(rows[device], case, "auto", "triton")
        plain, compiled = (find(rows[device], case, impl) for impl in ("reference", "compiled"))
        if fast and plain and compiled:
            times = [getattr(row, column) for row in (fast, plain, compiled)]
            gains = [format_ratio(ratio(time, times[0])) for time in times[1:]]
            lines.append([sizes(fast), on, *gains, *(format_memory(row.peak_mib) for row in (fast, plain))])
    where = "; ".join(describe(origins[device]) for device in ("cuda", "cpu"))
    header = ["batch×inputs → outputs", "on", "speed vs plain", "vs compiled", "memory", "memory, plain"]
    return (
        markdown_table(header, lines, 2)
        + '\n\nForward and backward, against plain PyTorch (`impl="reference"`) and that under `torch.compile`. '
        + f"GPU times in CUDA graphs. {where}."
    )


def write_gpu_tables(rows: list[Row], origin: dict[str, Any], name: str) -> str:
    """Write tables of captured time, called time, host overhead and memory."""
    rows = [row for row in rows if row.mode == MODE]
    impls = list(dict.fromkeys(row.impl for row in rows))
    cases = {row.case: sizes(row) for row in rows}

    def table(value: Callable[[Row], str]) -> str:
        found = {case: [find(rows, case, impl) for impl in impls] for case in cases}
        cells = [[f"`{case}`", cases[case], *(value(r) if r else "–" for r in found[case])] for case in cases]
        return markdown_table(["case", "sizes", *(NAMES.get(impl, f"`{impl}`") for impl in impls)], cells, 2)

    fast = [row for case in cases if (row := find(rows, case, "auto", "triton"))]
    overhead = [
        [f"`{row.case}`", *map(format_number, (row.captured_ms, row.p50_ms, row.overhead_ms, row.one_thread_ms))]
        for row in fast
    ]
    header = ["case", "captured", "called", "called minus captured", "called, backward in the same thread"]
    return "\n\n".join(
        [
            f"### On a GPU\n\n{describe(origin)}. Forward and backward; `{name}.csv`.",
            f"**Milliseconds in a CUDA graph**\n\n{table(lambda row: format_number(row.captured_ms))}",
            f"**Milliseconds of a call**\n\n{table(lambda row: format_number(row.p50_ms))}",
            f"**Peak memory**\n\n{table(lambda row: format_memory(row.peak_mib))}",
            "**What an eager call costs**, in milliseconds, with what `auto` picks. PyTorch runs the backward pass in "
            "another thread unless `torch.autograd.set_multithreading_enabled(False)` is set.\n\n"
            + markdown_table(header, overhead, 1),
            "![Time and memory on a GPU](pictures/speed_cuda.png)",
            "![Time and memory as inputs, outputs or the batch grow](pictures/scaling_cuda.png)",
            *skipped_lines(rows),
        ]
    )


def write_cpu_tables(rows: list[Row], origin: dict[str, Any], name: str) -> str:
    """Write speed relative to the reference and memory, for forward passes and with backward passes."""
    impls = list(dict.fromkeys(row.impl for row in rows))
    parts = [f"### On a CPU\n\n{describe(origin)}. `auto` names what it picked; `{name}.csv`."]
    for mode in dict.fromkeys(row.mode for row in rows):
        lines = []
        for case, shape in {row.case: sizes(row) for row in rows}.items():
            plain, cells = find(rows, case, "reference", mode=mode), []
            for impl in impls:
                row = find(rows, case, impl, mode=mode)
                speed = format_ratio(ratio(plain.p50_ms, row.p50_ms)) if plain and row else "–"
                picked = f" (`{row.picked}`)" if row and row.picked else ""
                cells.append(f"{speed}, {format_memory(row.peak_mib)}{picked}" if row else "–")
            lines.append([f"`{case}`", shape, *cells])
        header = ["case", "sizes", *(NAMES.get(impl, f"`{impl}`") for impl in impls)]
        title = mode.capitalize().replace("+", " and ")
        parts.append(f"**{title}: speed relative to `reference`, peak memory**\n\n{markdown_table(header, lines, 2)}")
    return "\n\n".join([*parts, "![Time and memory on a CPU](pictures/speed_cpu.png)", *skipped_lines(rows)])


def skipped_lines(rows: list[Row]) -> list[str]:
    """Say why cells are empty, a line per implementation and reason."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        if row.skipped:
            reasons.setdefault((row.impl, row.skipped), {})[f"`{row.case}`"] = None
    lines = [f"- `{impl}` does not run {', '.join(cases)}: {why}." for (impl, why), cases in reasons.items()]
    return ["\n".join(lines)] if lines else []


def exceeded_limits(rows: dict[str, list[Row]]) -> Iterator[str]:
    """Yield limits that the stored measurements do not meet."""
    for case, least in CPU_LIMITS.items():
        plain, auto = find(rows["cpu"], case, "reference"), find(rows["cpu"], case, "auto")
        if not plain or not auto or (ratio(plain.p50_ms, auto.p50_ms) or 0) < least:
            yield f"cpu.csv, {case}: auto is not {least:.3g} times as fast as reference"
        measured = [r for r in rows["cpu"] if (r.case, r.mode) == (case, MODE) and r.impl not in ("auto", "compiled")]
        fastest = min((row for row in measured if row.p50_ms), key=lambda row: row.p50_ms or 0)
        if auto and auto.picked != fastest.impl:
            yield f"cpu.csv, {case}: auto picks {auto.picked}, but {fastest.impl} is faster"
        if plain and auto and (ratio(plain.peak_mib, auto.peak_mib) or 0) < CPU_MEMORY_LIMITS.get(case, 0):
            yield f"cpu.csv, {case}: auto does not need {CPU_MEMORY_LIMITS[case]} times less memory than reference"
    for case, (ms, mib) in GPU_LIMITS.items():
        row = find(rows["cuda"], case, "auto", "triton")
        if not row or not row.captured_ms or row.captured_ms > ms or (mib and (row.peak_mib or mib + 1) > mib):
            yield f"cuda.csv, {case}: more than {ms} ms in a CUDA graph or {mib} MiB"


def insert(text: str, marker: str, content: str) -> str:
    """Replace what stands between `<!-- marker: begin -->` and `<!-- marker: end -->`."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"expected one {begin} and one {end}")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{content}\n\n{end}", text, flags=re.DOTALL)


def draw_plots(rows: dict[str, list[Row]], folder: Path) -> None:
    from plot import captured_time, draw_cases, draw_families

    def relative_time(row: Row) -> float | None:
        plain = find(rows["cpu"], row.case, "reference")
        return ratio(row.p50_ms, plain.p50_ms) if plain else None

    both = {device: [row for row in found if row.mode == MODE] for device, found in rows.items()}
    draw_cases(both["cpu"], relative_time, "Time of a call, reference = 1", folder / "speed_cpu.png")
    draw_cases(both["cuda"], captured_time, "Time in a CUDA graph, ms", folder / "speed_cuda.png")
    draw_families(read_rows(RESULTS / "scaling_cuda.csv"), folder / "scaling_cuda.png")


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    rows = {device: read_rows(RESULTS / f"{device}.csv") for device in ("cpu", "cuda")}
    origins = {device: json.loads((RESULTS / f"{device}.json").read_text()) for device in rows}
    gpu, cpu = (
        write(rows[device], origins[device], f"benchmarks/results/{device}")
        for device, write in (("cuda", write_gpu_tables), ("cpu", write_cpu_tables))
    )
    tables = {"README.md": write_summary(rows, origins), "docs/benchmarks.md": f"{gpu}\n\n{cpu}"}
    wrong = list(exceeded_limits(rows)) if check else []
    for name, content in tables.items():
        old = (ROOT / name).read_text()
        new = insert(old, "speed table", content)
        if check and new != old:
            wrong.append(f"{name}: speed table out of date, run python benchmarks/report.py")
        if not check:
            (ROOT / name).write_text(new)
    if not check:
        draw_plots(rows, ROOT / "docs" / "pictures")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
