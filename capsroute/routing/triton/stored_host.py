"""Host side of the stored form: divides a batch into pieces, forms votes by matrix products, and lists the launches.

Axes as in `stored.py`; `k` kinds.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .grid import Launch, resident_programs
from .sizes import Call, Outputs, ceil_div, ceil_pow2
from .stored import Args, Counts, Sums, Tile, stored_fwd_kernel
from .stored_bwd import Grads, stored_bwd_kernel, votes_bwd_kernel
from .workspace import Layout, buffers

MAX_CAPSULE = torch.finfo(torch.float32).max ** (1 / 4)
PIECE_VOTES = 2**28
"""Numbers of votes up to which samples are routed together."""
TILE_VOTES, SHORT_VOTE = 1024, 64
"""Numbers of votes of a tile, and of a vote up to which one warp takes a tile alone and never waits for others."""
PAIR_VOTES, MAX_TILE_I, FEW_INPUTS = 512, 64, 16
"""Numbers of votes of one input in a tile of several, and most inputs of a tile, fewer where a sample has few."""
MODEL_NUMBERS = 32
"""Numbers of a tile of models."""
CORE_WARPS = 8
"""Warps that a multiprocessor is sure to hold at a time, with any number of registers."""
MAX_SLOTS, SLOT_TILES, ROUNDS = 32, 2, 2
"""Most slots, fewest tiles of inputs in one, and units of work for each program that slots are to give."""


class Piece(NamedTuple):
    """Samples that are routed together: the first, how many there are, and how many inputs they have."""

    first: int
    n: int
    n_rows: int


class Saved(NamedTuple):
    """What the forward pass keeps; `n` is 0 where it routes in pieces, `later` are the iterations after the first."""

    vectors: Any = "float32 t 4 b j v"  # as in `Args`
    scalars: Any = "float32 t 5 b j"
    weights: Any = "float32 kinds d j h"  # as matrices
    V: Any = "float32 n j v"
    R: Any = "float32 later n j"
    x: Any = "float32 n c d"  # clamped, kinds first


class Blocks(NamedTuple):
    """Inputs and outputs of tiles, and the warps of a program. Names as in `Tile`."""

    SUM_I: int
    SUM_J: int
    BLOCK_I: int
    BLOCK_J: int
    BLOCK_M: int
    ONE_J: bool
    n_warps: int


def choose_blocks(n_inp: int, n_out: int, block_v: int) -> Blocks:
    """Choose tiles, with all outputs in a tile of sums if they fit; beyond few inputs they depend on outputs alone."""
    n_warps = 1 if block_v <= SHORT_VOTE else max(2, 2 * block_v // TILE_VOTES)
    most, n_out = FEW_INPUTS if n_inp <= FEW_INPUTS else MAX_TILE_I, ceil_pow2(n_out)
    block_j, one_j = min(n_out, max(1, PAIR_VOTES // block_v)), n_out * block_v <= TILE_VOTES
    sum_j = n_out if one_j else block_j
    sum_i, block_i = (max(1, min(most, TILE_VOTES // (j * block_v))) for j in (sum_j, block_j))
    return Blocks(sum_i, sum_j, block_i, block_j, min(n_out, max(1, MODEL_NUMBERS // block_v)), one_j, n_warps)


class StoredKernels:
    """Launches and matrix products of the stored form for one kind of call.

    A piece has at most `piece_votes` numbers of votes, or one sample.
    """

    def __init__(self, call: Call, piece_votes: int = PIECE_VOTES):
        loop, s, n, shapes, cores = call
        self.loop, self.sizes = loop, s
        self.n_kinds = max(1, *[shape[0] for shape in shapes])
        self.n_places = s.i // self.n_kinds
        size = s.b if s.packed else max(1, min(s.b, piece_votes // max(1, s.i * s.j * s.c * s.h)))
        pieces = [(b, min(size, s.b - b)) for b in range(0, s.b, max(1, size))]
        self.pieces = [Piece(b, n_b, n if s.packed else n_b * s.i) for b, n_b in pieces]
        self.keeps_votes = len(self.pieces) == 1
        own_W, self.own_biases = shapes[0][:2] == (self.n_kinds, s.j), shapes[1][0] != 1  # also if none
        self.own_betas = max(shapes[2][0], shapes[3][0]) > 1
        # weights that are more than the votes stay as they lie
        self.by_output = not s.packed and own_W and s.d > size * self.n_places * s.c
        block_v = ceil_pow2(s.c * s.h)
        *blocks, one_j, self.n_warps = choose_blocks(s.i, s.j, block_v)
        flags = one_j, self.by_output, not self.own_biases, self.own_betas, s.packed, loop.gaussian
        self.tile = Tile(s.c, s.h, *blocks, block_v, *flags)  # pyright: ignore[reportCallIssue]
        sum_tiles, self.input_tiles = ceil_div(s.j, self.tile.SUM_J), ceil_div(s.i, self.tile.BLOCK_I)
        self.max_programs = resident_programs(cores, CORE_WARPS // self.n_warps)
        wanted = ceil_div(ROUNDS * self.max_programs, max(1, size * sum_tiles))
        self.slots = min(wanted, MAX_SLOTS, ceil_div(s.i, SLOT_TILES * self.tile.SUM_I))
        self.units = max(self.slots * sum_tiles, 1 if one_j else self.input_tiles)
        axes = {**s._asdict(), "t": loop.n_iters, "later": loop.n_iters - 1, "v": s.c * s.h, "slots": self.slots}
        axes |= {"n": n if self.keeps_votes else 0, "kinds": 0 if self.by_output else shapes[0][0], "piece": size}
        self.saved = Layout(Saved(*buffers(Saved, axes)))
        self.sums = Layout(Sums(*buffers(Sums, axes)))

    def fwd(self, inputs: Sequence[Tensor], saved: Tensor, outs: Sequence[Tensor]) -> Iterator[Launch]:
        """Form votes, and list the launches that fill `outs` and `saved`."""
        inputs, kept, sums = self.prepare(inputs, saved)
        if not self.by_output:  # as matrices [k, d, j h]
            (k, _, d, h), j = inputs[3].shape, self.sizes.j
            kept.weights[: k * d * j * h].view(k, d, j, h).copy_(inputs[3].transpose(1, 2))
        for piece in self.pieces:
            args = self.arguments(inputs, self.form_votes(inputs, kept, piece))
            yield self.launch(stored_fwd_kernel, 4, piece, args, sums, Outputs(*outs))

    def empty_grads(self, inputs: Sequence[Tensor]) -> list[Any]:
        """Allocate gradients of the inputs in float32; `bwd` adds those of parameters."""
        return [*[torch.empty_like(t, dtype=torch.float32) for t in inputs[:2]], *[None] * 4]

    def bwd(
        self, inputs: Sequence[Tensor], saved: Tensor, douts: Sequence[Tensor], grads: list[Any]
    ) -> Iterator[Launch]:
        """List the launches that lead to gradients of votes, and put those of all arguments into `grads`."""
        s, t, W, parts = self.sizes, self.loop.n_iters, inputs[3], list[tuple[Tensor, Tensor, Tensor]]()
        inputs, kept, sums = self.prepare(inputs, saved)
        dvectors, dscalars = W.new_empty(t, 3, s.b, s.j, s.c, s.h), W.new_empty(t, 4, s.b, s.j)
        for piece in self.pieces:
            own = kept if self.keeps_votes else self.form_votes(inputs, kept, piece)
            args = self.arguments(inputs, own)
            if not self.keeps_votes:
                unused = Outputs(*[torch.empty_like(d) for d in douts])
                yield self.launch(stored_fwd_kernel, 4, piece, args, sums, unused)
            dargs = Grads(dvectors, dscalars, torch.empty_like(own.R), grads[0])
            yield self.launch(stored_bwd_kernel, 1, piece, args, dargs, sums, Outputs(*douts))
            dV = W.new_empty(piece.n_rows * s.j * s.c * s.h) if self.keeps_votes else own.V
            daD = W.new_empty(2, piece.n_rows if self.own_betas else 0, s.j)
            if dV.numel():
                pointers = *self.counts(piece), args, dargs, dV, daD, self.tile
                yield Launch(votes_bwd_kernel, piece.n * self.input_tiles, self.n_warps, pointers)
            parts.append(self.form_votes_bwd(inputs, own, dV, daD, grads[1], piece))
        grads[2], dB, dbetas = (reduce(torch.add, ts) for ts in zip(*parts, strict=True))
        # sums of the votes' gradients nearly cancel, and over all inputs would be long
        grads[3] = dB if self.own_biases else dvectors[:, 2].sum((0, 1), dtype=torch.float64).float()[None]
        dbetas = dbetas if self.own_betas else dscalars[:, 2:].sum((0, 2), dtype=torch.float64)[:, None]
        grads[4:] = [d.float() for d in dbetas]

    def prepare(self, inputs: Sequence[Tensor], saved: Tensor) -> tuple[list[Tensor], Saved, Sums]:
        """Return inputs with betas for each output, what is kept without padding, and a workspace of sums."""
        s, n = self.sizes, self.pieces[0].n_rows if self.keeps_votes else 0
        betas = [p if p.shape[1] == s.j else p.expand(-1, s.j).contiguous() for p in inputs[5:]]
        (kept,), (sums,) = self.saved.split(saved), self.sums.split(self.sums.allocate(saved))
        kept = kept._replace(V=kept.V[: n * s.j * s.c * s.h], x=kept.x[: n * s.c * s.d])
        return [*inputs[:5], *betas], kept, sums

    def arguments(self, inputs: Sequence[Tensor], own: Saved) -> Args:
        """Return what the kernels read of inputs and of what is kept."""
        a, _, offsets, _, B, use, ign = inputs
        return Args(a, offsets, own.V, B, use, ign, own.R, own.vectors, own.scalars)

    def launch(self, kernel: Any, n_first: int, piece: Piece, *tensors: tuple[Any, ...]) -> Launch:
        """Return the launch of a routing loop, whose first iteration has `n_first` phases."""
        n_programs = min(self.max_programs, piece.n * self.units)
        n_phases = n_first + (2 if self.tile.ONE_J else 3) * (self.loop.n_iters - 1)
        args = *self.counts(piece), self.loop.eps, *tensors, self.tile
        return Launch(kernel, n_programs, self.n_warps, args, n_phases)

    def counts(self, piece: Piece) -> Counts:
        """Return the sizes of a piece."""
        s = self.sizes
        return Counts(s.b, piece.first, piece.n, s.i, self.n_places, piece.n_rows, self.loop.n_iters, self.slots, s.j)

    def by_kind(self, t: Tensor, piece: Piece) -> Tensor:
        """View the rows of a piece's inputs `[n, c, d]` with kinds first, `[k, b, p, c, d]`."""
        s, k = self.sizes, self.n_kinds
        rows = t.reshape(-1, s.c, s.d).narrow(0, piece.first * s.i, piece.n_rows)
        return rows[None, None] if s.packed else rows.view(piece.n, k, self.n_places, s.c, s.d).transpose(0, 1)

    def matrices(self, W: Tensor, kept: Saved) -> tuple[Tensor, Tensor]:
        """Return capsules and weights as matrices, `[k, n c, d]` and `[k, d, j h]`.

        By output they are `[k j, n c, d]`, the capsules of a kind repeated for every output, and `[k j, d, h]`.
        """
        s, k = self.sizes, len(W)
        if not self.by_output:
            return kept.x.view(k, -1, s.d), kept.weights[: k * s.d * s.j * s.h].view(k, s.d, -1)
        x = kept.x.view(k, 1, -1, s.d).expand(-1, s.j, -1, -1)
        return x.reshape(k * s.j, -1, s.d), W.reshape(-1, s.d, s.h)

    def form_votes(self, inputs: Sequence[Tensor], kept: Saved, piece: Piece) -> Saved:
        """Form votes, but for biases that all inputs share, and return what is kept with those of the piece."""
        (_, x, _, W, B, *_), s, n = inputs, self.sizes, piece.n_rows
        own = self.by_kind(x, piece).float()
        if not self.keeps_votes:
            votes = own.new_empty(n * s.j * s.c * s.h), own.new_empty((self.loop.n_iters - 1) * n * s.j)
            kept = kept._replace(V=votes[0], R=votes[1], x=own.new_empty(own.numel()))
        if n:
            # so that no square of a vote overflows
            torch.clamp(own, -MAX_CAPSULE, MAX_CAPSULE, out=kept.x.view(own.shape))
            xs, weights = self.matrices(W, kept)
            torch.bmm(xs, weights, out=kept.V.view(len(xs), xs.shape[1], -1))
            if self.own_biases:
                self.by_bias(kept.V, B).add_(B.unsqueeze(2) if self.by_output else B.transpose(1, 2).unsqueeze(1))
        return kept

    def by_bias(self, V: Tensor, B: Tensor) -> Tensor:
        """View votes as `[k, n, c, j, h]`, or by output `[k, j, n, c, h]`."""
        _, j, c, h = B.shape
        return V.view(len(B), j, -1, c, h) if self.by_output else V.view(len(B), -1, c, j, h)

    def form_votes_bwd(
        self, inputs: Sequence[Tensor], kept: Saved, dV: Tensor, daD: Tensor, dx: Tensor, piece: Piece
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Fill a piece's rows of `dx`, and return its gradients of `W`, of own biases and of own betas."""
        _, x, _, W, B, *_ = inputs
        s, k, own = self.sizes, len(W), self.by_kind(x, piece).float()
        if not dV.numel():
            return W.new_zeros(k, s.j, s.d, s.h), torch.zeros_like(B), W.new_zeros(2, self.n_kinds, s.j)
        xs, weights = self.matrices(W, kept)
        dVs = dV.view(len(xs), xs.shape[1], -1)
        dxs, dW = dVs @ weights.mT, xs.mT @ dVs
        dxs = dxs.view(k, s.j, -1, s.d).sum(1) if self.by_output else dxs
        # zero where `x` was clamped
        bounds = -MAX_CAPSULE, MAX_CAPSULE
        torch.ops.aten.hardtanh_backward(dxs.view(own.shape), own, *bounds, grad_input=self.by_kind(dx, piece))
        dW = dW.view(k, s.j, s.d, s.h) if self.by_output else dW.view(k, s.d, s.j, s.h).transpose(1, 2)
        dB, dbetas = B, daD
        if self.own_biases:
            dB = self.by_bias(dV, B)
            dB = dB.sum(2) if self.by_output else dB.sum(1).transpose(1, 2)
        if self.own_betas:
            dbetas = daD.view(2, self.n_kinds, -1, s.j).sum(2, dtype=torch.float64)
        return dW, dB, dbetas
