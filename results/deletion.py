"""Measure how faithful credit is: `python results/deletion.py smallnorb`, or toys, sst5, treebank.

Inputs of the first routing layer are removed in the order of credit, of gradient times input, and of chance; the
probability of the class predicted at first is recorded. Curves, areas and circumstances go to `deletion-NAME/`.
With `--choose` nothing of the test split is read: what might have been called credit is compared on training images
or validation sentences instead, and goes to `deletion-NAME/tried.json`. `python results/deletion.py tables` writes the
tables of `docs/credit.md` from these files; with `--check` it writes nothing, and fails if they say something else.

Data lies where `capsroute` looks for it, see CAPSROUTE_DATA; toys and treebank are made on the spot.
"""

import argparse
import csv
import json
import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import capsroute
from capsroute.credit import credit, for_class
from capsroute.lab.analysis.deletion import (
    FRACTIONS,
    Deletion,
    Mean,
    attribute_inputs,
    gradient_times_input,
    measure_attributions,
    measure_deletion,
)
from capsroute.lab.data import Pairs, Phrases, folder, smallnorb, sst, toys, treebank
from capsroute.lab.predict import Judge
from capsroute.lab.report.credit_figures import deletion_curves
from capsroute.lab.report.figures import png
from capsroute.layers import Routing
from capsroute.nets import SST, SmallNORB

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "credit.md"
Sample = tuple[Tensor, Tensor]
SPLITS = {"smallnorb": "train", "toys": "train", "sst5": "validation", "treebank": "validation"}
"""What may be looked at to choose a definition."""
TITLES = {
    "smallnorb": "smallNORB (JPEG copy): parts removed",
    "toys": "Rendered toys: parts removed",
    "sst5": "SST-5: hidden states removed",
    "treebank": "Generated treebank: hidden states removed",
}
NAMES = {
    "smallnorb": "smallNORB, JPEG copy",
    "toys": "rendered toys",
    "sst5": "SST-5",
    "treebank": "generated treebank",
}
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[*TITLES, "tables"])
    parser.add_argument("--n", type=int, default=200, help="samples, drawn at random")
    parser.add_argument("--encoder", help="folder of the encoder of sst5, if not from the hub")
    parser.add_argument("--choose", action="store_true", help="compare definitions, without the test split")
    parser.add_argument("--check", action="store_true", help="only compare the tables with the files")
    given = parser.parse_args()
    if given.name == "tables":
        write_tables(given.check)
        return
    split = SPLITS[given.name] if given.choose else "test"
    out = HERE / f"deletion-{given.name}"
    out.mkdir(exist_ok=True)
    began = time.monotonic()
    layers, samples = of_texts(given, split) if given.name in ("sst5", "treebank") else of_images(given, split)
    if given.choose:
        chance = torch.Generator().manual_seed(SEED)
        found = measure_attributions(layers, ((a, mu, tried(layers, a, mu, chance)) for a, mu in samples))
    else:
        found = measure_deletion(layers, samples, seed=SEED)
    n = len(next(iter(found.probabilities.values())))
    record: dict[str, Any] = {"split": split, "samples": n, "areas": areas(found)} | circumstances(
        time.monotonic() - began
    )
    if given.choose:
        write(out / "tried.json", record)
    else:
        rivals = {name: found.difference("credit", name)._asdict() for name in found.probabilities if name != "credit"}
        write(out / "areas.json", record | {"credit less rival": rivals})
        write_curves(out / "curves.csv", found)
        drawing = deletion_curves(TITLES[given.name], found)
        (out / "curves.png").write_bytes(png(drawing))
    for name, area in record["areas"].items():
        print(f"{name:34} {area['mean']:.4f} ± {area['error']:.4f}")


def of_images(given: argparse.Namespace, split: str) -> tuple[list[Routing], Iterator[Sample]]:
    network = capsroute.load(given.name)
    assert isinstance(network, SmallNORB)
    images = toy_images(split, given.n) if given.name == "toys" else norb_images(split, given.n)
    return routings(network), (each for image in images for each in parts(network, (image[None].float() / 255,)))


def norb_images(split: str, n: int) -> Iterator[Tensor]:
    pairs: Pairs = smallnorb.load(folder() / "smallnorb", split)
    yield from torch.from_numpy(pairs.images[drawn(len(pairs.category), n)])


def toy_images(split: str, n: int) -> Iterator[Tensor]:
    category, info = toys.labels(split)
    for row in drawn(len(category), n):
        instance, elevation, azimuth, lighting = info[row].tolist()
        yield toys.render(int(category[row]), instance, 30 + 5 * elevation, 10 * azimuth, lighting)[0]


