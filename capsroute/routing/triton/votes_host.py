"""Host side of the vote kernels: chooses tiles, lays out workspaces and lists the launches of both passes.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules; `n` all inputs of all samples.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .grid import Launch, resident_programs
from .sizes import LoopSettings, Shape, Sizes, ceil_div, ceil_pow2
from .votes import votes_fwd_kernel
from .votes_bwd import votes_bwd_kernel
from .votes_small import small_fwd_kernel
from .votes_small_bwd import small_bwd_kernel
from .votes_types import Grads, GradSplit, Outputs, RouteArgs, SumSplit, Tile
from .votes_workspace import lay_out

MAX_PARTIAL_BYTES = 2**28
"""Bytes of partial gradients of a parameter or of the inputs, or of partial sums of models."""


class VoteTuning(NamedTuple):
    """Thresholds from which tiles follow; numbers of votes count one for each output and component."""

    tile_votes: int = 4096  # in a tile, which registers hold a few times over
    sample_votes: int = 8192  # in a sample, up to which one program routes it without waiting for another
    sample_per_thread: int = 32  # of these that a thread holds
    input_votes: int = 4096  # of one input in a tile
    input_votes_split_j: int = 1024  # the same where outputs take several tiles
    input_votes_few: int = 128  # the same where inputs are few
    per_thread: int = 32  # that a thread holds
    max_j: int = 128  # outputs up to which one tile takes them all, in however many chunks of components
    centre_inputs: int = 32  # weighted inputs from which programs choose a centre to measure distances from
    few_inputs: int = 4  # up to which gradients in several chunks are float64
    min_dot_inputs: int = 64  # from which votes are products of float16 pairs, whose errors average out in sums
    dot_columns: int = 128  # outputs times components in a product
    dot_columns_split_j: int = 64  # the same where outputs take several tiles
    dot_per_thread: int = 16  # results that a thread holds where tiles are too small for four warps at once
    block_d: int = 64  # inner step of a product
    threads_per_core: int = 256  # that a multiprocessor runs at a time, however many registers each takes
    model_numbers: int = 32  # numbers of models that a program computes at a time
    model_numbers_split_j: int = 256  # the same where outputs take several tiles


def choose_split(n: int, times: int, most: int, programs: int) -> int:
    """Return the fewest parts, at most `most`, of n tiles that take about the least time, each part `times` over."""
    counts = range(1, max(1, min(n, most, 4 * programs)) + 1)
    steps = [ceil_div(times * count, programs) * ceil_div(n, count) for count in counts]
    return next(count for count, step in zip(counts, steps, strict=True) if step <= 1.1 * min(steps))


def choose_tile(
    loop: LoopSettings, s: Sizes, n: int, shapes: tuple[Shape, ...], tuning: VoteTuning, cores: int
) -> Tile:
    """Return the tile for parameters of these shapes."""
    W, B, use, ign = shapes
    dot = W[0] == 1 and s.d >= 16 and s.i >= tuning.min_dot_inputs
    input_votes = ceil_pow2(s.j) * ceil_pow2(s.c) * ceil_pow2(s.h)
    if dot:  # rather several tiles of outputs than one that holds votes in chunks
        one_chunk = s.c == 1 and s.h <= 8 and s.d <= tuning.block_d
        split_j = s.j > tuning.max_j or (one_chunk and input_votes > tuning.dot_columns)
        columns = tuning.dot_columns_split_j if split_j else tuning.dot_columns
    else:
        split_j = s.j > tuning.max_j and input_votes > tuning.input_votes
        columns = tuning.input_votes if s.i > tuning.few_inputs else tuning.input_votes_few
        columns = tuning.input_votes_split_j if split_j else columns
    block_j = 8 if split_j else ceil_pow2(s.j)
    block_h = min(ceil_pow2(s.h), max(1, columns // block_j))
    block_c = 1 if dot else min(ceil_pow2(s.c), max(1, columns // (block_j * block_h)))
    if split_j:
        block_j = max(block_j, columns // (block_h * block_c))
    if dot:
        block_j = max(block_j, 16 // block_h)
    # few inputs per tile where inputs are few, so that many programs share them; split outputs do that already
    max_i = min(64, tuning.tile_votes // (block_j * block_h * block_c))
    block_i = max(max_i if split_j else min(max_i, ceil_pow2(ceil_div(n, 2 * cores))), 16 if dot else 1)
    block_d = min(ceil_pow2(s.d), tuning.block_d) if dot else 1
    chunks = ceil_div(s.c, block_c) * ceil_div(s.h, block_h)
    block_v = min(ceil_pow2(s.c * s.h), 64)
    sample_fits = ceil_pow2(s.i) * block_j * block_c * block_h <= tuning.sample_votes
    grads_fit = 4 * s.b * max(map(math.prod, shapes)) <= MAX_PARTIAL_BYTES  # of parameters, from each sample
    one_program = sample_fits and grads_fit and not dot and not split_j and chunks == 1
    block_i = ceil_pow2(s.i) if one_program else block_i
    model_numbers = tuning.model_numbers_split_j if split_j else tuning.model_numbers
    return Tile(
        *(s.c, s.d, s.h, block_i, block_j, block_c, block_h, block_d, ceil_div(s.d, block_d) * block_d),
        DOT=dot,
        ONE_STEP=dot and chunks == 1 and s.d <= block_d,
        SPLIT_J=split_j,
        ONE_PROGRAM=one_program,
        ONE_TILE=not split_j and chunks == 1,
        CHUNKS=chunks,
        CENTRE_TILES=ceil_div(tuning.centre_inputs, block_i),
        FLOAT64_GRADS=s.i <= tuning.few_inputs and chunks > 1 and not dot and not split_j,
        PACKED=s.packed,
        GAUSSIAN=loop.gaussian,
        EPS=loop.eps,
        W_I=W[0] != 1,  # also where there are no inputs
        W_J=W[1] > 1,
        B_I=B[0] != 1,
        USE_I=use[0] != 1,
        USE_J=use[1] > 1,
        IGN_I=ign[0] != 1,
        IGN_J=ign[1] > 1,
        BETAS_I=use[0] != 1 or ign[0] != 1,
        BLOCK_M=ceil_pow2(s.j) if one_program else max(1, min(ceil_pow2(s.j), model_numbers // block_v)),
        BLOCK_V=block_v,
        BLOCK_S=1 if split_j or one_program else 8,
    )


def split_sums(s: Sizes, T: Tile, programs: int) -> SumSplit:
    """Split by tiles of outputs, and by slots of inputs as far as partial sums fit their bytes."""
    i_tiles, j_tiles = ceil_div(s.i, T.BLOCK_I), ceil_div(s.j, T.BLOCK_J)
    most = MAX_PARTIAL_BYTES // max(1, 8 * s.b * s.j * (2 * s.c * s.h + 2))
    slices = choose_split(j_tiles, s.b * i_tiles, 64, programs) if T.SPLIT_J else 1
    return SumSplit(i_tiles, j_tiles, choose_split(i_tiles, s.b * j_tiles, most, programs), slices)


def split_grads(s: Sizes, n: int, T: Tile, sums: SumSplit, programs: int) -> GradSplit:
    """Split by samples, inputs and outputs as far as partial gradients fit their bytes."""
    if T.ONE_PROGRAM:
        return GradSplit(s.b, 1, 1, s.b)
    W_bytes = 4 * (s.i if T.W_I else 1) * (s.j if T.W_J else 1) * s.d * s.h
    own_bytes = max(W_bytes * T.W_I, 4 * s.i * s.j * (s.c * s.h if T.B_I else T.USE_I or T.IGN_I))
    max_slices = MAX_PARTIAL_BYTES // max(1, 4 * n * (s.c * s.d + 1))
    slices = choose_split(sums.j_tiles, s.b, max_slices, programs) if T.SPLIT_J else 1
    max_W = MAX_PARTIAL_BYTES // max(1, W_bytes * (1 if T.W_J else slices))  # partial gradients of W
    groups = max(1, min(s.b, 4 * programs, MAX_PARTIAL_BYTES // max(1, own_bytes), max_W))
    slots = choose_split(sums.i_tiles, groups * slices, sums.i_tiles if T.W_I else max_W // groups, programs)
    return GradSplit(groups, slots, slices, groups * (1 if T.W_I else slots) * (1 if T.W_J else slices))


class Phases(NamedTuple):
    """The phases of a launch."""

    n_phases: int
    n_units: int  # units of work in the largest phase


def count_phases(s: Sizes, t: int, n: int, T: Tile, sums: SumSplit, grads: GradSplit) -> tuple[Phases, Phases]:
    """Count the phases of the forward and of the backward pass, for t iterations and n inputs in all."""
    units = s.b * max(sums.slots * sums.j_tiles, sums.i_tiles * sums.slices, ceil_div(s.j, T.BLOCK_M))
    W = (s.i if T.W_I else 1) * (s.j if T.W_J else 1) * s.d * s.h
    if T.ONE_PROGRAM:
        return Phases(0, s.b), Phases(2, max(s.b, ceil_div(W + (s.i if T.B_I else 1) * s.j * s.c * s.h, 64)))
    fwd = Phases((4 * t - 2 if T.SPLIT_J else 2 * t) + T.DOT, units)
    input_units = 0 if T.ONE_TILE else ceil_div(n * s.c * s.d, 1024)
    units = max(units, grads.groups * grads.slots * grads.slices, input_units, ceil_div(W, 64))
    return fwd, Phases((4 if T.SPLIT_J else 2) * (t - 1) + 3, units)


class VoteKernels:
    """Launches of the vote kernels for one set of sizes.

    Args:
        loop: Settings of the loop.
        sizes: Sizes of the call.
        n: Inputs of all samples.
        shapes: Shapes of `W`, `B`, `beta_use` and `beta_ign`.
        cores: Multiprocessors of the GPU, 0 under the interpreter.
        tuning: Thresholds from which tiles follow.
    """

    def __init__(
        self,
        loop: LoopSettings,
        sizes: Sizes,
        n: int,
        shapes: tuple[Shape, ...],
        cores: int,
        tuning: VoteTuning = VoteTuning(),  # noqa: B008 (immutable)
    ):
        self.sizes, at_a_time = sizes, resident_programs(cores, 1)
        self.tile = T = choose_tile(loop, sizes, n, shapes, tuning, at_a_time)
        per_thread = T.BLOCK_I * T.BLOCK_J * T.BLOCK_C * T.BLOCK_H // 128  # votes, by four warps
        if T.ONE_PROGRAM:
            self.n_warps = 4 * max(1, min(4, ceil_pow2(ceil_div(per_thread, tuning.sample_per_thread))))
        else:
            most = tuning.dot_per_thread if T.DOT and T.BLOCK_I < 64 else tuning.per_thread
            self.n_warps = 8 if per_thread > most else 4
        per_core = max(1, tuning.threads_per_core // (32 * self.n_warps))
        self.sums = split_sums(sizes, T, per_core * at_a_time)
        self.grads = split_grads(sizes, n, T, self.sums, per_core * at_a_time)
        splits = sizes, loop.n_iters, n, T, self.sums, self.grads
        self.saved, self.fwd_workspace, self.bwd_workspace, self.n_cleared = lay_out(*splits)
        self.fwd_phases, self.bwd_phases = count_phases(*splits)
        self.counts, self.max_programs = (n, *sizes[:3], loop.n_iters), resident_programs(cores, per_core)

    def fwd(self, inputs: Sequence[Tensor], saved: Tensor, outs: Sequence[Tensor]) -> Iterator[Launch]:
        """List the launches that fill `outs` and `saved`."""
        layout, (n_phases, n_units) = self.fwd_workspace, self.fwd_phases
        workspace = layout.split(layout.allocate(saved))
        pointers = RouteArgs(*inputs), *workspace, *self.saved.split(saved), Outputs(*outs)
        if self.tile.ONE_PROGRAM:
            yield Launch(small_fwd_kernel, n_units, self.n_warps, (*self.counts, *pointers, self.tile))
        else:
            args = *self.counts, *self.sums, *pointers, self.tile
            yield Launch(votes_fwd_kernel, min(n_units, self.max_programs), self.n_warps, args, n_phases)

    def empty_grads(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Allocate gradients of all arguments but the offsets, those of betas for every output."""
        a_inp, x, _, W, B, *betas = inputs
        return [*map(torch.empty_like, (a_inp, x, W, B)), *[W.new_empty(len(beta), self.sizes.j) for beta in betas]]

    def bwd(
        self, inputs: Sequence[Tensor], saved: Tensor, douts: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> Iterator[Launch]:
        """List the launches that fill `grads`."""
        layout, (n_phases, n_units) = self.bwd_workspace, self.bwd_phases
        workspace = layout.split(layout.allocate(saved))
        pointers = RouteArgs(*inputs), *self.saved.split(saved), *workspace, Grads(*douts, *grads)
        small = self.tile.ONE_PROGRAM
        kernel, splits = (
            (small_bwd_kernel, ()) if small else (votes_bwd_kernel, (*self.sums, *self.grads, self.n_cleared))
        )
        args = *self.counts, *splits, *pointers, self.tile
        yield Launch(kernel, min(n_units, self.max_programs), self.n_warps, args, n_phases)


plan_votes = lru_cache(maxsize=1024)(VoteKernels)
"""`VoteKernels`, cached by sizes: planning takes longer than many calls."""
