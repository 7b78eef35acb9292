"""Write the accuracy and deletion tables of README.md and docs/ from the files here: `python results/report.py`.

With `--check` nothing is written; the exit status is 1 if a table is out of date or a claim does not hold.
"""

import csv
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
HEADS = {"routing": "routing", "attention": "attention pooling", "linear": "linear probe of mean-pooled states"}
TASKS = {"sst5": "SST-5, frozen MiniLM-L6", "sst2": "SST-2, frozen MiniLM-L6"}
SMALLNORB = "smallNORB (JPEG)"
IMPLS = {"moments": "`moments`", "triton": "`triton`", "reference": "`reference`", "blocked": "`blocked`"}
DELETION_DATA = {
    "smallnorb": "smallNORB, JPEG copy",
    "toys": "rendered toys",
    "sst5": "SST-5",
    "treebank": "generated treebank",
}
MAX_PICTURE_BYTES = 400_000


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def select_runs(folder: str, **where: str) -> list[dict[str, str]]:
    runs = read_csv(HERE / folder / "runs.csv")
    return [run for run in runs if all(run[name] == value for name, value in where.items())]


def format_accuracy(runs: list[dict[str, str]]) -> str:
    """Format the mean over runs and, where there are several, their standard deviation, in per cent."""
    values = [100 * int(run["right"]) / int(run["total"]) for run in runs]
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def author_accuracy() -> str:
    record = json.loads((HERE / "smallnorb/author_weights.json").read_text())
    return f"{100 * record['right'] / record['total']:.2f}"


def markdown_table(header: list[str], rows: list[list[str]], n_text: int) -> str:
    """Format a table whose first columns are text and whose others are numbers."""
    rules = f"|{'---|' * n_text}{'---:|' * (len(header) - n_text)}"
    lines = [f"| {' | '.join(line)} |" for line in [header, *rows]]
    return "\n".join([lines[0], rules, *lines[1:]])


def accuracy_table() -> str:
    """Write a row for every network that was trained, and one for the author's weights."""

    def row(data: str, network: str, runs: list[dict[str, str]]) -> list[str]:
        impl = IMPLS.get(runs[0]["implementation"], "–")
        return [data, network, impl, f"{int(runs[0]['parameters']):,}", str(len(runs)), format_accuracy(runs)]

    header = ["data", "network", "implementation that trained it", "parameters", "runs", "test accuracy, %"]
    rows = [row(SMALLNORB, "routing", select_runs("smallnorb", implementation=impl)) for impl in ("moments", "triton")]
    rows.append(
        [SMALLNORB, "weights published by the paper's author", "the author's", "271,688", "1", author_accuracy()]
    )
    for task, data in TASKS.items():
        rows += [row(data, words, select_runs(task, group=head)) for head, words in HEADS.items()]
    rows.append(row("rendered toys, 96x96", "routing, 30 epochs", select_runs("toys96")))
    rows.append(row("rendered toys, 48x48", "routing, `make demo` on two cores", select_runs("toys48")))
    treebank = {"treebank": "generated treebank", "new sentences": "generated treebank, new sentences"}
    rows += [
        row(data, "routing, on two cores", select_runs("treebank", group=group)) for group, data in treebank.items()
    ]
    return markdown_table(header, rows, 3)


def accuracy_summary() -> str:
    """Write the short table of the README: routing, and what it is compared with."""
    rows = []
    for impl in ("moments", "triton"):
        runs = select_runs("smallnorb", implementation=impl)
        rows.append(
            [SMALLNORB, IMPLS[impl], str(len(runs)), format_accuracy(runs), f"author's weights {author_accuracy()}"]
        )
    for task, data in TASKS.items():
        runs = select_runs(task, group="routing")
        attention = format_accuracy(select_runs(task, group="attention"))
        impl = IMPLS[runs[0]["implementation"]]
        rows.append([data, impl, str(len(runs)), format_accuracy(runs), f"attention pooling {attention}"])
    return markdown_table(["data", "trained by", "runs", "routing, %", "for comparison, %"], rows, 2)