def of_texts(given: argparse.Namespace, split: str) -> tuple[list[Routing], Iterator[Sample]]:
    weights = "treebank" if given.name == "treebank" else "sst5-minilm"
    judge = Judge(weights, given.encoder)
    found: Phrases = treebank.load(folder(), split) if weights == "treebank" else sst.load(folder() / "sst", split)
    texts = [found.text[row] for row in drawn(len(found.text), given.n)]
    encoded = (judge.encoder.encode(judge.encoder.tokenize([text])) for text in texts)
    return routings(judge.network), (each for one in encoded for each in parts(judge.network, one))


@torch.no_grad()
def parts(network: SmallNORB | SST, inputs: tuple[Tensor, ...]) -> list[Sample]:
    return list(zip(*network.parts(*inputs), strict=True))


def tried(layers: list[Routing], a: Tensor, mu: Tensor, chance: torch.Generator) -> dict[str, Tensor]:
    """All that was compared: credit and its rivals, and what else could have been called so."""
    with torch.no_grad():
        found = credit(layers, (a, mu))
        scores = found.net.sum(-2)
        first = layers[0].trace(a, mu)[-1]
        second = credit(layers[1:], (first.a, first.mu))
        used = first.D_use.sum(0)
        shared = (first.D_use / used.where(used > 0, 1)) @ second.net  # in proportion to the data, whatever its votes
        winner = int(scores.argmax())
    return attribute_inputs(layers, a, mu, chance) | {
        "credit, score alone": found.net[:, winner],
        "share used": found.use[:, winner],
        "proportional": for_class(shared, scores),
        "proportional, score alone": shared[:, winner],
        "gradient times input, score alone": gradient_times_input(layers, a, mu, odds=False),
    }


def routings(network: SmallNORB | SST) -> list[Routing]:
    return [layer for layer in network.routings if isinstance(layer, Routing)]


def drawn(total: int, n: int) -> np.ndarray:
    """Which samples: the same ones each time."""
    return np.random.default_rng(SEED).permutation(total)[:n]


def areas(found: Deletion) -> dict[str, dict[str, float]]:
    measured: dict[str, Mean] = {name: found.area(name) for name in found.probabilities}
    return {name: area._asdict() for name, area in sorted(measured.items(), key=lambda item: item[1].mean)}


def circumstances(seconds: float) -> dict[str, Any]:
    from capsroute.lab.training.environment import commit, cpu_name, version  # slow to load

    words = ["FOLDER" if before == "--encoder" else word for before, word in zip(sys.argv, sys.argv[1:], strict=False)]
    return {
        "fractions": FRACTIONS,
        "seed": SEED,
        "command": " ".join(["python results/deletion.py", *words]),
        "python": platform.python_version(),
        **{name: version(name) for name in ("capsroute", "torch", "numpy", "transformers")},
        "device": cpu_name(),
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "seconds": round(seconds),
    }


def write_tables(check: bool) -> None:
    """Put the tables into the page, or see that they are there."""
    page = PAGE.read_text()
    for name, table in (("areas", areas_table()), ("tried", tried_table())):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        page = re.sub(f"{begin}.*{end}", f"{begin}\n{table}\n{end}", page, flags=re.DOTALL)
    if not check:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        sys.exit(f"{PAGE}: its tables are not those of results/; run `python results/deletion.py tables`")


def areas_table() -> str:
    rivals = ("gradient times input", "random")
    lines = [
        f"| data | samples | credit | {' | '.join(rivals)} | credit less gradient |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, record in found_in("areas.json").items():
        cells = [shown(record["areas"][order]) for order in ("credit", *rivals)]
        difference = shown(record["credit less rival"]["gradient times input"])
        lines.append(f"| {NAMES[name]} | {record['samples']} | {' | '.join(cells)} | {difference} |")
    return "\n".join(lines)


def tried_table() -> str:
    records = found_in("tried.json")
    heads = [f"{NAMES[name]}, {SPLITS[name]}, {record['samples']}" for name, record in records.items()]
    lines = [f"| order | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for order in next(iter(records.values()))["areas"]:
        lines.append(f"| {order} | {' | '.join(shown(record['areas'][order]) for record in records.values())} |")
    return "\n".join(lines)


def found_in(file: str) -> dict[str, Any]:
    paths = {name: HERE / f"deletion-{name}" / file for name in TITLES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def shown(area: dict[str, float]) -> str:
    return f"{area['mean']:.3f} ± {area['error']:.3f}".replace("-", "−")


def write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(path)


def write_curves(path: Path, found: Deletion) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["order", "removed", "probability", "standard error"])
        for name in found.probabilities:
            for place, (mean, error) in zip(found.fractions.tolist(), found.curve(name), strict=True):
                writer.writerow([name, f"{place:g}", f"{mean:.6f}", f"{error:.6f}"])


if __name__ == "__main__":
    main()
