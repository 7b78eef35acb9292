"""How the pose of a class capsule changes as one walks around a toy, or looks at it from higher up.

A pose is four vectors of four numbers, the rows of the capsule. Axes: t toys, e elevations, s steps along a turn or a
climb, c vectors, h entries.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ...nets import SmallNORB
from ..data import Pairs
from ..errors import UserError

LIGHTING = 0  # the paper keeps it constant, and does not say which
RINGS = (4, 0, 8)  # elevations of whole turns: the middle one, which is drawn, the lowest and the highest
AZIMUTHS, ELEVATIONS = range(0, 36, 2), range(9)
N_HALF = len(AZIMUTHS) // 2
BATCH = 20
TINY = np.finfo(np.float64).tiny
NOT_LONGEST = "turns whose closing step is not the longest"
OVER_OPPOSITE = "closing step over opposite views, median"
BY_ANGLE = "distance by angle, from 20 to 180 degrees, over its mean"


class Change(NamedTuple):
    """Of each pose vector against its first: each `[t, s, c]`."""

    distance: np.ndarray  # divided by the first norm
    norm: np.ndarray  # divided by the first norm
    cosine: np.ndarray


class Turn(NamedTuple):
    """Distances along whole turns, each `[t, e]`."""

    closing: np.ndarray  # between the last view and the first
    step: np.ndarray  # between neighbouring views, mean over the others
    longest: np.ndarray  # the largest of those
    opposite: np.ndarray  # between views from opposite sides, mean


def wanted(category: np.ndarray, info: np.ndarray) -> np.ndarray:
    """Rows of the views that are needed, ordered by toy: three whole turns and a climb of each."""
    instance, elevation, azimuth, lighting = info.T
    seen = (lighting == LIGHTING) & (np.isin(elevation, RINGS) | (azimuth == AZIMUTHS[0]))
    rows = np.flatnonzero(seen)
    return rows[np.lexsort((azimuth[rows], elevation[rows], instance[rows], category[rows]))]


@torch.inference_mode()
def class_poses(
    network: SmallNORB, pairs: Pairs, tick: Callable[[int], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The pose of each pair's true class, `[n, c, h]`, and whether that class had the highest score, `[n]`."""
    kind = next(network.parameters())
    poses, hits = [], []
    for rows in torch.arange(len(pairs.category)).split(BATCH):
        images = torch.from_numpy(pairs.images[rows.numpy()]).to(kind.device, kind.dtype) / 255
        capsules = network(images)
        category = torch.from_numpy(pairs.category[rows.numpy()]).to(kind.device)
        poses.append(capsules.mu[torch.arange(len(rows)), category].cpu())
        hits.append((capsules.a.argmax(1) == category).cpu())
        if tick:
            tick(len(rows))
    return torch.cat(poses).numpy(), torch.cat(hits).numpy()


def turns(pairs: Pairs, values: np.ndarray) -> np.ndarray:
    """Values of the pairs along whole turns, `[t, e, s, ...]`, elevations as in `RINGS`."""
    return np.stack([_along(pairs, values, pairs.elevation == e, pairs.azimuth, AZIMUTHS) for e in RINGS], 1)


def climbs(pairs: Pairs, values: np.ndarray) -> np.ndarray:
    """Values of the pairs from the lowest to the highest elevation at azimuth 0, `[t, s, ...]`."""
    return _along(pairs, values, pairs.azimuth == AZIMUTHS[0], pairs.elevation, ELEVATIONS)


def change(poses: np.ndarray) -> Change:
    """What becomes of each vector of poses `[t, s, c, h]`."""
    poses = poses.astype(np.float64)
    first = poses[:, :1]
    norm, first_norm = np.linalg.norm(poses, axis=-1), np.linalg.norm(first, axis=-1)
    cosine = (poses * first).sum(-1) / np.maximum(norm * first_norm, TINY)
    size = np.maximum(first_norm, TINY)
    return Change(np.linalg.norm(poses - first, axis=-1) / size, norm / size, cosine)


