"""Random cases for the fused kernels: every one of them follows from its seed.

Kernels are compiled for tiles of some sizes, which takes seconds, so cases come in groups that share them, or nearly.
A group belongs to a set, which has what most of a kernel's code depends on. Axes: `b` samples, `i` inputs, `j` outputs,
`c`, `d`, `h` of capsules.
"""

import math
import random
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

AXES = {"a_inp": "bi", "mu_inp": "bicd", "W": "ijdh", "B": "ijch", "beta_use": "ij", "beta_ign": "ij"}
OUT_AXES = {"a": "bj", "mu": "bjch", "sig2": "bjch"}
PARAMS = ("W", "B", "beta_use", "beta_ign")
SPECIAL = (0, 1, 16, 128)
"""Sizes that kernels may treat differently."""
MOST_WEIGHTS = 2**20
"""Numbers in the weights of a case."""
MOST_PAIRS = 2**19
"""Of inputs and outputs in cases with many inputs, as far as more than one sample goes."""


@dataclass(frozen=True)
class Plan:
    """How many cases, and how they spread."""

    cases: int
    sets: int
    groups: int  # of each set
    votes: int  # at most, in a case
    inputs: int  # for each output, from which small capsules take another form; 0 leaves it out

    def where(self, seed: int) -> tuple[int, int]:
        """Set and group of a case."""
        return seed % self.sets, seed // self.sets % self.groups


@dataclass(frozen=True)
class Set:
    """What a set's cases share."""

    c: int
    d: int
    h: int
    j: int  # about
    many: bool  # inputs
    shared: dict[str, str]  # by parameter, the axes on which its size is 1
    agreement: Literal["gaussian", "kmeans"]
    dtypes: tuple[torch.dtype, torch.dtype]  # of inputs and of parameters


@dataclass(frozen=True)
class Group:
    """Sizes of some cases, the largest of them; or of one."""

    kind: Set
    b: int
    i: int
    j: int
    n_iters: int

    @property
    def votes(self) -> int:
        return self.b * self.i * self.j * self.kind.c * self.kind.h

    @property
    def sizes(self) -> dict[str, int]:
        """By axis, but for the batch."""
        return {"i": self.i, "j": self.j, "c": self.kind.c, "d": self.kind.d, "h": self.kind.h}

    def shape(self, name: str) -> tuple[int, ...]:
        sizes, shared = {"b": self.b, **self.sizes}, self.kind.shared.get(name, "")
        return tuple(1 if axis in shared else sizes[axis] for axis in AXES[name])

    def __str__(self) -> str:
        k = self.kind
        types = "/".join(str(t).removeprefix("torch.") for t in k.dtypes)
        shared = " ".join(f"{name}:{axes}" for name, axes in k.shared.items() if axes)
        sizes = f"b {self.b} i {self.i} j {self.j} c {k.c} d {k.d} h {k.h}"
        return f"{sizes}, {self.n_iters} iterations, {k.agreement}, {types}, shared {shared or 'nothing'}"


def draw_set(plan: Plan, number: int) -> Set:
    rng = random.Random(f"set {number}")
    many = plan.inputs > 0 and number % 4 == 0
    if many:
        c, d, h = rng.choice([(4, 4, 4), (4, 4, 4), (4, 3, 4), (3, 4, 4), (4, 4, 6), (2, 5, 8)])
        j = rng.choice([10, 20, 32, 47, 60, 64])
    else:
        c, d = rng.choice([1, 1, 2, 3, 4, 6, 11]), rng.choice([1, 2, 3, 4, 5, 8, 13, 16, 20, 64, 127, 200])
        h, j = rng.choice([1, 2, 3, 4, 6, 8, 17]), rng.choice([1, 2, 3, 5, 10, 16, 33, 64, 100, 130, 200, 300])
    single, brief = torch.float32, rng.choice([torch.bfloat16, torch.float16])
    dtypes = rng.choice([(single, single)] * 5 + [(brief, brief), (brief, single)])
    kind = rng.choice(["inputs", "inputs", "none", "both", "each its own"]) if not many else "inputs"
    shared = {
        name: {"inputs": "i", "none": "", "both": "ij"}.get(kind, rng.choice(["", "i", "j", "ij"])) for name in PARAMS
    }
    shared["B"] = shared["B"].replace("j", "")  # or nothing would say how many outputs there are
    agreements: list[Literal["gaussian", "kmeans"]] = ["gaussian", "gaussian", "kmeans"]
    agreement = rng.choice(agreements)
    return Set(c, d, h, j, many, shared, "gaussian" if many and number % 16 else agreement, dtypes)


