"""Workspaces: one allocation holds every buffer that a launch needs besides its arguments and results.

A named tuple whose fields have a type and axes as defaults, such as `mu: Any = "float32 b j h"`, says what its buffers
are. `Layout(*buffers(Args, sizes), Models(*buffers(Models, sizes)))` lays out single buffers and such a tuple; `split`
makes tensors and a `Models` of tensors out of a workspace of that layout.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .sizes import Sizes

ALIGNMENT = 128
"""Bytes to a multiple of which every buffer starts: a cache line of a GPU."""


class Buffer:
    """The type and size of a buffer, padded to whole cache lines."""

    def __init__(self, dtype: torch.dtype, *shape: int):
        self.dtype = dtype
        self.nbytes = -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT


def buffers(fields: Any, sizes: Mapping[str, Any]) -> list[Buffer]:
    """Return the buffers of a named tuple's fields that have defaults; `sizes` are those of axes, or types by name."""
    specs, made = fields._field_defaults.values(), dict[str, Buffer]()
    for spec in set(specs):  # many are alike
        dtype, *axes = spec.split()
        shape = [sizes[axis] if axis in sizes else int(axis) for axis in axes]
        made[spec] = Buffer(sizes.get(dtype) or getattr(torch, dtype), *shape)
    return [made[spec] for spec in specs]


class Layout:
    """The buffers of a workspace in order, each a `Buffer` or a named tuple of them."""

    def __init__(self, *fields: Any):
        self.fields = fields
        self.buffers: list[Buffer] = [b for f in fields for b in ([f] if isinstance(f, Buffer) else f)]
        self.sizes = [b.nbytes for b in self.buffers]
        self.nbytes = sum(self.sizes)

    def allocate(self, like: Tensor) -> Tensor:
        """Return an uninitialised workspace on a tensor's device."""
        return like.new_empty(self.nbytes, dtype=torch.uint8)

    def split(self, workspace: Tensor) -> list[Any]:
        """Return the fields as flat views, padding included: kernels need no more than address and type."""
        parts = zip(workspace.split(self.sizes), self.buffers, strict=True)
        views = iter([part.view(b.dtype) for part, b in parts])
        return [next(views) if isinstance(f, Buffer) else type(f)(*[next(views) for _ in f]) for f in self.fields]


def allocate_grads(s: Sizes, inputs: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Allocate gradients of all arguments but the offsets, those of parameters for every output.

    Those of inputs have their types, or the given one.
    """
    a_inp, x, _, W, B, *_ = inputs
    da_inp, dx = (torch.empty_like(t, dtype=dtype) for t in (a_inp, x))
    dW, duse, dign = (W.new_empty(shape) for shape in ((1, s.j, s.d, s.h), (1, s.j), (1, s.j)))
    return [da_inp, dx, dW, torch.empty_like(B), duse, dign]
