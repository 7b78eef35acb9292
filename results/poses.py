"""Measure how much of the viewpoint class capsules tell: `python results/poses.py`; `results/poses/README.md` says how.

smallNORB and the author's weights are read from CAPSROUTE_DATA. With `--report` nothing is measured, only drawn.
"""

import argparse
import csv
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch
from deletion import describe_run
from matplotlib.patches import Patch
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import avg_pool2d

import capsroute
from capsroute.lab.data import Pairs, folder, smallnorb
from capsroute.lab.report.charts import (
    BLUE,
    FAINT,
    GREEN,
    GRID,
    HALF,
    INK,
    LEGEND,
    ORANGE,
    encode_figure,
    new_axes,
    set_title,
)
from capsroute.nets import SmallNORB

OUT = Path(__file__).parent / "poses"
PICTURE = Path(__file__).parents[1] / "docs/pictures/poses.png"
AUTHOR = "official_checkpoints/smallNORB_pretrained_model_state_dict.pt"
N_COMPONENTS, N_LIGHTINGS, BATCH, EYE = 16, 6, 50, 12
PENALTIES = np.logspace(-2, 4, 13)
TARGETS = {"elevation": "variance explained", "azimuth": "variance explained", "lighting": "found, by chance 17"}
TESTS = ("unseen toy", "unseen views")
FEATURES = {
    "pose": "pose of the class capsule, 16",
    "pooled16": "pooled features, 16 components",
    "pooled": "pooled features, all 64",
    "pixels16": "pixels, 16 components",
    "pixels": "pixels, all 288",
}
NETWORKS = {"ours": "trained here", "author": "author's weights", "untrained": "untrained", "": "no network"}


def make_networks() -> dict[str, SmallNORB]:
    """Return the networks to compare."""
    torch.manual_seed(0)
    ours, untrained = capsroute.load("smallnorb"), SmallNORB()
    assert isinstance(ours, SmallNORB)
    return {"ours": ours, "author": SmallNORB.from_official(folder() / AUTHOR).eval(), "untrained": untrained.eval()}


