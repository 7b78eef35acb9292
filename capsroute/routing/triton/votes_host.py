"""The vote form, called from outside: chooses tiles, makes room and launches the kernels.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules; `n` all inputs of all samples.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..mapping import Tensors
from .grid import keep_counter, programs_at_once, run_phases
from .launch import At, Launch, Pass
from .native import Kernels
from .sizes import Plan, Sizes, power
from .votes import votes_fwd_kernel
from .votes_bwd import votes_bwd_kernel
from .votes_rooms import Rooms, rooms
from .votes_small import small_fwd_kernel
from .votes_small_bwd import small_bwd_kernel
from .votes_types import Grads, GradSplit, Outputs, RouteArgs, SumSplit, Tile

SLOT_BYTES = 2**28
"""Room for partial gradients of a parameter or of the inputs, or partial sums of models."""
Shape = tuple[int, ...]
PLACES = [At(place) for place in range(8)]
"""Of pieces in the memory of a pass."""


class Knobs(NamedTuple):
    """What tiles are made from."""

    votes: int = 4096  # numbers in a tile's votes: what a program's registers hold a few times
    alone: int = 8192  # numbers in a sample's votes up to which one program has it, and waits for no other
    alone_numbers: int = 32  # of them that a thread then holds
    of_one: int = 4096  # of one input
    of_one_wide: int = 1024  # where outputs take several tiles
    of_one_few: int = 128  # where inputs are few
    numbers: int = 32  # that a thread holds
    most_j: int = 128  # outputs up to which one tile takes them all, however many chunks their components take
    looks: int = 32  # inputs with weight among which programs look for a centre to count distances from
    few: int = 4  # inputs up to which components in several chunks have their gradients in float64
    fewest: int = 64  # inputs from which votes are matrix products, of halves, whose errors only sums make up
    columns: int = 128  # outputs times components of these
    wide_columns: int = 64  # the same, where outputs take several tiles
    dot_numbers: int = 16  # that a thread holds of these, where inputs are too few for products by four warps at once
    block_d: int = 64  # their steps
    threads: int = 256  # that a multiprocessor runs at a time, whatever number of registers each takes
    models: int = 32  # numbers of models that a program computes at a time
    wide_models: int = 256  # the same, where outputs take several tiles


class Work(NamedTuple):
    """Of a launch."""

    phases: int
    units: int  # of its largest phase


class Job(NamedTuple):
    """How a case is run."""

    tile: Tile
    cut: SumSplit
    share: GradSplit
    warps: int
    per_core: int
    rooms: Rooms
    fwd: Work
    bwd: Work


def parts(n: int, size: int) -> int:
    """PartialGrads of a size that cover n, at least one."""
    return max(1, -(-n // size))


def split(n: int, times: int, most: int, programs: int) -> int:
    """Into how many parts, at most, to split n pieces, each `times` over: the fewest that are done about soonest."""
    counts = range(1, max(1, min(n, most, 4 * programs)) + 1)
    waits = [parts(times * count, programs) * parts(n, count) for count in counts]
    return next(count for count, wait in zip(counts, waits, strict=True) if wait <= 1.1 * min(waits))


@lru_cache(maxsize=1024)
def job(plan: Plan, sizes: Sizes, n: int, shapes: tuple[Shape, ...], knobs: Knobs, cores: int) -> Job:
    """For parameters of these shapes and n inputs in all, on a device with so many multiprocessors."""
    tile = choose(plan, sizes, n, shapes, knobs, cores)
    numbers = tile.BLOCK_I * tile.BLOCK_J * tile.BLOCK_C * tile.BLOCK_H // 128  # that a thread of four warps holds
    if tile.ONE_PROGRAM:
        warps = 4 * max(1, min(4, power(parts(numbers, knobs.alone_numbers))))
    else:
        warps = 8 if numbers > (knobs.dot_numbers if tile.DOT and tile.BLOCK_I < 64 else knobs.numbers) else 4
    per_core = max(1, knobs.threads // (32 * warps))
    cut = share_sums(sizes, tile, per_core * cores)
    share = share_last(sizes, n, tile, cut, per_core * cores)
    where = rooms(sizes, plan.n_iters, n, tile, cut, share)
    return Job(tile, cut, share, warps, per_core, where, *work(sizes, plan.n_iters, n, tile, cut, share))


def choose(plan: Plan, s: Sizes, n: int, shapes: tuple[Shape, ...], knobs: Knobs, cores: int) -> Tile:
    """The tile for a case, from the shapes of its parameters."""
    W, B, use, ign = shapes
    dot = W[0] == 1 and s.d >= 16 and s.i >= knobs.fewest
    whole = dot and s.c == 1 and s.h <= 8 and s.d <= knobs.block_d
    of_one = power(s.j) * power(s.c) * power(s.h)
    if dot:  # rather several tiles of outputs than one that does not hold whole votes
        wide = s.j > knobs.most_j or (whole and of_one > knobs.columns)
        columns = knobs.wide_columns if wide else knobs.columns
    else:
        wide = s.j > knobs.most_j and of_one > knobs.of_one
        columns = knobs.of_one_wide if wide else knobs.of_one if s.i > knobs.few else knobs.of_one_few
    block_j = 8 if wide else power(s.j)
    block_h = min(power(s.h), max(1, columns // block_j))
    block_c = 1 if dot else min(power(s.c), max(1, columns // (block_j * block_h)))
    if wide:
        block_j = max(block_j, columns // (block_h * block_c))
    if dot:
        block_j = max(block_j, 16 // block_h)
    # where inputs are few, few per tile, so that many programs share them; where outputs are many, they do that
    most_i = min(64, knobs.votes // (block_j * block_h * block_c))
    block_i = max(most_i if wide else min(most_i, power(parts(n, 2 * cores))), 16 if dot else 1)
    block_d = min(power(s.d), knobs.block_d) if dot else 1
    chunks = parts(s.c, block_c) * parts(s.h, block_h)
    block_v = min(power(s.c * s.h), 64)
    few = power(s.i) * block_j * block_c * block_h <= knobs.alone
    fit = 4 * s.b * max(map(math.prod, shapes)) <= SLOT_BYTES  # gradients of parameters from each sample
    alone = few and fit and not dot and not wide and chunks == 1
    block_i = power(s.i) if alone else block_i
    models = knobs.wide_models if wide else knobs.models
    return Tile(
        *(s.c, s.d, s.h, block_i, block_j, block_c, block_h, block_d, parts(s.d, block_d) * block_d),
        DOT=dot,
        ONE_STEP=dot and chunks == 1 and s.d <= block_d,
        SPLIT_J=wide,
        ONE_PROGRAM=alone,
        ONE_TILE=not wide and chunks == 1,
        CHUNKS=chunks,
        CENTRE_TILES=parts(knobs.looks, block_i),
        FLOAT64_GRADS=s.i <= knobs.few and chunks > 1 and not dot and not wide,
        PACKED=s.packed,
        GAUSSIAN=plan.gaussian,
        EPS=plan.eps,
        W_I=W[0] != 1,  # of no inputs too
        W_J=W[1] > 1,
        B_I=B[0] != 1,
        USE_I=use[0] != 1,
        USE_J=use[1] > 1,
        IGN_I=ign[0] != 1,
        IGN_J=ign[1] > 1,
        BETAS_I=use[0] != 1 or ign[0] != 1,
        BLOCK_M=power(s.j) if alone else max(1, min(power(s.j), models // block_v)),
        BLOCK_V=block_v,
        BLOCK_S=1 if wide or alone else 8,
    )


def share_sums(s: Sizes, T: Tile, programs: int) -> SumSplit:
    """By tiles of outputs, and by slots of inputs as far as their sums fit their room."""
    i_tiles, j_tiles = parts(s.i, T.BLOCK_I), parts(s.j, T.BLOCK_J)
    fit = SLOT_BYTES // max(1, 8 * s.b * s.j * (2 * s.c * s.h + 2))
    slices = split(j_tiles, s.b * i_tiles, 64, programs) if T.SPLIT_J else 1
    return SumSplit(i_tiles, j_tiles, split(i_tiles, s.b * j_tiles, fit, programs), slices)


def share_last(s: Sizes, n: int, T: Tile, cut: SumSplit, programs: int) -> GradSplit:
    """By samples, inputs and outputs, as far as partial gradients fit their room."""
    if T.ONE_PROGRAM:
        return GradSplit(s.b, 1, 1, s.b)
    w = 4 * (s.i if T.W_I else 1) * (s.j if T.W_J else 1) * s.d * s.h
    own = max(w * T.W_I, 4 * s.i * s.j * (s.c * s.h if T.B_I else T.USE_I or T.IGN_I))
    most = SLOT_BYTES // max(1, 4 * n * (s.c * s.d + 1))
    slices = split(cut.j_tiles, s.b, most, programs) if T.SPLIT_J else 1
    fit = SLOT_BYTES // max(1, w * (1 if T.W_J else slices))  # partial gradients of W
    groups = max(1, min(s.b, 4 * programs, SLOT_BYTES // max(1, own), fit))
    slots = split(cut.i_tiles, groups * slices, cut.i_tiles if T.W_I else fit // groups, programs)
    return GradSplit(groups, slots, slices, groups * (1 if T.W_I else slots) * (1 if T.W_J else slices))


def work(s: Sizes, t: int, n: int, T: Tile, cut: SumSplit, share: GradSplit) -> tuple[Work, Work]:
    """Forward and backward, of t iterations and n inputs in all."""
    units = s.b * max(cut.slots * cut.j_tiles, cut.i_tiles * cut.slices, parts(s.j, T.BLOCK_M))
    last = share.groups * share.slots * share.slices
    W = (s.i if T.W_I else 1) * (s.j if T.W_J else 1) * s.d * s.h
    if T.ONE_PROGRAM:
        return Work(1, s.b), Work(2, max(s.b, parts(W + (s.i if T.B_I else 1) * s.j * s.c * s.h, 64)))
    fwd = Work((4 * t - 2 if T.SPLIT_J else 2 * t) + T.DOT, units)
    inputs = 0 if T.ONE_TILE else parts(n * s.c * s.d, 1024)
    bwd = Work((4 if T.SPLIT_J else 2) * (t - 1) + 3, max(units, last, inputs, parts(W, 64)))
    return fwd, bwd


class Runner(Kernels):
    """Runs a case, planned once."""

    def __init__(
        self,
        plan: Plan,
        sizes: Sizes,
        n: int,
        shapes: tuple[Shape, ...],
        dtypes: tuple[torch.dtype, torch.dtype],
        device: torch.device,
        knobs: Knobs = Knobs(),  # noqa: B008 (never changes)
    ):
        self.betas = [(beta[0], sizes.j) for beta in shapes[2:]]
        self.shared = any(beta[1] != sizes.j for beta in shapes[2:])
        self.how = how = job(plan, sizes, n, shapes, knobs, programs_at_once(device, 1))
        counts, key, at_once = (n, *sizes[:3], plan.n_iters), (how.tile, dtypes), programs_at_once(device, how.per_core)
        rooms, count = how.rooms, PLACES[0]
        if how.tile.ONE_PROGRAM:
            fwd = Launch(small_fwd_kernel, sizes.b, how.warps, key, *counts, *PLACES[:5], how.tile)
            bwd_kernel, shares = small_bwd_kernel, ()
        else:
            fwd = Launch(
                votes_fwd_kernel, min(how.fwd.units, at_once), how.warps, key, count, 0, how.fwd.phases,
                *counts, *how.cut, *PLACES[1:6], how.tile, together=True,
            )  # fmt: skip
            bwd_kernel, shares = votes_bwd_kernel, (*how.cut, *how.share, rooms.lines)
        bwd = Launch(
            bwd_kernel, min(how.bwd.units, at_once), how.warps, key, count, 0, how.bwd.phases,
            *counts, *shares, *PLACES[1:8], how.tile, together=True,
        )  # fmt: skip
        run_fwd = Pass([RouteArgs, rooms.fwd, rooms.saved, Outputs], [fwd], counts=not how.tile.ONE_PROGRAM)
        run_bwd = Pass([RouteArgs, rooms.saved, rooms.bwd, Grads], [bwd], counts=True)
        super().__init__(sizes, run_fwd, run_bwd, rooms[:3], whole=sizes.b > 0 and not self.shared)

    def fwd(self, given: Sequence[Tensor], in_graph: bool = False) -> tuple[Tensors, Tensors]:
        """`a [..., j]`, `mu [..., j, c, h]` and `sig2 [..., j, c, h]`, and what the backward pass needs.

        Tensors are contiguous, and as in `RouteArgs`; `in_graph` says that they are part of a compiled graph.
        """
        s, how, a_inp, W = self.sizes, self.how, given[0], given[3]
        batch = (s.b,) if s.packed else a_inp.shape[:-1]
        a, mu = W.new_empty(*batch, s.j), W.new_empty(*batch, s.j, s.c, s.h)
        sig2, saved = torch.empty_like(mu), how.rooms.saved.make(W)
        if s.b:
            if not in_graph:
                keep_counter(W)
            tensors = *given, how.rooms.fwd.make(W), saved, a, mu, sig2
            if how.tile.ONE_PROGRAM:
                self.run_fwd.start(tensors)
            else:
                run_phases(self.run_fwd, how.fwd.phases, tensors)
        return (a, mu, sig2), (saved,)

    def bwd(self, douts: Sequence[Tensor], given: Sequence[Tensor], saved: Tensors) -> Tensors:
        """The gradients of `a_inp`, `x`, `W`, `B`, `beta_use` and `beta_ign`."""
        how, (a_inp, x, _, W, B, beta_use, beta_ign) = self.how, given
        grads = *[torch.empty_like(t) for t in (a_inp, x, W, B)], *[W.new_empty(shape) for shape in self.betas]
        if self.sizes.b:
            run_phases(self.run_bwd, how.bwd.phases, [*given, *saved, how.rooms.bwd.make(W), *douts, *grads])
        else:
            grads = tuple([d.zero_() for d in grads])
        if not self.shared:
            return grads
        *others, duse, dign = grads  # summed over outputs where these share a parameter
        return *others, duse.sum_to_size(beta_use.shape), dign.sum_to_size(beta_ign.shape)
