"""The paper's figures for a trained network: PNG files, and a JSON file of the numbers and captions behind them."""

import csv
import json
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.fabric import Fabric
from matplotlib.figure import Figure

from ...pretrained import HOME
from ..analysis import poses
from ..atomic_files import write_atomically
from ..data import CATEGORIES, Pairs, toys
from ..progress import progress_bar
from ..training.config import Config, SettingError
from ..training.environment import Environment, describe_environment, package_version
from ..training.runs import RunFolder
from ..training.vision import Vision, VisionConfig
from . import paper_charts as charts
from .charts import BLUE, FAINT, encode_figure
from .paper_charts import LearningCurves

SHIPPED_LOGS = {"smallnorb": ("smallnorb", "sst5", "sst2"), "toys": ("toys96",)}
"""Folders of a checkout's `results/` with the logs of shipped weights and, as in the paper, of the other tasks."""
AZIMUTHS = [f"{10 * code}°" for code in poses.AZIMUTHS]
ELEVATIONS = [f"{30 + 5 * code}°" for code in poses.ELEVATIONS]
DPI = 160


def write_figures(
    name: str, weights: Path, config: Config, logs: Sequence[Path], out: Path, fabric: Fabric, note: str = ""
) -> list[Path]:
    """Draw every figure of a network into a folder, with `figures.json` beside them, and return their paths.

    The config is that of the weights and names the data; each folder of `logs`, of a run or of runs that differ in
    their seed, has its learning curves drawn. The name of the weights and the note go into the JSON file.
    """
    if not isinstance(config, VisionConfig):
        raise SettingError(f"{name}: expected a network that sees stereo pairs, got one that reads sentences")
    clock = time.monotonic()
    learned = [read_learning_curves(folder) for folder in logs]
    task = Vision(config)
    network = task.restore(weights).to(fabric.device)
    pairs = load_views(task)
    with progress_bar(f"poses of {len(pairs.category):,} views", len(pairs.category)) as advance:
        mu, hit = poses.compute_poses(network, pairs, advance)
    facts = summarise(pairs, mu, hit, learned)
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for stem, figure in draw_all(pairs, mu, learned, facts):
        paths.append(out / f"{stem}.png")
        write_atomically(paths[-1], encode_figure(figure, DPI))
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
    images = []
    with progress_bar("rendering toys", len(starts)) as advance:
        for views in np.split(np.arange(len(rows)), starts[1:]):
            (instance, *_), elevation, azimuth, light = info[views].T
            angles = (30 + 5 * elevation, 10 * azimuth)
            toy = (int(category[views[0]]), int(instance))
            images.append(toys.render(*toy, *angles, light, size=config.size, seed=config.toys_seed).numpy())
            advance(1)
    return Pairs(np.concatenate(images), category, info)


def read_learning_curves(folder: Path) -> LearningCurves:
    """Read the curves of a run, or their mean over seeds: of validation, or else of training."""
    if (folder / "curves.csv").exists():  # a folder of results/
        config = json.loads((folder / "config.json").read_text())
        training, validation = (_read_table(folder / "curves.csv", split) for split in ("train", "validation"))
    else:
        runs = [RunFolder(path.parent) for path in sorted(folder.glob("seed-*/config.json"))] or [RunFolder(folder)]
        config = runs[0].read_json("config.json")
        validation = [run.validation.read() for run in runs]
        training = [run.training.read() for run in runs]
    unseen, seen = ("toys", "images") if "toys_seed" in config else ("sentences", "phrases")
    logs, over = training, f"training, {'mixed-up ' if config['mixup'] else ''}{seen}"
    if validation and all(validation):
        logs, over = validation, f"held-out {unseen}"
    if not all(logs):
        raise SettingError(f"{folder}: expected runs with logs, some have none")
    if len(logs) == 1:
        return LearningCurves(config["experiment"], over, f"batches of {config['batch_size']}", logs[0])
    n = min(len(log["epoch"]) for log in logs)  # a run that has not finished has fewer rows
    mean: dict[str, np.ndarray] = {"epoch": logs[0]["epoch"][:n]}
    for name in ("loss", "accuracy"):
        values = [log[name][:n] for log in logs]
        mean |= {name: np.mean(values, 0), f"{name}_sd": np.std(values, 0, ddof=1)}
    return LearningCurves(config["experiment"], over, f"{len(logs)} seeds", mean)


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
    yield "accuracy-by-parameters", charts.draw_by_parameters(charts.read_records("smallnorb"))
    yield "sst5-by-year", charts.draw_by_year("Accuracy on SST-5/R by year", charts.read_records("sst5"))
    yield "sst2-by-year", charts.draw_by_year("Accuracy on SST-2/R by year", charts.read_records("sst2"))
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
    """Write what each figure shows, with its numbers, from the templates in `captions.toml`."""
    turns, images = facts["whole turns"]["poses"], facts["whole turns"]["images"]
    n = len(poses.AZIMUTHS)
    values: dict[str, Any] = {}
    for task, fields in (("smallnorb", "norb author ours"), ("sst5", "sst5 ours5"), ("sst2", "sst2 ours2")):
        words = fields.split()
        values |= dict(zip(words, charts.read_records(task)[-len(words) :], strict=True))
    for name, along in (("turn", "azimuth"), ("climb", "elevation")):
        means, stress = facts[f"means by {along}"], max(facts[f"stress of maps by {along}"].values())
        values[name] = means | {"lowest": min(means["norm"]), "highest": max(means["norm"]), "stress": stress}
    values |= {
        "views": facts["views"],
        "whole": turns,
        "closing": turns["closing step over mean step"],
        "by_chance": turns["turns"] * (n - 1) / n,
        "angles": turns[poses.BY_ANGLE],
        "pixels": images[poses.BY_ANGLE],
        "curves": "; ".join(facts["curves"]),
    }
    templates = tomllib.loads(Path(__file__).with_name("captions.toml").read_text(encoding="utf-8"))
    return {name: template.format(**values) for name, template in templates.items()}


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
