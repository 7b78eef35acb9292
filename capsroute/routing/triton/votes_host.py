"""The vote form, called from outside: chooses tiles, makes room and launches the kernels.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules; `n` all inputs of all samples.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .grid import programs_at_once, run_phases
from .sizes import Plan, Sizes
from .votes import Outs, Sums, votes_fwd_kernel
from .votes_bwd import Parts, Share, votes_bwd_kernel
from .votes_pull import Backs, Grads, Pulls
from .votes_tile import Cut, Inputs, Layer, Models, Tile

SLOT_BYTES = 2**28
"""Room for partial gradients of a parameter or of the inputs, or partial sums of models."""
Shape = tuple[int, ...]


class Knobs(NamedTuple):
    """What tiles are made from."""

    votes: int = 4096  # numbers in a tile's votes: what a program's registers hold a few times
    columns: int = 128  # outputs times components in a tile, where there is a choice
    most_j: int = 128  # outputs up to which one tile takes them all
    block_d: int = 16  # of matrix products
    precision: str = "tf32x3"  # of these: three of less precision each, together about as exact as float32


class Job(NamedTuple):
    """How a case is run."""

    tile: Tile
    cut: Cut
    share: Share
    warps: int
    per_core: int


def power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()


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
    warps = 8 if tile.BLOCK_I * tile.BLOCK_J * tile.BLOCK_C * tile.BLOCK_H > 1024 else 4
    per_core = 8 // warps  # whatever number of registers each then takes
    cut = share_sums(sizes, tile, per_core * cores)
    return Job(tile, cut, share_last(sizes, n, tile, cut, per_core * cores), warps, per_core)


def choose(plan: Plan, s: Sizes, n: int, shapes: tuple[Shape, ...], knobs: Knobs, cores: int) -> Tile:
    """The tile for a case, from the shapes of its parameters."""
    W, B, use, ign = shapes
    most_j, columns = knobs.most_j, knobs.columns
    dot, wide = W[0] == 1 and s.d >= 16, s.j > most_j
    block_j = 8 if wide else power(s.j)
    block_h = min(power(s.h), max(1, columns // block_j))
    block_c = 1 if dot else min(power(s.c), max(1, columns // (block_j * block_h)))
    if wide:
        block_j = max(block_j, columns // (block_h * block_c))
    if dot:
        block_j = max(block_j, 16 // block_h)
    # where inputs are few, few per tile, so that many programs share them; where outputs are many, they do that
    block_i = min(knobs.votes // (block_j * block_h * block_c), 64, 64 if wide else power(parts(n, 2 * cores)))
    block_i = max(block_i, 16 if dot else 1)
    block_v = min(power(s.c * s.h), 64)
    return Tile(
        *(s.c, s.d, s.h, block_i, block_j, block_c, block_h),
        BLOCK_D=min(power(s.d), knobs.block_d) if dot else 1,
        DOT=dot,
        PRECISION=knobs.precision,
        WIDE=wide,
        SLICES=min(8, parts(s.j, block_j), parts(4 * cores, parts(n, block_i))) if wide else 1,
        CHUNKS=parts(s.c, block_c) * parts(s.h, block_h),
        PACKED=s.packed,
        GAUSSIAN=plan.gaussian,
        EPS=plan.eps,
        W_I=W[0] > 1,
        W_J=W[1] > 1,
        B_I=B[0] > 1,
        USE_I=use[0] > 1,
        USE_J=use[1] > 1,
        IGN_I=ign[0] > 1,
        IGN_J=ign[1] > 1,
        BLOCK_M=min(power(s.j), 128 // block_v),
        BLOCK_V=block_v,
        BLOCK_S=8,
    )


def share_sums(s: Sizes, T: Tile, programs: int) -> Cut:
    """By tiles of outputs, and by slots of inputs as far as their sums fit their room."""
    i_tiles, j_tiles = parts(s.i, T.BLOCK_I), parts(s.j, T.BLOCK_J)
    fit = SLOT_BYTES // max(1, 8 * s.b * s.j * (2 * s.c * s.h + 3))
    return Cut(i_tiles, j_tiles, split(i_tiles, s.b * j_tiles, fit, programs), j_tiles)


def share_last(s: Sizes, n: int, T: Tile, cut: Cut, programs: int) -> Share:
    """By samples, inputs and outputs, as far as partial gradients fit their room."""
    w = 4 * (s.i if T.W_I else 1) * (s.j if T.W_J else 1) * s.d * s.h
    own = max(w * T.W_I, 4 * s.i * s.j * (s.c * s.h if T.B_I else T.USE_I or T.IGN_I))
    most = SLOT_BYTES // max(1, 4 * n * (s.c * s.d + 1))
    slices = split(cut.j_tiles, s.b, most, programs) if T.WIDE else 1
    fit = SLOT_BYTES // max(1, w * (1 if T.W_J else slices))  # partial gradients of W
    groups = max(1, min(s.b, 4 * programs, SLOT_BYTES // max(1, own), fit))
    slots = split(cut.i_tiles, groups * slices, cut.i_tiles if T.W_I else fit // groups, programs)
    return Share(groups, slots, slices, groups * (1 if T.W_I else slots) * (1 if T.W_J else slices))


def room(like: Tensor, dtype: torch.dtype, *shapes: tuple[int, ...], zero: bool = False) -> list[Tensor]:
    """Tensors of some shapes, side by side in one piece of memory."""
    sizes = [math.prod(shape) for shape in shapes]
    wide = [-(-size // 4) * 4 for size in sizes]  # each starts at a multiple of 16 bytes
    make = torch.zeros if zero else torch.empty
    pieces = make(sum(wide), dtype=dtype, device=like.device).split(wide)
    return [piece[:size].view(shape) for piece, size, shape in zip(pieces, sizes, shapes, strict=True)]


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
    """`a [b, j]`, `mu [b, j, c, h]` and `sig2 [b, j, c, h]`, and what the backward pass needs of each iteration."""
    s, n, t, params = sizes, len(a_inp), plan.n_iters, (W, B, beta_use, beta_ign)
    shapes, cores = tuple(tuple(p.shape) for p in params), programs_at_once(x.device, 1)
    T, cut, _, warps, per_core = job(plan, s, n, shapes, knobs, cores)
    one, all_ = (s.b, s.j), (s.b, s.j, s.c, s.h)
    a, mu, sig2 = room(x, torch.float32, one, all_, all_)
    models = Models(
        *room(x, torch.float32, (t, *one), (t, *all_), (t, *all_)),
        *room(x, torch.float64, *[(t, *one)] * 3, *[(t, *all_)] * 2, (t, T.SLICES, n)),
    )
    if s.b:
        inp = Inputs(a_inp, x, a_inp if offsets is None else offsets, n, s.b, s.i, s.j, t)
        layer = Layer(*(p.contiguous() for p in params))
        sums = Sums(*room(x, torch.float64, *[(cut.slots, *one)] * 3, *[(cut.slots, *all_)] * 2))
        units = s.b * max(cut.slots * cut.slices, cut.i_tiles * T.SLICES, parts(s.j, T.BLOCK_M))
        phases = 3 * t - 1 if T.WIDE else 2 * t
        args = inp, layer, cut, sums, models, Outs(a, mu, sig2), T
        run_phases(votes_fwd_kernel, phases, units, x, warps, per_core, (plan, T, s, n, a_inp.dtype, x.dtype), *args)
    return (a, mu, sig2), tuple(models)


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
    s, n, t, params = sizes, len(a_inp), plan.n_iters, (W, B, beta_use, beta_ign)
    shapes, cores = tuple(tuple(p.shape) for p in params), programs_at_once(x.device, 1)
    T, cut, share, warps, per_core = job(plan, s, n, shapes, knobs, cores)
    da_inp, dx = torch.empty_like(a_inp), torch.empty_like(x)
    betas = [(beta.shape[0], s.j) for beta in (beta_use, beta_ign)]
    dW, dB, duse, dign = room(x, torch.float32, W.shape, B.shape, *betas, zero=not s.b)
    if s.b:
        one, all_ = (s.b, s.j), (s.b, s.j, s.c, s.h)
        inp = Inputs(a_inp, x, a_inp if offsets is None else offsets, n, s.b, s.i, s.j, t)
        layer = Layer(*(p.contiguous() for p in params))
        pulls = Pulls(
            *room(x, torch.float32, *[(t, *one)] * 2, *[(t, *all_)] * 2),
            *room(x, torch.float64, *[(t, *one)] * 2, (t, *all_), (t, T.SLICES, n) if T.WIDE else (0,)),
        )
        backs = Backs(*room(x, torch.float64, (cut.slots, *one), *[(cut.slots, *all_)] * 2))
        own = [(share.groups, s.i, *all_[1:]) if T.B_I else (0,)]
        own += [(share.groups, s.i, s.j) if yes else (0,) for yes in (T.USE_I, T.IGN_I)]
        dw = share.w_slots, *W.shape[:2], s.h, s.d
        pieces = Parts(*room(x, torch.float32, (share.slices, n), (share.slices, *x.shape), dw, *own, zero=True))
        grads = Grads(da.contiguous(), dmu.contiguous(), dsig2.contiguous(), da_inp, dx, dW, dB, duse, dign)
        units = s.b * max(cut.slots * cut.slices, cut.i_tiles * T.SLICES, parts(s.j, T.BLOCK_M))
        units = max(units, share.groups * share.slots * share.slices, parts(x.numel(), 1024), parts(W.numel(), 32))
        phases = (3 if T.WIDE else 2) * (t - 1) + 3
        args = inp, layer, cut, share, Models(*saved), pulls, backs, pieces, grads, T
        run_phases(votes_bwd_kernel, phases, units, x, warps, per_core, (plan, T, s, n, a_inp.dtype, x.dtype), *args)
    duse = duse if T.USE_J or s.j == 1 else duse.sum(1, keepdim=True)
    dign = dign if T.IGN_J or s.j == 1 else dign.sum(1, keepdim=True)
    return da_inp, dx, dW, dB, duse, dign
