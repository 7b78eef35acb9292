"""A task that trains in seconds: noise around a pattern for each class, and a narrow network.

As a script, it trains in the folder it is options: `python tests/lab/tiny.py FOLDER [--field value ...]`.
"""

import argparse
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.lab.data import Pairs
from capsroute.lab.training.config import Config
from capsroute.lab.training.environment import Environment
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.task import Result
from capsroute.lab.training.trainer import Trainer
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

    def augmented_batch(self, rows: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        (images,) = super().augmented_batch(rows, noise)
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

    def measure(self, scores: Tensor, split: str) -> Result:
        hit = scores.argmax(1).numpy() == self.pairs(split).category
        return Result(int(hit.sum()), len(hit), {})

    def describe(self) -> dict[str, Any]:
        return {"data": "tiny"}


def run_tiny(
    folder: Path,
    *,
    resume: bool = False,
    environment: Environment | None = None,
    stop_after: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train in a folder; Ctrl-C comes after the step `stop_after`."""
    environment = environment or Environment(accelerator="cpu")
    fabric = environment.launch()
    task, on_step = Tiny(TinyConfig(**settings)), interrupt_after(stop_after)
    return Trainer(task, RunFolder(folder), environment, fabric).train(resume=resume, on_step=on_step)


def interrupt_after(step: int | None) -> Callable[[int], None]:
    """Return a callback that sends Ctrl-C to the process after a step."""
    return lambda done: signal.raise_signal(signal.SIGINT) if done == step else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    for name, kind in (("epochs", int), ("n", int), ("batch_size", int), ("save_every", float)):
        parser.add_argument(f"--{name}", type=kind)
    options = {k: v for k, v in vars(parser.parse_args()).items() if v is not None}
    folder, resume = options.pop("folder"), options.pop("resume")
    devices = options.pop("devices")
    strategy = "ddp" if devices > 1 else "auto"
    environment = Environment(accelerator="cpu", devices=devices, strategy=strategy, precision=options.pop("precision"))
    run_tiny(folder, resume=resume, environment=environment, **options)
