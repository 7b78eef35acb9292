"""Host side of the product kernels: chooses tiles, lays out workspaces and lists the launches of both passes.

Axes as in `products_tile.py`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .grid import Launch, resident_programs
from .products import products_fwd_kernel
from .products_bwd import products_bwd_kernel
from .products_tile import Args, BwdWorkspace, Counts, Models, Sums, Tile
from .sizes import Call, Grads, Outputs, Sizes, ceil_div, ceil_pow2
from .workspace import Layout, allocate_grads, buffers

THREADS_PER_CORE = 256
"""Threads that a multiprocessor runs at a time, however many registers each takes."""
MODEL_NUMBERS, SPLIT_MODEL_NUMBERS = 32, 256
"""Numbers of models that a program computes at a time, and where outputs take several tiles."""
MAX_PARTIAL_BYTES = 2**28
"""Bytes of partial gradients of a parameter or of the inputs, or of partial sums of models."""


class ProductTuning(NamedTuple):
    """Thresholds from which tiles follow."""

    tile_votes: int = 4096  # numbers of votes in a tile, which registers hold a few times over
    columns: int = 128  # outputs times components up to which one tile takes all
    split_columns: int = 64  # of a tile where outputs take several


def choose_tile(call: Call, tuning: ProductTuning, n_programs: int) -> Tile:
    """Return the tile for a GPU that runs `n_programs` at a time; no side of a product is smaller than 16."""
    loop, s, n, (W, _, use, ign), _ = call
    block_j, block_d, block_h = ceil_pow2(s.j), ceil_pow2(s.d), ceil_pow2(s.h)
    split_j = block_j * block_h > tuning.columns
    if split_j:
        block_j = max(8, tuning.split_columns // block_h)
    block_j = max(block_j, 16 // block_h)
    block_i = max(16, min(64, tuning.tile_votes // (block_j * block_h)))
    if not split_j:  # fewer where inputs are few, so that many programs share them
        block_i = max(16, min(block_i, ceil_pow2(ceil_div(n, 2 * n_programs))))
    model_numbers = SPLIT_MODEL_NUMBERS if split_j else MODEL_NUMBERS
    return Tile(
        *(s.d, s.h, block_i, block_j, block_d, block_h),
        BLOCK_M=max(1, min(ceil_pow2(s.j), model_numbers // block_h)),
        BLOCK_S=1 if split_j else 8,
        SPLIT_J=split_j,
        PACKED=s.packed,
        GAUSSIAN=loop.gaussian,
        EPS=loop.eps,
        W_J=int(W[1] > 1),
        USE_J=int(use[1] > 1),
        IGN_J=int(ign[1] > 1),
    )


def choose_split(n: int, times: int, most: int, programs: int) -> int:
    """Return the fewest parts, at most `most`, of n tiles that take about the least time, each part `times` over."""
    counts = range(1, max(1, min(n, most, 4 * programs)) + 1)
    steps = [ceil_div(times * count, programs) * ceil_div(n, count) for count in counts]
    return next(count for count, step in zip(counts, steps, strict=True) if step <= 1.1 * min(steps))


def divide_work(s: Sizes, n: int, t: int, T: Tile, programs: int) -> Counts:
    """Divide the work of t iterations among programs, as far as partial sums and gradients fit their bytes."""
    i_tiles, j_tiles = ceil_div(s.i, T.BLOCK_I), ceil_div(s.j, T.BLOCK_J)
    slices = choose_split(j_tiles, s.b * i_tiles, 64, programs) if T.SPLIT_J else 1
    max_slots = MAX_PARTIAL_BYTES // max(1, 8 * s.b * s.j * (2 * s.h + 2))
    slots = choose_split(i_tiles, s.b * j_tiles, max_slots, programs)
    max_slices = MAX_PARTIAL_BYTES // max(1, 4 * n * (s.d + 1))
    grad_slices = choose_split(j_tiles, s.b, max_slices, programs) if T.SPLIT_J else 1
    max_W = MAX_PARTIAL_BYTES // max(1, 4 * s.j * s.d * s.h)  # partial gradients of W
    groups = max(1, min(s.b, 4 * programs, max_W))
    grad_slots = choose_split(i_tiles, groups * grad_slices, max_W // groups, programs)
    return Counts(n, s.b, s.i, s.j, t, i_tiles, j_tiles, slots, slices, groups, grad_slots, grad_slices)


def lay_out(T: Tile, c: Counts) -> tuple[Layout, Layout, Layout]:
    """Lay out what the forward pass saves, `Models`, and the workspaces of both passes."""
    n, t = (c.n, c.n_iters) if T.SPLIT_J else (0, 0)  # of normalisers, which one tile of outputs need not keep
    axes = {**c._asdict(), **T._asdict(), "t": c.n_iters, "split_t": t, "split_n": n, "d": T.D, "h": T.H}
    axes["logit"] = torch.float32 if T.GAUSSIAN else torch.float64
    halves, sums, work = (buffers(fields, axes) for fields in (Args, Sums, BwdWorkspace))
    return Layout(Models(*buffers(Models, axes))), Layout(*halves, Sums(*sums)), Layout(*halves, BwdWorkspace(*work))


class ProductKernels:
    """Launches of the product kernels for one kind of call, see `products_fit`."""

    def __init__(self, call: Call, tuning: ProductTuning = ProductTuning()):  # noqa: B008 (immutable)
        loop, sizes, n, _, cores = call
        at_a_time = resident_programs(cores, 1)
        self.sizes, self.tile = sizes, choose_tile(call, tuning, at_a_time)
        T, votes = self.tile, self.tile.BLOCK_I * self.tile.BLOCK_J * self.tile.BLOCK_H
        # four warps multiply 64 inputs at once; of fewer inputs each would hold more outputs than fit its registers
        self.n_warps = 8 if T.BLOCK_I < 64 and votes > 2048 else 4
        per_core = max(1, THREADS_PER_CORE // (32 * self.n_warps))
        self.counts = c = divide_work(sizes, n, loop.n_iters, T, per_core * at_a_time)
        self.saved, self.fwd_workspace, self.bwd_workspace = lay_out(T, c)
        self.n_steps = 4 if T.SPLIT_J else 2  # phases of an iteration
        n_units = max(
            c.b * max(c.slots * c.j_tiles, c.i_tiles * c.slices, ceil_div(c.j, T.BLOCK_M)),
            c.groups * c.grad_slots * c.grad_slices,
            ceil_div(n * T.D, 1024),
            ceil_div(c.j * T.D * T.H, 64),
        )
        self.n_programs = min(n_units, resident_programs(cores, per_core))

    def fwd(self, inputs: Sequence[Tensor], saved: Tensor, outs: Sequence[Tensor]) -> Iterator[Launch]:
        """List the launches that fill `outs` and `saved`."""
        *halves, sums = self.fwd_workspace.split(self.fwd_workspace.allocate(saved))
        args = *self.counts, Args(*inputs, *halves), sums, *self.saved.split(saved), Outputs(*outs), self.tile
        n_phases = self.n_steps * self.counts.n_iters + (3 - self.n_steps)  # the first iteration needs no normalisers
        yield Launch(products_fwd_kernel, self.n_programs, self.n_warps, args, n_phases)

    def empty_grads(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Allocate gradients of all arguments but the offsets, those of parameters for every output."""
        return allocate_grads(self.sizes, inputs)

    def bwd(
        self, inputs: Sequence[Tensor], saved: Tensor, douts: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> Iterator[Launch]:
        """List the launches that fill `grads`."""
        *halves, work = self.bwd_workspace.split(self.bwd_workspace.allocate(saved))
        pointers = Args(*inputs, *halves), *self.saved.split(saved), work, Outputs(*douts), Grads(*grads)
        n_phases = self.n_steps * (self.counts.n_iters - 1) + 3
        yield Launch(products_bwd_kernel, self.n_programs, self.n_warps, (*self.counts, *pointers, self.tile), n_phases)
