"""Measure how faithful credit is: `python results/deletion.py smallnorb`, or toys, sst5, treebank.

The inputs of the first routing layer are removed in the order of credit, of gradient times input, or at random, and the
probability of the class predicted from all inputs is recorded. Areas, curves and a plot go to `results/deletion/`.
With `--definitions` the script compares candidate definitions of credit, on training or validation data only.
`python results/report.py` then updates the tables of `docs/credit.md`.

Data is read from CAPSROUTE_DATA; toys and treebank are generated.
"""

import argparse
import csv
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import capsroute
from capsroute.credit import credit, for_class
from capsroute.lab.analysis.deletion import (
    Deletion,
    attribute_inputs,
    gradient_times_input,
    measure_deletion,
)
from capsroute.lab.data import folder, smallnorb, sst, toys, treebank
from capsroute.lab.inference import Predictor
from capsroute.lab.report.charts import (
    BLUE,
    FAINT,
    HALF,
    INK,
    LEGEND,
    ORANGE,
    encode_figure,
    new_axes,
    plot_curve,
    set_title,
)
from capsroute.layers import Routing
from capsroute.nets import SST, SmallNORB

OUT = Path(__file__).parent / "deletion"
Sample = tuple[Tensor, Tensor]
DEVELOPMENT_SPLITS = {"smallnorb": "train", "toys": "train", "sst5": "validation", "treebank": "validation"}
TITLES = {
    "smallnorb": "smallNORB (JPEG copy): parts removed",
    "toys": "Rendered toys: parts removed",
    "sst5": "SST-5: hidden states removed",
    "treebank": "Generated treebank: hidden states removed",
}
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how faithful credit is.")
    parser.add_argument("data", choices=TITLES)
    parser.add_argument("--samples", type=int, default=200, help="number of random samples")
    parser.add_argument("--encoder", help="folder of the encoder of sst5, if not from the hub")
    parser.add_argument("--definitions", action="store_true", help="compare definitions, without the test split")
    args = parser.parse_args()
    split = DEVELOPMENT_SPLITS[args.data] if args.definitions else "test"
    start = time.monotonic()
    load = load_texts if args.data in ("sst5", "treebank") else load_images
    layers, samples = load(args, split)
    attribute = attribute_by_candidates if args.definitions else None
    measured = measure_deletion(layers, samples, attribute=attribute, seed=SEED)
    areas = {name: measured.area(name) for name in measured.probabilities}
    record: dict[str, Any] = {
        "split": split,
        "samples": len(next(iter(measured.probabilities.values()))),
        "areas": {name: area._asdict() for name, area in sorted(areas.items(), key=lambda item: item[1].mean)},
        **describe_run(time.monotonic() - start),
    }
    if args.definitions:
        update_json(OUT / "definitions.json", args.data, record)
    else:
        others = [name for name in areas if name != "credit"]
        record["credit minus other"] = {name: measured.difference("credit", name)._asdict() for name in others}
        update_json(OUT / "areas.json", args.data, record)
        update_curves(OUT / "curves.csv", args.data, measured)
        (OUT / f"{args.data}.png").write_bytes(encode_figure(draw_deletion(TITLES[args.data], measured)))
    for name, area in record["areas"].items():
        print(f"{name:34} {area['mean']:.4f} ± {area['error']:.4f}")


def load_images(args: argparse.Namespace, split: str) -> tuple[list[Routing], Iterator[Sample]]:
    network = capsroute.load(args.data)
    assert isinstance(network, SmallNORB)
    images = render_toys(split, args.samples) if args.data == "toys" else load_smallnorb(split, args.samples)
    return routings(network), (part for image in images for part in parts(network, (image[None].float() / 255,)))


def load_smallnorb(split: str, n: int) -> Iterator[Tensor]:
    pairs = smallnorb.load(folder() / "smallnorb", split)
    yield from torch.from_numpy(pairs.images[sample_rows(len(pairs.category), n)])


def render_toys(split: str, n: int) -> Iterator[Tensor]:
    category, info = toys.make_labels(split)
    for row in sample_rows(len(category), n):
        instance, elevation, azimuth, lighting = info[row].tolist()
        yield toys.render(int(category[row]), instance, 30 + 5 * elevation, 10 * azimuth, lighting)[0]


