"""Tasks on which `benchmarks/heads.py` compares heads: features of places, each split drawn once and stored.

Axes: b samples, k kinds, n places, d features.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

SPLITS = ("train", "validation", "test")
TREEBANK_ENCODER = Path(__file__).resolve().parents[1] / "capsroute/weights/treebank/encoder"
TREEBANK_DEPTHS, MINILM_DEPTHS = (2, 4), (6,)
MAX_TOKENS = 64
N_POINTS = 48
N_OWN, N_STRAY = 6, 6  # parts of a scene that belong to its thing, and parts that do not
ORDER = torch.tensor([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]])  # height of each part in each thing


class Split(NamedTuple):
    """Samples of a task."""

    x: Tensor  # features [b, n, d], of several kinds [b, k, n, d], or images [b, channels, rows, columns]
    mask: Tensor  # [b, n], true for places that count
    y: Tensor  # [b]


class Task(NamedTuple):
    """What to learn, and for how long."""

    title: str
    short: str
    n_classes: int
    load: Callable[[Path], list[Split]]  # from a folder of data, as `CAPSROUTE_DATA` names one
    n_steps: int
    n_channels: int = 0
    """Channels of images, for which a small trunk is trained with the head; 0 where features are given."""
    n_kinds: int | None = None


class Convolutions(nn.Module):
    """Three convolutions, one of which halves rows and columns; locations `[b, n, 32 + 2]` end in their coordinates."""

    def __init__(self, n_channels: int):
        super().__init__()
        strides = (2, 2, 2) if n_channels > 1 else (1, 2, 1)
        sizes = zip((n_channels, 16, 32), (16, 32, 32), strides, strict=True)
        convolutions = [nn.Conv2d(before, after, 3, stride, padding=1) for before, after, stride in sizes]
        self.layers = nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.ReLU())))

    def forward(self, x: Tensor) -> Tensor:
        maps = self.layers(x)
        return torch.cat([maps.flatten(2).mT, grid(*maps.shape[2:]).expand(len(maps), -1, -1)], -1)


def grid(rows: int, columns: int) -> Tensor:
    """Return the row and the column of each location, from -1 to 1, `[rows * columns, 2]`."""
    return torch.cartesian_prod(torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns))


def load_digits(_: Path) -> list[Split]:
    """Return scikit-learn's digits, 8x8 pixels: 1,000 for training, 297 for validation, 500 for the test."""
    from sklearn.datasets import load_digits as read_digits

    pixels, labels = map(torch.from_numpy, read_digits(return_X_y=True))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    x, y = pixels[order].float().view(-1, 1, 8, 8) / 8 - 1, labels[order]
    return [Split(x[part], everywhere(len(y[part]), 16), y[part]) for part in cut(1000, 297, 500)]


def load_patches(folder: Path) -> list[Split]:
    """Return the digits as 16 patches of 2x2 pixels, each with its row and column."""

    def patches(x: Tensor) -> Tensor:
        return torch.cat([nn.functional.unfold(x, 2, stride=2).mT, grid(4, 4).expand(len(x), -1, -1)], -1)

    return [split._replace(x=patches(split.x)) for split in load_digits(folder)]


def load_toys(_: Path) -> list[Split]:
    """Return rendered toys, stereo pairs of 32x32 pixels; splits differ in the toys' proportions and in the views."""
    from capsroute.lab.data import toys

    def draw(seeds: range, n_views: int) -> Split:
        random = torch.Generator().manual_seed(seeds.start)
        images, classes = [], []
        for seed in seeds:
            for category in range(5):
                for instance in range(10):
                    angles = torch.rand(2, n_views, generator=random)
                    lighting = torch.randint(toys.N_LIGHTINGS, (n_views,), generator=random)
                    views = toys.render(
                        category, instance, 30 + 40 * angles[0], 360 * angles[1], lighting, size=32, seed=seed
                    )
                    images.append(views)
                    classes += [category] * n_views
        x, y = torch.cat(images).float() / 128 - 1, torch.tensor(classes)
        return Split(x, everywhere(len(y), 16), y)

    return [draw(range(4), 12), draw(range(4, 6), 8), draw(range(6, 9), 10)]


def load_points(_: Path) -> list[Split]:
    """Return points inside the solids of toys, each toy turned at random about the vertical."""
    from capsroute.lab.data.toys import build_toy

    def draw(seeds: range, n_clouds: int) -> Split:
        random = np.random.default_rng(seeds.start)
        toys = [(build_toy(c, k, seed=seed).solids, c) for seed in seeds for c in range(5) for k in range(10)]
        clouds = [(sample_points(solids, random), c) for solids, c in toys for _ in range(n_clouds)]
        x = torch.tensor(np.stack([points for points, _ in clouds]), dtype=torch.float32)
        return Split(x, everywhere(len(x), N_POINTS), torch.tensor([c for _, c in clouds]))

    return [draw(range(4), 15), draw(range(4, 6), 10), draw(range(6, 9), 10)]


def sample_points(solids: list, random: np.random.Generator) -> np.ndarray:
    """Return `[N_POINTS, 3]`: a solid is the hull of ellipsoids, so any mean of points in them lies in the solid."""
    points = []
    for solid in (solids[k] for k in random.integers(len(solids), size=N_POINTS)):
        inside = random.normal(size=(len(solid.rims), 3))
        inside *= random.random((len(inside), 1)) ** (1 / 3) / np.linalg.norm(inside, axis=1, keepdims=True)
        corners = np.einsum("mij,mj->mi", solid.rims[:, :, :3], inside) + solid.rims[:, :, 3]
        points.append(random.dirichlet(np.full(len(corners), 0.5)) @ corners)
    angle = random.uniform(0, 2 * np.pi)
    turned = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    cloud = np.stack(points) @ turned.T
    cloud -= cloud.mean(0)
    return 1.5 * cloud / np.abs(cloud).max() + random.normal(scale=0.02, size=cloud.shape)


