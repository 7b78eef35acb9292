"""What images go through before a network sees them: noise, occlusion, shifts, and attacks by foolbox.

Axes: b pairs, two eyes, m rows, n columns. Images are float32 in 0..1.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

with warnings.catch_warnings():  # by names that SciPy has moved
    warnings.simplefilter("ignore", DeprecationWarning)
    from foolbox.attacks.fast_gradient_method import LinfFastGradientAttack
    from foolbox.attacks.projected_gradient_descent import LinfProjectedGradientDescentAttack
    from foolbox.models.pytorch import PyTorchModel

Row = dict[str, Any]
BATCH = 25
GREY = 0.5  # of what hides a part of the image
STEPS, STEP_SHARE = 10, 0.25  # of projected gradient descent, and what a step is of the bound
MORE_STEPS, SMALL_STEP_SHARE, RESTARTS = 50, 0.05, 3
STRENGTHS = (0, 0.005, 0.01, 0.02, 0.04, 0.08)  # bounds on the change of a pixel
SPREAD = 3.0  # of standardised scores: differences of a few units, where cross-entropy has a slope


class Scores(nn.Module):
    """A network's class scores alone, as attacks want them, whatever form of output it has."""

    def __init__(self, network: nn.Module, standardised: bool = False):
        super().__init__()
        self.network, self.standardised = network, standardised

    def forward(self, images: Tensor) -> Tensor:
        a = self.network(images).a
        if not self.standardised:
            return a
        # the same order of classes, but no softmax that has rounded to one and leaves no gradient
        return SPREAD * (a - a.mean(1, keepdim=True)) / a.std(1, keepdim=True).detach().clamp(min=1e-12)