@torch.inference_mode()
def compute_features(network: SmallNORB, pairs: Pairs) -> dict[str, np.ndarray]:
    """Return the pose of each pair's own class, `[n, 16]`, and the trunk's mean features, `[n, 64]`."""
    found: dict[str, list[torch.Tensor]] = {"pose": [], "pooled": []}
    for rows in np.array_split(np.arange(len(pairs.category)), -(-len(pairs.category) // BATCH)):
        images = torch.from_numpy(pairs.images[rows]).float() / 255
        mu = network(images).mu
        found["pose"].append(mu[torch.arange(len(rows)), torch.from_numpy(pairs.category[rows]).long()].flatten(1))
        found["pooled"].append(network.convolve(network.embed(images)).mean((2, 3)))
    return {name: torch.cat(parts).double().numpy() for name, parts in found.items()}


def make_targets(pairs: Pairs) -> dict[str, np.ndarray]:
    """Return what is read: elevation `[n, 1]`, the azimuth's cosine and sine `[n, 2]`, a column for each lighting."""
    angle = np.deg2rad(10.0 * pairs.azimuth)
    return {
        "elevation": pairs.elevation[:, None].astype(float),
        "azimuth": np.stack([np.cos(angle), np.sin(angle)], 1),
        "lighting": np.eye(N_LIGHTINGS)[pairs.lighting],
    }


def read_linearly(x: np.ndarray, y: np.ndarray, known: np.ndarray, n_components: int | None = None) -> np.ndarray:
    """Return what a linear readout, learned from the known samples, says of the others."""
    steps = [StandardScaler(), RidgeCV(PENALTIES)]
    if n_components:
        steps.insert(1, PCA(n_components, random_state=0))
    return make_pipeline(*steps).fit(x[known], y[known]).predict(x[~known]).reshape(-1, y.shape[1])


def judge(target: str, found: np.ndarray, true: np.ndarray, mean: np.ndarray) -> float:
    """Return the share of variance about the training mean that is explained, or of lightings that are found."""
    if target == "lighting":
        return float((found.argmax(1) == true.argmax(1)).mean())
    return float(1 - ((found - true) ** 2).sum() / ((mean - true) ** 2).sum())


def measure(pairs: Pairs) -> Iterator[dict[str, str | int | float]]:
    """Yield a row for every network, kind of features and toy left out."""
    pixels = avg_pool2d(torch.from_numpy(pairs.images).float(), pairs.images.shape[-1] // EYE).flatten(1).numpy()
    kinds = {("", "pixels"): pixels.astype(float)}
    for name, network in make_networks().items():
        kinds |= {(name, kind): x for kind, x in compute_features(network, pairs).items()}
        print(f"features of {name}", flush=True)
    targets = make_targets(pairs)
    for (network, kind), x in kinds.items():
        for n_components in (None,) if kind == "pose" else (None, N_COMPONENTS):
            for category in np.unique(pairs.category):
                own = pairs.category == category
                for toy in np.unique(pairs.instance[own]):
                    for test, rows, known in split_views(np.flatnonzero(own), pairs.instance, toy):
                        row = {"test": test, "network": network, "features": f"{kind}{n_components or ''}"}
                        row |= {"category": int(category), "instance": int(toy)}
                        for target, y in targets.items():
                            found = read_linearly(x[rows], y[rows], known, n_components)
                            score = judge(target, found, y[rows][~known], y[rows][known].mean(0))
                            row[target] = round(score, 5)
                        yield row


def split_views(own: np.ndarray, instance: np.ndarray, toy: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield tests by name, with their rows and which of these a readout learns from: other toys, or half the views."""
    yield "unseen toy", own, instance[own] != toy
    rows = own[instance[own] == toy]
    yield "unseen views", rows, np.random.default_rng(int(toy)).permutation(len(rows)) < len(rows) // 2


def summarise(rows: list[dict[str, str]], test: str, target: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the mean and standard error over toys, in per cent, by network and kind of features."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in (row for row in rows if row["test"] == test):
        groups.setdefault((row["network"], row["features"]), []).append(100 * float(row[target]))
    return {key: (float(np.mean(v)), float(np.std(v, ddof=1) / np.sqrt(len(v)))) for key, v in groups.items()}


def draw(rows: list[dict[str, str]]) -> bytes:
    """Draw a panel for each test and each of what is read, with a bar for each kind of features, none below zero."""
    figure, grid = new_axes(2 * HALF, 7.6, len(TESTS), len(TARGETS), sharey=True)
    colours = {"ours": BLUE, "author": GREEN, "untrained": FAINT, "": ORANGE}
    for panels, test in zip(grid, TESTS, strict=True):
        for axes, (target, how) in zip(panels, TARGETS.items(), strict=True):
            found = summarise(rows, test, target)
            bars = [(network, kind) for kind in FEATURES for network in NETWORKS if (network, kind) in found]
            for k, (network, kind) in enumerate(bars):
                mean, error = found[network, kind]
                if mean > 0:
                    axes.barh(k, mean, xerr=error, color=colours[network], ecolor=INK, height=0.72)
                else:
                    axes.text(2, k, "worse than the mean", va="center", fontsize=8, color=colours[network])
            names = [FEATURES[kind] if network in ("", "ours") else "" for network, kind in bars]
            axes.set_yticks(range(len(bars)), names)
            axes.set(xlim=(0, 100), ylim=(len(bars) - 0.4, -0.6), xlabel=f"{how}, %")
            axes.grid(axis="x", color=GRID)
            axes.grid(axis="y", visible=False)
            set_title(axes, f"{target}, {test}")
    handles = [Patch(color=colours[name]) for name in NETWORKS]
    figure.legend(handles, list(NETWORKS.values()), **LEGEND, ncols=4, labelcolor=INK, loc="outside lower center")
    return encode_figure(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="draw what was measured before")
    if not parser.parse_args().report:
        start, pairs = time.monotonic(), smallnorb.load(folder() / "smallnorb", "test")
        pairs = pairs.take((pairs.elevation % 4 == 0) & (pairs.azimuth % 4 == 0))
        rows = list(measure(pairs))
        with (OUT / "poses.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        (OUT / "record.json").write_text(
            json.dumps({"pairs": len(pairs.category), **describe_run(time.monotonic() - start)}, indent=2) + "\n"
        )
    with (OUT / "poses.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    PICTURE.write_bytes(draw(found))
    for test, target in product(TESTS, TARGETS):
        for (network, kind), (mean, error) in summarise(found, test, target).items():
            print(f"{test:13} {target:10} {NETWORKS[network]:17} {FEATURES[kind]:32} {mean:6.1f} ± {error:.1f}")


if __name__ == "__main__":
    main()
