"""The paper's figures for a trained network: PNG files, and a JSON file of the numbers and captions behind them."""

import csv
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from matplotlib.figure import Figure

from ...pretrained import HOME
from ..analysis import poses, records
from ..atomic_files import write_atomically
from ..data import CATEGORIES, Pairs, toys
from ..progress import progress_bar
from ..training.config import Config, SettingError
from ..training.environment import Environment, describe_environment, package_version
from ..training.runs import RunFolder
from ..training.vision import Vision, VisionConfig
from . import paper_charts as charts
from .charts import BLUE, FAINT, Log, encode_figure
from .paper_charts import LearningCurves

TITLES = {
    "smallnorb": "smallNORB",
    "sst5": "SST-5/R",
    "sst2": "SST-2/R",
    "toys96": "toys, 96x96",
    "toys": "toys, 48x48",
}
SHIPPED_LOGS = {"smallnorb": ("smallnorb", "sst5", "sst2"), "toys": ("toys96",)}
"""Folders of a checkout's `results/` with the logs of shipped weights and, as in the paper, of the other tasks."""
AZIMUTHS = [f"{10 * code}°" for code in poses.AZIMUTHS]
ELEVATIONS = [f"{30 + 5 * code}°" for code in poses.ELEVATIONS]
DPI = 160


def write_figures(
    name: str, weights: Path, config: Config, logs: Sequence[Path], out: Path, fabric: Fabric, note: str = ""
) -> list[Path]:
    """Draw every figure of a network into a folder, with `figures.json` beside them, and return their paths.

    Args:
        name: Name of the weights in the JSON file.
        weights: Their folder.
        config: The config they were trained with, which names the data.
        logs: Folders of runs, or of runs that differ in their seed, whose learning curves to draw.
        out: Folder to write.
        fabric: Where to compute.
        note: A remark for the JSON file.
    """
    if not isinstance(config, VisionConfig):
        raise SettingError(f"{name}: expected a network that sees stereo pairs, got one that reads sentences")
    clock, processor = time.monotonic(), time.process_time()
    learned = [read_learning_curves(folder) for folder in logs]
    task = Vision(config)
    network = task.restore(weights).to(fabric.device)
    pairs = load_views(task)
    with progress_bar(f"poses of {len(pairs.category):,} views", len(pairs.category)) as advance:
        mu, hit = poses.compute_poses(network, pairs, advance)
    facts = summarise(pairs, mu, hit, learned)
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    with progress_bar("drawing", 10) as advance:
        for stem, figure in draw_all(pairs, mu, learned, facts):
            png = encode_figure(figure, "LA") if stem == "samples" else encode_figure(figure, dpi=DPI)
            paths.append(out / f"{stem}.png")
            write_atomically(paths[-1], png)
            advance(1)
    captions = write_captions(facts)
    record = {
        "weights": name,
        "data": "test split of " + ("smallNORB" if config.data == "smallnorb" else f"toys of seed {config.toys_seed}"),
        **facts,
        "figures": {path.stem: captions[path.stem] for path in paths},
        "made": {
            **describe_environment(Environment(), fabric.device, note),
            **{package: package_version(package) for package in ("matplotlib", "scikit-learn")},
            "seconds": round(time.monotonic() - clock, 1),
            "processor seconds": round(time.process_time() - processor, 1),
        },
    }
    paths.append(out / "figures.json")
    write_atomically(paths[-1], (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
    return paths


def find_logs(name: str) -> list[Path]:
    """Find the logs of weights: of a run, of all its seeds, or of shipped weights in a checkout."""
    run = Path(name)
    if (run / "run.json").exists():
        return [run.parent if (run.parent / "replicate.json").exists() else run]
    folders = (HOME.parents[1] / "results" / folder for folder in SHIPPED_LOGS.get(name, ()))
    return [folder for folder in folders if folder.is_dir()]


def load_views(task: Vision) -> Pairs:
    """Load the test pairs that the figures need; of toys only these are rendered."""
    config = task.config
    if config.data == "smallnorb":
        pairs = task.pairs("test")
        return pairs.take(poses.select_views(pairs.category, pairs.info))
    category, info = toys.make_labels("test")
    rows = poses.select_views(category, info)  # ordered by toy
    category, info = category[rows], info[rows]
    _, starts = np.unique(np.stack([category, info[:, 0]]), axis=1, return_index=True)

    def render(views: np.ndarray) -> np.ndarray:
        (instance, *_), elevation, azimuth, light = info[views].T
        angles = (30.0 + 5 * elevation, 10.0 * azimuth)
        toy = (int(category[views[0]]), int(instance))
        images = toys.render(*toy, *angles, light, size=config.size, seed=config.toys_seed).numpy()
        advance(1)
        return images

    n_threads = torch.get_num_threads()  # each thread renders toys of its own, on one core
    try:
        pool = ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,))
        with progress_bar("rendering toys", len(starts)) as advance, pool:
            images = pool.map(render, np.split(np.arange(len(rows)), starts[1:]))
            return Pairs(np.concatenate(list(images)), category, info)
    finally:
        torch.set_num_threads(n_threads)