def load_sets(_: Path) -> list[Split]:
    """Return scenes of two to twelve parts, as `examples/own_model.py` draws them but with more stray parts."""

    def draw(n: int, seed: int) -> Split:
        random = torch.Generator().manual_seed(seed)
        things = torch.randint(3, (n,), generator=random)
        own_kinds = torch.arange(N_OWN).remainder(3).expand(n, -1)
        heights = ORDER[things].gather(1, own_kinds)
        own = torch.stack([torch.zeros_like(heights), heights], -1) + 0.1 * torch.randn(n, N_OWN, 2, generator=random)
        stray = 4 * torch.rand(n, N_STRAY, 2, generator=random) - 2
        kinds = torch.cat([own_kinds, torch.randint(3, (n, N_STRAY), generator=random)], 1)
        places = torch.cat([own, stray], 1) + 2 * torch.rand(n, 1, 2, generator=random) - 1  # the thing's own middle
        there = torch.rand(n, N_OWN + N_STRAY, generator=random) < 0.8
        return Split(torch.cat([places, one_hot(kinds, 3)], -1), there, things)

    return [draw(4000, 0), draw(1000, 1), draw(2000, 2)]


def load_treebank(_: Path) -> list[Split]:
    """Return generated film reviews as hidden states of the tiny encoder that the package ships."""
    from capsroute.lab.data.treebank import generate_sentences

    sizes = zip(SPLITS, (3000, 600, 1200), strict=True)
    trees = [list(generate_sentences(0, split, size)) for split, size in sizes]
    texts = [([tree.text() for tree in split], [tree.label for tree in split]) for split in trees]
    return encode(TREEBANK_ENCODER, texts, TREEBANK_DEPTHS)


def load_sst(folder: Path) -> list[Split]:
    """Return whole sentences of SST as hidden states of MiniLM, which lies in the folder as `minilm`."""
    from capsroute.lab.data.sst import FILES
    from capsroute.lab.data.trees import extract_phrases, read_trees

    splits = [extract_phrases(read_trees(folder / "sst/trees" / FILES[s]), roots_only=True) for s in SPLITS]
    return encode(folder / "minilm", [(split.text, split.label.tolist()) for split in splits], MINILM_DEPTHS)


def drop_neutral(splits: list[Split]) -> list[Split]:
    """Return the sentences of SST-5 that are not neutral, negative or positive."""
    kept = [Split(*(t[split.y != 2] for t in split)) for split in splits]
    return [split._replace(y=(split.y > 2).long()) for split in kept]


def encode(name: Path, texts: list[tuple[list[str], list[int]]], depths: tuple[int, ...]) -> list[Split]:
    """Return hidden states `[b, k, n, d]` of texts, or `[b, n, d]` of one depth, standardised by those for training."""
    from capsroute.lab.encoders import Encoder

    encoder, found, mean, std = Encoder(name, max_tokens=MAX_TOKENS), [], torch.tensor(0.0), torch.tensor(1.0)
    for rows, labels in texts:
        ids = encoder.tokenize(rows)
        order = sorted(range(len(ids)), key=lambda k: len(ids[k]))
        flat: list[Tensor] = [torch.empty(0)] * len(ids)
        for batch in (order[k : k + 64] for k in range(0, len(order), 64)):
            mask, states = encoder.encode([ids[k] for k in batch])
            for k, own, here in zip(batch, states[:, :, list(depths)], mask.bool(), strict=True):
                flat[k] = own[here].half()  # [n, k, d]
        if not found:
            sample = torch.cat(flat[:2000]).float()
            mean, std = sample.mean(0), sample.std(0).clamp(min=1e-3)  # a feature may be constant
        flat = [((states - mean) / std).half() for states in flat]
        lengths = torch.tensor([len(states) for states in flat])
        x = pad_sequence(flat, batch_first=True).movedim(2, 1).contiguous()  # [b, k, n, d]
        mask = torch.arange(x.shape[2]) < lengths[:, None]
        found.append(Split(x if len(depths) > 1 else x.squeeze(1), mask, torch.tensor(labels)))
    return found


def everywhere(b: int, n: int) -> Tensor:
    return torch.ones(b, n, dtype=torch.bool)


def cut(*sizes: int) -> list[slice]:
    """Return slices of consecutive sizes."""
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


TASKS = {
    "patches": Task("digits, patches", "patches", 10, load_patches, 600),
    "digits": Task("digits, feature maps", "digits", 10, load_digits, 600, n_channels=1),
    "toys": Task("rendered toys, feature maps", "toys", 5, load_toys, 600, n_channels=2),
    "points": Task("points in toys", "points", 5, load_points, 600),
    "sets": Task("parts that must agree", "sets", 3, load_sets, 600),
    "treebank": Task("generated reviews, tiny encoder", "reviews", 5, load_treebank, 600, n_kinds=2),
    "sst5": Task("SST-5, frozen MiniLM", "SST-5", 5, load_sst, 801),
    "sst2": Task("SST-2, frozen MiniLM", "SST-2", 2, lambda folder: drop_neutral(load_sst(folder)), 648),
}


def load_splits(name: str, folder: Path, cache: Path) -> list[Split]:
    """Return the splits of a task, made on first use and then read from the cache."""
    path = cache / f"{name}.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save([tuple(split) for split in TASKS[name].load(folder)], path)
    return [Split(*split) for split in torch.load(path)]
