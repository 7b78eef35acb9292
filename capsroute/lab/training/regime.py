"""How every network is trained: RAdam, one cycle of rate and momentum, mixup, cross entropy.

All random numbers of an epoch are drawn at once, from the seed and the epoch alone, and laid out for the batches of all
processes: any step can be run again, on any number of processes, without a generator's state.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Regime:
    """The paper's training regime."""

    epochs: int = 50
    batch_size: int = 20
    lr_min: float = 1e-5
    lr_max: float = 5e-4
    beta1_max: float = 0.999
    beta1_min: float = 0.8991
    beta2: float = 0.999
    warmup: float = 0.1  # share of the steps until rate and momentum turn
    mixup: float = 0.2  # both parameters of the Beta distribution; 0 for none
    guide: float = 0.0  # weight of readouts on the way, which speed up short runs; see guide.py

    def __post_init__(self) -> None:
        for name, ok, expected in (
            ("epochs", self.epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("lr_min", 0 < self.lr_min <= self.lr_max, "above 0 and at most lr_max"),
            ("beta1_min", 0 <= self.beta1_min <= self.beta1_max < 1, "0 <= beta1_min <= beta1_max < 1"),
            ("beta2", 0 <= self.beta2 < 1, "at least 0 and below 1"),
            ("warmup", 0 < self.warmup < 1, "between 0 and 1"),
            ("mixup", self.mixup >= 0, "at least 0"),
            ("guide", self.guide >= 0, "at least 0"),
        ):
            if not ok:
                raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)}")

    def cycle(self, step: int, steps: int) -> tuple[float, float]:
        """Learning rate and beta1 at a step: linear to the turn, then back along a cosine."""
        turn = self.warmup * steps
        height = step / turn if step < turn else 0.5 + 0.5 * math.cos(math.pi * (step - turn) / (steps - turn))
        lr = self.lr_min + height * (self.lr_max - self.lr_min)
        return lr, self.beta1_max - height * (self.beta1_max - self.beta1_min)

    def optimizer(self, network: nn.Module) -> torch.optim.RAdam:
        return torch.optim.RAdam(network.parameters(), lr=self.lr_min, betas=(self.beta1_max, self.beta2))

    def turn_to(self, optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
        """Set the rate and momentum of a step."""
        lr, beta1 = self.cycle(step, steps)
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = lr, (beta1, group["betas"][1])


class Plan(NamedTuple):
    """An epoch's whole batches: s steps of b samples, each mixed with another; the last incomplete batch left out."""

    rows: Tensor  # [s, 2, b] which sample, and which one of the same batch it is mixed with
    weight: Tensor  # [s, b] the share of the former in the mixture
    noise: Tensor  # [s, 2, b, k] uniform in 0..1, for the augmentation of both to use

    def batch(self, step: Tensor) -> "Plan":
        """That of a step [1], a number on the device, which nobody waits for."""
        return Plan(*(t.index_select(0, step)[0] for t in self))

    def to(self, device: torch.device) -> "Plan":
        return Plan(*(t.to(device) for t in self))


def plan_epoch(regime: Regime, n: int, *, seed: int, epoch: int, n_noise: int) -> Plan:
    """All that is random in an epoch over `n` samples."""
    b = regime.batch_size
    steps = n // b
    rng = np.random.default_rng((seed, epoch))
    rows = rng.permutation(n)[: steps * b].reshape(steps, b)
    partner = rng.permuted(np.tile(np.arange(b), (steps, 1)), axis=1)  # places in the batch
    weight = rng.beta(regime.mixup, regime.mixup, (steps, b)) if regime.mixup else np.ones((steps, b))
    noise = rng.random((steps, b, n_noise), dtype=np.float32)
    both = (np.stack([t, t[np.arange(steps)[:, None], partner]], axis=1) for t in (rows, noise))
    numbers = (next(both), weight.astype(np.float32), next(both))
    return Plan(*(torch.from_numpy(t) for t in numbers))


def mix(x: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """Samples mixed with others, `weight` [b] being the share of the first."""
    return torch.lerp(other, x, weight.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1)))


def mixed_loss(scores: Tensor, target: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy with mixed targets, and the share of samples whose larger part is recognised."""
    own, others = (F.cross_entropy(scores, t, reduction="none") for t in (target, other))  # [b]
    hit = scores.argmax(1) == torch.where(weight >= 0.5, target, other)
    return (weight * own + (1 - weight) * others).mean(), hit.float().mean()
