"""Named shapes, inputs for them, and error budgets: what tests and benchmarks share."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .routing import Agreement, Case, route
from .routing.agreement import AGREEMENTS

Result = Mapping[str, Tensor]
"""Outputs by name, gradients by `d` plus name."""
Order = Mapping[str, Tensor]
"""By axis, where each of its places is taken from."""
AXES = {
    **{"a_inp": "i", "mu_inp": "icd", "W": "ijdh", "B": "ijch", "beta_use": "ij", "beta_ign": "ij"},
    **{"a": "j", "mu": "jch", "sig2": "jch"},
}
"""Of arguments and outputs, behind the batch."""
ORDERS = 4
"""In which the reference runs, for how its roundings add up in one of them is luck."""
FEWEST, MOST = 4, 48
"""Samples of a shape that errors are measured over; more of small ones, where they vary more."""
MEASURED_VOTES = 2**18
"""Numbers that the votes of all of them hold, about."""


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


def samples(shape: Shape, device: str = "cpu") -> list[dict[str, Tensor]]:
    """Inputs to measure errors over."""
    n = MEASURED_VOTES // max(1, shape.votes)
    return [make_inputs(shape, seed, device=device) for seed in range(max(FEWEST, min(n, MOST)))]


def run(
    inputs: Mapping[str, Tensor],
    impl: str,
    n_iters: int = 3,
    agreement: str | Agreement = "gaussian",
    eps: float = 1e-5,
    dtype: torch.dtype | None = None,
    order: Order | None = None,
) -> dict[str, Tensor]:
    """Outputs of `route` by name, and by `d` plus name the gradients that fixed random weights of them give.

    In another order everything is summed otherwise; results come in the order of the inputs all the same.
    """
    order = order or {}
    given = {name: reordered(t.detach(), AXES[name], order).to(dtype or t.dtype) for name, t in inputs.items()}
    given = {name: t.requires_grad_() for name, t in given.items()}
    out = route(**given, n_iters=n_iters, agreement=agreement, eps=eps, impl=impl)
    generator = torch.Generator().manual_seed(1)
    weights = [
        reordered(torch.randn(t.shape, generator=generator, dtype=torch.float64), AXES[name], order).to(t)
        for name, t in out._asdict().items()
    ]
    gradients = dict(zip(given, torch.autograd.grad(out, list(given.values()), weights), strict=True))
    back = {axis: places.argsort() for axis, places in order.items()}
    return {
        **{name: reordered(t.detach(), AXES[name], back) for name, t in out._asdict().items()},
        **{f"d{name}": reordered(d, AXES[name], back) for name, d in gradients.items()},
    }


def distance(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference."""
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def reordered(t: Tensor, axes: str, order: Order) -> Tensor:
    """A tensor whose last axes are these, in that order."""
    for place, axis in enumerate(axes, -len(axes)):
        if axis in order and t.shape[place] > 1:
            t = t.index_select(place, order[axis].to(t.device))
    return t


def draw_order(sizes: Mapping[str, int], seed: int) -> dict[str, Tensor]:
    """Another order of axes of these sizes."""
    generator = torch.Generator().manual_seed(seed)
    return {axis: torch.randperm(size, generator=generator) for axis, size in sizes.items()}


def orders(inputs: Mapping[str, Tensor], n: int = ORDERS) -> list[dict[str, Tensor]]:
    """Some orders of inputs, outputs and properties."""
    sizes = dict(zip("icd", inputs["mu_inp"].shape[-3:], strict=True))
    sizes |= dict(zip("jch", inputs["B"].shape[-3:], strict=True))
    return [draw_order(sizes, seed) for seed in range(n)]


def nudged(inputs: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The same in float64, but for a rounding of each number."""
    generator, one = torch.Generator().manual_seed(seed), torch.finfo(torch.float64).eps
    noise = {name: torch.rand(t.shape, generator=generator, dtype=torch.float64) for name, t in inputs.items()}
    return {name: t.double() * (1 + (2 * noise[name].to(t.device) - 1) * one) for name, t in inputs.items()}


def budget(exact: Result, plain: Sequence[Result], dtype: torch.dtype) -> dict[str, float]:
    """How far from the float64 reference an implementation may be, by name.

    That is twice as far as the reference itself in that dtype, in the mean over some orders, plus one rounding of the
    largest value.
    """
    one = torch.finfo(dtype).eps
    return {
        name: 2 * sum(distance(p[name], t) for p in plain) / len(plain) + one * distance(t, torch.zeros_like(t))
        for name, t in exact.items()
    }


def exact_budget(exact: Result, near: Sequence[Result]) -> dict[str, float]:
    """Likewise of an implementation in float64, where the reference is all there is.

    Its distance from itself for inputs a rounding away, the furthest of some, stands for its error, and counts three
    times: once more, for it is not exact either.
    """
    one = torch.finfo(torch.float64).eps
    return {
        name: 3 * max(distance(p[name], t) for p in near) + one * distance(t, torch.zeros_like(t))
        for name, t in exact.items()
    }


class Judged(NamedTuple):
    """Inputs, what is exact for them, and how far from it each result may be."""

    inputs: Mapping[str, Tensor]
    exact: Result
    may: dict[str, float]


def judged(drawn: Iterable[Mapping[str, Tensor]], dtype: torch.dtype, **settings: Any) -> list[Judged]:
    """By the reference, for any implementation in a dtype."""
    found = []
    for inputs in drawn:
        exact, others = run(inputs, "reference", dtype=torch.float64, **settings), orders(inputs)
        if dtype == torch.float64:
            near = [run(nudged(inputs, k), "reference", order=order, **settings) for k, order in enumerate(others)]
            may = exact_budget(exact, near)
        else:
            plain = [run(inputs, "reference", dtype=dtype, order=order, **settings) for order in others]
            may = budget(exact, plain, dtype)
        found.append(Judged(inputs, exact, may))
    return found


def off_by(sample: Judged, found: Result) -> dict[str, float]:
    """By how many times what it may be each result is off."""
    far = {name: distance(found[name], t) for name, t in sample.exact.items()}
    return {name: far[name] / may if may else math.inf if far[name] else 0.0 for name, may in sample.may.items()}


def over_budget(
    drawn: Iterable[Mapping[str, Tensor]], impl: str, dtype: torch.dtype = torch.float32, **settings: Any
) -> dict[str, str]:
    """The results in which an implementation is further from the float64 reference than it may be."""
    return over(judged(drawn, dtype, **settings), impl, dtype, **settings)


def over(samples: Iterable[Judged], impl: str, dtype: torch.dtype, **settings: Any) -> dict[str, str]:
    """Likewise, of samples judged before.

    Distances count in units of what each sample may be off by, and their mean over samples may be one: in a single
    sample it is a matter of luck, and the mean of plain distances would be that of the few samples with large ones.
    """
    off = [off_by(one, run(one.inputs, impl, dtype=dtype, **settings)) for one in samples]
    means = {name: sum(times[name] for times in off) / len(off) for name in (off[0] if off else ())}
    return {name: f"off by {mean:.2f} times what it may be" for name, mean in means.items() if not mean <= 1}
