"""Random cases for the fused kernels, and the rule that judges their errors.

Every case follows from its seed. Kernels are compiled for tiles of certain sizes, which takes seconds, so cases come in
groups of like sizes, and groups in families that share what most of a kernel's code depends on. Packed samples are
drawn as a padded batch, which the reference routes as it is.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsroute.routing import Capsules
from capsroute.routing.api import route, route_packed
from capsroute.testing import Result, budget, distance, random_orders, run

N_FAMILIES, N_GROUPS, GROUP_CASES = 48, 192, 52
"""Families, groups of all of them, and about how many cases of a group show its mean error."""
PARAMS = ("W", "B", "beta_use", "beta_ign")
SPECIAL_SIZES = (0, 1, 16, 128)
"""Numbers of inputs that kernels may treat differently."""
MAX_VOTES = 2**18
"""Numbers in all votes of a case."""
MAX_WEIGHTS = 2**20
"""Numbers in `W` where each input or kind of inputs has its own."""
MAX_PAIRS = 2**19
"""Inputs times outputs of all samples, in families of many inputs."""
MANY_INPUTS = 64
"""Inputs for each output from which small capsules are routed by moments."""
SINGLE_FACTOR = 4.0
"""How many times beyond both its own budget and its group's mean a single case fails: a single error is luck."""
MIN_CASES = 12
"""Cases of a group from which their mean error is held to their mean budget."""


@dataclass(frozen=True)
class Family:
    """What the cases of some groups share."""

    d_cov: int
    d_inp: int
    d_out: int
    max_out: int
    many_inputs: bool
    packed: bool
    max_kinds: int
    param_axes: dict[str, tuple[str, str]]  # what the sizes of each parameter on axes k and j are
    agreement: str
    dtypes: tuple[torch.dtype, torch.dtype]  # of inputs, of parameters


