"""Named shapes, inputs for them, and error budgets: what tests and benchmarks share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .routing import Agreement, Case, route
from .routing.agreement import AGREEMENTS

INPUTS = ("a_inp", "mu_inp", "W", "B", "beta_use", "beta_ign")
OUTPUTS = ("a", "mu", "sig2")


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


def budgets(inputs: Mapping[str, Tensor], dtype: torch.dtype, **settings: object) -> dict[str, tuple[Tensor, float]]:
    """The float64 reference's results by name, each with how far from it an implementation may be.

    That is twice as far as the reference itself in that dtype, plus one rounding of the largest value. In float64 the
    reference's distance from the truth is taken from float32, scaled by the rounding, and counted once more, for the
    reference is no longer exact in comparison.
    """
    exact = run(inputs, "reference", dtype=torch.float64, **settings)  # pyright: ignore[reportArgumentType]
    double = dtype == torch.float64
    plain = run(inputs, "reference", dtype=torch.float32 if double else dtype, **settings)  # pyright: ignore
    scale = 3 * torch.finfo(dtype).eps / torch.finfo(torch.float32).eps if double else 2
    return {
        name: (t, scale * distance(plain[name], t) + torch.finfo(dtype).eps * distance(t, torch.zeros_like(t)))
        for name, t in exact.items()
    }


def over_budget(
    inputs: Mapping[str, Tensor], impl: str, dtype: torch.dtype = torch.float32, **settings: object
) -> dict[str, str]:
    """The results in which an implementation is further from the float64 reference than it may be."""
    found = run(inputs, impl, dtype=dtype, **settings)  # pyright: ignore[reportArgumentType]
    return {
        name: f"off by {distance(found[name], exact):.2e}, may be {budget:.2e}"
        for name, (exact, budget) in budgets(inputs, dtype, **settings).items()
        if not distance(found[name], exact) <= budget
    }