def read_learning_curves(folder: Path) -> LearningCurves:
    """Read the curves of a run, or their mean over seeds: of validation, or else of training."""
    if (folder / "curves.csv").exists():  # a folder of results/
        config = json.loads((folder / "config.json").read_text())
        training, validation = (_read_table(folder / "curves.csv", split) for split in ("train", "validation"))
    else:
        runs = [RunFolder(path.parent) for path in sorted(folder.glob("seed-*/config.json"))] or [RunFolder(folder)]
        config = runs[0].read_json("config.json")
        validation = [run.validation.read() for run in runs]
        training = [average_epochs(run.training.read()) for run in runs]
    unseen, seen = ("toys", "images") if "toys_seed" in config else ("sentences", "phrases")
    logs, over = training, f"training, {'mixed-up ' if config['mixup'] else ''}{seen}"
    if validation and all(validation):
        logs, over = validation, f"held-out {unseen}"
    if not all(logs):
        raise SettingError(f"{folder}: expected runs with logs, some have none")
    title = TITLES.get(config["experiment"], str(config["experiment"]))
    if len(logs) == 1:
        return LearningCurves(title, over, f"batches of {config['batch_size']}", logs[0])
    n = min(len(log["epoch"]) for log in logs)  # a run that has not finished has fewer rows
    mean: dict[str, np.ndarray] = {"epoch": logs[0]["epoch"][:n]}
    for name in ("loss", "accuracy"):
        values = [log[name][:n] for log in logs]
        mean |= {name: np.mean(values, 0), f"{name}_sd": np.std(values, 0, ddof=1)}
    return LearningCurves(title, over, f"{len(logs)} seeds", mean)


def average_epochs(log: Log) -> Log:
    """Average a training log to a row for each complete epoch, if it has at least five."""
    n = int(log["epoch"][-1]) if log else 0
    if n < 5:
        return log
    rows = [(log["epoch"] > k) & (log["epoch"] <= k + 1) for k in range(n)]
    averaged = {"epoch": np.arange(1.0, n + 1)}
    for name in ("loss", "accuracy"):
        values, spread = log[name], log[f"{name}_sd"]
        averaged[name] = np.array([values[row].mean() for row in rows])
        # variance within the rows of the log and between them
        averaged[f"{name}_sd"] = np.array([np.sqrt((spread[row] ** 2).mean() + values[row].var()) for row in rows])
    return averaged


