"""Host side of the stored form: divides a batch into pieces, forms votes by matrix products, and lists the launches.

Axes as in `stored.py`; `k` kinds.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .grid import Launch, resident_programs
from .sizes import Call, Outputs, ceil_div, ceil_pow2
from .stored import Args, Counts, Tile, stored_fwd_kernel
from .stored_bwd import Grads, stored_bwd_kernel, votes_bwd_kernel
from .workspace import Buffer, Layout

MAX_CAPSULE = torch.finfo(torch.float32).max ** (1 / 4)
PIECE_VOTES = 2**28
"""Numbers of votes up to which samples are routed together."""
TILE_VOTES, MAX_TILE_I, FEW_INPUTS = 2048, 64, 16
"""Numbers of votes and inputs of a tile; fewer inputs where a sample has few."""
N_WARPS, PER_CORE = 4, 2
"""Warps of a program, and programs that a multiprocessor is sure to hold at a time."""
MAX_ROUNDS = 4
"""Tiles for each program up to which all phases share one launch, to save time on the host."""


class Piece(NamedTuple):
    """Samples that are routed together, and the rows of their inputs."""

    first: int
    n: int
    rows: slice


def choose_tiles(n_inp: int, n_out: int, block_v: int) -> tuple[int, int, int, int]:
    """Return inputs and outputs of a tile where inputs are summed over, and where outputs are."""
    pairs, n_out = max(1, TILE_VOTES // block_v), ceil_pow2(n_out)
    sum_i = min(pairs, FEW_INPUTS if n_inp <= FEW_INPUTS else MAX_TILE_I)
    block_j = min(n_out, max(1, pairs // min(4, pairs)))
    return sum_i, min(n_out, pairs // sum_i), min(FEW_INPUTS, pairs // block_j), block_j


class StoredKernels:
    """Launches and matrix products of the stored form for one kind of call.

    A piece has at most `piece_votes` numbers of votes, or one sample.
    """

    def __init__(self, call: Call, piece_votes: int = PIECE_VOTES):
        loop, s, n, shapes, cores = call
        self.loop, self.sizes, t = loop, s, loop.n_iters
        self.n_kinds = max(1, *[shape[0] for shape in shapes])
        self.n_places = s.i // self.n_kinds
        size = s.b if s.packed else max(1, min(s.b, piece_votes // max(1, s.i * s.j * s.c * s.h)))
        self.pieces = [
            Piece(b, min(size, s.b - b), slice(b * s.i, n if s.packed else min(b + size, s.b) * s.i))
            for b in range(0, s.b, max(1, size))
        ]
        self.keeps_votes = len(self.pieces) == 1
        kept, v, single = n if self.keeps_votes else 0, s.c * s.h, torch.float32
        self.saved = Layout(
            Buffer(single, t, 4, s.b, s.j, v), Buffer(single, t, 4, s.b, s.j), Buffer(single, kept, s.c, s.j, s.h),
            Buffer(single, t - 1, kept, s.j),
        )  # fmt: skip
        block_v = ceil_pow2(v)
        B_K, self.beta_k = shapes[1][0] > 1, max(shapes[2][0], shapes[3][0]) > 1
        blocks = *choose_tiles(s.i, s.j, block_v), block_v
        self.tile = Tile(s.c, s.h, *blocks, B_K, self.beta_k, s.packed, loop.gaussian)
        self.model_tiles, self.input_tiles = ceil_div(s.j, self.tile.SUM_J), ceil_div(s.i, self.tile.BLOCK_I)
        self.max_programs = resident_programs(cores, PER_CORE)

    def fwd(self, inputs: Sequence[Tensor], saved: Tensor, outs: Sequence[Tensor]) -> Iterator[Launch]:
        """Form votes, and list the launches that fill `outs` and `saved`."""
        a, x, offsets, W, B, *betas = inputs
        (use, ign), weights = self.expand_betas(betas), self.arrange_weights(W)
        for piece in self.pieces:
            vectors, scalars, V, R = self.split(saved, piece)
            self.form_votes(x, weights, V, piece)
            args = Args(a, offsets, V, B, use, ign, R, vectors, scalars)
            yield self.launch(stored_fwd_kernel, piece, args, Outputs(*outs))

    def empty_grads(self, inputs: Sequence[Tensor]) -> list[Any]:
        """Allocate the gradient of `a_inp`; `bwd` adds the others."""
        return [torch.empty_like(inputs[0], dtype=torch.float32), *[None] * 5]

    def bwd(
        self, inputs: Sequence[Tensor], saved: Tensor, douts: Sequence[Tensor], grads: list[Any]
    ) -> Iterator[Launch]:
        """List the launches that lead to gradients of votes, and put those of all arguments into `grads`."""
        s, t, parts = self.sizes, self.loop.n_iters, list[tuple[Tensor, Tensor, Tensor, Tensor]]()
        a, x, offsets, W, B, *betas = inputs
        (use, ign), weights = self.expand_betas(betas), self.arrange_weights(W)
        dvectors, dscalars = self.allocate(saved, 2 * t, s.b, s.j, s.c * s.h), self.allocate(saved, t, 4, s.b, s.j)
        for piece in self.pieces:
            vectors, scalars, V, R = self.split(saved, piece)
            args = Args(a, offsets, V, B, use, ign, R, vectors, scalars)
            if not self.keeps_votes:
                self.form_votes(x, weights, V, piece)
                yield self.launch(stored_fwd_kernel, piece, args, Outputs(*[torch.empty_like(d) for d in douts]))
            sums = Grads(dvectors, dscalars, torch.empty_like(R), grads[0])
            yield self.launch(stored_bwd_kernel, piece, args, sums, Outputs(*douts))
            dV = torch.empty_like(V) if self.keeps_votes else V
            daD = self.allocate(saved, V.numel() // (s.j * s.c * s.h) if self.beta_k else 0, s.j)
            pointers = *self.counts(piece), args, sums, dV, daD, self.tile
            if V.numel():
                yield Launch(votes_bwd_kernel, piece.n * self.input_tiles, N_WARPS, pointers)
            parts.append(self.form_votes_bwd(x, weights, dV, B, daD, piece))
        dxs, dWs, dBs, daDs = zip(*parts, strict=True)
        grads[1] = torch.cat(dxs).view(x.shape)
        grads[2], grads[3], daD = (reduce(torch.add, ts) for ts in (dWs, dBs, daDs))
        grads[4:] = self.betas_bwd(a, dscalars, daD)

    def launch(self, kernel: Any, piece: Piece, *tensors: tuple[Any, ...]) -> Launch:
        """Return the launch of a routing loop: all phases together where each is short."""
        n_programs = piece.n * max(self.model_tiles, self.input_tiles)
        together = n_programs <= MAX_ROUNDS * self.max_programs
        args = *self.counts(piece), self.loop.eps, *tensors, self.tile
        n_programs = min(n_programs, self.max_programs) if together else n_programs
        return Launch(kernel, n_programs, N_WARPS, args, 2 * self.loop.n_iters - 1, together)

    def counts(self, piece: Piece) -> Counts:
        """Return the sizes of a piece."""
        s, n_rows = self.sizes, piece.rows.stop - piece.rows.start
        return Counts(s.b, piece.first, piece.n, s.i, self.n_places, n_rows, self.loop.n_iters, s.j)

    def split(self, saved: Tensor, piece: Piece) -> list[Tensor]:
        """Return the models, votes and assignments of a piece; where the votes are not kept, in new memory."""
        s, n = self.sizes, piece.rows.stop - piece.rows.start
        vectors, scalars, V, R = self.saved.split(saved)
        if not self.keeps_votes:
            V, R = self.allocate(saved, n, s.c, s.j, s.h), self.allocate(saved, self.loop.n_iters - 1, n, s.j)
        return [vectors, scalars, V[: n * s.c * s.j * s.h], R[: (self.loop.n_iters - 1) * n * s.j]]

    def allocate(self, like: Tensor, *shape: int) -> Tensor:
        """Return uninitialised float32 memory, flat."""
        return like.new_empty(math.prod(shape), dtype=torch.float32)

    def expand_betas(self, betas: Sequence[Tensor]) -> list[Tensor]:
        """Give each output its own betas."""
        return [p.expand(-1, self.sizes.j).contiguous() for p in betas]

    def arrange_weights(self, W: Tensor) -> Tensor:
        """Arrange weights `[k, j|1, d, h]` as matrices `[k, d, j h]`."""
        (k, _, d, h), j = W.shape, self.sizes.j
        return W.expand(-1, j, -1, -1).transpose(1, 2).reshape(k, d, j * h)

    def arrange_inputs(self, x: Tensor, piece: Piece, n_kinds: int) -> Tensor:
        """Arrange a piece's capsules as matrices `[k, n c, d]`, clamped so that no square of a vote overflows."""
        x = x.reshape(-1, *x.shape[-2:])[piece.rows].float().clamp(-MAX_CAPSULE, MAX_CAPSULE)
        if self.n_kinds > 1:
            x = x.unflatten(0, (piece.n, self.n_kinds, self.n_places)).transpose(0, 1)
        return x.reshape(n_kinds, -1, x.shape[-1])

    def form_votes(self, x: Tensor, weights: Tensor, V: Tensor, piece: Piece) -> None:
        """Fill `V` with votes but for their biases."""
        if V.numel():
            xs = self.arrange_inputs(x, piece, len(weights))
            torch.bmm(xs, weights, out=V.view(len(weights), xs.shape[1], -1))

    def form_votes_bwd(
        self, x: Tensor, weights: Tensor, dV: Tensor, B: Tensor, daD: Tensor, piece: Piece
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a piece's gradients of `x`, `W` and `B`, and the sum of `daD` over the inputs of each kind."""
        s, (n_kinds, d, _) = self.sizes, weights.shape
        own = x.reshape(-1, s.c, d)[piece.rows]
        if not dV.numel():
            zeros = weights.new_zeros(n_kinds, s.j, d, s.h), B.new_zeros(len(B), s.j, s.c, s.h)
            return own.float(), *zeros, daD.new_zeros(self.n_kinds, s.j)
        xs, dV = self.arrange_inputs(x, piece, n_kinds), dV.view(n_kinds, -1, s.j * s.h)
        dx, dW = (dV @ weights.mT).view(-1, s.c, d), xs.mT @ dV
        if self.n_kinds > 1:
            dx = dx.view(self.n_kinds, piece.n, self.n_places, s.c, d).transpose(0, 1).reshape(-1, s.c, d)
        dx.masked_fill_(own.abs() > MAX_CAPSULE, 0.0)
        dB = dV.view(len(B), -1, s.c, s.j, s.h).sum(1).transpose(1, 2)  # [k, j, c, h]
        daD = daD.view(self.n_kinds, -1, s.j).sum(1, dtype=torch.float64) if self.beta_k else daD
        return dx, dW.view(n_kinds, d, s.j, s.h).transpose(1, 2), dB, daD

    def betas_bwd(self, a: Tensor, dscalars: Tensor, daD: Tensor) -> list[Tensor]:
        """Return gradients of both betas."""
        s = self.sizes
        totals = dscalars.view(-1, 4, s.b, s.j).sum(0, dtype=torch.float64)
        if not self.beta_k:
            return [t.sum(0, keepdim=True).float() for t in totals[2:]]
        f = torch.sigmoid(a.double()).view(s.b, self.n_kinds, self.n_places).sum(-1)  # [b, k]
        return [daD.float(), (daD - f.T @ totals[1]).float()]


plan_stored = lru_cache(maxsize=1024)(StoredKernels)
"""`StoredKernels`, cached."""
