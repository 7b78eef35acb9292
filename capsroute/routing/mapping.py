"""What implementations with gradients of their own need to work under `torch.func`."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

Tensors = tuple[Tensor, ...]


def one_by_one(function: type[Function], info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, Any]:
    """Rule of `torch.func.vmap`: the function sees one sample of the mapped axis at a time."""
    size = info.batch_size
    in_dims = tuple(dim if isinstance(a, Tensor) else None for a, dim in zip(args, in_dims, strict=True))
    moved = [a if dim is None else a.movedim(dim, 0) for a, dim in zip(args, in_dims, strict=True)]
    outs = [
        function.apply(*(a if dim is None else a[k] for a, dim in zip(moved, in_dims, strict=True)))
        for k in range(size)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*outs, strict=True))
    return stacked, (0,) * len(stacked)
