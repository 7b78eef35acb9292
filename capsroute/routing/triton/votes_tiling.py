"""Tiles of the vote kernels and the division of their work among programs, chosen without importing Triton.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules; `n` all inputs of all samples.
"""

import math
from typing import NamedTuple

from .sizes import LoopSettings, Shape, Sizes, ceil_div, ceil_pow2
from .votes_types import GradSplit, SumSplit, Tile

MAX_COMPONENTS = 64
"""Components of a vote, its axes rounded up to powers of two, up to which a tile holds whole votes."""
MAX_D = 16
"""Size of axis `d` up to which forming votes number by number costs less than a matrix product."""
MAX_PARTIAL_BYTES = 2**28
"""Bytes of partial gradients of a parameter or of the inputs, or of partial sums of models."""


class VoteTuning(NamedTuple):
    """Thresholds from which tiles follow; numbers of votes count one for each output and component."""

    tile_votes: int = 4096  # in a tile, which registers hold a few times over
    sample_votes: int = 8192  # in a sample, up to which one program routes it without waiting for another
    sample_per_thread: int = 32  # of these that a thread holds
    input_votes: int = 4096  # of one input, up to which one tile takes all outputs
    split_votes: int = 1024  # of one input in a tile where outputs take several tiles
    few_inputs: int = 1024  # in a sample, up to which tiles have few inputs, so that many programs share them
    float64_inputs: int = 4  # in a sample, up to which gradients are float64
    threads_per_core: int = 256  # that a multiprocessor runs at a time, however many registers each takes
    model_numbers: int = 32  # numbers of models that a program computes at a time
    split_model_numbers: int = 256  # the same where outputs take several tiles


def votes_fit(sizes: Sizes) -> bool:
    """Tell whether capsules are small enough for the vote kernels."""
    return ceil_pow2(sizes.c) * ceil_pow2(sizes.h) <= MAX_COMPONENTS and sizes.d <= MAX_D


def choose_split(n: int, times: int, most: int, programs: int) -> int:
    """Return the fewest parts, at most `most`, of n tiles that take about the least time, each part `times` over."""
    counts = range(1, max(1, min(n, most, 4 * programs)) + 1)
    steps = [ceil_div(times * count, programs) * ceil_div(n, count) for count in counts]
    return next(count for count, step in zip(counts, steps, strict=True) if step <= 1.1 * min(steps))


def count_grads(s: Sizes, shape: Shape) -> int:
    """Return how many partial gradients of a parameter one sample has: a kind's at each of its places."""
    return (1 if shape[0] == 1 else s.i) * math.prod(shape[1:])


