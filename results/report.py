"""Write the table of results into README.md, and draw curves, all from the files here: `python results/report.py`.

With `--check` it writes nothing, and fails if README.md says something else.
"""

import csv
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- accuracy table: begin -->", "<!-- accuracy table: end -->"
HEADS = {"linear": "linear probe of mean-pooled states", "attention": "attention pooling", "routing": "**routing**"}
SEEDED = [("smallNORB, JPEG copy", "**routing**, paper's regime", HERE / "smallnorb")]
SEEDED += [
    (f"{name}, frozen MiniLM-L6", words, HERE / task / head)
    for task, name in (("sst5", "SST-5/R"), ("sst2", "SST-2/R"))
    for head, words in HEADS.items()
]
SINGLE = [
    ("rendered toys, 96x96", "**routing**, paper's regime, 30 epochs", HERE / "toys96"),
    ("rendered toys, 48x48", "**routing**, `make demo` on two cores", HERE / "toys-demo"),
    ("generated treebank", "**routing**, `capsroute train treebank` on two cores", HERE / "treebank"),
    ("generated treebank, fresh sentences", "**routing**, the same with `treebank_seed=7`", HERE / "treebank-fresh"),
]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def spread(folder: Path) -> tuple[int, float, float]:
    """Number of runs, mean and standard deviation of their accuracies, from what each run left."""
    found = [read(path)["accuracy"] for path in sorted(folder.glob("seed-*/test.json"))]
    return len(found), statistics.mean(found), statistics.stdev(found)


def table() -> str:
    """A row for each result; test accuracy of final weights."""
    lines = ["| data | network | parameters | runs | test accuracy, % |", "|---|---|---:|---:|---:|"]
    for data, network, folder in SEEDED:
        n, mean, deviation = spread(folder)
        size = read(folder / "seed-0/run.json")["parameters"]
        lines.append(f"| {data} | {network} | {size:,} | {n} | {100 * mean:.2f} ± {100 * deviation:.2f} |")
    official = read(HERE / "smallnorb/official.json")
    named = f"| {SEEDED[0][0]} | weights published by the paper's author | 271,688 | 1 |"
    lines.insert(3, f"{named} {100 * official['right'] / official['total']:.2f} |")
    for data, network, folder in SINGLE:
        accuracy, size = read(folder / "test.json")["accuracy"], read(folder / "run.json")["parameters"]
        lines.append(f"| {data} | {network} | {size:,} | 1 | {100 * accuracy:.2f} |")
    return "\n".join(lines)


def log(path: Path) -> dict[str, list[float]]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def by_epoch(columns: dict[str, list[float]], name: str) -> list[float]:
    """The mean of a log's column over each epoch."""
    last = int(max(columns["epoch"]))
    rows = list(zip(columns["epoch"], columns[name], strict=True))
    return [statistics.mean(v for epoch, v in rows if k < epoch <= k + 1) for k in range(last)]


def draw_smallnorb(target: Path) -> None:
    """Loss and accuracy in training, each seed in light and their mean in dark."""
    from matplotlib.figure import Figure

    logs = [log(path) for path in sorted((HERE / "smallnorb").glob("seed-*/log.csv"))]
    figure = Figure(figsize=(8, 3), layout="constrained", dpi=150)
    for axes, (name, title) in zip(
        figure.subplots(1, 2), {"loss": "loss", "accuracy": "accuracy"}.items(), strict=True
    ):
        runs = [by_epoch(columns, name) for columns in logs]
        epochs = range(1, len(runs[0]) + 1)
        for run in runs:
            axes.plot(epochs, run, color="#9ab8e0", linewidth=0.8)
        mean = [statistics.mean(values) for values in zip(*runs, strict=True)]
        axes.plot(epochs, mean, color="#1f3f77", linewidth=1.5)
        axes.set(xlabel="epoch", title=f"training {title}, mixed-up images")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.savefig(target)


def main() -> None:
    text = README.read_text()
    block = f"{BEGIN}\n\n{table()}\n\n{END}"
    written = re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)
    if "--check" in sys.argv:
        if written != text:
            sys.exit("README.md: its table of results is not that of results/; run python results/report.py")
        return
    README.write_text(written)
    draw_smallnorb(HERE / "smallnorb/curves.png")


if __name__ == "__main__":
    main()
