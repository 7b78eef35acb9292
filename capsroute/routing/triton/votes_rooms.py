"""Where that lies which launches of the vote form need besides their arguments. Axes as in `votes_types.py`."""

from functools import partial
from typing import NamedTuple

import torch

from .sizes import Sizes
from .votes import Sums
from .votes_bwd import Share
from .votes_pull import Backs, Pulls
from .votes_push import Parts
from .votes_types import Cut, Models, Pairs, Tile
from .workspace import ALIGNED, Layout, Piece


class Rooms(NamedTuple):
    """For one case."""

    saved: Layout  # from the forward pass to the backward pass: `Models`
    fwd: Layout  # `Pairs, Sums`
    bwd: Layout  # `Pairs, Pulls, Backs, Parts`
    lines: int  # of memory that what is added to in `Parts` takes, the end of it


def rooms(s: Sizes, t: int, n: int, T: Tile, cut: Cut, share: Share) -> Rooms:
    """For t iterations and n inputs in all."""
    half, single, double = (partial(Piece, dtype) for dtype in (torch.float16, torch.float32, torch.float64))
    one, all_ = (s.b, s.j), (s.b, s.j, s.c, s.h)
    count, j = (n, s.j if T.W_J else 1) if T.DOT else (0, 0)
    x, W = half(count, s.c, 2, T.PAD), half(s.h, j, 2, T.PAD)
    pairs = Pairs(single(count), x, single(count, s.c), W, single(s.h, j))
    each, whole, inputs = single(t, *one), single(t, *all_), single(t if T.WIDE else 0, n)
    each_sum, whole_sum = double(t, *one), double(t, *all_)
    top = single if T.GAUSSIAN else double
    top_all = top(t if T.WIDE else 0, n)
    models = Models(each, whole, whole, each, each, top_all, inputs, each_sum, each_sum, whole_sum, whole_sum)
    pulls = Pulls(each, each, each, whole, whole, inputs, each_sum, each_sum, whole_sum)
    each_slot, whole_slot = double(cut.slots, *one), double(cut.slots, *all_)
    n_slices = cut.slices if T.WIDE else 0
    own, slices = double(cut.slots if T.OWN else 0, *one), double(n_slices, n)
    sums = Sums(double(cut.slots, s.b), each_slot, own, whole_slot, whole_slot, top(n_slices, n), slices)
    backs = Backs(each_slot, whole_slot, whole_slot, slices)
    written = T.WHOLE and T.W_J
    parts = Parts(
        single(share.w_slots, s.i if T.W_I else 1, s.j if T.W_J else 1, s.h, s.d),
        single(0 if T.ONCE and not (written and (T.B_I or T.OWN)) else share.slices, n),
        single(0 if T.ONCE else share.slices, n, s.c, s.d),
        single(share.groups if T.B_I else 0, s.i, s.j, s.c, s.h),
        single(share.groups if T.USE_I else 0, s.i, s.j),
        single(share.groups if T.IGN_I else 0, s.i, s.j),
    )
    bwd = Layout(pairs, pulls, backs, parts)
    return Rooms(Layout(models), Layout(pairs, sums), bwd, (bwd.nbytes - bwd.starts[-1][written]) // ALIGNED)
