"""One allocation for all that a launch needs besides its arguments.

A layout says once per set of sizes where everything lies; a room is memory laid out so. Among the arguments of `launch`
and `run_phases` a room stands for its pieces, one argument each. Kernels that are compiled get addresses, so that no
tensor is made for a piece: making forty of them takes longer than many a launch.

    @lru_cache
    def scratch(n: Sizes, slots: int) -> Layout:
        exact = partial(Piece, torch.float64)
        return Layout(exact(n.b * slots, 16), Sums(exact(slots, n.b), exact(slots, n.b, n.j)))

    room = Room.make(scratch(sizes, slots), x)
    run_phases(kernel, ..., a_inp, x, room, n.b, n.i)  # the kernel's parameters: p_a, p_x, p_mean, sums, n_b, n_inp

What a backward pass needs can be a room too: save its `base`, and `Room(layout, base)` is the room again. A kernel that
needs some of the pieces gets `Room(layout.only(0, 2), room.base)`; keep such layouts with the whole one.
"""

import math
from copy import copy
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

    def __init__(self, *pieces: Any):
        self.pieces, self.nbytes = pieces, 0
        self.starts: list[Any] = [self._place(p) if isinstance(p, Piece) else [*map(self._place, p)] for p in pieces]

    def only(self, *which: int) -> "Layout":
        """Some of the pieces, where they are."""
        some = copy(self)
        some.pieces, some.starts = tuple([self.pieces[k] for k in which]), [self.starts[k] for k in which]
        return some

    def _place(self, piece: Piece) -> int:
        start = self.nbytes
        self.nbytes = -(-(start + piece.nbytes) // ALIGNED) * ALIGNED
        return start


class Room:
    """Memory with a layout."""

    __slots__ = ("base", "layout")

    def __init__(self, layout: Layout, base: Tensor):
        self.layout, self.base = layout, base

    @classmethod
    def make(cls, layout: Layout, like: Tensor, zero: bool = False) -> "Room":
        """On a tensor's device, full of anything or of zeros."""
        make = torch.zeros if zero else torch.empty
        return cls(layout, make(layout.nbytes, dtype=torch.uint8, device=like.device))

    def addresses(self) -> list[Any]:
        """Of the pieces, for a compiled kernel."""
        base = self.base.data_ptr()
        return [base + at if type(at) is int else tuple([base + one for one in at]) for at in self.layout.starts]

    def tensors(self) -> list[Any]:
        """The pieces, for a kernel that is interpreted, or not yet compiled and so asks for their types."""
        whole = []
        for piece, at in zip(self.layout.pieces, self.layout.starts, strict=True):
            one = isinstance(piece, Piece)
            whole.append(self._view(piece, at) if one else type(piece)(*map(self._view, piece, at)))
        return whole

    def _view(self, piece: Piece, at: int) -> Tensor:
        return self.base[at : at + piece.nbytes].view(piece.dtype).view(piece.shape)
