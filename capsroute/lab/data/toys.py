"""Rendered toys in the form of smallNORB: the images that need no download.

Five categories of ten toys, each seen by two eyes from 18 azimuths and 9 elevations under 6 lightings. A seed varies
the toys' proportions, paint and place; their kinds (an elephant, a tank lorry) are the same for every seed.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..atomic_files import atomic_write
from .pairs import CATEGORIES, SPLITS, Pairs
from .toybox.airplanes import AIRPLANES, airplane
from .toybox.animals import ANIMALS, animal
from .toybox.cars import CARS, car
from .toybox.humans import HUMANS, human
from .toybox.parts import varied
from .toybox.stage import LIGHTINGS, Toy, pictures, placed, shadows
from .toybox.trucks import TRUCKS, truck

VERSION = 2  # of the pictures: to be raised with every change of them, so that no old cache is read
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}  # as in smallNORB
N_ELEVATIONS, N_AZIMUTHS, N_LIGHTINGS = 9, 18, len(LIGHTINGS)
BATCH = 18  # views at once
MAX_WORKERS = 8  # beyond this Python's own lock holds threads up

Angles = float | Sequence[float] | np.ndarray | Tensor


def load(
    folder: Path,
    split: str,
    size: int = 96,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> Pairs:
    """Every picture of one split, 24,300 pairs, rendered on first use and then read from a cache.

    Rows are ordered by category, instance, elevation, azimuth and lighting, the last changing fastest. Devices may
    round a pixel differently; the cache keeps what the first one rendered.

    Args:
        folder: Where caches lie, each in a folder of its own.
        split: `"train"` or `"test"`: five toys of each category, none in both.
        size: Pixels along a side of an image, at least 8.
        seed: Varies the toys, 0 or more.
        device: What renders.
        progress: Show a bar while rendering.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {list(SPLITS)}, got {split!r}")
    _check_whole("size", size, 8)
    _check_whole("seed", seed, 0)
    category, info = labels(split)
    path = Path(folder) / f"toys-{VERSION}-{size}-{seed}" / f"{split}.npy"
    shape = (len(category), 2, size, size)
    if not _intact(path, shape):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file, _bar(progress, f"Rendering toys, {split}") as advance:
            _write(file, shape, _rendered(split, size, seed, torch.device(device)), advance)
    return Pairs(np.load(path, mmap_mode="r"), category, info)


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
    """Stereo pairs of one toy, `[n, 2, size, size]` uint8, left and right.

    Args:
        category: Name or place in `CATEGORIES`.
        instance: Which toy of the category, 0 to 9.
        elevation: Degrees of the eyes above the ground, 10 to 90; smallNORB has 30 to 70. One or n.
        azimuth: Degrees by which the toy is turned. One or n.
        lighting: 0 to 5. One or n.
        size: Pixels along a side, at least 8.
        seed: Varies the toy, 0 or more.
        device: What renders, and where the result lies.
    """
    _check_whole("size", size, 8)
    device = torch.device(device)
    toy = make(category, instance, seed=seed)
    given = {"elevation": elevation, "azimuth": azimuth, "lighting": lighting}
    flat = {name: torch.as_tensor(value, dtype=torch.float64).flatten() for name, value in given.items()}
    sizes = {name: len(value) for name, value in flat.items()}
    if len(set(sizes.values()) - {1}) > 1:
        raise ValueError(f"elevation, azimuth, lighting: expected one or n values each, got {list(sizes.values())}")
    up, turned, light = torch.broadcast_tensors(*flat.values())
    for name, value, low, high in (("elevation", up, 10, 90), ("lighting", light, 0, N_LIGHTINGS - 1)):
        bad = ~((value >= low) & (value <= high))
        if bad.any():
            raise ValueError(f"{name}: expected from {low} to {high}, got {value[bad][0]:g}")
    if not turned.isfinite().all():
        raise ValueError("azimuth: expected finite degrees")
    if (light != light.round()).any():
        raise ValueError(f"lighting: expected whole numbers, got {light[light != light.round()][0]:g}")
    out = []
    for e, a, k in zip(*(x.to(device).split(BATCH) for x in (up, turned, light)), strict=True):
        every = pictures(toy, a, e, shadows(toy, a), size)  # [n, lightings, 2, size, size]
        out.append(every[torch.arange(len(k), device=device), k.long()])
    return torch.cat(out) if out else torch.zeros(0, 2, size, size, dtype=torch.uint8, device=device)


