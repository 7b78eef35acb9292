"""Write the benchmarks' table and headline into README.md, and draw their pictures: `python benchmarks/report.py`."""

import csv
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bars import bar_table, kernel_headline
from plot import draw
from plot_scaling import draw_scaling
from records import RESULTS, ROOT, Row, read_rows
from words import compared, short, size

DEVICES = ("cpu", "cuda")
HEADLINE_SHAPES = ("smallnorb_1", "sst_1")
HEADLINE_MODE = "forward+backward"
PLOT_TITLE = "Routing by agreement: each implementation against the reference"


@dataclass(frozen=True)
class Result:
    """One run of the benchmarks on one device."""

    path: Path
    rows: list[Row]
    origin: dict[str, Any]

    @property
    def on_gpu(self) -> bool:
        return "gpu" in self.origin["machine"]

    @property
    def machine(self) -> str:
        made = self.origin["machine"]
        cores = "1 core" if made["cores"] == 1 else f"{made['cores']} cores"
        return made["gpu"] if self.on_gpu else f"{cores} of {made['cpu']}"

    @property
    def versions(self) -> str:
        named = self.origin["versions"]
        triton = f", Triton {named['triton']}" if "triton" in named else ""
        return f"PyTorch {named['torch']}{triton}, capsroute {named['capsroute']}"

    @property
    def circumstances(self) -> str:
        """Commit, command, and how busy the machine was."""
        commit = f"commit {(self.origin['commit'] or 'unknown')[:12]}"
        changed = " with changes" if self.origin["dirty"] else ""
        busy = max(self.origin.get("others_busy", {}).values(), default=None)
        said = f"{commit}{changed}, by `{self.origin['command']}`"
        if busy is not None:
            said += f", other programs taking up to {busy:.0%} of the cores"
        return said + (f"; {self.origin['note']}" if "note" in self.origin else "")


def read_results(folder: Path, prefix: str = "") -> list[Result]:
    """One per device: of `run.py`, or with its prefix of another runner."""
    paths = [path for device in DEVICES if (path := folder / f"{prefix}{device}.csv").exists()]
    return [read_result(path) for path in paths]


def read_result(path: Path) -> Result:
    return Result(path, read_rows(path), json.loads(path.with_suffix(".json").read_text()))


def in_one_thread(result: Result) -> dict[str, float]:
    """By case, what calls took whose backward pass was in the caller's thread; of the same commit, or nothing."""
    path = result.path.with_name("calls.csv")
    if not path.exists() or json.loads(path.with_suffix(".json").read_text())["commit"] != result.origin["commit"]:
        return {}
    with path.open(newline="") as file:
        return {line["case"]: float(line["own thread, ms"]) for line in csv.DictReader(file)}


def on_another_host(result: Result) -> Result | None:
    """The same on a machine whose processor is slower or faster, which calls depend on; not always of that commit."""
    path = result.path.with_stem(f"{result.path.stem}_another_host")
    return read_result(path) if path.exists() else None


def headline(results: list[Result], base: Path) -> str:
    """A line for each shape, on all devices, and one that says where the numbers come from."""
    lines = []
    for shape in HEADLINE_SHAPES:
        claims = [claim for result in results if (claim := claim_of(result, shape))]
        if claims:
            row = next(row for result in results for row in result.rows if row.shape == shape)
            sizes = f"batch {row.batch}, {row.n_inp:,} inputs, {row.n_out:,} outputs"
            lines.append(f"- `{shape}` ({sizes}), forward and backward: {'; '.join(claims)}.")
    told = [result for result in results if any(claim_of(result, shape) for shape in HEADLINE_SHAPES)]
    if told:
        files = ", ".join(f"`{_relative(result.path, base)}`" for result in told)
        lines.append(f'- That is `impl="auto"` against `reference` in the same run, from {files}.')
    for result in results:
        path, remarked = _relative(result.path, base), "note" in result.origin
        lines.append(kernel_headline(result.rows, result.machine, path, remarked))
    return "\n".join(line for line in lines if line)


def claim_of(result: Result, shape: str) -> str:
    """What `auto` gains over the reference; empty if the run does not tell."""
    for row in result.rows:
        if (row.shape, row.mode, row.rival) == (shape, HEADLINE_MODE, "auto") and row.speedup:
            claim = compared(row.speedup, "faster", "slower", "as fast")
            if row.memory_ratio:
                claim += " in " + compared(row.memory_ratio, "less memory", "more memory", "the same memory")
            return f"**{claim}** on {result.machine}"
    return ""


def kernel_table(results: list[Result], base: Path) -> str:
    """The fused kernels against their bars, and where the numbers come from."""
    text = []
    for result in results:
        if result.on_gpu:
            own_ms, source = in_one_thread(result), f"From `{_relative(result.path, base)}`, {result.circumstances}."
            if own_ms:
                source += f" Calls in one thread are from `{_relative(result.path.with_name('calls.csv'), base)}`."
            if other := on_another_host(result):
                source += f" On another host: `{_relative(other.path, base)}`, {other.circumstances}."
            text += [
                f"**{result.machine}**, fused kernels, {result.versions}, against the bars set for them: forward and"
                " backward, median time and peak memory above the inputs, gradients included. Calls are waited for."
                " PyTorch hands the backward pass to another thread and waits for it, if not told otherwise by"
                " `torch.autograd.set_multithreading_enabled(False)`: then all is in one thread.",
                bar_table(result.rows, own_ms, other and other.rows),
                source,
            ]
    return "\n\n".join(text) or "Not measured."


