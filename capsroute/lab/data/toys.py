"""Rendered toys in the form of smallNORB: images that need no download.

Five categories of ten toys, each seen by two eyes from 18 azimuths and 9 elevations under 6 lightings. A seed varies
the toys' proportions, paint and position; their kinds (an elephant, a tank lorry) are the same for every seed.
"""

import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..atomic_files import cached_array
from ..progress import progress_bar
from .pairs import CATEGORIES, INSTANCES, Pairs
from .toybox.creatures import build_animal, build_human
from .toybox.stage import LIGHTINGS, Toy, cast_shadows, place_toy, render_views
from .toybox.vehicles import build_airplane, build_car, build_truck

VERSION = 2  # of the images: raise it with every change to them, so that no old cache is read
N_ELEVATIONS, N_AZIMUTHS, N_LIGHTINGS = 9, 18, len(LIGHTINGS)
BATCH = 18  # views
MAX_WORKERS = 8  # more threads wait for Python's interpreter lock
BUILDERS: dict[str, Any] = dict(
    zip(CATEGORIES, (build_animal, build_human, build_airplane, build_truck, build_car), strict=True)
)
TOYS = tomllib.loads(Path(__file__).with_name("toybox").joinpath("toys.toml").read_text(encoding="utf-8"))

Angles = float | Sequence[float] | np.ndarray | Tensor


def load(folder: Path, split: str, size: int = 96, *, seed: int = 0, device: str | torch.device = "cpu") -> Pairs:
    """Return the 24,300 pairs of a split, rendered on first use and then memory-mapped from a cache.

    Rows are ordered by category, instance, elevation, azimuth and lighting, the last changing fastest. Devices may
    round a pixel differently; the cache holds the images of the first one.

    Args:
        folder: Holds a folder for each cache.
        split: `"train"` or `"test"`: five toys of each category, none in both.
        size: Pixels along a side of an image, at least 8.
        seed: Varies the toys, 0 or more.
        device: Renders the images.
    """
    category, info = make_labels(split)
    path, shape = Path(folder) / f"toys-{VERSION}-{size}-{seed}" / f"{split}.npy", (len(category), 2, size, size)
    images = cached_array(path, shape, lambda: _render_split(split, size, seed, torch.device(device)))
    return Pairs(images, category, info)


def render(
    category: int | str,
    instance: int,
    elevation: Angles,
    azimuth: Angles,
    lighting: int | Sequence[int] | np.ndarray | Tensor,
    *,
    size: int = 96,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Tensor:
    """Render stereo pairs of one toy, `[n, 2, size, size]` uint8, left and right.

    Args:
        category: Name or index in `CATEGORIES`.
        instance: Index of the toy in its category, 0 to 9.
        elevation: Degrees of the eyes above the ground, 10 to 90; smallNORB has 30 to 70. One value or n.
        azimuth: Degrees by which the toy is turned. One value or n.
        lighting: 0 to 5. One value or n.
        size: Pixels along a side, at least 8.
        seed: Varies the toy, 0 or more.
        device: Renders the images and holds the result.
    """
    device, toy = torch.device(device), build_toy(category, instance, seed=seed)
    flat = [torch.as_tensor(value, dtype=torch.float64).flatten() for value in (elevation, azimuth, lighting)]
    up, turned, light = (value.to(device) for value in torch.broadcast_tensors(*flat))
    out = []
    for e, a, k in zip(*(value.split(BATCH) for value in (up, turned, light)), strict=True):
        views = render_views(toy, a, e, cast_shadows(toy, a), size)  # [n, lightings, 2, size, size]
        out.append(views[torch.arange(len(k), device=device), k.long()])
    return torch.cat(out) if out else torch.zeros(0, 2, size, size, dtype=torch.uint8, device=device)


def build_toy(category: int | str, instance: int, *, seed: int = 0) -> Toy:
    """Build one toy, ready to be rendered."""
    category = category if isinstance(category, str) else CATEGORIES[category]
    rng = np.random.default_rng([seed, list(BUILDERS).index(category), instance])
    spec = {name: _vary_floats(column[instance], rng) for name, column in TOYS[category].items()}
    spec |= {name: rng.uniform(low, high) for name, (low, high) in TOYS["paints"][category].items()}
    return place_toy(
        list(BUILDERS[category](SimpleNamespace(**spec))), rng.uniform(-0.025, 0.025, 2), rng.uniform(0.94, 1.0)
    )


def _vary_floats(value: Any, rng: np.random.Generator) -> Any:
    """Return the value with every float, also within lists, changed by at most 5% of itself."""
    if isinstance(value, list):
        return [_vary_floats(part, rng) for part in value]
    return value * (1 + 0.05 * rng.uniform(-1, 1)) if isinstance(value, float) else value


def make_labels(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return category `[n]` and metadata `[n, 4]` of a split's rows, see [`Pairs`][capsroute.lab.data.Pairs]."""
    views = range(N_ELEVATIONS), range(0, 2 * N_AZIMUTHS, 2), range(N_LIGHTINGS)
    axes = np.meshgrid(range(len(CATEGORIES)), INSTANCES[split], *views, indexing="ij")
    table = np.stack(axes, axis=-1).reshape(-1, 5).astype(np.int64)
    return table[:, 0].copy(), table[:, 1:].copy()


def _render_split(split: str, size: int, seed: int, device: torch.device) -> Iterator[np.ndarray]:
    """Yield the images of each toy of a split, in the order of its labels."""
    toys = [(category, instance) for category in CATEGORIES for instance in INSTANCES[split]]
    # single steps are too short to share between cores, so on a CPU each core renders whole toys
    n_threads = torch.get_num_threads()
    n_workers = min(n_threads, MAX_WORKERS) if device.type == "cpu" else 1
    pool = ThreadPoolExecutor(n_workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        with progress_bar(f"Rendering toys, {split}", len(toys)) as advance:
            for images in pool.map(lambda toy: _render_toy(toy[0], toy[1], size, seed, device), toys):
                yield images
                advance()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_threads)


def _render_toy(category: str, instance: int, size: int, seed: int, device: torch.device) -> np.ndarray:
    """Render all pairs of one toy, `[n, 2, size, size]`."""
    toy = build_toy(category, instance, seed=seed)
    azimuth = 20 * torch.arange(N_AZIMUTHS, dtype=torch.float64, device=device)
    shadows = cast_shadows(toy, azimuth)
    # elevations at once: on a CPU few enough for its caches, on a GPU all, because it likes few long steps
    at_once = max(1, 3 * 48**2 // size**2) if device.type == "cpu" else N_ELEVATIONS
    images = []
    for codes in torch.arange(N_ELEVATIONS, dtype=torch.float64, device=device).split(at_once):
        n, elevation = len(codes), (30 + 5 * codes).repeat_interleave(N_AZIMUTHS)
        views = render_views(toy, azimuth.repeat(n), elevation, shadows.repeat(n, 1, 1, 1), size)
        images.append(views.flatten(0, 1).cpu())
    return torch.cat(images).numpy()