def make(category: int | str, instance: int, *, seed: int = 0) -> Toy:
    """One toy, ready to be looked at."""
    known = isinstance(category, str) or category in range(len(CATEGORIES))
    name = category if isinstance(category, str) else CATEGORIES[category] if known else ""
    if name not in CATEGORIES:
        raise ValueError(f"category: expected one of {list(CATEGORIES)} or its place, got {category!r}")
    _check_whole("instance", instance, 0, 9)
    _check_whole("seed", seed, 0)
    place = CATEGORIES.index(name)
    rng = np.random.default_rng([seed, place, instance])
    match name:
        case "animal":
            solids = animal(varied(ANIMALS[instance], rng), rng)
        case "human":
            solids = human(varied(HUMANS[instance], rng), rng)
        case "airplane":
            solids = airplane(varied(AIRPLANES[instance], rng), rng)
        case "truck":
            solids = truck(varied(TRUCKS[instance], rng), rng)
        case _:
            solids = car(varied(CARS[instance], rng), rng)
    return placed(solids, rng.uniform(-0.025, 0.025, 2), rng.uniform(0.94, 1.0))


def labels(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Category `[n]` and metadata `[n, 4]` of a split's rows, see [`Pairs`][capsroute.lab.data.Pairs]."""
    axes = (
        range(len(CATEGORIES)),
        INSTANCES[split],
        range(N_ELEVATIONS),
        range(0, 2 * N_AZIMUTHS, 2),
        range(N_LIGHTINGS),
    )
    table = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 5).astype(np.int64)
    return table[:, 0].copy(), table[:, 1:].copy()


def _rendered(split: str, size: int, seed: int, device: torch.device) -> Iterator[np.ndarray]:
    """The images of each toy of a split, in the order of its labels."""
    names = [(category, instance) for category in CATEGORIES for instance in INSTANCES[split]]
    if device.type != "cpu":
        yield from (_every_view(c, i, size, seed, device) for c, i in names)
        return
    # the steps are too short to share one between cores, so each core takes toys of its own
    n_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(min(n_threads, MAX_WORKERS), initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(lambda name: _every_view(name[0], name[1], size, seed, device), names)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_threads)


def _every_view(category: str, instance: int, size: int, seed: int, device: torch.device) -> np.ndarray:
    """All pairs of one toy, `[n, 2, size, size]`."""
    toy = make(category, instance, seed=seed)
    azimuth = 20 * torch.arange(N_AZIMUTHS, dtype=torch.float64, device=device)
    thrown = shadows(toy, azimuth)
    # rings of views at once: on a CPU few enough for its memory and caches, on a GPU all, as it likes few long steps
    n_rings = max(1, 3 * 48**2 // size**2) if device.type == "cpu" else N_ELEVATIONS
    images = []
    for codes in torch.arange(N_ELEVATIONS, dtype=torch.float64, device=device).split(n_rings):
        elevation = (30 + 5 * codes).repeat_interleave(N_AZIMUTHS)
        n = len(codes)
        images.append(pictures(toy, azimuth.repeat(n), elevation, thrown.repeat(n, 1, 1, 1), size).flatten(0, 1).cpu())
    return torch.cat(images).numpy()


def _write(file: BinaryIO, shape: tuple[int, ...], pieces: Iterator[np.ndarray], advance: Callable[[], None]) -> None:
    """An array in NumPy's format, followed by a checksum, which readers of the format do not look at."""
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    checksum = 0
    for piece in pieces:
        data = piece.tobytes()
        checksum = zlib.crc32(data, checksum)
        file.write(data)
        advance()
    file.write(checksum.to_bytes(4, "little"))


def _intact(path: Path, shape: tuple[int, ...]) -> bool:
    """Whether a cache is there and as it was written."""
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            if np.lib.format.read_array_header_1_0(file) != (shape, False, np.dtype(np.uint8)):
                return False
            checksum, left = 0, int(np.prod(shape))
            while left:
                data = file.read(min(left, 1 << 20))
                if not data:
                    return False
                checksum, left = zlib.crc32(data, checksum), left - len(data)
            return file.read() == checksum.to_bytes(4, "little")
    except (FileNotFoundError, ValueError):
        return False


@contextmanager
def _bar(show: bool, label: str) -> Iterator[Callable[[], None]]:
    """A progress bar over the toys of a split; gives what to call after each."""
    if not show:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=len(CATEGORIES) * 5)
        yield lambda: bar.advance(task)


def _check_whole(name: str, value: int, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name}: expected {wanted}, got {value}")