def tables(results: list[Result], base: Path) -> str:
    return "\n\n".join(table(result, base) for result in results if result.rows)


def table(result: Result, base: Path) -> str:
    """A run's table: a line per shape and mode, a column per rival, then what was skipped and where all comes from."""
    rivals = list(dict.fromkeys(row.rival for row in result.rows))
    told = "speed relative to `reference`, peak memory above the inputs"
    if any(row.captured_ms for row in result.rows):
        told = "median time of a call, then of one captured in a CUDA graph; peak memory above the inputs"
    cells = {(row.shape, row.mode, row.rival): cell(row, result.on_gpu) for row in result.rows}
    lines = [["layer", "batch x inputs → outputs", "pass", *rivals], ["---"] * 3 + ["---:"] * len(rivals)]
    for row in {(row.shape, row.mode): row for row in result.rows}.values():
        sizes = f"{row.batch} x {row.n_inp:,} → {row.n_out:,}"
        own = (cells.get((row.shape, row.mode, rival), "") for rival in rivals)
        lines.append([f"`{row.shape}`", sizes, row.mode.replace("+", " + "), *own])
    text = [
        f"**{result.machine}**, {result.versions}: {told}.",
        "\n".join(f"| {' | '.join(line)} |" for line in lines),
        "\n".join(skipped_lines(result.rows)),
        f"From `{_relative(result.path, base)}`, {result.circumstances}.",
    ]
    return "\n\n".join(part for part in text if part)


def cell(row: Row, on_gpu: bool) -> str:
    """Speed and memory: on a GPU times, on a CPU the ratio, without which there is memory alone."""
    if row.skipped:
        return "-"
    parts = []
    if on_gpu and (row.p50_ms or row.captured_ms):
        parts.append(" / ".join(short(ms) if ms else "-" for ms in (row.p50_ms, row.captured_ms)) + " ms")
    elif row.speedup and row.rival != "reference":
        parts.append(f"{short(row.speedup)}x")
    if row.peak_mib is not None:
        parts.append(size(row.peak_mib))
    return ", ".join(parts) + (f" ({row.picked})" if row.picked else "")


def pictures(results: list[Result], base: Path) -> str:
    """Links to the pictures of runs that have rows to draw, and where numbers come from that no table has."""
    lines = []
    for result in results:
        grows = result.path.stem.startswith("scaling")
        kind = "as the problem grows, " if grows else ""
        path = _relative(result.path.with_suffix(".png"), base)
        lines.append(f"![Time and memory of each implementation, {kind}on {result.machine}]({path})")
        if grows:
            lines.append(f"From `{_relative(result.path, base)}`, {result.circumstances}.")
    return "\n\n".join(lines)


def skipped_lines(rows: list[Row]) -> list[str]:
    """Why cells are empty, a line per rival and reason."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        if row.skipped:
            reasons.setdefault((row.rival, row.skipped), {})[f"`{row.shape}`"] = None
    return [f"- `{rival}` not on {', '.join(shapes)}: {reason}." for (rival, reason), shapes in reasons.items()]


def insert(text: str, name: str, content: str) -> str:
    """The text with new content between the markers of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    found = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    if len(found.findall(text)) != 1:
        raise typer.BadParameter(f"README: expected one {begin} with one {end} after it")
    return found.sub(lambda match: f"{match[1]}\n{content}\n\n{match[2]}", text)


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base)).as_posix()


def main(
    results: Annotated[Path, typer.Option(help="Folder to read.", show_default="benchmarks/results")] = RESULTS,
    readme: Annotated[Path, typer.Option(help="File to write into.", show_default="README.md")] = ROOT / "README.md",
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if the file is out of date.")] = False,
) -> None:
    """Bring README.md and the pictures up to date with the results."""
    found = read_results(results)
    if not found:
        raise typer.BadParameter(f"no results in {results}: python benchmarks/run.py makes them")
    old = readme.read_text()
    grown = read_results(results, "scaling_")
    new = insert(old, "headline", headline(found, readme.parent))
    new = insert(new, "benchmark table", tables(found, readme.parent))
    new = insert(new, "kernel table", kernel_table(found, readme.parent))
    if "<!-- pictures: begin -->" in new:
        new = insert(new, "pictures", pictures([*found, *grown], readme.parent))
    if check and new != old:
        typer.echo(f"{readme.name} is not what the results give: run python benchmarks/report.py", err=True)
        raise typer.Exit(1)
    if not check:
        readme.write_text(new)
        for result in found:
            subtitle = f"Forward and backward, log scales, shorter is better. {result.machine}, {result.versions}"
            draw(result.rows, PLOT_TITLE, subtitle, result.path.with_suffix(".png"))
        for result in grown:
            subtitle = f"Log scales, lower is better; a line ends at 2 s or where memory does. {result.machine}"
            draw_scaling(result.rows, f"{subtitle}, {result.versions}", result.path.with_suffix(".png"))


if __name__ == "__main__":
    typer.run(main)
