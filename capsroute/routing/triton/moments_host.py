"""Host side of the moment kernels: chooses tiles, lays out workspaces and lists the launches of both passes.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules, `k` features. A sample's inputs are split into
slots, each summed by one program.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .grid import Launch, resident_programs
from .moments import feature_sums_fwd_kernel, first_sums_fwd_kernel, models_fwd_kernel
from .moments_bwd import feature_sums_bwd_kernel, first_sums_bwd_kernel, models_bwd_kernel
from .moments_float64 import HAS_FLOAT64_DOT
from .sizes import ALWAYS, NEVER, Float64Rule, LoopSettings, Shape, Sizes, ceil_div, ceil_pow2
from .workspace import Buffer, Layout

MIN_FEATURES = 16
"""Rows and columns that a matrix product of a tensor core takes at least."""


class InputTile(NamedTuple):
    """Inputs that a program loads at a time, its warps, and how many such programs a multiprocessor holds."""

    block_i: int
    n_warps: int
    per_core: int


class MomentTiles(NamedTuple):
    """Tile sizes of the passes over inputs, in the first iteration and in the others, and of the output models."""

    first: InputTile = InputTile(128, 4, 4)
    others: InputTile = InputTile(64, 4, 2)
    block_j: int = 4  # outputs of a model program, half of them where there would be too few programs
    model_warps: int = 1  # one warp never waits for another
    model_programs: int = 8  # on each multiprocessor, from which they are not too few


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
    """Launches of the moment kernels for one set of sizes.

    Args:
        loop: Settings of the loop.
        sizes: Sizes of the call.
        shapes: Shapes of `W`, `B`, `beta_use` and `beta_ign`.
        cores: Multiprocessors of the GPU, 0 under the interpreter.
        rule: Which samples are routed in float64.
        tiles: Tile sizes.
    """

    def __init__(
        self,
        loop: LoopSettings,
        sizes: Sizes,
        shapes: tuple[Shape, ...],
        cores: int,
        rule: Float64Rule,
        tiles: MomentTiles = MomentTiles(),  # noqa: B008 (immutable)
    ):
        n, t = sizes, loop.n_iters
        self.loop, self.sizes, self.tiles, self.rule = loop, n, tiles, rule if HAS_FLOAT64_DOT else NEVER
        c, d = ceil_pow2(n.c), ceil_pow2(n.d)
        c = max(c, MIN_FEATURES // 4 // d)
        k = 4 * c * d
        self.first, self.others = (split_inputs(n.b, n.i, tile, cores) for tile in (tiles.first, tiles.others))
        first, slots = n.b * self.first.n_slots, n.b * self.others.n_slots
        self.width = n.d * n.h + n.c * n.h + 2  # gradients of one output's parameters
        half, single, double = torch.float16, torch.float32, torch.float64
        self.saved = Layout(
            Buffer(single, n.b, k), Buffer(single, n.b), Buffer(double, n.b), Buffer(double, t, n.b, n.j, k),
            Buffer(double, t, n.b, n.j), Buffer(half, t, n.b, n.j, 2, k), Buffer(single, t, n.b, 4, n.j),
            Buffer(torch.int32, 2, n.b), Buffer(double, t, n.b, n.j, k),
        )  # fmt: skip
        self.fwd_workspace = Layout(
            Buffer(double, first, k), Buffer(double, first), Buffer(single, first, 2, k // 4),
            Buffer(double, slots, n.j, k), Buffer(double, slots, n.j),
        )  # fmt: skip
        self.bwd_workspace = Layout(
            Buffer(double, slots, n.j, k), Buffer(half, n.b, n.j, 2, k), Buffer(single, n.b, n.j),
            Buffer(double, n.b, n.j, k), Buffer(double, n.b, n.j), Buffer(double, n.b, n.j, self.width),
        )  # fmt: skip
        W, _, use, ign = shapes
        # a stride of 0 where outputs share a parameter
        self.strides = [size if p[1] > 1 else 0 for p, size in ((W, n.d * n.h), (use, 1), (ign, 1))]
        few = n.b * ceil_div(n.j, tiles.block_j) < resident_programs(cores, tiles.model_programs)
        block_j, block_jj = tiles.block_j // (2 if few else 1), max(MIN_FEATURES, ceil_pow2(n.j))
        self.model_blocks = ceil_div(n.j, block_j)
        self.first_constants = n.packed, n.c, n.d, tiles.first.block_i, c, d
        self.feature_constants = n.packed, n.j, n.c, n.d, tiles.others.block_i, block_jj, c, d
        self.model_constants = loop.gaussian, n.j, n.c, n.d, n.h, block_j, c, d, ceil_pow2(n.h)
        self.last_constants = n.packed, n.j, n.c, n.d, n.h, tiles.first.block_i, block_jj, c, d

    def fwd(self, inputs: Sequence[Tensor], saved: Tensor, outs: Sequence[Tensor]) -> Iterator[Launch]:
        """List the launches that fill `outs` and `saved`."""
        n, loop, tiles = self.sizes, self.loop, self.tiles
        params, buffers = inputs[3:], self.saved.split(saved)
        scratch = self.fwd_workspace.split(self.fwd_workspace.allocate(saved))
        mean, scale, _, _, _, *coefficients = buffers
        yield Launch(
            first_sums_fwd_kernel, n.b * self.first.n_slots, tiles.first.n_warps,
            (*inputs[:3], *scratch[:3], buffers[7], n.b, n.i, *self.first, *self.first_constants),
        )  # fmt: skip
        for t, again in self.steps():
            if t:
                yield Launch(
                    feature_sums_fwd_kernel, n.b * self.others.n_slots, tiles.others.n_warps,
                    (*inputs[:3], mean, scale, *coefficients, *scratch[3:], n.b, n.i, t, again, self.rule.separation,
                     *self.others, *self.feature_constants),
                )  # fmt: skip
            n_slots = self.others.n_slots if t else self.first.n_slots
            yield Launch(
                models_fwd_kernel, n.b * self.model_blocks, tiles.model_warps,
                (*params, *scratch, *buffers, *outs, n.b, t, again, loop.n_iters, n_slots, loop.eps, *self.rule[:2],
                 *self.strides, t == 0, *self.model_constants),
            )  # fmt: skip

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
        n, (a_inp, x, _, W, B, *_) = self.sizes, inputs
        da_inp, dx = (torch.empty_like(t, dtype=torch.float32) for t in (a_inp, x))
        dW, duse, dign = (W.new_empty(shape) for shape in ((1, n.j, n.d, n.h), (1, n.j), (1, n.j)))
        return [da_inp, dx, dW, torch.empty_like(B), duse, dign]

    def bwd(
        self, inputs: Sequence[Tensor], saved: Tensor, douts: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> Iterator[Launch]:
        """List the launches that fill `grads`."""
        n, loop, tiles, last = self.sizes, self.loop, self.tiles, self.loop.n_iters - 1
        params, buffers = inputs[3:], self.saved.split(saved)
        scratch = self.bwd_workspace.split(self.bwd_workspace.allocate(saved))
        mean, scale, _, _, _, *coefficients = buffers
        for t in range(last, -1, -1):
            yield Launch(
                models_bwd_kernel, n.b * self.model_blocks, tiles.model_warps,
                (*params, *buffers[:5], buffers[7], *douts, *scratch, n.b, t, self.others.n_slots, loop.eps,
                 *self.strides, t == last, *self.model_constants),
            )  # fmt: skip
            if t:
                yield Launch(
                    feature_sums_bwd_kernel, n.b * self.others.n_slots, tiles.others.n_warps,
                    (*inputs[:3], mean, scale, *coefficients, *scratch[:4], *grads[:2], n.b, n.i, t, int(t == last),
                     *self.others, *self.feature_constants),
                )  # fmt: skip
        yield Launch(
            first_sums_bwd_kernel, n.b * self.first.n_slots + ceil_div(n.j * self.width, 128), tiles.first.n_warps,
            (*inputs[:3], mean, scale, *scratch[1:3], *scratch[4:], *grads, n.b, n.i, int(last == 0), *self.first,
             *self.last_constants),
        )  # fmt: skip


plan_moments = lru_cache(maxsize=1024)(MomentKernels)
"""`MomentKernels`, cached by sizes: planning takes longer than many calls."""
