"""All of the paper's figures at once, the numbers behind them, and a sentence on each."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import poses, records
from ..data import CATEGORIES, Pairs
from . import paper
from .figures import BLUE, FAINT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AZIMUTHS = [f"{10 * code}°" for code in poses.AZIMUTHS]
ELEVATIONS = [f"{30 + 5 * code}°" for code in poses.ELEVATIONS]


def facts_of(pairs: Pairs, mu: np.ndarray, hit: np.ndarray, learned: Sequence[paper.Learning]) -> dict[str, Any]:
    """What poses `mu` of the views do, in numbers, and what the curves are of."""
    turns, climbs = poses.turns(pairs, mu), poses.climbs(pairs, mu)
    return {
        "views": {
            "pairs": len(hit),
            "whose class was right": int(hit.sum()),
            "toys": len(climbs),
            "lighting": poses.LIGHTING,
            "elevations of whole turns, the first drawn": [ELEVATIONS[code] for code in poses.RINGS],
            "azimuth of climbs": AZIMUTHS[0],
        },
        "whole turns": {
            "poses": poses.turn_facts(turns),
            "pose vectors": [poses.turn_facts(turns[:, :, :, c]) for c in range(turns.shape[3])],
            "images": poses.turn_facts(poses.turns(pairs, pairs.images)),
        },
        "means by azimuth": poses.change_facts(turns[:, 0]),
        "means by elevation": poses.change_facts(climbs),
        "curves": [f"{panel.name}: {panel.over}, over {panel.spread_over}" for panel in learned],
    }


def drawn(
    pairs: Pairs, mu: np.ndarray, learned: Sequence[paper.Learning], facts: dict[str, Any]
) -> Iterator[tuple[str, "Figure"]]:
    """Each figure with its name; the maps' stresses are added to the facts."""
    turns, climbs, images = poses.turns(pairs, mu), poses.climbs(pairs, mu), poses.turns(pairs, pairs.images)
    toys = _one_of_each(pairs)
    yield "accuracy-by-parameters", paper.by_parameters(records.SMALLNORB)
    yield "sst5-by-year", paper.by_year("Accuracy on SST-5/R by year", records.SST5)
    yield "sst2-by-year", paper.by_year("Accuracy on SST-2/R by year", records.SST2)
    for along, values, labels, colours in (
        ("elevation", climbs, ELEVATIONS, paper.CLIMB),
        ("azimuth", turns[:, 0], AZIMUTHS, paper.TURN),
    ):
        maps = {name: poses.embed(values[k].reshape(-1, values.shape[-1])) for name, k in toys.items()}
        facts[f"stress of maps by {along}"] = {name: stress for name, (_, stress) in maps.items()}
        walks = [paper.Walk(name, points.reshape(len(labels), -1, 2)) for name, (points, _) in maps.items()]
        yield f"trajectories-{along}", paper.trajectories(walks, labels, colours)
        yield f"pose-change-{along}", paper.pose_change(poses.change(values), labels, along)
    by_angle = [
        (name, colour, poses.by_angle(values).reshape(-1, poses.N_HALF))
        for name, colour, values in (("poses", BLUE, turns), ("images", FAINT, images))
    ]
    yield "full-turn", paper.turn_distance(by_angle)
    if learned:
        yield "curves", paper.learning(learned)
    yield "samples", paper.samples([(name, images[k, 0]) for name, k in toys.items()], AZIMUTHS)


