"""Where that lies which launches of the vote form need besides their arguments. Axes as in `votes_types.py`."""

from functools import partial
from typing import NamedTuple

import torch

from .sizes import Sizes
from .votes_types import GradSplit, Halves, LogitGradSums, Models, PartialGrads, SumGrads, Sums, SumSplit, Tile
from .workspace import ALIGNED, Layout, Piece


class Rooms(NamedTuple):
    """For one case."""

    saved: Layout  # from the forward pass to the backward pass: `Models`
    fwd: Layout  # `Halves, Sums`
    bwd: Layout  # `Halves, SumGrads, LogitGradSums, PartialGrads`
    lines: int  # of memory that what is added to in `PartialGrads` takes, the end of it


def rooms(s: Sizes, t: int, n: int, T: Tile, cut: SumSplit, share: GradSplit) -> Rooms:
    """For t iterations and n inputs in all."""
    half, single, double = (partial(Piece, dtype) for dtype in (torch.float16, torch.float32, torch.float64))
    one, all_ = (s.b, s.j), (s.b, s.j, s.c, s.h)
    count, j = (n, s.j if T.W_J else 1) if T.DOT else (0, 0)
    x, W = half(count, s.c, 2, T.PAD_D), half(s.h, j, 2, T.PAD_D)
    pairs = Halves(single(count), x, single(count, s.c), W, single(s.h, j))
    each, whole, inputs = single(t, *one), single(t, *all_), single(t if T.SPLIT_J else 0, n)
    each_sum, whole_sum = double(t, *one), double(t, *all_)
    top = single if T.GAUSSIAN else double
    top_all = top(t if T.SPLIT_J else 0, n)
    models = Models(each, whole, whole, each, each, top_all, inputs, each_sum, each_sum, whole_sum, whole_sum)
    pulls = SumGrads(each, each, each, whole, whole, inputs, each_sum, each_sum, whole_sum)
    each_slot, whole_slot = double(cut.slots, *one), double(cut.slots, *all_)
    n_slices = cut.slices if T.SPLIT_J else 0
    own, slices = double(cut.slots if T.BETAS_I else 0, *one), double(n_slices, n)
    sums = Sums(double(cut.slots, s.b), each_slot, own, whole_slot, whole_slot, top(n_slices, n), slices)
    backs = LogitGradSums(each_slot, whole_slot, whole_slot, slices)
    written = T.ONE_STEP and T.W_J
    parts = PartialGrads(
        single(share.w_slots, s.i if T.W_I else 1, s.j if T.W_J else 1, s.h, s.d),
        single(0 if T.ONE_TILE and not (written and (T.B_I or T.BETAS_I)) else share.slices, n),
        single(0 if T.ONE_TILE else share.slices, n, s.c, s.d),
        single(share.groups if T.B_I else 0, s.i, s.j, s.c, s.h),
        single(share.groups if T.USE_I else 0, s.i, s.j),
        single(share.groups if T.IGN_I else 0, s.i, s.j),
    )
    bwd = Layout(pairs, pulls, backs, parts)
    return Rooms(Layout(models), Layout(pairs, sums), bwd, (bwd.nbytes - bwd.starts[-1][written]) // ALIGNED)
