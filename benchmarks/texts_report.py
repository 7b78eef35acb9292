"""Tables and pictures of `benchmarks/texts.py`, from the rows in `results/texts` alone, and what they are chosen by."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from heads_report import INK, format_difference, format_mean, mean_and_error, read_csv, table, write_csv
from report import insert
from texts_tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
FOLDER, PAGE = ROOT / "results/texts", ROOT / "docs/texts.md"
PICTURE = ROOT / "docs/pictures/depths.png"
SIZES = (0, 100, 300, 1000, 3000)  # training texts, 0 for all
RATES, SEEDS, FIRST_SEEDS = (5e-4, 2e-3), range(5), range(2)
HEADS = {
    "attention": "attention pooling",
    "routing": "`RoutingHead`",
    "mean": "mean pooling",
    "paper": "routing as in the paper",
}
ENCODERS = {"minilm": "MiniLM", "mpnet": "mpnet"}
BARS = {("sst2", "mpnet"): 91.5, ("sst5", "mpnet"): 52.0, ("sst2", "minilm"): 87.2, ("sst5", "minilm"): 48.7}
PHRASE_BARS = {(task.replace("sst", "phrases"), encoder): bar for (task, encoder), bar in BARS.items()}
GROUPS = {  # of test sentences, named as in `find_groups`
    "words_1-10": "up to 10 words",
    "words_11-20": "11 to 20",
    "words_21-30": "21 to 30",
    "words_31+": "more than 30",
    "no_negation": "without negation",
    "negation": "with negation",
    "no_contrast": "without contrast",
    "contrast": "with contrast",
}
TEXT = ("task", "encoder", "head", "where", "depths", "class")  # columns that hold no numbers

Row = dict[str, Any]


def write_rows(rows: Sequence[Row], name: str) -> None:
    write_csv(FOLDER / f"{name}.csv", rows)


def read_rows(name: str) -> list[Row]:
    """Return stored rows with numbers for text, none if there is no file."""
    path = FOLDER / f"{name}.csv"
    if not path.exists():
        return []
    return [{k: v if k in TEXT else json.loads(v) for k, v in row.items() if v} for row in read_csv(path)]


def find_runs(rows: list[Row], task: str, encoder: str, head: str, where: str, size: int = 0) -> list[Row]:
    setting = (task, encoder, head, where, size)
    return [r for r in rows if (r["task"], r["encoder"], r["head"], r["where"], r["size"]) == setting]


def choose_rate(runs: list[Row]) -> float:
    """Return the rate of the highest mean accuracy on validation over the first seeds, of those that have them."""
    found = {(r["rate"], r["seed"]): r["validation"] for r in runs}
    rates = [rate for rate in RATES if all((rate, seed) in found for seed in FIRST_SEEDS)]
    return max(rates, key=lambda rate: statistics.mean(found[rate, seed] for seed in FIRST_SEEDS))


def find_final(rows: list[Row], task: str, encoder: str, head: str, where: str, size: int = 0) -> list[Row]:
    """Return the tested runs of a setting, which are those at the chosen rate."""
    return [r for r in find_runs(rows, task, encoder, head, where, size) if "test" in r]


def choose_depth(rows: list[Row], task: str, encoder: str) -> int:
    """Return the depth whose probe has the highest mean accuracy on validation at its chosen rate."""

    def mean(depth: str) -> float:
        runs = find_runs(rows, task, encoder, "probe", depth)
        rate = choose_rate(runs)
        return statistics.mean(r["validation"] for r in runs if r["rate"] == rate)

    task = TASKS[task].depths_of or task
    probes = [r for r in rows if (r["task"], r["encoder"], r["head"], r["size"]) == (task, encoder, "probe", 0)]
    return int(max(sorted({r["where"] for r in probes}, key=int), key=mean))


def percent(rows: list[Row], name: str = "test") -> list[float]:
    return [100 * row[name] for row in rows if name in row]


def main_table(rows: list[Row], tasks: Sequence[str]) -> str:
    """Write test accuracy of every head, at the best depth and over depths, by encoder and task."""
    cells = {(r["encoder"], r["task"]) for r in rows if "test" in r}
    columns = [c for c in product(ENCODERS, tasks) if c in cells]
    lines = []
    for head, where in [("probe", "best"), *product(HEADS, ("best", "all"))]:
        own = []
        for encoder, task in columns:
            depth = str(choose_depth(rows, task, encoder)) if head == "probe" else where
            own.append(format_mean(percent(find_final(rows, task, encoder, head, depth))))
        if any(cell != "–" for cell in own):
            title = HEADS.get(head, "linear probe") + (", all depths" if where == "all" else "")
            lines.append([title, *own])
    return table(["head", *(f"{TASKS[task].title}, {ENCODERS[encoder]}" for encoder, task in columns)], lines)


def difference_table(rows: list[Row]) -> str:
    """Write what all depths add to the best one, and `RoutingHead` to attention pooling, in points and errors."""
    lines = []
    for encoder, task in product(ENCODERS, TASKS):
        found = {
            (head, where): percent(find_final(rows, task, encoder, head, where))
            for head, where in product(("attention", "routing"), ("best", "all"))
        }
        if any(len(values) > 1 for values in found.values()):
            own = [format_difference(found[head, "all"], found[head, "best"]) for head in ("attention", "routing")]
            own += [format_difference(found["routing", w], found["attention", w]) for w in ("best", "all")]
            lines.append([f"{TASKS[task].title}, {ENCODERS[encoder]}", *own])
    header = ["attention: all less best", "`RoutingHead`: all less best"]
    return table(["task", *header, "`RoutingHead` less attention: best", "all"], lines)


def depth_table(rows: list[Row]) -> str:
    """Write test accuracy of the probe of every depth, the one that validation prefers in bold."""
    lines = []
    for encoder, task in product(ENCODERS, TASKS):
        probes = [percent(find_final(rows, task, encoder, "probe", str(depth))) for depth in range(13)]
        if probes[0]:
            best = choose_depth(rows, task, encoder)
            cells = [f"{statistics.mean(values):.1f}" if values else "–" for values in probes]
            cells[best] = f"**{cells[best]}**"
            lines.append([f"{TASKS[task].title}, {ENCODERS[encoder]}", *cells])
    return table(["depth", *map(str, range(13))], lines)


def label_table(rows: list[Row]) -> str:
    """Write test accuracy by the number of training sentences."""
    lines = []
    for task, encoder in BARS:
        if not find_final(rows, task, encoder, "probe", "0"):
            continue
        for head, where in (("probe", ""), *product(("attention", "routing"), ("best", "all"))):
            place = where or str(choose_depth(rows, task, encoder))
            own = [percent(find_final(rows, task, encoder, head, place, size)) for size in (*SIZES[1:], 0)]
            if any(len(values) > 1 for values in own[:-1]):
                title = f"{HEADS.get(head, 'linear probe')}{', all depths' if where == 'all' else ''}"
                lines.append([f"{TASKS[task].title}, {ENCODERS[encoder]}", title, *map(format_mean, own)])
    return table(["task", "head", *(f"{size:,}" for size in SIZES[1:]), "all"], lines)


def group_table(rows: list[Row]) -> str:
    """Write test accuracy by group of sentences, of heads at the best depth or over depths as validation has it."""
    settings = [(task, encoder) for task, encoder in BARS if choose_where(rows, task, encoder, "routing")]
    lines = []
    for name, words in GROUPS.items():
        own = []
        for task, encoder in settings:
            ours, rival = (
                percent(choose_where(rows, task, encoder, h), f"test_{name}") for h in ("routing", "attention")
            )
            own += [format_mean(rival), format_mean(ours)]
        lines.append([words, *own])
    header = [
        f"{TASKS[t].title}, {ENCODERS[e]}: {head}" for t, e in settings for head in ("attention", "`RoutingHead`")
    ]
    return table(["sentences", *header], lines)


def find_shares(rows: list[Row]) -> dict[tuple[str, int], list[float]]:
    """Return by class and depth the per cent that the depth has of the lead over other classes, for each seed."""
    leads: dict[tuple[str, int], float] = {}
    for r in rows:
        leads[r["class"], r["seed"]] = leads.get((r["class"], r["seed"]), 0.0) + r["credit"]
    shares: dict[tuple[str, int], list[float]] = {}
    for r in rows:
        shares.setdefault((r["class"], r["depth"]), []).append(100 * r["credit"] / leads[r["class"], r["seed"]])
    return shares


def draw_credit(rows: list[Row]) -> None:
    """Draw each depth's share of the lead of each predicted class, mean and standard error over seeds."""
    from matplotlib.figure import Figure

    settings = [key for key in BARS if any((r["task"], r["encoder"]) == key for r in rows)]
    heights = [len(TASKS[task].classes) for task, _ in settings]
    size = (7.2, 0.6 + 0.32 * sum(heights) + 0.6 * len(heights))
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    grid = figure.subplots(len(settings), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (task, encoder) in zip(grid, settings, strict=True):
        shares = find_shares([r for r in rows if (r["task"], r["encoder"]) == (task, encoder)])
        classes, depths = TASKS[task].classes, sorted({depth for _, depth in shares})
        values = [[mean_and_error(shares[name, depth]) for depth in depths] for name in classes]
        axes.imshow([[mean for mean, _ in row] for row in values], cmap="PuOr_r", vmin=-120, vmax=120, aspect="auto")
        for y, x in product(range(len(classes)), range(len(depths))):
            words = "{:.0f} ± {:.0f}".format(*values[y][x]).replace("-", "−")
            axes.text(x, y, words, ha="center", va="center", fontsize=8, color=INK)
        axes.set_xticks(range(len(depths)), [str(depth) for depth in depths])
        axes.set_yticks(range(len(classes)), classes)
        axes.set_title(f"{TASKS[task].title}, {ENCODERS[encoder]}", loc="left", fontsize=9, color=INK)
        axes.tick_params(length=0, labelsize=8, labelcolor=INK)
        axes.spines[:].set_visible(False)
    grid[-1].set_xlabel("depth", fontsize=8, color=INK)
    figure.savefig(PICTURE, dpi=160, metadata={"Software": None})


def write_report(check: bool = False) -> list[str]:
    """Write the tables of the page and the picture, or say what is out of date."""
    rows = read_rows("runs")
    phrases = [task for task in TASKS if TASKS[task].depths_of]
    others = [task for task in TASKS if task not in ("sst5", "sst2", *phrases)]
    tables = {"sst": main_table(rows, ("sst5", "sst2")), "difference": difference_table(rows)}
    tables |= {"depth": depth_table(rows), "label": label_table(rows), "others": main_table(rows, others)}
    tables |= {"group": group_table(rows), "phrases": main_table(rows, phrases)}
    for name, bars in (("bars", BARS), ("phrase bars", PHRASE_BARS)):
        tables[name] = "\n".join(f"- {line}" for line in check_bars(rows, bars))
    old = new = PAGE.read_text()
    for name, content in tables.items():
        new = insert(new, f"{name} table", content)
    if check:
        return [] if new == old else [f"{PAGE.name}: tables out of date, run python benchmarks/texts.py --report"]
    PAGE.write_text(new)
    draw_credit(read_rows("credit"))
    return list(check_bars(rows, BARS | PHRASE_BARS))


def check_bars(rows: list[Row], bars: Mapping[tuple[str, str], float]) -> Iterator[str]:
    """Yield in words whether `RoutingHead`, at the best depth or over depths as validation has it, reaches the bars."""
    for (task, encoder), bar in bars.items():
        found = {head: choose_where(rows, task, encoder, head) for head in ("routing", "attention")}
        if all(len(runs) > 1 for runs in found.values()):
            ours, rival = (percent(runs) for runs in found.values())
            mean, error = mean_and_error(ours)
            reached = "reached" if mean >= bar else f"missed by {bar - mean:.2f}"
            where = "all depths" if found["routing"][0]["where"] == "all" else "best depth"
            words = f"{TASKS[task].title}, {ENCODERS[encoder]}: {mean:.2f} ± {error:.2f}, {where}, bar {bar} {reached}"
            yield f"{words}; less attention pooling {format_difference(ours, rival)}"


def choose_where(rows: list[Row], task: str, encoder: str, head: str) -> list[Row]:
    """Return the tested runs of a head at the best depth or over depths, whichever validation prefers."""
    both = [find_final(rows, task, encoder, head, where) for where in ("best", "all")]
    return max(both, key=lambda runs: statistics.mean(percent(runs, "validation")) if runs else 0.0)
