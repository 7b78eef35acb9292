"""The moment form, called from outside: chooses tiles, makes room and launches the kernels.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules, `k` features; a sample's inputs lie in slots.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..mapping import Tensors
from .grid import programs_at_once
from .launch import At, Launch, Pass
from .moments import feature_sums_fwd_kernel, first_sums_fwd_kernel, models_fwd_kernel
from .moments_bwd import feature_sums_bwd_kernel, first_sums_bwd_kernel, models_bwd_kernel
from .moments_float64 import HAS_FLOAT64_DOT
from .native import Kernels
from .sizes import ALWAYS, NEVER, Hard, Plan, Sizes, power
from .workspace import Layout, Piece

Dtypes = tuple[torch.dtype, torch.dtype]
Shapes = tuple[tuple[int, ...], ...]
PLACES = [At(place) for place in range(31)]
"""Of pieces in the memory of a pass."""
INPUTS, PARAMS = PLACES[:3], PLACES[3:7]
"""Of arguments, in both passes."""


class Tile(NamedTuple):
    """Inputs that a program takes at a time, its warps, and how many such programs a multiprocessor holds."""

    block_i: int
    warps: int
    per_core: int


class Tiles(NamedTuple):
    """Of the passes over inputs: that of the first iteration, and those of the others."""

    first: Tile = Tile(128, 4, 4)
    others: Tile = Tile(64, 4, 2)
    block_j: int = 4  # outputs whose models a program computes, half of them where programs would be few
    model_warps: int = 1  # of such a program: one, which never waits for others
    model_programs: int = 8  # on a multiprocessor, of which they are not few


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


class Runner(Kernels):
    """Runs a case, planned once down to each launch; it stands for the case where compiled kernels are looked up."""

    def __init__(
        self,
        plan: Plan,
        n: Sizes,
        shapes: Shapes,
        dtypes: Dtypes,
        device: torch.device,
        hard: Hard,
        tiles: Tiles = Tiles(),  # noqa: B008 (never changes)
    ):
        small, exact, half = torch.float32, torch.float64, torch.float16
        c, d, t = power(n.c), power(n.d), plan.n_iters
        c = max(c, 4 // d)  # sixteen features are what a product takes at least
        k = 4 * c * d
        self.plan, self.n, self.hard, self.tiles = plan, n, hard if HAS_FLOAT64_DOT else NEVER, tiles
        self.first, self.others = cut(n.b, n.i, tiles.first, device), cut(n.b, n.i, tiles.others, device)
        slots, first = n.b * self.others.slots, n.b * self.first.slots
        fwd_room = Layout(
            Piece(exact, first, k), Piece(exact, first), Piece(small, first, 2, k // 4), Piece(exact, slots, n.j, k),
            Piece(exact, slots, n.j),
        )  # fmt: skip
        saved = Layout(
            Piece(small, n.b, k), Piece(small, n.b), Piece(exact, n.b), Piece(exact, t, n.b, n.j, k),
            Piece(exact, t, n.b, n.j), Piece(half, t, n.b, n.j, 2, k), Piece(small, t, n.b, 4, n.j),
            Piece(torch.int32, 2, n.b), Piece(exact, t, n.b, n.j, k),
        )  # fmt: skip
        self.width = n.d * n.h + n.c * n.h + 2  # gradients of one output's parameters
        bwd_room = Layout(
            Piece(exact, slots, n.j, k), Piece(half, n.b, n.j, 2, k), Piece(small, n.b, n.j), Piece(exact, n.b, n.j, k),
            Piece(exact, n.b, n.j), Piece(exact, n.b, n.j, self.width),
        )  # fmt: skip
        W, _, use, ign = shapes
        # where outputs share a parameter, all of them read the same
        self.strides = [size if p[1] > 1 else 0 for p, size in ((W, n.d * n.h), (use, 1), (ign, 1))]
        few = n.b * -(-n.j // tiles.block_j) < programs_at_once(device, tiles.model_programs)
        block_j, jj = tiles.block_j // (2 if few else 1), max(16, power(n.j))
        self.blocks = -(-n.j // block_j)
        self.of_inputs = n.packed, n.c, n.d, tiles.first.block_i, c, d
        self.of_step = n.packed, n.j, n.c, n.d, tiles.others.block_i, jj, c, d
        self.of_models = plan.gaussian, n.j, n.c, n.d, n.h, block_j, c, d, power(n.h)
        self.of_last = n.packed, n.j, n.c, n.d, n.h, tiles.first.block_i, jj, c, d
        whole = set(dtypes) == {small} and all(p[1] == n.j for p in shapes)
        given, outs, grads = [None] * 7, [None] * 3, [None] * 6
        run_fwd = Pass([*given, fwd_room, saved, *outs], list(self.plan_fwd()))
        run_bwd = Pass([*given, saved, bwd_room, *outs, *grads], list(self.plan_bwd()))
        super().__init__(n, run_fwd, run_bwd, (saved, fwd_room, bwd_room), whole)

    def plan_fwd(self) -> Iterator[Launch]:
        """Launches over the memory that `fwd` names."""
        n, plan, tiles = self.n, self.plan, self.tiles
        scratch, saved, outs = PLACES[7:12], PLACES[12:21], PLACES[21:24]
        usual, scale, _, _, _, *coefficients = saved
        hard = saved[7]
        yield Launch(
            first_sums_fwd_kernel, n.b * self.first.slots, tiles.first.warps, self, *INPUTS, *scratch[:3], hard,
            n.b, n.i, *self.first, *self.of_inputs,
        )  # fmt: skip
        for t, again in self.steps():
            if t:
                yield Launch(
                    feature_sums_fwd_kernel, n.b * self.others.slots, tiles.others.warps, self, *INPUTS, usual, scale,
                    *coefficients, *scratch[3:], n.b, n.i, t, again, self.hard.apart,
                    *self.others, *self.of_step,
                )  # fmt: skip
            yield Launch(
                models_fwd_kernel, n.b * self.blocks, tiles.model_warps, (self, t == 0), *PARAMS, *scratch, *saved,
                *outs, n.b, t, again, plan.n_iters, self.others.slots if t else self.first.slots, plan.eps,
                *self.hard[:2], *self.strides, t == 0, *self.of_models,
            )  # fmt: skip

    def steps(self) -> Iterator[tuple[int, int]]:
        """Iterations, and whether they are run again: the second, the first that tells outputs from each other."""
        for t in range(self.plan.n_iters):
            yield t, 0
            if t == 1 and self.hard not in (ALWAYS, NEVER):
                yield t, 1

    def plan_bwd(self) -> Iterator[Launch]:
        """Launches over the memory that `bwd` names."""
        n, plan, tiles = self.n, self.plan, self.tiles
        saved, back, douts, grads = PLACES[7:16], PLACES[16:22], PLACES[22:25], PLACES[25:31]
        usual, scale, _, _, _, *coefficients = saved
        hard, last = saved[7], plan.n_iters - 1
        for t in range(last, -1, -1):
            yield Launch(
                models_bwd_kernel, n.b * self.blocks, tiles.model_warps, (self, t == last), *PARAMS, *saved[:5],
                hard, *douts, *back, n.b, t, self.others.slots, plan.eps, *self.strides, t == last, *self.of_models,
            )  # fmt: skip
            if t:
                yield Launch(
                    feature_sums_bwd_kernel, n.b * self.others.slots, tiles.others.warps, self, *INPUTS, usual, scale,
                    *coefficients, *back[:4], *grads[:2], n.b, n.i, t, int(t == last), *self.others, *self.of_step,
                )  # fmt: skip
        yield Launch(
            first_sums_bwd_kernel, n.b * self.first.slots + -(-n.j * self.width // 128), tiles.first.warps, self,
            *INPUTS, usual, scale, *back[1:3], *back[4:], *grads, n.b, n.i, int(last == 0), *self.first, *self.of_last,
        )  # fmt: skip

    def fwd(self, given: Sequence[Tensor], in_graph: bool = False) -> tuple[Tensors, Tensors]:
        """The output capsules, and what the backward pass needs; as in `votes_host.py`, in a graph or not."""
        n, a_inp, W = self.n, given[0], given[3]
        batch = (n.b,) if n.packed else a_inp.shape[:-1]
        a, mu = W.new_empty(*batch, n.j), W.new_empty(*batch, n.j, n.c, n.h)
        kept, room, _ = self.rooms
        sig2, saved = torch.empty_like(mu), kept.make(W)
        self.run_fwd.start([*given, room.make(W), saved, a, mu, sig2])
        return (a, mu, sig2), (saved,)

    def bwd(self, douts: Sequence[Tensor], given: Sequence[Tensor], saved: Tensors) -> Tensors:
        """Gradients of all arguments."""
        n, (a_inp, x, _, W, B, beta_use, beta_ign) = self.n, given
        da_inp, dx = torch.empty_like(a_inp, dtype=torch.float32), torch.empty_like(x, dtype=torch.float32)
        dW, dB = W.new_empty(1, n.j, n.d, n.h), torch.empty_like(B)
        duse, dign = W.new_empty(1, n.j), W.new_empty(1, n.j)
        grads = da_inp, dx, dW, dB, duse, dign
        self.run_bwd.start([*given, *saved, self.rooms[2].make(W), *douts, *grads])
        if self.whole:
            return grads
        # summed over outputs where these share a parameter, and as exact as the argument
        pairs = zip(grads, (a_inp, x, W, B, beta_use, beta_ign), strict=True)
        return tuple([d.sum_to_size(p.shape).to(p.dtype) for d, p in pairs])


runner = lru_cache(maxsize=1024)(Runner)
"""The same for any number of inputs in all packed samples."""
