"""Workspaces of the vote kernels. Axes as in `votes_types.py`."""

from functools import partial
from typing import NamedTuple

import torch

from .sizes import Sizes
from .votes_types import GradSplit, Halves, LogitGradSums, Models, PartialGrads, SumGrads, Sums, SumSplit, Tile
from .workspace import ALIGNMENT, Buffer, Layout


class VoteLayouts(NamedTuple):
    """Layouts for one set of sizes."""

    saved: Layout  # from the forward to the backward pass: `Models`
    fwd: Layout  # `Halves, Sums`
    bwd: Layout  # `Halves, SumGrads, LogitGradSums, PartialGrads`
    n_cleared: int  # cache lines at the end of `bwd` that programs add to, and so clear first


def lay_out(s: Sizes, t: int, n: int, T: Tile, sums: SumSplit, grads: GradSplit) -> VoteLayouts:
    """Lay out the workspaces for t iterations and n inputs in all samples."""
    half, single, double = (partial(Buffer, dtype) for dtype in (torch.float16, torch.float32, torch.float64))
    per_output, per_component = (s.b, s.j), (s.b, s.j, s.c, s.h)
    n_halves, j = (n, s.j if T.W_J else 1) if T.DOT else (0, 0)
    x, W = half(n_halves, s.c, 2, T.PAD_D), half(s.h, j, 2, T.PAD_D)
    halves = Halves(single(n_halves), x, single(n_halves, s.c), W, single(s.h, j))

    one, all_, inputs = single(t, *per_output), single(t, *per_component), single(t if T.SPLIT_J else 0, n)
    one_sum, all_sum = double(t, *per_output), double(t, *per_component)
    logits = single if T.GAUSSIAN else double
    max_logits = logits(t if T.SPLIT_J else 0, n)
    models = Models(one, all_, all_, one, one, max_logits, inputs, one_sum, one_sum, all_sum, all_sum)
    sum_grads = SumGrads(one, one, one, all_, all_, inputs, one_sum, one_sum, all_sum)

    one_slot, all_slot = double(sums.slots, *per_output), double(sums.slots, *per_component)
    n_slices = sums.slices if T.SPLIT_J else 0
    scores, slices = double(sums.slots if T.BETAS_I else 0, *per_output), double(n_slices, n)
    slot_sums = Sums(double(sums.slots, s.b), one_slot, scores, all_slot, all_slot, logits(n_slices, n), slices)
    logit_grads = LogitGradSums(one_slot, all_slot, all_slot, slices)

    W_written = T.ONE_STEP and T.W_J  # rather than added to
    f_written = T.ONE_TILE and not (W_written and (T.B_I or T.BETAS_I))
    partial_grads = PartialGrads(
        single(grads.w_slots, s.i if T.W_I else 1, s.j if T.W_J else 1, s.h, s.d),
        single(0 if f_written else grads.slices, n),
        single(0 if T.ONE_TILE else grads.slices, n, s.c, s.d),
        single(grads.groups if T.B_I else 0, s.i, s.j, s.c, s.h),
        single(grads.groups if T.USE_I else 0, s.i, s.j),
        single(grads.groups if T.IGN_I else 0, s.i, s.j),
    )
    cleared = partial_grads[1:] if W_written else partial_grads
    bwd = Layout(halves, sum_grads, logit_grads, partial_grads)
    return VoteLayouts(Layout(models), Layout(halves, slot_sums), bwd, sum(b.nbytes for b in cleared) // ALIGNMENT)
