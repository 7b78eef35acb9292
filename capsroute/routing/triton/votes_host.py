"""Host side of the vote kernels: lays out workspaces and lists the launches of both passes."""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from .grid import Launch, resident_programs
from .sizes import LoopSettings, Shape, Sizes
from .votes import small_fwd_kernel, votes_fwd_kernel
from .votes_bwd import votes_bwd_kernel
from .votes_tiling import VoteTuning, choose_tile, choose_warps, count_phases, split_grads, split_sums
from .votes_types import (
    Grads,
    GradSplit,
    LogitGradSums,
    Models,
    Outputs,
    PartialGrads,
    RouteArgs,
    SumGrads,
    Sums,
    SumSplit,
    Tile,
)
from .workspace import Buffer, Layout


def lay_out(s: Sizes, t: int, n: int, T: Tile, sums: SumSplit, grads: GradSplit) -> tuple[Layout, ...]:
    """Lay out `Models`, `Sums`, `SumGrads` with `LogitGradSums`, and `PartialGrads` for t iterations and n inputs."""
    single, double = partial(Buffer, torch.float32), partial(Buffer, torch.float64)
    per_output, per_component = (s.b, s.j), (s.b, s.j, s.c, s.h)
    n_slices, n_iters = (grads.slices, t) if T.SPLIT_J else (0, 0)

    one, all_, inputs = single(t, *per_output), single(t, *per_component), single(n_iters, n)
    one_sum, all_sum = double(t, *per_output), double(t, *per_component)
    logits = single if T.GAUSSIAN else double
    models = Models(one, all_, all_, one, one, logits(n_iters, n), inputs, one_sum, one_sum, all_sum, all_sum)
    sum_grads = SumGrads(one, one, one, all_, all_, inputs, one_sum, one_sum, all_sum)

    one_slot, all_slot = double(sums.slots, *per_output), double(sums.slots, *per_component)
    scores = double(sums.slots if T.BETAS_K else 0, *per_output)
    slices = sums.slices if T.SPLIT_J else 0
    max_logits, per_slice = logits(slices, n), double(slices, n)
    slot_sums = Sums(double(sums.slots, s.b), one_slot, scores, all_slot, all_slot, max_logits, per_slice)
    logit_grads = LogitGradSums(one_slot, all_slot, all_slot, per_slice)

    partial_grads = PartialGrads(
        single(grads.w_slots, s.i if T.W_K else 1, s.j if T.W_J else 1, s.d, s.h),
        single(n_slices, n),
        single(n_slices, n, s.c, s.d),
        single(grads.groups if T.B_K else 0, s.i, s.j, s.c, s.h),
        single(grads.groups if T.USE_K else 0, s.i, s.j),
        single(grads.groups if T.IGN_K else 0, s.i, s.j),
    )
    return Layout(models), Layout(slot_sums), Layout(sum_grads, logit_grads), Layout(partial_grads)


class VoteKernels:
    """Launches of the vote kernels for one set of sizes.

    Args:
        loop: Settings of the loop.
        sizes: Sizes of the call.
        n: Inputs of all samples.
        shapes: Shapes of `W`, `B`, `beta_use` and `beta_ign`; the first axes that are not 1 are the number of kinds.
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
        self.sizes, self.tile = sizes, choose_tile(loop, sizes, shapes, tuning)
        self.n_warps = choose_warps(self.tile, tuning)
        self.max_programs = resident_programs(cores, max(1, tuning.threads_per_core // (32 * self.n_warps)))
        self.sums = split_sums(sizes, self.tile, self.max_programs)
        self.grads = split_grads(sizes, n, shapes, self.tile, self.sums, self.max_programs)
        splits = sizes, loop.n_iters, n, self.tile, self.sums, self.grads
        self.saved, self.fwd_workspace, self.bwd_workspace, self.partial_grads = lay_out(*splits)
        self.fwd_phases, self.bwd_phases, n_units = count_phases(*splits)
        self.n_programs = min(n_units, self.max_programs)
        n_kinds = next((shape[0] for shape in shapes if shape[0] != 1), 1)
        self.counts = n, *sizes[:3], n_kinds, loop.n_iters

    def fwd(self, inputs: Sequence[Tensor], saved: Tensor, outs: Sequence[Tensor]) -> Iterator[Launch]:
        """List the launches that fill `outs` and `saved`."""
        workspace = self.fwd_workspace.split(self.fwd_workspace.allocate(saved))
        pointers = RouteArgs(*inputs), *workspace, *self.saved.split(saved), Outputs(*outs)
        if self.tile.ONE_PROGRAM:
            yield Launch(small_fwd_kernel, self.sizes.b, self.n_warps, (*self.counts, *pointers, self.tile))
        else:
            args = *self.counts, *self.sums, *pointers, self.tile
            yield Launch(votes_fwd_kernel, self.n_programs, self.n_warps, args, self.fwd_phases)

    def empty_grads(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Allocate gradients of all arguments but the offsets, those of betas for every output."""
        a_inp, x, _, W, B, *betas = inputs
        return [*map(torch.empty_like, (a_inp, x, W, B)), *[W.new_empty(len(beta), self.sizes.j) for beta in betas]]

    def bwd(
        self, inputs: Sequence[Tensor], saved: Tensor, douts: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> Iterator[Launch]:
        """List the launches that fill `grads`."""
        workspace = self.bwd_workspace.split(self.bwd_workspace.allocate(saved))
        partial_grads = self.partial_grads.allocate(saved)
        if not self.tile.ONE_PROGRAM:
            partial_grads.zero_()  # programs add to them
        pointers = RouteArgs(*inputs), *self.saved.split(saved), *workspace, *self.partial_grads.split(partial_grads)
        args = *self.counts, *self.sums, *self.grads, *pointers, Grads(*douts, *grads), self.tile
        yield Launch(votes_bwd_kernel, self.n_programs, self.n_warps, args, self.bwd_phases)


plan_votes = lru_cache(maxsize=1024)(VoteKernels)
"""`VoteKernels`, cached by sizes: planning takes longer than many calls."""
