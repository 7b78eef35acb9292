"""A task that trains in seconds: noise around a pattern for each class, and a narrow network.

As a script, it trains in the folder it is given: `python tests/tiny.py FOLDER [--field value ...]`.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.lab.data import Pairs
from capsroute.lab.training.config import Config
from capsroute.lab.training.environment import Machine
from capsroute.lab.training.loop import train
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.task import Result
from capsroute.lab.training.vision import PairSource
from capsroute.nets import SmallNORB

SIZE = 29


@dataclass(frozen=True, kw_only=True)
class TinyConfig(Config):
    experiment: str = "tiny"
    epochs: int = 3
    batch_size: int = 8
    log_every: int = 3
    save_every: float = 0.0
    n: int = 40
    held_out: int = 1
    poison: int = -1  # a sample that is not a number


class PoisonedSource(PairSource):
    def __init__(self, pairs: Pairs, device: torch.device, poison: int):
        super().__init__(pairs, 2, device)
        self.poison = poison

    def altered(self, rows: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        (images,) = super().altered(rows, noise)
        return (images.masked_fill((rows == self.poison)[:, None, None, None], torch.nan),)


class Tiny:
    names = ("dark", "light", "mixed", "left", "right")
    samples = "pairs"
    unseen = "noise"

    def __init__(self, config: TinyConfig):
        self.config = config

    def network(self) -> SmallNORB:
        return SmallNORB(n_parts=4, n_channels=8)

    def pairs(self, split: str) -> Pairs:
        rng = np.random.default_rng(len(split))
        category = np.arange(self.config.n) % 5
        images = rng.integers(0, 40, (self.config.n, 2, SIZE, SIZE)) + 40 * category[:, None, None, None]
        return Pairs(images.astype(np.uint8), category, np.zeros((self.config.n, 4), int))

    def source(self, split: str, device: torch.device) -> PairSource | None:
        if split == "validation" and not self.config.held_out:
            return None
        return PoisonedSource(self.pairs(split), device, self.config.poison)

    def restore(self, folder: Path) -> SmallNORB:
        return SmallNORB.from_pretrained(folder).eval()

    def judge(self, scores: Tensor, split: str) -> Result:
        hit = scores.argmax(1).numpy() == self.pairs(split).category
        return Result(int(hit.sum()), len(hit), {})

    def describe(self) -> dict[str, Any]:
        return {"data": "tiny"}


def run_tiny(folder: Path, *, resume: bool = False, machine: Machine | None = None, **settings: Any) -> dict[str, Any]:
    machine = machine or Machine(accelerator="cpu")
    fabric = machine.fabric()
    fabric.launch()
    return train(Tiny(TinyConfig(**settings)), RunFolder(folder), machine, fabric, resume=resume)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    for name, kind in (("epochs", int), ("n", int), ("batch_size", int), ("save_every", float)):
        parser.add_argument(f"--{name}", type=kind)
    given = {k: v for k, v in vars(parser.parse_args()).items() if v is not None}
    folder, resume = given.pop("folder"), given.pop("resume")
    devices = given.pop("devices")
    strategy = "ddp" if devices > 1 else "auto"
    machine = Machine(accelerator="cpu", devices=devices, strategy=strategy, precision=given.pop("precision"))
    run_tiny(folder, resume=resume, machine=machine, **given)