def add_noise(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise of a standard deviation."""
    return (images + strength * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def hide_patch(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Hide a grey square of so many pixels on a side, at the same place for both eyes."""
    m, n = images.shape[2:]
    u = torch.rand(len(images), 2, generator=generator)
    top, left = (u * (torch.tensor([m, n]) - strength + 1)).floor()[:, :, None].unbind(1)  # [b, 1] each
    rows, columns = torch.arange(m), torch.arange(n)
    inside_rows, inside_columns = ((x >= at) & (x < at + strength) for x, at in ((rows, top), (columns, left)))
    hidden = (inside_rows[:, :, None] & inside_columns[:, None, :])[:, None]  # [b, 1, m, n]
    return torch.where(hidden, GREY, images)


def shift(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Shift images by so many pixels in one of eight directions; the edge is repeated."""
    m, n = images.shape[2:]
    directions = torch.tensor([(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x])
    by = int(strength) * directions[torch.randint(8, (len(images),), generator=generator)]  # [b, 2]
    y = (torch.arange(m) + by[:, :1]).clamp(0, m - 1)[:, None, :, None]
    x = (torch.arange(n) + by[:, 1:]).clamp(0, n - 1)[:, None, None, :]
    b, eye = torch.arange(len(images))[:, None, None, None], torch.arange(2)[None, :, None, None]
    return images[b, eye, y, x]


CORRUPTIONS: dict[str, tuple[Callable[[Tensor, float, torch.Generator], Tensor], tuple[float, ...]]] = {
    "noise": (add_noise, (0, 0.02, 0.04, 0.08, 0.12, 0.16)),
    "occlusion": (hide_patch, (0, 6, 10, 14, 18, 22)),
    "shift": (shift, (0, 1, 2, 3, 4, 6)),
}


@torch.inference_mode()
def find_classes(network: nn.Module, images: Tensor) -> Tensor:
    """Return the predicted class of every image, `[b]`."""
    parts = [network(part).a.argmax(1) for part in images.split(BATCH) if len(part)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def attack(network: nn.Module, images: Tensor, classes: Tensor, strength: float, how: str, seed: int = 0) -> Tensor:
    """Return adversarial images of the shape of `images`.

    Args:
        network: In evaluation mode.
        images: `[b, 2, m, n]`.
        classes: True classes, `[b]`.
        strength: Bound on the change of a pixel.
        how: `fgsm`, one step; `pgd`, ten from a random start; `pgd, more steps`; or `pgd, standardised`, where scores
            are standardised first, so that their size cannot hide a gradient.
        seed: Of the random starts.
    """
    if not strength:
        return images
    model = PyTorchModel(Scores(network, how == "pgd, standardised").eval(), bounds=(0, 1), device="cpu")
    if how == "fgsm":
        method = LinfFastGradientAttack()
    else:
        steps, share = (MORE_STEPS, SMALL_STEP_SHARE) if how == "pgd, more steps" else (STEPS, STEP_SHARE)
        method = LinfProjectedGradientDescentAttack(steps=steps, rel_stepsize=share)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts = [method.run(model, x, y, epsilon=strength) for x, y in split_batches(images, classes)]
    return torch.cat(parts).detach() if parts else images


def measure_attacks(
    networks: Mapping[str, nn.Module],
    images: Tensor,
    classes: Tensor,
    strengths: Sequence[float],
    further: Sequence[float] = (),
) -> dict[str, list[Row]]:
    """Return for every network the share of pairs that it gets right before and after attacks, by test and strength.

    Args:
        networks: By name, in evaluation mode.
        images: `[b, 2, m, n]`.
        classes: `[b]`.
        strengths: Bounds on the change of a pixel, for FGSM and PGD.
        further: Those at which attacks add up after these two: each is tried on what those before it left. The last
            are images that PGD made against the other networks, and what survives them too is called `worst`.
    """
    found: dict[str, list[Row]] = {name: [] for name in networks}
    clean = {name: find_classes(network, images) == classes for name, network in networks.items()}
    for name, network in networks.items():
        for test, standardised in (("no gradient", False), ("no gradient, standardised", True)):
            share = share_without_gradient(network, images, classes, standardised)
            found[name].append({"test": test, "strength": 0, "accuracy": share})
    for strength in strengths:
        made = {name: attack(network, images, classes, strength, "pgd") for name, network in networks.items()}
        for name, network in networks.items():
            shares = attack_one(network, images, classes, strength, clean[name], made[name])
            if strength in further:
                others = {other: changed for other, changed in made.items() if other != name}
                shares = attack_further(network, images, classes, strength, shares, others)
            found[name] += [
                {"test": test, "strength": strength, "accuracy": right.double().mean().item()}
                for test, right in shares.items()
            ]
    return found


def attack_one(
    network: nn.Module, images: Tensor, classes: Tensor, strength: float, clean: Tensor, by_pgd: Tensor
) -> dict[str, Tensor]:
    """Return which pairs, of those right at first, survive FGSM and PGD, and those themselves, `[b]` each."""
    by_fgsm = attack(network, images, classes, strength, "fgsm")
    changed = {"fgsm": by_fgsm, "pgd": by_pgd}
    return {"clean": clean} | {test: clean & (find_classes(network, x) == classes) for test, x in changed.items()}


def attack_further(
    network: nn.Module,
    images: Tensor,
    classes: Tensor,
    strength: float,
    survivors: dict[str, Tensor],
    others: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return which pairs survive what is tried after FGSM and PGD, step by step, `[b]` each.

    Args:
        network: In evaluation mode.
        images: `[b, 2, m, n]`.
        classes: `[b]`.
        strength: Bound on the change of a pixel.
        survivors: Of FGSM, of PGD, and of nothing.
        others: Images that PGD made against other networks, by their names.
    """
    found, left = dict(survivors), survivors["fgsm"] & survivors["pgd"]
    stages = {"more steps": [("pgd, more steps", 0)], "restarts": [("pgd", seed) for seed in range(1, RESTARTS + 1)]}
    stages["standardised"] = [("pgd, standardised", 0)]
    for stage, attacks in stages.items():
        for how, seed in attacks if strength else ():
            rows = left.nonzero()[:, 0]
            changed = attack(network, images[rows], classes[rows], strength, how, seed)
            left = left.index_put((rows,), find_classes(network, changed) == classes[rows])
        found[f"and {stage}"] = left
    for other, changed in others.items():
        held = find_classes(network, changed) == classes
        found[f"transfer from {other}"] = survivors["clean"] & held
        left = left & held
    return found | {"worst": left}


def share_without_gradient(network: nn.Module, images: Tensor, classes: Tensor, standardised: bool = False) -> float:
    """Return the share of images at which the gradient of the cross-entropy, as attacks compute it, is zero."""
    scores, n_zero = Scores(network, standardised).eval(), 0
    for x, y in split_batches(images, classes):
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(scores(x), y, reduction="sum"), x)
        n_zero += int((gradient.flatten(1).abs().amax(1) == 0).sum())
    return n_zero / len(images)


def split_batches(images: Tensor, classes: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return batches of images and classes, none of no images."""
    return list(zip(images.split(BATCH), classes.split(BATCH), strict=True)) if len(images) else []
