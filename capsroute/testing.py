"""Named shapes, inputs for them, and error budgets: what tests and benchmarks share."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .routing import Agreement, Case, route
from .routing.agreement import AGREEMENTS

Result = Mapping[str, Tensor]
"""Outputs by name, gradients by `d` plus name."""
ONE = torch.finfo(torch.float64).eps
"""One rounding in float64, relative."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one routing; a fixed number of inputs or outputs means parameters of their own for each."""

    batch: int
    n_inp: int
    n_out: int
    d_cov: int
    d_inp: int
    d_out: int
    fixed_inp: bool = False
    fixed_out: bool = True

    @property
    def votes(self) -> int:
        """How many numbers all votes hold."""
        return self.batch * self.n_inp * self.n_out * self.d_cov * self.d_out

    def at_most(self, votes: int) -> "Shape":
        """The same with fewer samples, then fewer inputs, until all votes hold no more numbers than that."""
        batch = max(1, min(self.batch, votes * self.batch // max(1, self.votes)))
        one = replace(self, batch=1).votes
        return replace(self, batch=batch, n_inp=self.n_inp if one <= votes else self.n_inp * votes // one)

    def case(self, agreement: str = "gaussian", device: str = "cpu") -> Case:
        """What an implementation is asked when it routes this shape."""
        return Case(
            *(self.batch, self.n_inp, self.n_out, self.d_cov, self.d_inp, self.d_out),
            shared=not self.fixed_inp,
            agreement=AGREEMENTS[agreement],
            device=device,
        )


SHAPES = {
    "smallnorb_1": Shape(4, 5184, 64, 4, 4, 4),
    "smallnorb_2": Shape(20, 64, 5, 4, 4, 4, fixed_inp=True),
    "sst_1": Shape(20, 888, 64, 1, 64, 2),
    "sst_2": Shape(20, 64, 5, 1, 2, 2, fixed_inp=True),
    "wide_out": Shape(8, 1024, 30_000, 1, 64, 4),
}
"""The layers of the paper's two networks, and a last layer over a vocabulary."""


def make_inputs(
    shape: Shape, seed: int = 0, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """Random arguments of `route`, parameters as widely spread as in the author's trained layers."""
    s, generator = shape, torch.Generator().manual_seed(seed)
    i, j = s.n_inp if s.fixed_inp else 1, s.n_out if s.fixed_out else 1
    spread = 1 / math.sqrt(max(1, s.n_inp))
    sizes_and_scales = {
        "a_inp": ((s.batch, s.n_inp), 1.0),
        "mu_inp": ((s.batch, s.n_inp, s.d_cov, s.d_inp), 1.0),
        "W": ((i, j, s.d_inp, s.d_out), 1 / s.d_inp),
        "B": ((i, s.n_out, s.d_cov, s.d_out), 0.1),
        "beta_use": ((i, j), spread),
        "beta_ign": ((i, j), spread),
    }
    made = {
        name: torch.randn(size, generator=generator, dtype=torch.float64) * scale
        for name, (size, scale) in sizes_and_scales.items()
    }
    return {name: t.to(device, dtype).requires_grad_() for name, t in made.items()}


def run(
    inputs: Mapping[str, Tensor],
    impl: str,
    n_iters: int = 3,
    agreement: str | Agreement = "gaussian",
    eps: float = 1e-5,
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Outputs of `route` by name, and by `d` plus name the gradients that fixed random weights of them give."""
    inputs = {name: t.detach().to(dtype or t.dtype).requires_grad_() for name, t in inputs.items()}
    out = route(**inputs, n_iters=n_iters, agreement=agreement, eps=eps, impl=impl)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in out]
    gradients = torch.autograd.grad(out, list(inputs.values()), weights)
    return {
        **{name: t.detach() for name, t in out._asdict().items()},
        **{f"d{name}": d for name, d in zip(inputs, gradients, strict=True)},
    }


def distance(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference."""
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def shuffle(inputs: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The same inputs in another order `[i]`, their parameters with them; results of `run` likewise."""
    axes = {"a_inp": -1, "mu_inp": -3, "W": 0, "B": 0, "beta_use": 0, "beta_ign": 0}
    axes |= {f"d{name}": axis for name, axis in axes.items()}
    return {
        name: t.index_select(axes[name], order) if name in axes and t.shape[axes[name]] == len(order) else t
        for name, t in inputs.items()
    }


def rounding(inputs: Mapping[str, Tensor], exact: Mapping[str, Tensor], **settings: Any) -> dict[str, float]:
    """How far the float64 reference is from itself, the furthest of three, for its inputs but for a rounding of each.

    They also come in another order, so that sums are rounded differently.
    """
    n_inp, device = inputs["a_inp"].shape[-1], inputs["a_inp"].device
    found = dict.fromkeys(exact, 0.0)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(n_inp, generator=generator).to(device)
        noise = {name: torch.rand(t.shape, generator=generator, dtype=torch.float64) for name, t in inputs.items()}
        nudged = {name: t.double() * (1 + (2 * noise[name].to(device) - 1) * ONE) for name, t in inputs.items()}
        other = shuffle(run(shuffle(nudged, order), "reference", **settings), order.argsort())
        found = {name: max(far, distance(other[name], exact[name])) for name, far in found.items()}
    return found


def budget(exact: Result, plain: Result, dtype: torch.dtype) -> dict[str, float]:
    """How far from the float64 reference an implementation may be, by name.

    That is twice as far as the reference itself in that dtype, plus one rounding of the largest value.
    """
    one = torch.finfo(dtype).eps
    return {n: 2 * distance(plain[n], t) + one * distance(t, torch.zeros_like(t)) for n, t in exact.items()}


def over_budget(
    samples: Iterable[Mapping[str, Tensor]], impl: str, dtype: torch.dtype = torch.float32, **settings: Any
) -> dict[str, str]:
    """The results in which an implementation is further from the float64 reference than it may be.

    Both distances are means over the samples of inputs, for how rounding adds up in a single one is a matter of luck.
    In float64, where the reference is all there is, its distance from itself for inputs a rounding away stands for its
    error, and counts once more, for it is not exact.
    """
    off, may, n = defaultdict(float), defaultdict(float), 0
    for inputs in samples:
        n += 1
        exact = run(inputs, "reference", dtype=torch.float64, **settings)
        found = run(inputs, impl, dtype=dtype, **settings)
        if dtype == torch.float64:
            far = rounding(inputs, exact, **settings)
            allowed = {name: 3 * far[name] + ONE * distance(t, torch.zeros_like(t)) for name, t in exact.items()}
        else:
            allowed = budget(exact, run(inputs, "reference", dtype=dtype, **settings), dtype)
        for name, t in exact.items():
            off[name] += distance(found[name], t)
            may[name] += allowed[name]
    return {
        name: f"off by {off[name] / n:.2e}, may be {may[name] / n:.2e}" for name in off if not off[name] <= may[name]
    }
