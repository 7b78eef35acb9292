"""Host side of the moment kernels: chooses tiles, lays out workspaces and lists the launches of both passes.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules, `k` features. A sample's inputs are split into
slots, each summed by one program.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .grid import Launch, resident_programs
from .moments import FwdWorkspace, feature_sums_fwd_kernel, first_sums_fwd_kernel, models_fwd_kernel
from .moments_bwd import BwdWorkspace, feature_sums_bwd_kernel, first_sums_bwd_kernel, models_bwd_kernel
from .moments_float64 import HAS_FLOAT64_DOT
from .moments_tile import Args, Saved, Tile
from .sizes import ALWAYS, NEVER, Call, Float64Rule, Grads, Outputs, ceil_div, ceil_pow2
from .workspace import Layout, allocate_grads, buffers

MIN_FEATURES = 16
"""Rows and columns that a matrix product of a tensor core takes at least."""


class InputTile(NamedTuple):
    """Inputs that a program loads at a time, its warps, and how many such programs a multiprocessor holds."""

    block_i: int
    n_warps: int
    per_core: int


FIRST_INPUTS, OTHER_INPUTS = InputTile(128, 4, 4), InputTile(64, 4, 2)
"""Of the first iteration, and of the others."""
BLOCK_J = 4
"""Outputs of a model program, half as many where there would be too few programs."""
MODEL_WARPS = 1
"""Warps of a model program: one never waits for another."""
MODEL_PROGRAMS = 8
"""Model programs on each multiprocessor from which they are not too few."""


class SlotSplit(NamedTuple):
    """How a sample's inputs are split."""

    n_slots: int
    n_tiles: int  # of each slot


def split_inputs(n_samples: int, n_inp: int, tile: InputTile, cores: int) -> SlotSplit:
    """Return the fewest slots that keep all programs busy for the shortest time."""
    programs, tiles = resident_programs(cores, tile.per_core), ceil_div(n_inp, tile.block_i)
    counts = range(1, min(tiles, 4 * programs // n_samples + 1) + 1)
    slots = min(counts, key=lambda n: (-(-n_samples * n // programs)) * (-(-tiles // n) + 1))
    return SlotSplit(slots, -(-tiles // slots))


class MomentKernels:
    """Launches of the moment kernels for one kind of call, with a rule by which samples are routed in float64."""

    def __init__(self, call: Call, rule: Float64Rule):
        loop, n, _, (W, _, use, ign), cores = call
        t = loop.n_iters
        self.loop, self.sizes, self.rule = loop, n, rule if HAS_FLOAT64_DOT else NEVER
        c, d = ceil_pow2(n.c), ceil_pow2(n.d)
        c = max(c, MIN_FEATURES // 4 // d)
        k = 4 * c * d
        self.first, self.others = (split_inputs(n.b, n.i, tile, cores) for tile in (FIRST_INPUTS, OTHER_INPUTS))
        first, slots = n.b * self.first.n_slots, n.b * self.others.n_slots
        self.width = n.d * n.h + n.c * n.h + 2  # gradients of one output's parameters
        axes = {**n._asdict(), "t": t, "k": k, "x": k // 4, "first_slots": first, "slots": slots, "width": self.width}
        self.saved = Layout(Saved(*buffers(Saved, axes)))
        self.fwd_workspace = Layout(FwdWorkspace(*buffers(FwdWorkspace, axes)))
        self.bwd_workspace = Layout(BwdWorkspace(*buffers(BwdWorkspace, axes)))
        # a stride of 0 where outputs share a parameter
        self.strides = [size if p[1] > 1 else 0 for p, size in ((W, n.d * n.h), (use, 1), (ign, 1))]
        few = n.b * ceil_div(n.j, BLOCK_J) < resident_programs(cores, MODEL_PROGRAMS)
        block_j, block_jj = BLOCK_J // (2 if few else 1), max(MIN_FEATURES, ceil_pow2(n.j))
        self.model_blocks = ceil_div(n.j, block_j)
        blocks = block_jj, c, d, ceil_pow2(n.h), c * d, k
        constants = n.packed, loop.gaussian, n.j, n.c, n.d, n.h
        self.first_tile = Tile(*constants, FIRST_INPUTS.block_i, *blocks)
        self.tile = self.first_tile._replace(BLOCK_I=OTHER_INPUTS.block_i)
        self.model_tile = self.first_tile._replace(BLOCK_J=block_j)

    def fwd(self, inputs: Sequence[Tensor], saved: Tensor, outs: Sequence[Tensor]) -> Iterator[Launch]:
        """List the launches that fill `outs` and `saved`."""
        n, loop, (kept,) = self.sizes, self.loop, self.saved.split(saved)
        (work,) = self.fwd_workspace.split(self.fwd_workspace.allocate(saved))
        args = Args(*inputs)
        first_args = args, work, kept, n.b, n.i, *self.first, self.first_tile
        yield Launch(first_sums_fwd_kernel, n.b * self.first.n_slots, FIRST_INPUTS.n_warps, first_args)
        for t, again in self.steps():
            if t:
                sum_args = args, kept, work, n.b, n.i, t, again, self.rule.separation, *self.others, self.tile
                yield Launch(feature_sums_fwd_kernel, n.b * self.others.n_slots, OTHER_INPUTS.n_warps, sum_args)
            n_slots = self.others.n_slots if t else self.first.n_slots
            scalars = n.b, t, again, loop.n_iters, n_slots, loop.eps, *self.rule[:2], *self.strides
            model_args = args, work, kept, Outputs(*outs), *scalars, t == 0, self.model_tile
            yield Launch(models_fwd_kernel, n.b * self.model_blocks, MODEL_WARPS, model_args)

    def steps(self) -> Iterator[tuple[int, int]]:
        """List the iterations, and 1 for a repetition in float64.

        The second iteration is repeated: it is the first that tells outputs from each other.
        """
        for t in range(self.loop.n_iters):
            yield t, 0
            if t == 1 and self.rule not in (ALWAYS, NEVER):
                yield t, 1

    def empty_grads(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Allocate float32 gradients of all arguments but the offsets, those of parameters for every output."""
        return allocate_grads(self.sizes, inputs, torch.float32)

    def bwd(
        self, inputs: Sequence[Tensor], saved: Tensor, douts: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> Iterator[Launch]:
        """List the launches that fill `grads`."""
        n, last, (kept,) = self.sizes, self.loop.n_iters - 1, self.saved.split(saved)
        (work,) = self.bwd_workspace.split(self.bwd_workspace.allocate(saved))
        args, dargs = Args(*inputs), Grads(*grads)
        for t in range(last, -1, -1):
            scalars = n.b, t, self.others.n_slots, self.loop.eps, *self.strides
            model_args = args, kept, Outputs(*douts), work, *scalars, t == last, self.model_tile
            yield Launch(models_bwd_kernel, n.b * self.model_blocks, MODEL_WARPS, model_args)
            if t:
                sum_args = args, kept, work, dargs, n.b, n.i, t, int(t == last), *self.others, self.tile
                yield Launch(feature_sums_bwd_kernel, n.b * self.others.n_slots, OTHER_INPUTS.n_warps, sum_args)
        first_args = args, kept, work, dargs, n.b, n.i, int(last == 0), *self.first, self.first_tile
        n_programs = n.b * self.first.n_slots + ceil_div(n.j * self.width, 128)
        yield Launch(first_sums_bwd_kernel, n_programs, FIRST_INPUTS.n_warps, first_args)
