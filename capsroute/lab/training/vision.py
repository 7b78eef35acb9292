"""Classification of stereo pairs: smallNORB, or rendered toys."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...nets import SmallNORB
from ...nets.smallnorb import MIN_SIZE
from ..analysis.accuracy import bootstrap_interval, wilson_interval
from ..data import CATEGORIES, Pairs, folder, smallnorb, toys
from ..data.viewpoints import describe_expected, match_views, parse_angles
from ..variants import Variant, Variation
from .config import Config
from .task import Inputs, Result, Source, limit_rows, load_network


@dataclass(frozen=True, kw_only=True)
class VisionConfig(Variation, Config):
    """Settings of runs on stereo pairs."""

    data: Literal["toys", "smallnorb"] = "toys"
    folder: str = ""  # of the data; by default CAPSROUTE_DATA or a cache in the user's home
    size: int = 96  # pixels on a side; smallNORB has 96
    padding: int = 16  # pixels of edge around an image before it is cropped to its size
    toys_seed: int = 0  # for the toys' proportions and paint
    held_out: int = 1  # training instances kept for validation; 0 trains on all of them without validation
    fold: int = 0  # which ones: the last of them, or with 1 those before, and so on
    azimuths: str = "all"  # of training and validation: all, third, or ranges in degrees such as 300-40
    elevations: str = "all"  # the same, such as 30-40

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minimum(
            size=MIN_SIZE, padding=0, toys_seed=0, held_out=0, fold=0, n_parts=1, n_channels=1, n_iters=1
        )
        self.check("beta_scale", self.beta_scale > 0, "above 0")
        self.check("size", self.data != "smallnorb" or self.size == 96, "96, smallNORB has no other")
        self.check("held_out", self.held_out <= 4, "at most 4 of the 5 training instances")
        self.check("fold", self.held_out * (self.fold + 1) <= 5, "below the number of folds that 5 instances make")
        self.check("n_layers", self.n_layers in (1, 2), "1 or 2")
        self.check(
            "tie_betas", self.ignore_costs or not self.tie_betas, "false, where nothing is paid for ignored data"
        )
        for angle in ("azimuth", "elevation"):
            try:
                parse_angles(angle, getattr(self, f"{angle}s"))
            except ValueError:
                self.check(f"{angle}s", False, describe_expected(angle))


class Vision:
    """Stereo pairs in, one capsule for each category out."""

    names: Sequence[str] = CATEGORIES
    samples = "pairs"
    unseen = "instances never seen in training"

    def __init__(self, config: VisionConfig):
        self.config = config

    def network(self) -> SmallNORB:
        varied = self.config.variation()
        kind = SmallNORB if varied.keys() <= {"n_parts", "n_channels", "kinds"} else Variant
        return kind(n_classes=len(CATEGORIES), **varied)

    def restore(self, folder: Path) -> SmallNORB:
        return load_network(type(self.network()), folder, self.names)

    def pairs(self, split: str, device: torch.device | None = None) -> Pairs:
        """Return the pairs of `train`, `validation` or `test`; all views of an instance are in the same split.

        The test split has all viewpoints, the others those that the settings name.
        """
        pairs = self._load("test" if split == "test" else "train", device)
        if split == "validation" or (split == "train" and self.config.held_out):
            held_out = np.isin(pairs.instance, self._held_out_instances(pairs))
            pairs = pairs.take(held_out if split == "validation" else ~held_out)
        if split != "test" and (self.config.azimuths, self.config.elevations) != ("all", "all"):
            pairs = pairs.take(match_views(pairs, self.config.azimuths, self.config.elevations))
        return pairs.take(limit_rows(len(pairs.category), self.config.sample_limit(split)))

    def source(self, split: str, device: torch.device) -> "PairSource | None":
        pairs = self.pairs(split, device)
        return PairSource(pairs, self.config.padding, device) if len(pairs.category) else None

    def describe(self) -> dict[str, Any]:
        held_out = self._held_out_instances(self._load("train", None)).tolist()
        return {"data": self.config.data, "instances held out": held_out or "none"}

    def measure(self, scores: Tensor, split: str) -> Result:
        pairs = self.pairs(split)
        hit = scores.argmax(1).numpy() == pairs.category
        right, total = int(hit.sum()), len(hit)
        over_instances = bootstrap_interval(hit, pairs.category, pairs.instance)
        return Result(right, total, {"images": wilson_interval(right, total), "instances": over_instances})

    def _held_out_instances(self, pairs: Pairs) -> np.ndarray:
        instances = np.unique(pairs.instance)
        end = len(instances) - self.config.fold * self.config.held_out
        return instances[end - self.config.held_out : end]

    def _load(self, split: str, device: torch.device | None) -> Pairs:
        config = self.config
        if config.data == "smallnorb":
            return smallnorb.load(Path(config.folder or folder() / "smallnorb"), split)
        place = Path(config.folder or folder())
        return toys.load(place, split, config.size, seed=config.toys_seed, device=device or "cpu")


class PairSource(Source):
    """Batches of stereo pairs, which are stored on the device if they fit there."""

    fixed_size = True
    n_noise = 2  # a vertical and a horizontal shift

    def __init__(self, pairs: Pairs, padding: int, device: torch.device):
        self.padding, self.device = padding, device
        images = torch.from_numpy(np.require(pairs.images, requirements=["C", "W"]))  # a copy, if memory-mapped
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")
        self.on_device = images.nbytes < free / 2
        self.images = images.to(device if self.on_device else "cpu")  # [n, 2, m, m] uint8
        self.target = torch.from_numpy(pairs.category).to(device)  # [n]

    def batch(self, rows: Tensor) -> Inputs:
        return (self._normalise(self.images[rows.to(self.images.device)]),)

    def augmented_batch(self, rows: Tensor, noise: Tensor) -> Inputs:
        """Crop after edge padding: the image is shifted, and coordinates beyond it stop at its border."""
        rows, noise = rows.to(self.images.device), noise.to(self.images.device)
        m, n = self.images.shape[2:]
        shift = (noise * (2 * self.padding + 1)).long() - self.padding  # [b, 2]
        y = (torch.arange(m, device=shift.device) + shift[:, :1]).clamp(0, m - 1)  # [b, m]
        x = (torch.arange(n, device=shift.device) + shift[:, 1:]).clamp(0, n - 1)  # [b, n]
        eye = torch.arange(2, device=shift.device)[:, None, None]
        crops = self.images[rows[:, None, None, None], eye, y[:, None, :, None], x[:, None, None, :]]
        return (self._normalise(crops),)

    def _normalise(self, images: Tensor) -> Tensor:
        return images.to(self.device, non_blocking=True).float() / 255
