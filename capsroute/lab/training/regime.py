"""The training regime: RAdam, one cycle of learning rate and momentum, mixup, cross-entropy.

All random numbers of an epoch are drawn at once from the seed and the epoch, for the batches of all processes: any step
can be repeated, on any number of processes, without the state of a generator.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Hyperparameters of the optimiser, its schedule and the loss; the defaults are the paper's."""

    epochs: int = 50
    batch_size: int = 20
    lr_min: float = 1e-5
    lr_max: float = 5e-4
    beta1_max: float = 0.999
    beta1_min: float = 0.8991
    beta2: float = 0.999
    warmup: float = 0.1  # fraction of the steps until the learning rate peaks
    mixup: float = 0.2  # both parameters of the Beta distribution; 0 for no mixup
    cutmix: float = 0.0  # share of the mixtures of images in which a rectangle of the partner is pasted instead
    sam: float = 0.0  # radius of sharpness-aware minimisation; 0 for plain gradients
    weight_decay: float = 0.0  # weights with two axes or more, but no betas, shrink by lr * weight_decay in a step
    average: float = 0.0  # decay of the running mean of weights that is saved in the end; 0 saves the last weights
    label_smoothing: float = 0.0
    auxiliary_weight: float = 0.0  # of the auxiliary loss, which speeds up short runs; see step.py

    def __post_init__(self) -> None:
        self.check_minimum(epochs=1, batch_size=1, mixup=0, sam=0, weight_decay=0, auxiliary_weight=0)
        self.check("cutmix", 0 <= self.cutmix <= bool(self.mixup), "0 to 1, and 0 without mixup")
        self.check("average", 0 <= self.average < 1, "at least 0 and below 1")
        self.check("label_smoothing", 0 <= self.label_smoothing < 1, "at least 0 and below 1")
        self.check("lr_min", 0 < self.lr_min <= self.lr_max, "above 0 and at most lr_max")
        self.check("beta1_min", 0 <= self.beta1_min <= self.beta1_max < 1, "0 <= beta1_min <= beta1_max < 1")
        self.check("beta2", 0 <= self.beta2 < 1, "at least 0 and below 1")
        self.check("warmup", 0 < self.warmup < 1, "between 0 and 1")

    def check(self, name: str, ok: bool, expected: str) -> None:
        """Raise an error that names a field unless its value is as expected."""
        if not ok:
            raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)}")

    def check_minimum(self, **minimum: float) -> None:
        """Raise an error for a field below its minimum; None passes."""
        for name, least in minimum.items():
            value = getattr(self, name)
            self.check(name, value is None or value >= least, f"at least {least}")

    def schedule(self, step: int, steps: int) -> tuple[float, float]:
        """Return learning rate and beta1 of a step: linear up to the peak, then back along a cosine."""
        peak = self.warmup * steps
        height = step / peak if step < peak else 0.5 + 0.5 * math.cos(math.pi * (step - peak) / (steps - peak))
        lr = self.lr_min + height * (self.lr_max - self.lr_min)
        return lr, self.beta1_max - height * (self.beta1_max - self.beta1_min)


class EpochPlan(NamedTuple):
    """The random choices of an epoch: s steps of b samples, each mixed with a partner; the last samples are dropped."""

    rows: Tensor  # [s, 2, b] indices of the samples, and of their partners in the same batch
    weight: Tensor  # [s, b] weight of the sample in the mixture
    noise: Tensor  # [s, 2, b, k] uniform in [0, 1), for the augmentation of both
    box: Tensor  # [s, b, 4] top, left, bottom, right of what is pasted, as shares of the side; zeros where nothing is

    def batch(self, step: Tensor) -> "EpochPlan":
        """Return the batch of the step whose index [1] is a device tensor; no host sync."""
        return EpochPlan(*(t.index_select(0, step)[0] for t in self))


def plan_epoch(regime: Regime, n: int, *, seed: int, epoch: int, n_noise: int) -> EpochPlan:
    """Draw all random numbers of an epoch over `n` samples."""
    b = regime.batch_size
    steps = n // b
    rng = np.random.default_rng((seed, epoch))
    rows = rng.permutation(n)[: steps * b].reshape(steps, b)
    partner = rng.permuted(np.tile(np.arange(b), (steps, 1)), axis=1)  # positions in the batch
    weight = rng.beta(regime.mixup, regime.mixup, (steps, b)) if regime.mixup else np.ones((steps, b))
    noise = rng.random((steps, b, n_noise), dtype=np.float32)
    rows, noise = (np.stack([t, t[np.arange(steps)[:, None], partner]], axis=1) for t in (rows, noise))
    box = np.zeros((steps, b, 4))
    if regime.cutmix:  # anywhere in the image, covering `1 - weight` of it, but for a share of them
        side = np.sqrt(1 - weight)[..., None]
        start = rng.random((steps, b, 2)) * (1 - side)
        box = np.concatenate([start, start + side], -1) * (rng.random((steps, b, 1)) < regime.cutmix)
    return EpochPlan(*(torch.from_numpy(t) for t in (rows, weight.astype(np.float32), noise, box.astype(np.float32))))


def mix(x: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """Mix samples with others; `weight` [b] is that of `x`."""
    return torch.lerp(other, x, weight.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1)))


def paste(x: Tensor, other: Tensor, box: Tensor) -> Tensor:
    """Return images [b, c, m, n] in whose box [b, 4] the pixels are those of others."""
    top, left, bottom, right = box[:, :, None, None, None].unbind(1)  # [b, 1, 1, 1]
    rows, columns = ((torch.arange(size, device=x.device) + 0.5) / size for size in x.shape[2:])  # pixels' middles
    rows = rows[:, None]
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)  # [b, 1, m, n]
    return torch.where(inside, other, x)


def mixed_loss(
    scores: Tensor,
    target: Tensor,
    other: Tensor,
    weight: Tensor,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy with mixed targets, and the accuracy on the target of larger weight."""
    options: Any = {"weight": class_weights, "reduction": "none", "label_smoothing": label_smoothing}
    own, others = (F.cross_entropy(scores, t, **options) for t in (target, other))  # [b]
    hit = scores.argmax(1) == torch.where(weight >= 0.5, target, other)
    return (weight * own + (1 - weight) * others).mean(), hit.float().mean()
