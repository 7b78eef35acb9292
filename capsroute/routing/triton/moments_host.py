"""The moment form, called from outside: chooses tiles, makes room and launches the kernels.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules, `k` features; a sample's inputs lie in slots.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .grid import programs_at_once
from .launch import launch
from .moments import feature_sums, first_sums, models
from .moments_bwd import feature_sums_bwd, first_sums_bwd, models_bwd
from .room import Layout, Piece, Room
from .sizes import Plan, Sizes, power

Dtypes = tuple[torch.dtype, torch.dtype]
Shapes = tuple[tuple[int, ...], ...]


class Tile(NamedTuple):
    """Inputs that a program takes at a time, its warps, and how many such programs a multiprocessor holds."""

    block_i: int
    warps: int
    per_core: int


class Tiles(NamedTuple):
    """Of the passes over inputs: that of the first iteration, and those of the others."""

    first: Tile = Tile(64, 4, 4)
    others: Tile = Tile(64, 4, 2)
    block_j: int = 4  # outputs whose models a program computes
    model_warps: int = 1  # of such a program: one, which never waits for others


class Cut(NamedTuple):
    """How a sample's inputs are shared."""

    slots: int
    tiles: int  # of each slot


@lru_cache(maxsize=1024)
def cut(n_samples: int, n_inp: int, tile: Tile, device: torch.device) -> Cut:
    """As many slots as keep all programs busy for the least time, the fewest of these."""
    programs, tiles = programs_at_once(device, tile.per_core), max(1, -(-n_inp // tile.block_i))
    counts = range(1, min(tiles, 4 * programs // n_samples + 1) + 1)
    slots = min(counts, key=lambda n: (-(-n_samples * n // programs)) * (-(-tiles // n) + 1))
    return Cut(slots, -(-tiles // slots))


class Job:
    """How a case is run; it stands for the case where launches are looked up."""

    def __init__(self, plan: Plan, n: Sizes, shapes: Shapes, tiles: Tiles, device: torch.device):
        small, exact, half = torch.float32, torch.float64, torch.float16
        c, d, t = power(n.c), power(n.d), plan.n_iters
        c = max(c, 4 // d)  # sixteen features are what a product takes at least
        k = 4 * c * d
        self.tiles = tiles
        self.first, self.others = cut(n.b, n.i, tiles.first, device), cut(n.b, n.i, tiles.others, device)
        slots, first = n.b * self.others.slots, n.b * self.first.slots
        self.scratch = Layout(
            Piece(exact, first, k), Piece(exact, first), Piece(small, slots, n.j, k), Piece(small, slots, n.j)
        )
        self.of_first, self.of_others = self.scratch.only(0, 1), self.scratch.only(2, 3)
        self.saved = Layout(
            Piece(small, n.b, k), Piece(small, n.b), Piece(exact, n.b), Piece(exact, t, n.b, n.j, k),
            Piece(exact, t, n.b, n.j), Piece(half, t, n.b, n.j, 2, k), Piece(small, t, n.b, 3, n.j),
        )  # fmt: skip
        self.for_step, self.for_models, self.for_first = (
            self.saved.only(0, 1, 5, 6), self.saved.only(0, 1, 2, 3, 4), self.saved.only(0, 1)
        )  # fmt: skip
        self.width = n.d * n.h + n.c * n.h + 2  # gradients of one output's parameters
        self.back = Layout(
            Piece(small, slots, n.j, k), Piece(half, n.b, n.j, 2, k), Piece(small, n.b, n.j), Piece(exact, n.b, n.j),
            Piece(exact, n.b, n.j, self.width),
        )  # fmt: skip
        self.back_step, self.back_first = self.back.only(0, 1, 2), self.back.only(1, 2, 3, 4)
        W, _, use, ign = shapes
        # where outputs share a parameter, all of them read the same
        self.strides = [size if p[1] > 1 else 0 for p, size in ((W, n.d * n.h), (use, 1), (ign, 1))]
        self.blocks, jj = -(-n.j // tiles.block_j), max(16, power(n.j))
        self.of_inputs = n.c, n.d, tiles.first.block_i, c, d
        self.of_step = n.packed, n.j, n.c, n.d, tiles.others.block_i, jj, c, d
        self.of_models = plan.gaussian, n.j, n.c, n.d, n.h, tiles.block_j, c, d, power(n.h)
        self.of_last = n.packed, n.j, n.c, n.d, n.h, tiles.first.block_i, jj, c, d
        self.keys = [(self, True), (self, False)]  # models of the first, or last, iteration are compiled by themselves


@lru_cache(maxsize=1024)
def job(plan: Plan, sizes: Sizes, shapes: Shapes, dtypes: Dtypes, tiles: Tiles, device: torch.device) -> Job:
    return Job(plan, sizes, shapes, tiles, device)


def fwd(
    plan: Plan, sizes: Sizes, a_inp: Tensor, x: Tensor, offsets: Tensor | None, W: Tensor, B: Tensor,
    beta_use: Tensor, beta_ign: Tensor, tiles: Tiles = Tiles(),  # noqa: B008 (never changes)
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """The output capsules, and what the backward pass needs; shapes as in `votes_host.fwd`."""
    n, params = sizes, (W, B, beta_use, beta_ign)
    own = job(plan, n, tuple([p.shape for p in params]), (a_inp.dtype, x.dtype), tiles, x.device)
    scratch, saved = Room.make(own.scratch, x), Room.make(own.saved, x)
    of_first, of_others = Room(own.of_first, scratch.base), Room(own.of_others, scratch.base)
    for_step = Room(own.for_step, saved.base)
    a, mu, sig2 = (
        x.new_empty(n.b, n.j, dtype=torch.float32),
        x.new_empty(n.b, n.j, n.c, n.h, dtype=torch.float32),
        x.new_empty(n.b, n.j, n.c, n.h, dtype=torch.float32),
    )
    inputs = a_inp, x, x if offsets is None else offsets
    launch(
        first_sums, n.b * own.first.slots, x, tiles.first.warps, own, *inputs, of_first, n.i, *own.first, n.packed,
        *own.of_inputs,
    )  # fmt: skip
    for t in range(plan.n_iters):
        if t:
            launch(
                feature_sums, n.b * own.others.slots, x, tiles.others.warps, own, *inputs, for_step, of_others,
                n.b, n.i, t, *own.others, *own.of_step,
            )  # fmt: skip
        launch(
            models, n.b * own.blocks, x, tiles.model_warps, own.keys[t > 0], *params, scratch, saved, a, mu, sig2,
            n.b, t, plan.n_iters, own.others.slots if t else own.first.slots, plan.eps, *own.strides,
            t == 0, *own.of_models,
        )  # fmt: skip
    return (a, mu, sig2), (saved.base,)


def bwd(
    plan: Plan, sizes: Sizes, da: Tensor, dmu: Tensor, dsig2: Tensor, a_inp: Tensor, x: Tensor,
    offsets: Tensor | None, W: Tensor, B: Tensor, beta_use: Tensor, beta_ign: Tensor, saved: tuple[Tensor, ...],
    tiles: Tiles = Tiles(),  # noqa: B008 (never changes)
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of all arguments, as `votes_host.bwd` gives them."""
    n, params = sizes, (W, B, beta_use, beta_ign)
    own = job(plan, n, tuple([p.shape for p in params]), (a_inp.dtype, x.dtype), tiles, x.device)
    (base,) = saved
    for_models, for_step, for_first = Room(own.for_models, base), Room(own.for_step, base), Room(own.for_first, base)
    back = Room.make(own.back, x)
    back_step, back_first = Room(own.back_step, back.base), Room(own.back_first, back.base)
    da_inp, dx = a_inp.new_empty(a_inp.shape, dtype=torch.float32), x.new_empty(x.shape, dtype=torch.float32)
    dW, dB = W.new_empty(1, n.j, n.d, n.h), B.new_empty(1, n.j, n.c, n.h)
    duse, dign = W.new_empty(1, n.j), W.new_empty(1, n.j)
    inputs = a_inp, x, x if offsets is None else offsets
    last = plan.n_iters - 1
    for t in range(last, -1, -1):
        launch(
            models_bwd, n.b * own.blocks, x, tiles.model_warps, own.keys[t < last], *params, for_models, da, dmu, dsig2,
            back, n.b, t, own.others.slots, plan.eps, *own.strides, t == last, *own.of_models,
        )  # fmt: skip
        if t:
            launch(
                feature_sums_bwd, n.b * own.others.slots, x, tiles.others.warps, own, *inputs, for_step, back_step,
                da_inp, dx, n.b, n.i, t, int(t == last), *own.others, *own.of_step,
            )  # fmt: skip
    launch(
        first_sums_bwd, n.b * own.first.slots + -(-n.j * own.width // 128), x, tiles.first.warps, own, *inputs,
        for_first, back_first, da_inp, dx, dW, dB, duse, dign, n.b, n.i, int(last == 0), *own.first, *own.of_last,
    )  # fmt: skip
    # summed over outputs where these share a parameter
    dW, duse, dign = [
        d if d.shape == p.shape else d.sum_to_size(p.shape) for d, p in ((dW, W), (duse, beta_use), (dign, beta_ign))
    ]
    return da_inp.to(a_inp.dtype), dx.to(x.dtype), dW, dB, duse, dign