def summarise(pairs: Pairs, mu: np.ndarray, hit: np.ndarray, learned: Sequence[LearningCurves]) -> dict[str, Any]:
    """Compute the numbers behind the figures of poses `mu`."""
    turns, climbs = poses.arrange_turns(pairs, mu), poses.arrange_climbs(pairs, mu)
    return {
        "views": {
            "pairs": len(hit),
            "whose class was right": int(hit.sum()),
            "toys": len(climbs),
            "lighting": poses.LIGHTING,
            "elevations of whole turns, the first drawn": [ELEVATIONS[code] for code in poses.TURN_ELEVATIONS],
            "azimuth of climbs": AZIMUTHS[0],
        },
        "whole turns": {
            "poses": poses.summarise_turns(turns),
            "pose vectors": [poses.summarise_turns(turns[:, :, :, c]) for c in range(turns.shape[3])],
            "images": poses.summarise_turns(poses.arrange_turns(pairs, pairs.images)),
        },
        "means by azimuth": poses.summarise_change(turns[:, 0]),
        "means by elevation": poses.summarise_change(climbs),
        "curves": [f"{task.name}: {task.over}, over {task.spread_over}" for task in learned],
    }


def draw_all(
    pairs: Pairs, mu: np.ndarray, learned: Sequence[LearningCurves], facts: dict[str, Any]
) -> Iterator[tuple[str, Figure]]:
    """Yield each figure with its name, and add the stress of the maps to the facts."""
    turns, climbs = poses.arrange_turns(pairs, mu), poses.arrange_climbs(pairs, mu)
    images = poses.arrange_turns(pairs, pairs.images)
    toys = _first_of_each(pairs)
    yield "accuracy-by-parameters", charts.draw_by_parameters(records.SMALLNORB)
    yield "sst5-by-year", charts.draw_by_year("Accuracy on SST-5/R by year", records.SST5)
    yield "sst2-by-year", charts.draw_by_year("Accuracy on SST-2/R by year", records.SST2)
    for along, values, labels, colours in (
        ("elevation", climbs, ELEVATIONS, charts.CLIMB_COLOURS),
        ("azimuth", turns[:, 0], AZIMUTHS, charts.TURN_COLOURS),
    ):
        maps = {name: poses.embed_in_plane(values[k].reshape(-1, values.shape[-1])) for name, k in toys.items()}
        facts[f"stress of maps by {along}"] = {name: stress for name, (_, stress) in maps.items()}
        points = [(name, flat.reshape(len(labels), -1, 2)) for name, (flat, _) in maps.items()]
        yield f"trajectories-{along}", charts.draw_trajectories(points, labels, colours)
        yield f"pose-change-{along}", charts.draw_pose_change(poses.measure_change(values), labels, along)
    curves = [
        (name, colour, poses.distance_by_angle(values).reshape(-1, poses.N_HALF_TURN))
        for name, colour, values in (("poses", BLUE, turns), ("images", FAINT, images))
    ]
    yield "full-turn", charts.draw_turn_distance(curves)
    if learned:
        yield "curves", charts.draw_learning(learned)
    yield "samples", charts.draw_samples([(name, images[k, 0]) for name, k in toys.items()], AZIMUTHS)