def captions(facts: dict[str, Any]) -> dict[str, str]:
    """What each figure shows, with its numbers; how to read them is left to the reader."""
    maps = "Maps in two dimensions of the four pose vectors of a class capsule, for one toy of each category"
    stress = {along: max(facts[f"stress of maps by {along}"].values()) for along in ("elevation", "azimuth")}
    return {
        **_of_records(),
        "trajectories-elevation": (
            f"{maps}, from the lowest elevation to the highest. Stress, the error of the distances drawn, is at most "
            f"{stress['elevation']:.0%}."
        ),
        "trajectories-azimuth": f"{maps}, around a whole turn. Stress is at most {stress['azimuth']:.0%}.",
        **_of_changes(facts),
        "full-turn": _of_turns(facts),
        "curves": f"Loss and accuracy by epoch, with a band of one standard deviation. {'; '.join(facts['curves'])}.",
        "samples": "One toy of each category in 18 stereo pairs, left image above right, under one lighting.",
    }


def _of_records() -> dict[str, str]:
    *_, norb, author, ours = records.SMALLNORB
    (*_, sst5, ours_5), (*_, sst2, ours_2) = records.SST5, records.SST2
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
    }


def _of_changes(facts: dict[str, Any]) -> dict[str, str]:
    turn, climb = facts["means by azimuth"], facts["means by elevation"]
    means = "Means over toys and vectors: relative distance to the first view"
    return {
        "pose-change-azimuth": (
            f"Pose vectors of {facts['views']['toys']} toys around a whole turn, each toy in light, the mean in dark. "
            f"{means} {_at(turn['distance'], AZIMUTHS, 1, 9, 17)}; norm {_span(turn['norm'])} the first; cosine "
            f"{_at(turn['cosine'], AZIMUTHS, 1, 9, 17)}."
        ),
        "pose-change-elevation": (
            f"The same from 30° to 70° of elevation. {means} {_at(climb['distance'], ELEVATIONS, 1, 4, 8)}; norm "
            f"{_span(climb['norm'])} the first; cosine {_at(climb['cosine'], ELEVATIONS, 1, 4, 8)}."
        ),
    }


def _of_turns(facts: dict[str, Any]) -> str:
    turn, images = facts["whole turns"]["poses"], facts["whole turns"]["images"]
    closing, n, n_turns = turn["closing step over mean step"], len(poses.AZIMUTHS), turn["turns"]
    low, high = closing["10% quantile"], closing["90% quantile"]
    opposite, longer = (turn[name] for name in (poses.OVER_OPPOSITE, poses.NOT_LONGEST))
    return (
        "Distances between two views of a toy by the angle between them, with quartiles, over "
        f"{n_turns} whole turns ({facts['views']['toys']} toys, three elevations). The step that closes a turn, from "
        f"340° to 0°, is {closing['median']:.2f} times the mean of its other steps (median; {low:.2f} to {high:.2f} in "
        f"four turns of five) and {opposite:.2f} times the distance of opposite views. In {longer} turns another step "
        f"is longer; if the closing one were like any other, it would be {n_turns * (n - 1) / n:.0f}. Over their mean, "
        f"distances of poses 20°, 100° and 180° apart are {_angles(turn)}, of images, pixel by pixel, "
        f"{_angles(images)}."
    )


def _one_of_each(pairs: Pairs) -> dict[str, int]:
    """The first toy of each category: its name, and its place among all toys."""
    toys = np.unique(np.stack([pairs.category, pairs.instance], 1), axis=0)  # [t, 2]
    places = {int(category): k for k, category in reversed(list(enumerate(toys[:, 0])))}
    return {f"{CATEGORIES[category]} {toys[k, 1]}": k for category, k in sorted(places.items())}


def _angles(turn: dict[str, Any]) -> str:
    """Relative distances of views 20, 100 and 180 degrees apart."""
    near, far, opposite = (turn[poses.BY_ANGLE][k] for k in (0, 4, 8))
    return f"{near:.2f}, {far:.2f} and {opposite:.2f}"


def _at(values: Sequence[float], labels: Sequence[str], *places: int) -> str:
    return ", ".join(f"{values[k]:.2f} at {labels[k]}" for k in places)


def _with_deviation(record: records.Record) -> str:
    return f"{record.accuracy:.2f} ± {record.deviation:.2f}%"


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f} times"
