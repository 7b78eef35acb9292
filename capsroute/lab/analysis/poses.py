"""How the pose of a class capsule changes with the viewpoint: around a toy, or up over it.

A pose is four vectors of four numbers, the rows of the capsule. Axes: t toys, e elevations, s steps along a turn or a
climb, c vectors, h entries.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ...nets import SmallNORB
from ..data import Pairs
from ..errors import UserError, import_extra

LIGHTING = 0  # the paper fixes the lighting, and does not say which
TURN_ELEVATIONS = (4, 0, 8)  # the middle one, which is drawn, the lowest and the highest
AZIMUTHS, ELEVATIONS = range(0, 36, 2), range(9)
N_HALF_TURN = len(AZIMUTHS) // 2
BATCH = 20
TINY = np.finfo(np.float64).tiny
NOT_LONGEST = "turns whose closing step is not the longest"
OVER_OPPOSITE = "closing step over opposite views, median"
BY_ANGLE = "distance by angle, from 20 to 180 degrees, over its mean"


class PoseChange(NamedTuple):
    """Change of each pose vector relative to the first view, `[t, s, c]` each."""

    distance: np.ndarray  # divided by the first norm
    norm: np.ndarray  # divided by the first norm
    cosine: np.ndarray


def select_views(category: np.ndarray, info: np.ndarray) -> np.ndarray:
    """Return the rows of the views that the figures need, ordered by toy: three full turns and a climb of each."""
    instance, elevation, azimuth, lighting = info.T
    on_path = np.isin(elevation, TURN_ELEVATIONS) | (azimuth == AZIMUTHS[0])
    rows = np.flatnonzero((lighting == LIGHTING) & on_path)
    return rows[np.lexsort((azimuth[rows], elevation[rows], instance[rows], category[rows]))]


@torch.inference_mode()
def compute_poses(
    network: SmallNORB, pairs: Pairs, advance: Callable[[int], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the pose of each pair's true class, `[n, c, h]`, and whether that class was predicted, `[n]`."""
    parameter = next(network.parameters())
    poses, hits = [], []
    for rows in torch.arange(len(pairs.category)).split(BATCH):
        images = torch.from_numpy(pairs.images[rows.numpy()]).to(parameter.device, parameter.dtype) / 255
        capsules = network(images)
        category = torch.from_numpy(pairs.category[rows.numpy()]).to(parameter.device)
        poses.append(capsules.mu[torch.arange(len(rows)), category].cpu())
        hits.append((capsules.a.argmax(1) == category).cpu())
        if advance:
            advance(len(rows))
    return torch.cat(poses).numpy(), torch.cat(hits).numpy()


def arrange_turns(pairs: Pairs, values: np.ndarray) -> np.ndarray:
    """Arrange a value of each pair along full turns, `[t, e, s, ...]`, elevations as in `TURN_ELEVATIONS`."""
    return np.stack(
        [_arrange(pairs, values, pairs.elevation == e, pairs.azimuth, AZIMUTHS) for e in TURN_ELEVATIONS], 1
    )


def arrange_climbs(pairs: Pairs, values: np.ndarray) -> np.ndarray:
    """Arrange a value of each pair from the lowest to the highest elevation at azimuth 0, `[t, s, ...]`."""
    return _arrange(pairs, values, pairs.azimuth == AZIMUTHS[0], pairs.elevation, ELEVATIONS)


def measure_change(poses: np.ndarray) -> PoseChange:
    """Compare each vector of poses `[t, s, c, h]` with that of the first view."""
    poses = poses.astype(np.float64)
    first = poses[:, :1]
    norm, first_norm = np.linalg.norm(poses, axis=-1), np.linalg.norm(first, axis=-1)
    cosine = (poses * first).sum(-1) / np.maximum(norm * first_norm, TINY)
    size = np.maximum(first_norm, TINY)
    return PoseChange(np.linalg.norm(poses - first, axis=-1) / size, norm / size, cosine)


def summarise_change(poses: np.ndarray) -> dict[str, Any]:
    """Average the change of poses `[t, s, c, h]` over toys and vectors, a value for each step."""
    return {name: values.mean((0, 2)).tolist() for name, values in measure_change(poses)._asdict().items()}


def distance_by_angle(values: np.ndarray) -> np.ndarray:
    """Compute the mean distance between views 20 to 180 degrees apart, `[t, e, 9]`, divided by its own mean."""
    distance = np.stack([steps.mean(-1) for steps in _view_distances(values)], -1)
    return distance / np.maximum(distance.mean(-1, keepdims=True), TINY)


def summarise_turns(values: np.ndarray) -> dict[str, Any]:
    """Summarise how full turns `[t, e, s, ...]` close, over all toys and elevations."""
    steps, *_, opposite = _view_distances(values)  # [t, e, s] each; the last step closes the turn
    closing, others = steps[..., -1], steps[..., :-1]
    low, middle, high = np.quantile(closing / others.mean(-1), [0.1, 0.5, 0.9]).tolist()
    return {
        "turns": closing.size,
        "closing step over mean step": {"median": middle, "10% quantile": low, "90% quantile": high},
        NOT_LONGEST: int((closing <= others.max(-1)).sum()),
        OVER_OPPOSITE: float(np.median(closing / opposite.mean(-1))),
        BY_ANGLE: distance_by_angle(values).mean((0, 1)).tolist(),
    }


def embed_in_plane(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Embed points `[n, h]` in two dimensions by multidimensional scaling; return `[n, 2]` and Kruskal's stress."""
    scaling = import_extra("sklearn.manifold").MDS(n_components=2, n_init=8, init="random", random_state=0)
    points = points.astype(np.float64)
    embedded = np.asarray(scaling.fit_transform(points))
    true, drawn = (np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (points, embedded))
    return embedded, float(np.sqrt(((true - drawn) ** 2).sum() / np.maximum((true**2).sum(), TINY)))


def _view_distances(values: np.ndarray) -> list[np.ndarray]:
    """Compute distances between views one step apart, two, and so on to opposite ones, `[t, e, s]` each."""
    flat = values.reshape(*values.shape[:3], -1).astype(np.float64)
    flat -= flat.mean(2, keepdims=True)  # less cancellation between smaller numbers
    products = flat @ flat.swapaxes(2, 3)  # [t, e, s, s]
    squares = np.diagonal(products, axis1=2, axis2=3)
    distance = np.sqrt(np.maximum(squares[..., None] + squares[..., None, :] - 2 * products, 0))
    view = np.arange(len(AZIMUTHS))
    return [distance[..., view, (view + k) % len(view)] for k in range(1, N_HALF_TURN + 1)]


def _arrange(pairs: Pairs, values: np.ndarray, on_path: np.ndarray, steps: np.ndarray, expected: range) -> np.ndarray:
    """Arrange values as `[t, s, ...]`, a row for each toy in the order of categories and instances."""
    rows = np.flatnonzero(on_path & (pairs.lighting == LIGHTING))
    rows = rows[np.lexsort((steps[rows], pairs.instance[rows], pairs.category[rows]))]
    n_toys = len(np.unique(np.stack([pairs.category[rows], pairs.instance[rows]]), axis=1).T)
    if not n_toys or steps[rows].tolist() != n_toys * list(expected):
        raise UserError("pairs: expected every view of each toy along a turn and a climb, some are missing or unknown")
    return values[rows].reshape(n_toys, len(expected), *values.shape[1:])