def write_captions(facts: dict[str, Any]) -> dict[str, str]:
    """Write what each figure shows, with its numbers."""
    *_, norb, author, ours = records.SMALLNORB
    (*_, sst5, ours_5), (*_, sst2, ours_2) = records.SST5, records.SST2
    turn, climb, n_toys = facts["means by azimuth"], facts["means by elevation"], facts["views"]["toys"]
    stress = {along: max(facts[f"stress of maps by {along}"].values()) for along in ("elevation", "azimuth")}
    maps = "Maps in two dimensions of the four pose vectors of a class capsule, for one toy of each category"
    means = "Means over toys and vectors: relative distance to the first view"
    return {
        "accuracy-by-parameters": (
            f"Networks that held the record on smallNORB, up to the paper's with {norb.accuracy:g}%. In orange what "
            "was measured here, on a copy of the images that went through JPEG: the author's weights, "
            f"{author.accuracy:g}%, and five runs of ours, {_with_deviation(ours)}."
        ),
        "sst5-by-year": (
            f"Networks that held the record on SST-5/R, up to the paper's with {sst5.accuracy:g}% over GPT-2 large. In "
            f"orange five runs of ours over the much smaller MiniLM-L6: {_with_deviation(ours_5)}."
        ),
        "sst2-by-year": (
            f"The same on SST-2/R, where the paper's {sst2.accuracy:g}% was the best of single networks for a single "
            f"task; ours over MiniLM-L6: {_with_deviation(ours_2)}."
        ),
        "trajectories-elevation": (
            f"{maps}, from the lowest elevation to the highest. Stress, the error of the distances drawn, is at most "
            f"{stress['elevation']:.0%}."
        ),
        "trajectories-azimuth": f"{maps}, around a whole turn. Stress is at most {stress['azimuth']:.0%}.",
        "pose-change-azimuth": (
            f"Pose vectors of {n_toys} toys around a whole turn, each toy in light, the mean in dark. "
            f"{means} {_at(turn['distance'], AZIMUTHS, 1, 9, 17)}; norm {_range(turn['norm'])} the first; cosine "
            f"{_at(turn['cosine'], AZIMUTHS, 1, 9, 17)}."
        ),
        "pose-change-elevation": (
            f"The same from 30° to 70° of elevation. {means} {_at(climb['distance'], ELEVATIONS, 1, 4, 8)}; norm "
            f"{_range(climb['norm'])} the first; cosine {_at(climb['cosine'], ELEVATIONS, 1, 4, 8)}."
        ),
        "full-turn": _turn_caption(facts["whole turns"]["poses"], facts["whole turns"]["images"], n_toys),
        "curves": f"Loss and accuracy by epoch, with a band of one standard deviation. {'; '.join(facts['curves'])}.",
        "samples": "One toy of each category in 18 stereo pairs, left image above right, under one lighting.",
    }


def _turn_caption(turn: dict[str, Any], images: dict[str, Any], n_toys: int) -> str:
    closing, n, n_turns = turn["closing step over mean step"], len(poses.AZIMUTHS), turn["turns"]
    poses_at, images_at = (
        "{:.2f}, {:.2f} and {:.2f}".format(*(values[poses.BY_ANGLE][k] for k in (0, 4, 8))) for values in (turn, images)
    )
    return (
        f"Distances between two views of a toy by the angle between them, with quartiles, over {n_turns} whole turns "
        f"({n_toys} toys, three elevations). The step that closes a turn, from 340° to 0°, is {closing['median']:.2f} "
        f"times the mean of its other steps (median; {closing['10% quantile']:.2f} to {closing['90% quantile']:.2f} in "
        f"four turns of five) and {turn[poses.OVER_OPPOSITE]:.2f} times the distance of opposite views. In "
        f"{turn[poses.NOT_LONGEST]} turns another step is longer; if the closing one were like any other, it would be "
        f"{n_turns * (n - 1) / n:.0f}. Over their mean, distances of poses 20°, 100° and 180° apart are {poses_at}, of "
        f"images, pixel by pixel, {images_at}."
    )


def _first_of_each(pairs: Pairs) -> dict[str, int]:
    """Return the name of the first toy of each category, and its place among all toys."""
    toys = np.unique(np.stack([pairs.category, pairs.instance], 1), axis=0)  # [t, 2]
    categories, places = np.unique(toys[:, 0], return_index=True)
    return {f"{CATEGORIES[c]} {toys[k, 1]}": int(k) for c, k in zip(categories, places, strict=True)}


def _read_table(path: Path, split: str) -> list[dict[str, np.ndarray]]:
    """Read the logs of one split from a table in `results/`: the columns for each seed of the first group of runs."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows = [row for row in rows if row["group"] == rows[0]["group"] and row["split"] == split]
    seeds = dict.fromkeys(row["seed"] for row in rows)
    columns = ("epoch", "loss", "loss_sd", "accuracy", "accuracy_sd")
    return [{c: np.array([float(row[c]) for row in rows if row["seed"] == seed]) for c in columns} for seed in seeds]


def _at(values: Sequence[float], labels: Sequence[str], *places: int) -> str:
    return ", ".join(f"{values[k]:.2f} at {labels[k]}" for k in places)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f} times"


def _with_deviation(record: records.Record) -> str:
    return f"{record.accuracy:.2f} ± {record.deviation:.2f}%"