def choose_tile(loop: LoopSettings, s: Sizes, shapes: tuple[Shape, ...], tuning: VoteTuning) -> Tile:
    """Return the tile for parameters of these shapes; it hardly depends on the number of inputs, not on samples."""
    W, _, use, ign = shapes
    block_c, block_h, block_j = ceil_pow2(s.c), ceil_pow2(s.h), ceil_pow2(s.j)
    components = block_c * block_h
    split_j = block_j * components > tuning.input_votes
    if split_j:
        block_j = max(1, tuning.split_votes // components)
    sample_fits = ceil_pow2(s.i) * block_j * components <= tuning.sample_votes
    grads_fit = 4 * s.b * max([count_grads(s, shape) for shape in shapes]) <= MAX_PARTIAL_BYTES
    kinds = [shape[0] != 1 for shape in shapes]  # also where there are no inputs
    # samples of different sizes leave places of kinds unused, whose partial gradients no program would write
    one_program = sample_fits and grads_fit and not split_j and not (s.packed and any(kinds))
    max_i = 8 if s.i <= tuning.few_inputs else 64
    block_i = ceil_pow2(s.i) if one_program else max(1, min(max_i, tuning.tile_votes // (block_j * components)))
    model_numbers = tuning.split_model_numbers if split_j else tuning.model_numbers
    return Tile(
        *(s.c, s.d, s.h, block_i, block_j, block_c, block_h),
        BLOCK_M=ceil_pow2(s.j) if one_program else max(1, min(ceil_pow2(s.j), model_numbers // components)),
        BLOCK_S=1 if split_j or one_program else 8,
        SPLIT_J=split_j,
        ONE_PROGRAM=one_program,
        FLOAT64_GRADS=s.i <= tuning.float64_inputs and not split_j,
        PACKED=s.packed,
        GAUSSIAN=loop.gaussian,
        EPS=loop.eps,
        W_K=kinds[0],
        W_J=W[1] > 1,
        B_K=kinds[1],
        USE_K=kinds[2],
        USE_J=use[1] > 1,
        IGN_K=kinds[3],
        IGN_J=ign[1] > 1,
        BETAS_K=kinds[2] or kinds[3],
    )


def choose_warps(T: Tile, tuning: VoteTuning) -> int:
    """Return how many warps a program has: four, but more where it holds a large sample."""
    per_thread = ceil_div(T.BLOCK_I * T.BLOCK_J * T.BLOCK_C * T.BLOCK_H, 128)  # votes, by four warps
    return 4 * min(4, ceil_pow2(ceil_div(per_thread, tuning.sample_per_thread))) if T.ONE_PROGRAM else 4


def split_sums(s: Sizes, T: Tile, programs: int) -> SumSplit:
    """Split by tiles of outputs, and by slots of inputs as far as partial sums fit their bytes."""
    i_tiles, j_tiles = ceil_div(s.i, T.BLOCK_I), ceil_div(s.j, T.BLOCK_J)
    most = MAX_PARTIAL_BYTES // max(1, 8 * s.b * s.j * (2 * s.c * s.h + 2))
    slices = choose_split(j_tiles, s.b * i_tiles, 64, programs) if T.SPLIT_J else 1
    return SumSplit(i_tiles, j_tiles, choose_split(i_tiles, s.b * j_tiles, most, programs), slices)


def split_grads(s: Sizes, n: int, shapes: tuple[Shape, ...], T: Tile, sums: SumSplit, programs: int) -> GradSplit:
    """Split by samples, inputs and outputs as far as partial gradients fit their bytes."""
    if T.ONE_PROGRAM:
        return GradSplit(s.b, 1, 1, s.b)
    W_bytes = 4 * count_grads(s, shapes[0])
    own_bytes = max([4 * count_grads(s, shape) for shape in shapes if shape[0] != 1], default=0)
    max_slices = MAX_PARTIAL_BYTES // max(1, 4 * n * (s.c * s.d + 1))
    slices = choose_split(sums.j_tiles, s.b, max_slices, programs) if T.SPLIT_J else 1
    max_W = MAX_PARTIAL_BYTES // max(1, W_bytes * (1 if T.W_J else slices))  # partial gradients of W
    groups = max(1, min(s.b, 4 * programs, MAX_PARTIAL_BYTES // max(1, own_bytes), max_W))
    slots = choose_split(sums.i_tiles, groups * slices, sums.i_tiles if T.W_K else max_W // groups, programs)
    return GradSplit(groups, slots, slices, groups * (1 if T.W_K else slots) * (1 if T.W_J else slices))


def count_phases(s: Sizes, t: int, n: int, T: Tile, sums: SumSplit, grads: GradSplit) -> tuple[int, int, int]:
    """Return the phases of the forward and of the backward pass of t iterations, and the units of the largest phase."""
    if T.ONE_PROGRAM:
        return 0, 2, max(s.b, ceil_div((s.i if T.W_K or T.B_K else 1) * s.j * max(s.c, s.d) * s.h, 32))
    units = max(
        s.b * max(sums.slots * sums.j_tiles, sums.i_tiles * sums.slices, ceil_div(s.j, T.BLOCK_M)),
        grads.groups * grads.slots * grads.slices,
        ceil_div(n * s.c * s.d, 1024) if T.SPLIT_J else 0,
    )
    return 4 * t - 2 if T.SPLIT_J else 2 * t, (4 if T.SPLIT_J else 2) * (t - 1) + 3, units
