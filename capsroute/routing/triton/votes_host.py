"""The vote form, called from outside: chooses tiles, makes room and launches the kernels.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules; `n` all inputs of all samples.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .grid import programs_at_once, run_phases
from .launch import launch
from .room import Room
from .sizes import Plan, Sizes, power
from .votes import Outs, votes_fwd_kernel
from .votes_alone import alone_fwd_kernel
from .votes_alone_bwd import alone_bwd_kernel
from .votes_bwd import Share, votes_bwd_kernel
from .votes_pull import Grads
from .votes_rooms import Rooms, rooms
from .votes_types import Cut, Given, Tile

SLOT_BYTES = 2**28
"""Room for partial gradients of a parameter or of the inputs, or partial sums of models."""
Shape = tuple[int, ...]


class Knobs(NamedTuple):
    """What tiles are made from."""

    votes: int = 4096  # numbers in a tile's votes: what a program's registers hold a few times
    alone: int = 8192  # numbers in a sample's votes up to which one program has it, and waits for no other
    alone_numbers: int = 32  # of them that a thread then holds
    columns: int = 128  # outputs times components in a tile, where there is a choice
    most_j: int = 128  # outputs up to which one tile takes them all
    rows: int = 64  # inputs in a tile of matrix products
    wide_columns: int = 64  # columns of these, where outputs take several tiles
    block_d: int = 64  # their steps
    numbers: int = 32  # of a tile's votes that a thread then holds
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
    cut: Cut
    share: Share
    warps: int
    per_core: int
    rooms: Rooms
    fwd: Work
    bwd: Work


def parts(n: int, size: int) -> int:
    """Parts of a size that cover n, at least one."""
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
    if tile.ALONE:
        warps = 4 * max(1, min(4, power(parts(numbers, knobs.alone_numbers))))
    else:
        warps = 8 if numbers > (knobs.numbers if tile.DOT else 8) else 4
    per_core = max(1, knobs.threads // (32 * warps))
    cut = share_sums(sizes, tile, per_core * cores)
    share = share_last(sizes, n, tile, cut, per_core * cores)
    where = rooms(sizes, plan.n_iters, n, tile, cut, share)
    return Job(tile, cut, share, warps, per_core, where, *work(sizes, plan.n_iters, n, tile, cut, share))


def choose(plan: Plan, s: Sizes, n: int, shapes: tuple[Shape, ...], knobs: Knobs, cores: int) -> Tile:
    """The tile for a case, from the shapes of its parameters."""
    W, B, use, ign = shapes
    dot = W[0] == 1 and s.d >= 16
    whole = dot and s.c == 1 and s.h <= 8 and s.d <= knobs.block_d
    # rather several tiles of outputs than one that does not hold whole votes
    wide = s.j > knobs.most_j or (whole and power(s.j) * power(s.h) > knobs.columns)
    columns = knobs.wide_columns if dot and wide else knobs.columns
    block_j = 8 if wide else power(s.j)
    block_h = min(power(s.h), max(1, columns // block_j))
    block_c = 1 if dot else min(power(s.c), max(1, columns // (block_j * block_h)))
    if wide:
        block_j = max(block_j, columns // (block_h * block_c))
    if dot:
        block_j = max(block_j, 16 // block_h)
    # where inputs are few, few per tile, so that many programs share them; where outputs are many, they do that
    most_i = knobs.rows if dot else min(64, knobs.votes // (block_j * block_h * block_c))
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
        # eight warps, of which four multiply 64 rows
        FOLD=2 if dot and block_i == 64 and block_j > 1 and block_j * block_h > 2 * knobs.numbers else 1,
        DOT=dot,
        WHOLE=dot and chunks == 1 and s.d <= block_d,
        WIDE=wide,
        ALONE=alone,
        CHUNKS=chunks,
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
        OWN=use[0] != 1 or ign[0] != 1,
        BLOCK_M=power(s.j) if alone else max(1, min(power(s.j), models // block_v)),
        BLOCK_V=block_v,
        BLOCK_S=1 if wide or alone else 8,
    )


def share_sums(s: Sizes, T: Tile, programs: int) -> Cut:
    """By tiles of outputs, and by slots of inputs as far as their sums fit their room."""
    i_tiles, j_tiles = parts(s.i, T.BLOCK_I), parts(s.j, T.BLOCK_J)
    fit = SLOT_BYTES // max(1, 8 * s.b * s.j * (2 * s.c * s.h + 2))
    slices = split(j_tiles, s.b * i_tiles, 64, programs) if T.WIDE else 1
    return Cut(i_tiles, j_tiles, split(i_tiles, s.b * j_tiles, fit, programs), slices)


def share_last(s: Sizes, n: int, T: Tile, cut: Cut, programs: int) -> Share:
    """By samples, inputs and outputs, as far as partial gradients fit their room."""
    if T.ALONE:
        return Share(s.b, 1, 1, s.b)
    w = 4 * (s.i if T.W_I else 1) * (s.j if T.W_J else 1) * s.d * s.h
    own = max(w * T.W_I, 4 * s.i * s.j * (s.c * s.h if T.B_I else T.USE_I or T.IGN_I))
    most = SLOT_BYTES // max(1, 4 * n * (s.c * s.d + 1))
    slices = split(cut.j_tiles, s.b, most, programs) if T.WIDE else 1
    fit = SLOT_BYTES // max(1, w * (1 if T.W_J else slices))  # partial gradients of W
    groups = max(1, min(s.b, 4 * programs, SLOT_BYTES // max(1, own), fit))
    slots = split(cut.i_tiles, groups * slices, cut.i_tiles if T.W_I else fit // groups, programs)
    return Share(groups, slots, slices, groups * (1 if T.W_I else slots) * (1 if T.W_J else slices))


def work(s: Sizes, t: int, n: int, T: Tile, cut: Cut, share: Share) -> tuple[Work, Work]:
    """Forward and backward, of t iterations and n inputs in all."""
    units = s.b * max(cut.slots * cut.j_tiles, cut.i_tiles * cut.slices, parts(s.j, T.BLOCK_M))
    last = share.groups * share.slots * share.slices
    W = (s.i if T.W_I else 1) * (s.j if T.W_J else 1) * s.d * s.h
    if T.ALONE:
        return Work(1, s.b), Work(2, max(s.b, parts(W + (s.i if T.B_I else 1) * s.j * s.c * s.h, 64)))
    fwd = Work((4 * t - 2 if T.WIDE else 2 * t) + T.DOT, units)
    bwd = Work((4 if T.WIDE else 2) * (t - 1) + 3, max(units, last, parts(n * s.c * s.d, 1024), parts(W, 32)))
    return fwd, bwd


def fwd(
    plan: Plan,
    sizes: Sizes,
    a_inp: Tensor,  # [n]
    x: Tensor,  # [n, c, d]
    offsets: Tensor | None,  # [b + 1]
    W: Tensor,  # [i|1, j|1, d, h]
    B: Tensor,  # [i|1, j, c, h]
    beta_use: Tensor,  # [i|1, j|1]
    beta_ign: Tensor,  # [i|1, j|1]
    knobs: Knobs = Knobs(),  # noqa: B008 (never changes)
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    """`a [b, j]`, `mu [b, j, c, h]` and `sig2 [b, j, c, h]`, and what the backward pass needs of each iteration.

    All tensors are contiguous.
    """
    s, n, shapes = sizes, len(a_inp), (W.shape, B.shape, beta_use.shape, beta_ign.shape)
    how = job(plan, s, n, shapes, knobs, programs_at_once(x.device, 1))
    a = torch.empty(s.b, s.j, dtype=torch.float32, device=x.device)
    mu = torch.empty(s.b, s.j, s.c, s.h, dtype=torch.float32, device=x.device)
    sig2, models = torch.empty_like(mu), Room.make(how.rooms.saved, x)
    if s.b:
        given = Given(a_inp, x, a_inp if offsets is None else offsets, W, B, beta_use, beta_ign)
        counts, outs, key = (n, s.b, s.i, s.j, plan.n_iters), Outs(a, mu, sig2), (how.tile, a_inp.dtype, x.dtype)
        scratch = Room.make(how.rooms.fwd, x)
        if how.tile.ALONE:
            launch(alone_fwd_kernel, s.b, x, how.warps, key, *counts, given, scratch, models, outs, how.tile)
        else:
            run_phases(
                votes_fwd_kernel, *how.fwd, x, how.warps, how.per_core, key,
                *counts, *how.cut, given, scratch, models, outs, how.tile,
            )  # fmt: skip
    return (a, mu, sig2), (models.base,)


def bwd(
    plan: Plan,
    sizes: Sizes,
    da: Tensor,  # [b, j]
    dmu: Tensor,  # [b, j, c, h]
    dsig2: Tensor,  # [b, j, c, h]
    a_inp: Tensor,
    x: Tensor,
    offsets: Tensor | None,
    W: Tensor,
    B: Tensor,
    beta_use: Tensor,
    beta_ign: Tensor,
    saved: tuple[Tensor, ...],
    knobs: Knobs = Knobs(),  # noqa: B008 (never changes)
) -> tuple[Tensor, ...]:
    """The gradients of `a_inp`, `x`, `W`, `B`, `beta_use` and `beta_ign`."""
    s, n, shapes = sizes, len(a_inp), (W.shape, B.shape, beta_use.shape, beta_ign.shape)
    how = job(plan, s, n, shapes, knobs, programs_at_once(x.device, 1))
    make = torch.empty_like if s.b else torch.zeros_like
    da_inp, dx, dW, dB = make(a_inp), make(x), make(W), make(B)
    plain = torch.contiguous_format
    duse, dign = [make(beta.expand(-1, s.j), memory_format=plain) for beta in (beta_use, beta_ign)]
    if s.b:
        given = Given(a_inp, x, a_inp if offsets is None else offsets, W, B, beta_use, beta_ign)
        grads = Grads(da, dmu, dsig2, da_inp, dx, dW, dB, duse, dign)
        key, scratch = (how.tile, a_inp.dtype, x.dtype), Room.make(how.rooms.bwd, x)
        models, counts = Room(how.rooms.saved, *saved), (n, s.b, s.i, s.j, plan.n_iters)
        shares = () if how.tile.ALONE else (*how.cut, *how.share, how.rooms.lines)
        run_phases(
            alone_bwd_kernel if how.tile.ALONE else votes_bwd_kernel, *how.bwd, x, how.warps, how.per_core, key,
            *counts, *shares, given, models, scratch, grads, how.tile,
        )  # fmt: skip
    duse = duse if duse.shape == beta_use.shape else duse.sum(1, keepdim=True)
    dign = dign if dign.shape == beta_ign.shape else dign.sum(1, keepdim=True)
    return da_inp, dx, dW, dB, duse, dign