def draw_group(plan: Plan, number: int, group: int) -> Group:
    """Sizes within the plan's limits, special ones among them."""
    kind, rng = draw_set(plan, number), random.Random(f"set {number}, group {group}")
    j = max(1, min(round(kind.j * rng.uniform(0.8, 1.0)), plan.votes // (kind.c * kind.h)))
    if kind.many:
        i = math.ceil(rng.uniform(1.5, 2) * plan.inputs * j)
        b = max(1, min(rng.choice([1, 2, 5, 16]), MOST_PAIRS // (i * j)))
        return Group(kind, b, i, j, rng.choice([1, 2, 3, 3, 3, 4]))
    room = max(1, plan.votes // (j * kind.c * kind.h))  # for inputs of all samples
    b = min(rng.choice([1, 2, 3, 5, 16]), room)
    most = max(1, room // b)
    if "i" not in kind.shared["W"]:
        most = max(1, min(most, MOST_WEIGHTS // (j * kind.d * kind.h)))
    i = rng.choice(SPECIAL) if rng.random() < 0.3 else round(math.exp(rng.uniform(0, math.log(max(2, most)))))
    return Group(kind, b, min(i, most), j, rng.choice([1, 2, 3, 3, 4]))


def draw_sizes(group: Group, seed: int) -> Group:
    """Of one case: those of its group, or smaller ones for which tiles are about as large."""
    rng = random.Random(f"sizes {seed}")
    if group.kind.many:
        return replace(group, i=rng.randint(math.ceil(group.i / 1.5), group.i))
    b, i, j = (n if n < 2 or rng.random() < 0.2 else rng.randint(half(n) + 1, n) for n in (group.b, group.i, group.j))
    return replace(group, b=b, i=i, j=j)


def half(n: int) -> int:
    """The largest power of two below n."""
    return 1 << (n - 1).bit_length() - 1


def draw_case(group: Group, seed: int) -> dict[str, Tensor]:
    """Arguments of `route`, on the CPU."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    spread = rng.choice([0.1, 1.0, 1.0, 3.0])
    scales = {"W": rng.choice([0.3, 1.0]) / math.sqrt(group.kind.d), "B": rng.choice([0.0, 0.1, 1.0])}
    made = {}
    for name in AXES:
        scale = scales.get(name, spread if name == "mu_inp" else 1 / math.sqrt(max(1, group.i)))
        scale = rng.choice([0.5, 3.0]) if name == "a_inp" else scale
        dtype = group.kind.dtypes[name in PARAMS]
        made[name] = (torch.randn(group.shape(name), generator=generator, dtype=torch.float64) * scale).to(dtype)
    made["mu_inp"] += rng.choice([0.0, 0.0, 0.0, 10.0])  # far from zero, where sums of squares would cancel
    made["a_inp"] = scored(made["a_inp"], rng, generator)
    return made


def scored(a: Tensor, rng: random.Random, generator: torch.Generator) -> Tensor:
    """Scores `[b, i]`, some cases with masks, infinities and scores that the logistic function rounds to 0 or 1."""
    for value, share in ((-torch.inf, 0.4), (torch.inf, 0.2), (-60.0, 0.15), (60.0, 0.1)):
        if rng.random() < share:
            among = rng.choice([0.1, 0.5, 0.9])
            a = a.masked_fill(torch.rand(a.shape, generator=generator) < among, value)
    if rng.random() < 0.05 and len(a):
        a[0] = -torch.inf  # a sample without inputs
    return a


def laid_out(t: Tensor, rng: random.Random) -> Tensor:
    """The same numbers as they may lie in memory: in order, with gaps, in another order, or not where lines begin."""
    if t.ndim and t.numel():
        match rng.choice(["in order", "gaps", "turned", "off by one"]):
            case "gaps":
                return torch.stack([t, t], -1)[..., 0]
            case "turned":
                return t.transpose(0, -1).contiguous().transpose(0, -1)
            case "off by one":
                return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)
    return t


def draw_weights(group: Group, seed: int) -> list[Tensor]:
    """What the outputs are weighted by before the backward pass, in float64."""
    generator, k = torch.Generator().manual_seed(seed + 2**32), group.kind
    shapes = (group.b, group.j), *[(group.b, group.j, k.c, k.h)] * 2
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
