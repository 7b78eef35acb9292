"""One allocation for all that a launch needs besides its arguments.

A layout says once per set of sizes where everything lies; a room is memory laid out so. Kernels get its pieces, one
argument each, as addresses where they are compiled, so that no tensor is made for a piece: making forty of them takes
longer than many a launch.

    exact = partial(Piece, torch.float64)
    layout = Layout(exact(n.b * slots, 16), Sums(exact(slots, n.b), exact(slots, n.b, n.j)))
    a, x, mean, sums = map(At, range(4))
    run = Pass([None, None, layout], [Launch(kernel, ..., a, x, mean, sums, n.b, n.i)])  # once
    run.start([a_inp, mu_inp, layout.make(mu_inp)])

What a backward pass needs can be a room too.
"""

import math
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

ALIGNED = 128
"""Bytes to a multiple of which every piece starts: a line of a GPU's cache."""


class Piece:
    """What lies in a piece of memory."""

    def __init__(self, dtype: torch.dtype, *shape: int):
        self.dtype, self.shape = dtype, shape
        self.nbytes = math.prod(shape) * dtype.itemsize


class Layout:
    """Where pieces, and named tuples of pieces, lie in one allocation."""

    def __init__(self, *whole: Any):
        self.whole, self.nbytes = whole, 0
        self.starts: list[Any] = [self._place(p) if isinstance(p, Piece) else [*map(self._place, p)] for p in whole]

    def make(self, like: Tensor) -> Tensor:
        """A room on a tensor's device, full of anything."""
        return like.new_empty(self.nbytes, dtype=torch.uint8)

    def pieces(self, room: Any) -> list[Any]:
        """Of a room, as tensors; or where they lie, given where the room lies."""
        if not isinstance(room, Tensor):
            return [room + at if type(at) is int else tuple([room + one for one in at]) for at in self.starts]
        found = []
        for piece, at in zip(self.whole, self.starts, strict=True):
            one = isinstance(piece, Piece)
            found.append(_view(piece, at, room) if one else type(piece)(*map(_view, piece, at, repeat(room))))
        return found

    def _place(self, piece: Piece) -> int:
        start = self.nbytes
        self.nbytes = -(-(start + piece.nbytes) // ALIGNED) * ALIGNED
        return start


def _view(piece: Piece, at: int, room: Tensor) -> Tensor:
    return room[at : at + piece.nbytes].view(piece.dtype).view(piece.shape)
