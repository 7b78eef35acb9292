"""The fused kernels against their rivals and their bars, in words and tables."""

from cases import BARS, CASES
from records import Row, ratio
from words import compared, size

MODE = "forward+backward"
HEADLINE_CASE = "smallnorb_1_b20"
NAMES = {"reference": "`reference`", "compiled": "it compiled", "moments compiled": "compiled `moments`"}
NOT_MEASURED = "not measured"


def find(rows: list[Row], case: str, rival: str) -> Row | None:
    """A row that was measured."""
    same = (row for row in rows if (row.shape, row.rival, row.mode) == (case, rival, MODE))
    return next((row for row in same if row.p50_ms or row.captured_ms), None)


def kernel_headline(rows: list[Row], machine: str, path: str, remarked: bool = False) -> str:
    """What the kernels gain on one case; empty if the run does not tell. Of a run with a remark it points there."""
    fused, plain = find(rows, HEADLINE_CASE, "triton"), find(rows, HEADLINE_CASE, "reference")
    if not fused or not plain:
        return ""
    shape = CASES[HEADLINE_CASE]
    sizes = f"batch {shape.batch}, {shape.n_inp:,} inputs, {shape.n_out:,} outputs"
    gain = compared(ratio(plain.p50_ms, fused.p50_ms) or 1, "faster", "slower", "as fast")
    memory = compared(ratio(plain.peak_mib, fused.peak_mib) or 1, "less memory", "more memory", "the same memory")
    others = [
        f"{compared(gained, 'faster', 'slower', 'as fast')} than {name}"
        for rival, name in NAMES.items()
        if (row := find(rows, HEADLINE_CASE, rival)) and (gained := ratio(row.captured_ms, fused.captured_ms))
    ]
    captured = f"; captured in a CUDA graph, {', '.join(others)}" if others else ""
    return (
        f"- `smallnorb_1` ({sizes}), by fused kernels on {machine}: **{gain} in {memory}** than `reference`{captured};"
        f" from `{path}`{', with the remark below its table' if remarked else ''}."
    )


def bar_table(rows: list[Row], own_ms: dict[str, float], elsewhere: list[Row] | None = None) -> str:
    """A line per bar: what was asked, what is reached captured in a graph and called in several ways, and the memory.

    Args:
        rows: Of a run.
        own_ms: By case, what calls take whose backward pass is in the caller's thread.
        elsewhere: Of a run on another host, if there is one.
    """
    ways = ["captured in a CUDA graph", "called, all in one thread", "called"]
    ways += [] if elsewhere is None else ["called, on another host"]
    lines = [["case", "bar", *ways, "peak memory"], ["---"] + ["---:"] * (len(ways) + 2)]
    for case, bar in BARS.items():
        shape, row, other = CASES[case], find(rows, case, "triton"), find(elsewhere or [], case, "triton")
        name = f"`{case}`: {shape.batch} x {shape.n_inp:,} → {shape.n_out:,}"
        asked = f"{bar.ms:g} ms" + (f", {size(bar.mib)}" if bar.mib else "")
        times = row and row.captured_ms, row and own_ms.get(case), row and row.p50_ms, other and other.p50_ms
        told = [judged(ms, bar.ms, f"{ms:.4g} ms") if ms else NOT_MEASURED for ms in times[: len(ways)]]
        memory = row and row.peak_mib
        told.append(NOT_MEASURED if memory is None else judged(memory, bar.mib, size(memory)))
        lines.append([name, asked, *told])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def judged(value: float, bar: float | None, text: str) -> str:
    return text if bar is None else f"{text}, {'met' if value <= bar else 'missed'}"
