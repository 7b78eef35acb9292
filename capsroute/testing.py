"""Named shapes, inputs for them, and error budgets, shared by tests and benchmarks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .routing import Agreement, Capsules, Case, resolve_agreement, route

Result = Mapping[str, Tensor]
"""Outputs by name, gradients by `d` plus name."""
Order = Mapping[str, Tensor]
"""Permutation of each axis."""
AXES = {
    **{"a_inp": "i", "mu_inp": "icd", "W": "kjdh", "B": "kjch", "beta_use": "kj", "beta_ign": "kj"},
    **{"a": "j", "mu": "jch", "sig2": "jch"},
}
"""Axes of arguments and outputs, after the batch."""
N_ORDERS = 4
"""Orders of summation over which the error of the reference is averaged."""
MIN_SAMPLES, MAX_SAMPLES = 4, 48
"""Samples over which errors are averaged; small shapes vary more and get more."""
SAMPLE_VOTES = 2**18
"""About how many numbers the votes of all samples have."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a routing; with `fixed_inp` or `fixed_out` each input or output has parameters of its own."""

    batch: int
    n_inp: int
    n_out: int
    d_cov: int
    d_inp: int
    d_out: int
    fixed_inp: bool = False
    fixed_out: bool = True
    n_kinds: int = 1

    @property
    def kinds(self) -> int:
        """How many rows parameters have: one for each kind of inputs, or for each input."""
        return self.n_inp if self.fixed_inp else self.n_kinds

    @property
    def votes(self) -> int:
        """How many numbers all votes have."""
        return self.batch * self.n_inp * self.n_out * self.d_cov * self.d_out

    def at_most(self, votes: int) -> "Shape":
        """Return the shape with fewer samples, then fewer inputs, so that all votes have at most so many numbers."""
        batch = max(1, min(self.batch, votes * self.batch // max(1, self.votes)))
        one = replace(self, batch=1).votes
        return replace(self, batch=batch, n_inp=self.n_inp if one <= votes else self.n_inp * votes // one)

    def case(self, agreement: str = "gaussian", device: str = "cpu") -> Case:
        """Return the case that implementations are asked about."""
        sizes = self.batch, self.n_inp, self.n_out, self.d_cov, self.d_inp, self.d_out
        return Case(*sizes, n_kinds=self.kinds, agreement=resolve_agreement(agreement), device=device)


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
    """Draw arguments of `route`, with parameters of the same spread as in the author's trained layers."""
    s, generator = shape, torch.Generator().manual_seed(seed)
    k, j = s.kinds, s.n_out if s.fixed_out else 1
    spread = 1 / math.sqrt(max(1, s.n_inp))
    sizes_and_scales = {
        "a_inp": ((s.batch, s.n_inp), 1.0),
        "mu_inp": ((s.batch, s.n_inp, s.d_cov, s.d_inp), 1.0),
        "W": ((k, j, s.d_inp, s.d_out), 1 / s.d_inp),
        "B": ((k, s.n_out, s.d_cov, s.d_out), 0.1),
        "beta_use": ((k, j), spread),
        "beta_ign": ((k, j), spread),
    }
    drawn = {
        name: torch.randn(size, generator=generator, dtype=torch.float64) * scale
        for name, (size, scale) in sizes_and_scales.items()
    }
    return {name: t.to(device, dtype).requires_grad_() for name, t in drawn.items()}


def draw_samples(shape: Shape, device: str = "cpu") -> list[dict[str, Tensor]]:
    """Draw as many inputs of a shape as it takes to measure errors."""
    n = SAMPLE_VOTES // max(1, shape.votes)
    return [make_inputs(shape, seed, device=device) for seed in range(max(MIN_SAMPLES, min(n, MAX_SAMPLES)))]


def run(
    inputs: Mapping[str, Tensor],
    impl: str | Callable[..., Capsules],
    n_iters: int = 3,
    agreement: str | Agreement = "gaussian",
    eps: float = 1e-5,
    dtype: torch.dtype | None = None,
    order: Order | None = None,
) -> dict[str, Tensor]:
    """Return the outputs of a routing by name, and by `d` plus name the gradients of a fixed random sum of them.

    `impl` is a name, or a function with the arguments of an implementation's `route`. With `order`, axes are permuted
    and everything is summed in another order; results come in the order of the inputs all the same.
    """
    order = order or {}
    arguments = {name: permute_axes(t.detach(), AXES[name], order).to(dtype or t.dtype) for name, t in inputs.items()}
    arguments = {name: t.requires_grad_() for name, t in arguments.items()}
    if callable(impl):
        out = impl(*arguments.values(), n_iters, resolve_agreement(agreement), eps)
    else:
        out = route(**arguments, n_iters=n_iters, agreement=agreement, eps=eps, impl=impl)
    generator = torch.Generator().manual_seed(1)
    weights = [
        permute_axes(torch.randn(t.shape, generator=generator, dtype=torch.float64), AXES[name], order).to(t)
        for name, t in out._asdict().items()
    ]
    gradients = dict(zip(arguments, torch.autograd.grad(out, list(arguments.values()), weights), strict=True))
    back = {axis: permutation.argsort() for axis, permutation in order.items()}
    return {
        **{name: permute_axes(t.detach(), AXES[name], back) for name, t in out._asdict().items()},
        **{f"d{name}": permute_axes(d, AXES[name], back) for name, d in gradients.items()},
    }


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference."""
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def permute_axes(t: Tensor, axes: str, order: Order) -> Tensor:
    """Permute the last axes of a tensor, which are named `axes`."""
    for dim, axis in enumerate(axes, -len(axes)):
        if axis in order and t.shape[dim] > 1:
            t = t.index_select(dim, order[axis].to(t.device))
    return t


def random_orders(inputs: Mapping[str, Tensor], n: int = N_ORDERS) -> list[dict[str, Tensor]]:
    """Draw orders of kinds of inputs and of their places, of outputs and of properties."""
    n_inp, *rest = inputs["mu_inp"].shape[-3:]
    n_kinds = max(len(inputs[name]) for name in ("W", "B", "beta_use", "beta_ign"))
    n_places = n_inp // max(1, n_kinds)
    sizes = {"p": n_places, **dict(zip("cd", rest, strict=True))}
    sizes |= {**dict(zip("jch", inputs["B"].shape[-3:], strict=True)), "k": n_kinds}
    generators = [torch.Generator().manual_seed(seed) for seed in range(n)]
    orders = [{axis: torch.randperm(size, generator=g) for axis, size in sizes.items()} for g in generators]
    return [{**order, "i": (order["k"][:, None] * n_places + order["p"]).flatten()} for order in orders]


def perturb(inputs: Mapping[str, Tensor], seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return the inputs in float64, each number changed by about one rounding of a dtype."""
    generator, eps = torch.Generator().manual_seed(seed), torch.finfo(dtype).eps
    noise = {name: torch.rand(t.shape, generator=generator, dtype=torch.float64) for name, t in inputs.items()}
    return {name: t.double() * (1 + (2 * noise[name].to(t.device) - 1) * eps) for name, t in inputs.items()}


def budget(exact: Result, others: Sequence[Result], dtype: torch.dtype) -> dict[str, float]:
    """Return how far from the float64 reference an implementation may be, by name of the result.

    That is twice as far as the reference itself in that dtype, on average over some orders of summation, plus one
    rounding of the largest value. In float64 the reference has no better one to compare with: its largest distance from
    itself for perturbed inputs stands for its error, and counts three times, once more for that of `exact`.
    """
    budgets = {}
    for name, t in exact.items():
        distances = [distance(other[name], t) for other in others]
        error = 3 * max(distances) if dtype == torch.float64 else 2 * sum(distances) / len(distances)
        budgets[name] = error + torch.finfo(dtype).eps * distance(t, torch.zeros_like(t))
    return budgets


class Target(NamedTuple):
    """Inputs, their exact results, and how far from these each result may be."""

    inputs: Mapping[str, Tensor]
    exact: Result
    budget: dict[str, float]


def make_targets(samples: Iterable[Mapping[str, Tensor]], dtype: torch.dtype, **settings: Any) -> list[Target]:
    """Compute exact results and budgets by the reference, for any implementation in a dtype."""
    targets = []
    for inputs in samples:
        exact, orders = run(inputs, "reference", dtype=torch.float64, **settings), random_orders(inputs)
        if dtype == torch.float64:
            others = [run(perturb(inputs, k), "reference", order=order, **settings) for k, order in enumerate(orders)]
        else:
            others = [run(inputs, "reference", dtype=dtype, order=order, **settings) for order in orders]
        targets.append(Target(inputs, exact, budget(exact, others, dtype)))
    return targets


def budget_ratios(target: Target, found: Result) -> dict[str, float]:
    """Return each result's distance from the exact one, divided by its budget."""
    far = {name: distance(found[name], t) for name, t in target.exact.items()}
    return {name: far[name] / may if may else math.inf if far[name] else 0.0 for name, may in target.budget.items()}


def over_budget(
    samples: Iterable[Mapping[str, Tensor]],
    impl: str | Callable[..., Capsules],
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> dict[str, str]:
    """Return the results in which an implementation is further from the float64 reference than it may be."""
    return targets_over_budget(make_targets(samples, dtype, **settings), impl, dtype, **settings)


def targets_over_budget(
    targets: Iterable[Target], impl: str | Callable[..., Capsules], dtype: torch.dtype, **settings: Any
) -> dict[str, str]:
    """Return the results over budget, for targets made before.

    The mean over samples of distance by budget may be one: in a single sample it is a matter of luck, and the mean of
    plain distances would be that of the few samples with large ones.
    """
    ratios = [budget_ratios(target, run(target.inputs, impl, dtype=dtype, **settings)) for target in targets]
    means = {name: sum(each[name] for each in ratios) / len(ratios) for name in (ratios[0] if ratios else ())}
    return {name: f"off by {mean:.2f} times its budget" for name, mean in means.items() if not mean <= 1}