@dataclass(frozen=True)
class Case:
    """Sizes of a case, or the largest ones of a group."""

    family: Family
    batch: int
    n_inp: int
    n_out: int
    n_iters: int
    scale: float = 1.0  # of capsules
    eps: float = 1e-5

    @property
    def n_kinds(self) -> int:
        """The largest number of kinds that divides the inputs and that the family has."""
        f = self.family
        most = max(1, min(f.max_kinds, MAX_WEIGHTS // (self.n_out * f.d_inp * f.d_out)))
        return max(k for k in range(1, most + 1) if self.n_inp % k == 0)

    @property
    def votes(self) -> int:
        """How many numbers all votes have."""
        return self.batch * self.n_inp * self.n_out * self.family.d_cov * self.family.d_out

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each argument of `route`."""
        f, sizes = self.family, {"1": 1, "n_kinds": self.n_kinds, "n_inp": self.n_inp, "n_out": self.n_out}
        after = {"W": (f.d_inp, f.d_out), "B": (f.d_cov, f.d_out), "beta_use": (), "beta_ign": ()}
        params = {name: (*(sizes[axis] for axis in f.param_axes[name]), *after[name]) for name in PARAMS}
        inputs = self.batch, self.n_inp
        return {"a_inp": inputs, "mu_inp": (*inputs, f.d_cov, f.d_inp), **params}


def split_seeds(n_cases: int) -> dict[int, list[int]]:
    """Return the seeds of each group for so many cases; few cases come from few groups."""
    n_groups = max(1, min(N_GROUPS, n_cases // GROUP_CASES))
    seeds: dict[int, list[int]] = {group: [] for group in range(n_groups)}
    for k in range(n_cases):
        seeds[k % n_groups].append(k % n_groups + N_GROUPS * (k // n_groups))
    return seeds


def draw_family(number: int) -> Family:
    """Draw a family; every fourth is one of many small capsules, every third of packed samples if it can."""
    rng, many = random.Random(f"set {number}"), number % 4 == 0
    if many:
        d_cov, d_inp, d_out = rng.choice([(4, 4, 4), (4, 4, 4), (4, 3, 4), (3, 4, 4), (4, 4, 6), (2, 5, 8)])
        max_out = rng.choice([10, 20, 32, 47, 60, 64])
    else:
        d_cov = rng.choice([1, 1, 2, 3, 4, 6, 11])
        d_inp = rng.choice([1, 2, 3, 4, 5, 8, 13, 16, 20, 64, 127, 200])
        d_out = rng.choice([1, 2, 3, 4, 6, 8, 17])
        max_out = rng.choice([1, 2, 3, 5, 10, 16, 33, 64, 100, 130, 200, 300])
    single, half = torch.float32, rng.choice([torch.bfloat16, torch.float16])
    dtypes = rng.choice([(single, single)] * 5 + [(half, half), (half, single)])
    max_kinds, kinds = rng.choice([2, 3, 7, 12, 40]), rng.choice(["n_inp", "n_kinds"])
    alike = {"inputs": ("1", "n_out"), "none": ("n_inp", "n_out"), "kinds": ("n_kinds", "n_out"), "both": ("1", "1")}
    shared = rng.choice(["inputs", "inputs", "none", "kinds", "both", "each its own"]) if not many else "inputs"
    mixed = {name: rng.choice([(k, j) for j in ("n_out", "1") for k in (kinds, "1")]) for name in PARAMS}
    param_axes = dict.fromkeys(PARAMS, alike[shared]) if shared in alike else mixed
    param_axes["B"] = param_axes["B"][0], "n_out"  # or nothing would say how many outputs there are
    agreement = rng.choice(["gaussian", "gaussian", "kmeans"])
    agreement = "gaussian" if many and number % 16 else agreement
    packed = number % 3 == 2 and all(k != "n_inp" for k, _ in param_axes.values())
    return Family(d_cov, d_inp, d_out, max_out, many, packed, max_kinds, param_axes, agreement, dtypes)


def draw_group(group: int, max_votes: int = MAX_VOTES) -> Case:
    """Draw the largest sizes of a group, special ones among them."""
    number = group % N_FAMILIES
    family, rng = draw_family(number), random.Random(f"set {number}, group {group // N_FAMILIES}")
    components = family.d_cov * family.d_out
    n_out = max(1, min(round(family.max_out * rng.uniform(0.8, 1.0)), max_votes // components))
    if family.many_inputs:
        n_inp = math.ceil(rng.uniform(1.5, 2) * MANY_INPUTS * n_out)
        batch = max(1, min(rng.choice([1, 2, 5, 16]), MAX_PAIRS // (n_inp * n_out)))
        return Case(family, batch, n_inp, n_out, rng.choice([1, 2, 3, 3, 3, 4]))
    inputs = max(1, max_votes // (n_out * components))  # of all samples
    batch = min(rng.choice([1, 2, 3, 5, 16]), inputs)
    most = max(1, inputs // batch)
    if family.param_axes["W"][0] == "n_inp":
        most = max(1, min(most, MAX_WEIGHTS // (n_out * family.d_inp * family.d_out)))
    special = rng.random() < 0.3
    n_inp = rng.choice(SPECIAL_SIZES) if special else round(math.exp(rng.uniform(0, math.log(max(2, most)))))
    return Case(family, batch, min(n_inp, most), n_out, rng.choice([1, 2, 3, 3, 4]))


def draw_case(group: Case, seed: int) -> Case:
    """Draw the sizes of a case: those of its group, or smaller ones for which tiles are about as large."""
    rng = random.Random(f"sizes {seed}")
    if group.family.many_inputs:
        return replace(group, n_inp=rng.randint(math.ceil(group.n_inp / 1.5), group.n_inp))
    sizes = {"batch": group.batch, "n_inp": group.n_inp, "n_out": group.n_out}
    drawn = {name: n if n < 2 or rng.random() < 0.2 else rng.randint(pow2_below(n) + 1, n) for name, n in sizes.items()}
    return replace(group, **drawn)


def pow2_below(n: int) -> int:
    """Return the largest power of two below n."""
    return 1 << (n - 1).bit_length() - 1


def draw_inputs(case: Case, seed: int) -> dict[str, Tensor]:
    """Draw the arguments of `route`, on the CPU."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    spread, scales = rng.choice([0.1, 1.0, 1.0, 3.0]), dict.fromkeys(PARAMS, 1 / math.sqrt(max(1, case.n_inp)))
    scales |= {"W": rng.choice([0.3, 1.0]) / math.sqrt(case.family.d_inp), "B": rng.choice([0.0, 0.1, 1.0])}
    scales |= {"a_inp": rng.choice([0.5, 3.0]), "mu_inp": spread * case.scale}
    inputs = {}
    for name, shape in case.shapes().items():
        dtype = case.family.dtypes[name in PARAMS]
        inputs[name] = (torch.randn(shape, generator=generator, dtype=torch.float64) * scales[name]).to(dtype)
    inputs["mu_inp"] += case.scale * rng.choice(
        [0.0, 0.0, 0.0, 10.0]
    )  # far from zero, where sums of squares would cancel
    inputs["a_inp"] = draw_special_scores(inputs["a_inp"], rng, generator)
    if case.family.packed:
        inputs["a_inp"] = inputs["a_inp"].masked_fill(~draw_mask(case, seed), -torch.inf)
    return inputs


def draw_special_scores(a_inp: Tensor, rng: random.Random, generator: torch.Generator) -> Tensor:
    """Replace some scores `[b, i]` by masks, infinities and scores that the logistic function rounds to 0 or 1."""
    for value, share in ((-torch.inf, 0.4), (torch.inf, 0.2), (-60.0, 0.15), (60.0, 0.1)):
        if rng.random() < share:
            among = rng.choice([0.1, 0.5, 0.9])
            a_inp = a_inp.masked_fill(torch.rand(a_inp.shape, generator=generator) < among, value)
    if rng.random() < 0.05:
        a_inp[0] = -torch.inf  # a sample without inputs
    return a_inp


def draw_mask(case: Case, seed: int) -> Tensor:
    """Draw which inputs of a padded batch packed samples have, `[b, i]`; those of many inputs keep enough of them."""
    n_kinds = case.n_kinds if any(k == "n_kinds" for k, _ in case.family.param_axes.values()) else 1
    least, n_places = MANY_INPUTS * case.n_out if case.family.many_inputs else 0, case.n_inp // n_kinds
    places = torch.randint(least, n_places + 1, (case.batch, 1, 1), generator=torch.Generator().manual_seed(seed))
    return (torch.arange(n_places) < places).expand(-1, n_kinds, -1).flatten(1)


def lay_out(t: Tensor, rng: random.Random) -> Tensor:
    """Return the same numbers as they may lie in memory: in order, with gaps, transposed, or not aligned."""
    if t.ndim and t.numel():
        match rng.choice(["in order", "gaps", "transposed", "not aligned"]):
            case "gaps":
                return torch.stack([t, t], -1)[..., 0]
            case "transposed":
                return t.transpose(0, -1).contiguous().transpose(0, -1)
            case "not aligned":
                return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)
    return t


def route_case(case: Case, seed: int, impl: str, *arguments: Any) -> Capsules:
    """Route, packed where the case is; arguments and gradients lie in memory in any way."""
    rng = random.Random(f"memory {seed}")
    a_inp, mu_inp, *params, n_iters, agreement, eps = arguments
    settings: dict[str, Any] = {"n_iters": n_iters, "agreement": agreement, "eps": eps, "impl": impl}
    if case.family.packed:
        mask = draw_mask(case, seed).to(a_inp.device)
        offsets = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
        tensors = [lay_out(t, rng) for t in (a_inp[mask], mu_inp[mask], *params)]
        out = route_packed(*tensors[:2], offsets, *tensors[2:], **settings)
    else:
        out = route(*[lay_out(t, rng) for t in (a_inp, mu_inp, *params)], **settings)
    for t in out:
        t.register_hook(partial(lay_out, rng=rng))
    return out


class Error(NamedTuple):
    """How far a result is from the exact one and how far it may be, in units of its largest value."""

    distance: float
    budget: float


def measure_errors(case: Case, seed: int, device: str) -> dict[str, Error]:
    """Return the errors of outputs and gradients by name, but of those too large for their dtype."""
    inputs = {name: t.to(device) for name, t in draw_inputs(case, seed).items()}
    settings: dict[str, Any] = {"n_iters": case.n_iters, "agreement": case.family.agreement}
    exact = run(inputs, "reference", dtype=torch.float64, **settings)
    orders = [{axis: order[axis].to(device) for axis in order} for order in random_orders(inputs)]
    plain = [run(inputs, "reference", order=order, **settings) for order in orders]
    found = run(inputs, partial(route_case, case, seed, "triton"), **settings)
    return compare(found, exact, {name: budget({name: exact[name]}, plain, t.dtype)[name] for name, t in found.items()})


def compare(found: Result, exact: Result, budgets: Mapping[str, float]) -> dict[str, Error]:
    """Return errors by name, in units of the largest value of each result."""
    errors = {}
    for name, t in exact.items():
        largest = distance(t, torch.zeros_like(t))
        if largest <= torch.finfo(found[name].dtype).max:
            off = distance(found[name], t) if found[name].isfinite().all() else math.inf
            errors[name] = Error(off / (largest or 1), budgets[name] / (largest or 1))
    return errors


def find_failures(cases: Mapping[str, Mapping[str, Error]]) -> Iterator[str]:
    """Yield what is over budget in the cases of a group, whose errors come by the name of the case.

    The mean error over the cases may be their mean budget. A single case fails where it is not finite or
    `SINGLE_FACTOR` times beyond both its own budget and the mean.
    """
    for name in dict.fromkeys(name for errors in cases.values() for name in errors):
        found = {case: errors[name] for case, errors in cases.items() if name in errors}
        finite = [error for error in found.values() if math.isfinite(error.distance)] or [Error(0.0, 0.0)]
        mean = Error(*map(fmean, zip(*finite, strict=True)))
        if len(cases) >= MIN_CASES and not mean.distance <= mean.budget:
            yield f"{name} is off by {mean.distance:.2e} in the mean, may be {mean.budget:.2e}"
        for case, error in found.items():
            if not math.isfinite(error.distance):
                yield f"{name} is not finite in {case}"
            elif not error.distance <= SINGLE_FACTOR * max(error.budget, mean.budget):
                yield f"{name} is off by {error.distance:.2e}, may be {error.budget:.2e}, in {case}"
