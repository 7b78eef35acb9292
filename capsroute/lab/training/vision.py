"""Recognising toys from stereo pairs: smallNORB's, or rendered ones."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from ...nets import SmallNORB
from ...nets.smallnorb import SMALLEST
from ..analysis.accuracy import bootstrap_interval, wilson_interval
from ..data import CATEGORIES, Pairs, folder
from .config import Config
from .task import Inputs, Result


@dataclass(frozen=True, kw_only=True)
class VisionConfig(Config):
    """Runs that recognise stereo pairs."""

    data: Literal["toys", "smallnorb"] = "toys"
    folder: str = ""  # where the data lies; CAPSROUTE_DATA or a cache in the user's home where empty
    size: int = 96  # pixels on a side; smallNORB has 96
    padding: int = 16  # pixels of edge around an image before a crop of its own size
    toys_seed: int = 0  # chooses the toys' proportions and paint
    held_out: int = 1  # training instances kept for validation; 0 trains on all of them and validates nothing

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("size", SMALLEST), ("padding", 0), ("toys_seed", 0), ("held_out", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.data == "smallnorb" and self.size != 96:
            raise ValueError(f"size: expected 96, smallNORB has no other, got {self.size}")
        if self.held_out > 4:
            raise ValueError(f"held_out: expected at most 4 of the 5 training instances, got {self.held_out}")

    def on_everything(self) -> Self:
        return dataclasses.replace(self, held_out=0)


class Vision:
    """Stereo pairs in, one capsule for each category out."""

    names = CATEGORIES
    samples = "pairs"
    unseen = "instances never seen in training"

    def __init__(self, config: VisionConfig):
        self.config = config

    def network(self) -> SmallNORB:
        return SmallNORB(n_classes=len(CATEGORIES))

    def restore(self, folder: Path) -> SmallNORB:
        return SmallNORB.from_pretrained(folder).eval()

    def pairs(self, split: str, device: torch.device | None = None) -> Pairs:
        """The pairs of `train`, `validation` or `test`; whole instances are held out, never single views."""
        pairs = self._load("test" if split == "test" else "train", device)
        if split != "test" and self.config.held_out:
            held_out = np.isin(pairs.instance, self._held_out_instances(pairs))
            pairs = pairs.take(held_out if split == "validation" else ~held_out)
        elif split == "validation":
            return pairs.take(np.arange(0))
        limits = {"train": self.config.train_on, "test": self.config.test_on, "validation": self.config.validate_on}
        return sample(pairs, limits[split])

    def source(self, split: str, device: torch.device) -> "PairSource | None":
        pairs = self.pairs(split, device)
        return PairSource(pairs, self.config.padding, device) if len(pairs.category) else None

    def describe(self) -> dict[str, Any]:
        held_out = self._held_out_instances(self._load("train", None)).tolist() if self.config.held_out else "none"
        return {"data": self.config.data, "instances held out": held_out}

    def judge(self, scores: Tensor, split: str) -> Result:
        pairs = self.pairs(split)
        hit = scores.argmax(1).numpy() == pairs.category
        right, total = int(hit.sum()), len(hit)
        over_instances = bootstrap_interval(hit, pairs.category, pairs.instance)
        return Result(right, total, {"images": wilson_interval(right, total), "instances": over_instances})

    @cached_property
    def where(self) -> Path:
        if self.config.folder:
            return Path(self.config.folder)
        return folder() / "smallnorb" if self.config.data == "smallnorb" else folder()

    def _held_out_instances(self, pairs: Pairs) -> np.ndarray:
        instances = np.unique(pairs.instance)
        return instances[len(instances) - self.config.held_out :]

    def _load(self, split: str, device: torch.device | None) -> Pairs:
        from ..data import smallnorb, toys

        if self.config.data == "smallnorb":
            return smallnorb.load(self.where, split)
        return toys.load(self.where, split, self.config.size, seed=self.config.toys_seed, device=device or "cpu")


def sample(pairs: Pairs, limit: int | None) -> Pairs:
    """At most so many pairs, the same ones each time."""
    if limit is None or len(pairs.category) <= limit:
        return pairs
    return pairs.take(np.sort(np.random.default_rng(0).permutation(len(pairs.category))[:limit]))


class PairSource:
    """Pairs on the device where they fit, else on the CPU, from where batches travel."""

    one_size = True
    n_noise = 2  # a shift down and a shift right

    def __init__(self, pairs: Pairs, padding: int, device: torch.device):
        self.padding, self.device = padding, device
        images = torch.from_numpy(np.require(pairs.images, requirements=["C", "W"]))  # a copy, if mapped from a file
        home = device if fits(images, device) else torch.device("cpu")
        self.images = images.to(home)  # [n, 2, m, m] bytes
        self.target = torch.from_numpy(pairs.category).to(device)  # [n]
        self.resident = home == device

    def __len__(self) -> int:
        return len(self.target)

    def plain(self, rows: Tensor) -> Inputs:
        return (self._numbers(self.images[rows.to(self.images.device)]),)

    def altered(self, rows: Tensor, noise: Tensor) -> Inputs:
        """Crops after padding with the edge: a shift, where coordinates beyond the image stop at its border."""
        rows, noise = rows.to(self.images.device), noise.to(self.images.device)
        m, n = self.images.shape[2:]
        shift = (noise * (2 * self.padding + 1)).long() - self.padding  # [b, 2]
        down = (torch.arange(m, device=shift.device) + shift[:, :1]).clamp(0, m - 1)  # [b, m]
        right = (torch.arange(n, device=shift.device) + shift[:, 1:]).clamp(0, n - 1)  # [b, n]
        eye = torch.arange(2, device=shift.device)[:, None, None]
        crops = self.images[rows[:, None, None, None], eye, down[:, None, :, None], right[:, None, None, :]]
        return (self._numbers(crops),)

    def _numbers(self, images: Tensor) -> Tensor:
        return images.to(self.device, non_blocking=True).float() / 255


def fits(t: Tensor, device: torch.device) -> bool:
    """Whether a tensor may stay on the device: it takes at most half of what is free there."""
    return device.type != "cuda" or t.nbytes < torch.cuda.mem_get_info(device)[0] / 2