def load_texts(args: argparse.Namespace, split: str) -> tuple[list[Routing], Iterator[Sample]]:
    judge = Predictor("treebank" if args.data == "treebank" else "sst5-minilm", encoder=args.encoder)
    phrases = treebank.load(split) if args.data == "treebank" else sst.load(folder() / "sst", split)
    texts = [phrases.text[row] for row in sample_rows(len(phrases.text), args.samples)]
    encoder = judge.preprocessing.model
    encoded = (encoder.encode(encoder.tokenize([text])) for text in texts)
    return routings(judge.network), (part for inputs in encoded for part in parts(judge.network, inputs))


@torch.no_grad()
def parts(network: SmallNORB | SST, inputs: tuple[Tensor, ...]) -> list[Sample]:
    return list(zip(*network.parts(*inputs), strict=True))


def routings(network: SmallNORB | SST) -> list[Routing]:
    return [layer for layer in network.routings if isinstance(layer, Routing)]


def sample_rows(total: int, n: int) -> np.ndarray:
    return np.random.default_rng(SEED).permutation(total)[:n]


def attribute_by_candidates(
    layers: Sequence[Routing], a: Tensor, mu: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Attribute the prediction to inputs by credit, by the baselines, and by other definitions of credit."""
    with torch.no_grad():
        found = credit(layers, (a, mu))
        scores = found.net.sum(-2)
        first = layers[0].trace(a, mu)[-1]
        second = credit(layers[1:], (first.a, first.mu))
        used = first.D_use.sum(0)
        proportional = (first.D_use / used.where(used > 0, 1)) @ second.net  # by data used, whatever it votes for
        winner = int(scores.argmax())
    return attribute_inputs(layers, a, mu, generator) | {
        "credit, score alone": found.net[:, winner],
        "share used": found.use[:, winner],
        "proportional": for_class(proportional, scores),
        "proportional, score alone": proportional[:, winner],
        "gradient times input, score alone": gradient_times_input(layers, a, mu, odds=False),
    }


def draw_deletion(title: str, deletion: Deletion) -> Figure:
    """Draw deletion curves with bands of two standard errors."""
    figure, ((axes,),) = new_axes(HALF + 0.6, 3.6)
    for name, colour in {"credit": BLUE, "gradient times input": ORANGE, "random": FAINT}.items():
        mean, error = np.array(deletion.curve(name)).T
        area = deletion.area(name)
        label = f"{name}, area {area.mean:.3f} ± {area.error:.3f}"
        plot_curve(axes, 100 * deletion.fractions.numpy(), mean, 2 * error, colour, label, percent=True)
    figure.legend(**LEGEND, labelcolor=INK, loc="outside lower left")
    axes.set(xlim=(0, 100), ylim=(0, 101))
    axes.set(xlabel="removed, highest first, % of inputs", ylabel="probability of the class, %")
    set_title(axes, title)
    return figure


def describe_run(seconds: float) -> dict[str, Any]:
    from capsroute.lab.training.environment import cpu_name, git_commit, package_version  # slow to load

    words = ["FOLDER" if before == "--encoder" else word for before, word in zip(sys.argv, sys.argv[1:], strict=False)]
    return {
        "seed": SEED,
        "command": " ".join([f"python results/{Path(sys.argv[0]).name}", *words]),
        "python": platform.python_version(),
        **{name: package_version(name) for name in ("capsroute", "torch", "numpy", "transformers")},
        "device": cpu_name(),
        "threads": torch.get_num_threads(),
        "commit": git_commit(),
        "seconds": round(seconds),
    }


def update_json(path: Path, data: str, record: dict[str, Any]) -> None:
    records = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(records | {data: record}, indent=2) + "\n")


def update_curves(path: Path, data: str, measured: Deletion) -> None:
    """Replace the rows of one dataset."""
    header, *rows = csv.reader(path.read_text().splitlines())
    rows = [row for row in rows if row[0] != data]
    for name in measured.probabilities:
        for fraction, (mean, error) in zip(measured.fractions.tolist(), measured.curve(name), strict=True):
            rows.append([data, name, f"{fraction:g}", f"{mean:.6f}", f"{error:.6f}"])
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


if __name__ == "__main__":
    main()