def areas_table() -> str:
    """Write areas under the deletion curve on test splits."""
    others = ["gradient times input", "random"]
    rows = []
    for data, record in json.loads((HERE / "deletion/areas.json").read_text()).items():
        areas = [format_mean(record["areas"][name]) for name in ("credit", *others)]
        difference = format_mean(record["credit minus other"]["gradient times input"])
        rows.append([DELETION_DATA[data], str(record["samples"]), *areas, difference])
    return markdown_table(["data", "samples", "credit", *others, "credit minus gradient"], rows, 1)


def definitions_table() -> str:
    """Write areas of the definitions of credit that were compared on training and validation data."""
    records = json.loads((HERE / "deletion/definitions.json").read_text())
    header = [f"{DELETION_DATA[name]}, {record['split']}, {record['samples']}" for name, record in records.items()]
    names = next(iter(records.values()))["areas"]
    rows = [[name, *(format_mean(record["areas"][name]) for record in records.values())] for name in names]
    return markdown_table(["order", *header], rows, 1)


def format_mean(area: dict[str, float]) -> str:
    return f"{area['mean']:.3f} ± {area['error']:.3f}".replace("-", "−")


def insert(text: str, marker: str, content: str) -> str:
    """Replace what stands between `<!-- marker: begin -->` and `<!-- marker: end -->`."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"expected one {begin} and one {end}")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{content}\n\n{end}", text, flags=re.DOTALL)


def failed_claims() -> Iterator[str]:
    """Yield what README or docs claim and the files here do not show."""
    for data, record in json.loads((HERE / "deletion/areas.json").read_text()).items():
        if (record["split"], record["samples"]) != ("test", 200):
            yield f"deletion/areas.json, {data}: expected 200 test samples"
        for name, difference in record["credit minus other"].items():
            if difference["mean"] + 2 * difference["error"] >= 0:
                yield f"deletion/areas.json, {data}: credit is not better than {name} by two standard errors"
    page = " ".join((ROOT / "docs/gallery.md").read_text().split())
    for path in sorted((HERE / "figures").glob("*/figures.json")):
        facts = json.loads(path.read_text())
        if not {"torch", "command", "commit", "seconds"} <= facts["made"].keys():
            yield f"{path}: versions, command, commit or seconds are missing"
        if facts["figures"].get("full-turn", "") not in page:
            yield f"docs/gallery.md: caption of {path.parent.name}/full-turn differs from figures.json"
        for picture in path.parent.glob("*.png"):
            if picture.stat().st_size > MAX_PICTURE_BYTES:
                yield f"{picture}: more than {MAX_PICTURE_BYTES:,} bytes"
            if f"figures/{path.parent.name}/{picture.name}" not in page:
                yield f"docs/gallery.md: does not show {path.parent.name}/{picture.name}"


def draw_smallnorb(target: Path) -> None:
    """Draw training loss and accuracy of the runs trained by `moments`, every seed in light and the mean in dark."""
    from matplotlib.figure import Figure

    rows = [row for row in read_csv(HERE / "smallnorb/curves.csv") if row["group"] == "moments"]
    figure = Figure(figsize=(8, 3), layout="constrained", dpi=150)
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        runs: dict[str, list[float]] = {}
        for row in rows:
            runs.setdefault(row["seed"], []).append(float(row[name]))
        epochs = range(1, len(runs["0"]) + 1)
        for values in runs.values():
            axes.plot(epochs, values, color="#9ab8e0", linewidth=0.8)
        axes.plot(
            epochs, [statistics.mean(v) for v in zip(*runs.values(), strict=True)], color="#1f3f77", linewidth=1.5
        )
        axes.set(xlabel="epoch", title=f"training {name}, with mixup")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.savefig(target)


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    tables: dict[str, dict[str, Any]] = {
        "README.md": {"accuracy table": accuracy_summary()},
        "docs/benchmarks.md": {"accuracy table": accuracy_table()},
        "docs/credit.md": {"areas": areas_table(), "definitions": definitions_table()},
    }
    wrong = list(failed_claims()) if check else []
    for name, contents in tables.items():
        old = new = (ROOT / name).read_text()
        for marker, content in contents.items():
            new = insert(new, marker, content)
        if check and new != old:
            wrong.append(f"{name}: table out of date, run python results/report.py")
        if not check:
            (ROOT / name).write_text(new)
    if not check:
        draw_smallnorb(HERE / "smallnorb/curves.png")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