def full_turn(values: np.ndarray) -> Turn:
    """How whole turns `[t, e, s, ...]` close."""
    steps, *_, opposite = _apart(values)  # each [t, e, s], the last step closes the turn
    return Turn(steps[..., -1], steps[..., :-1].mean(-1), steps[..., :-1].max(-1), opposite.mean(-1))


def by_angle(values: np.ndarray) -> np.ndarray:
    """Mean distance between views so far apart, `[t, e, 9]` from 20 to 180 degrees, their own mean being 1."""
    distance = np.stack([apart.mean(-1) for apart in _apart(values)], -1)
    return distance / np.maximum(distance.mean(-1, keepdims=True), TINY)


def turn_facts(values: np.ndarray) -> dict[str, Any]:
    """What whole turns `[t, e, s, ...]` do, in a few numbers over all toys and elevations."""
    turn = full_turn(values)
    closing = turn.closing / turn.step
    low, middle, high = (float(q) for q in np.quantile(closing, (0.1, 0.5, 0.9)))
    return {
        "turns": closing.size,
        "closing step over mean step": {"median": middle, "10% quantile": low, "90% quantile": high},
        NOT_LONGEST: int((turn.closing <= turn.longest).sum()),
        OVER_OPPOSITE: float(np.median(turn.closing / turn.opposite)),
        BY_ANGLE: by_angle(values).mean((0, 1)).tolist(),
    }


def change_facts(poses: np.ndarray) -> dict[str, Any]:
    """Means over toys and vectors along poses `[t, s, c, h]`, one for each step."""
    return {name: values.mean((0, 2)).tolist() for name, values in change(poses)._asdict().items()}


def embed(points: np.ndarray) -> tuple[np.ndarray, float]:
    """A map `[n, 2]` of points `[n, h]` that keeps distances as well as it can, and its stress (Kruskal's, 0 to 1)."""
    try:
        from sklearn.manifold import MDS
    except ModuleNotFoundError:
        raise UserError("scikit-learn is missing, which draws maps of poses: pip install scikit-learn") from None
    points = points.astype(np.float64)
    # of several random beginnings the best, always the same ones
    found = np.asarray(MDS(n_components=2, n_init=8, init="random", random_state=0).fit_transform(points))
    true, drawn = (np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (points, found))
    return found, float(np.sqrt(((true - drawn) ** 2).sum() / np.maximum((true**2).sum(), TINY)))


def _apart(values: np.ndarray) -> list[np.ndarray]:
    """Distances between views one step apart, two, and so on to opposite ones, each `[t, e, s]`."""
    flat = values.reshape(*values.shape[:3], -1).astype(np.float64)
    flat -= flat.mean(2, keepdims=True)  # squares of smaller numbers lose less when they are subtracted
    products = flat @ flat.swapaxes(2, 3)  # [t, e, s, s]
    squares = np.diagonal(products, axis1=2, axis2=3)
    distance = np.sqrt(np.maximum(squares[..., None] + squares[..., None, :] - 2 * products, 0))
    view = np.arange(len(AZIMUTHS))
    return [distance[..., view, (view + k) % len(view)] for k in range(1, N_HALF + 1)]


def _along(pairs: Pairs, values: np.ndarray, chosen: np.ndarray, steps: np.ndarray, wanted: range) -> np.ndarray:
    """Values `[t, s, ...]` of the chosen pairs, a row for each toy in the order of categories and instances."""
    rows = np.flatnonzero(chosen & (pairs.lighting == LIGHTING))
    rows = rows[np.lexsort((steps[rows], pairs.instance[rows], pairs.category[rows]))]
    toys = len(np.unique(np.stack([pairs.category[rows], pairs.instance[rows]]), axis=1).T)
    if not toys or steps[rows].tolist() != toys * list(wanted):
        raise UserError("pairs: expected every view of each toy along a turn and a climb, some are missing or unknown")
    return values[rows].reshape(toys, len(wanted), *values.shape[1:])
