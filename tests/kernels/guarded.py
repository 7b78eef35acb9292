"""Watches the memory that interpreted kernels touch: what a sanitizer does on a GPU, piece by piece.

A kernel may touch the tensors it was given, each piece of a room counting as one, and nothing beyond their ends. Memory
that nobody has written holds what is not a number, so that whoever reads it has that in its results.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.routing.triton.workspace import ALIGNED


class Guard:
    """Stands for the interpreter's memory."""

    def __init__(self, memory: Any):
        self.memory = memory
        self.starts = self.ends = np.zeros(0, np.uint64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def allow(self, args: Any) -> None:
        """Tensors among arguments, from now on, and nothing else."""
        assert all(t.is_contiguous() for t in tensors(args))
        extents = sorted({extent(t) for t in tensors(args) if t.numel()})
        self.starts, self.ends = (np.array(side, np.uint64) for side in zip(*extents, strict=True))

    def check(self, places: Any, mask: Any, size: int) -> None:
        touched = np.asarray(places)[np.asarray(mask, bool)].astype(np.uint64)
        within = np.maximum(np.searchsorted(self.starts, touched, "right"), 1) - 1
        out = (touched < self.starts[within]) | (touched + np.uint64(size) > self.ends[within])
        assert not out.any(), f"a kernel touches {out.sum()} places outside of its tensors"

    def load(self, places: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self.check(places, mask, np.dtype(dtype).itemsize)
        return self.memory.load(places, mask, other, dtype)

    def store(self, places: Any, value: Any, mask: Any) -> Any:
        self.check(places, mask, value.dtype.itemsize)
        return self.memory.store(places, value, mask)


def extent(t: Tensor) -> tuple[int, int]:
    """Where a tensor begins and ends; a piece of a room ends with its last line, which is cleared as a whole."""
    storage, begin = t.untyped_storage(), t.data_ptr()
    first = storage.data_ptr()
    line = -(-(begin - first + t.nbytes) // ALIGNED) * ALIGNED
    return begin, begin + t.nbytes if storage.nbytes() % ALIGNED else first + line


def tensors(args: Any) -> Iterator[Tensor]:
    """All of them in arguments, which may be tuples."""
    if isinstance(args, Tensor):
        yield args
    elif isinstance(args, list | tuple):
        for arg in args:
            yield from tensors(arg)
    elif hasattr(args, "base"):  # a tensor as another type
        yield from tensors(args.base)


@contextmanager
def guarded() -> Iterator[None]:
    """Watch kernels in here."""
    from triton.runtime import interpreter

    whole: Any = interpreter
    memory, executor, patch = whole._interpreter, whole.GridExecutor, whole._patch_lang
    guard, prepare = Guard(memory), executor._init_args_hst
    patched: set[int] = set()

    def watched(self: Any, args: Any, kwargs: Any) -> Any:
        patched.clear()
        prepared = prepare(self, args, kwargs)
        guard.allow(prepared[0])
        return prepared

    def patch_once(fn: Any) -> Any:
        """Make a module's language the interpreter's; every call of a function in it would do so anew."""
        module = id(fn.__globals__)
        if module in patched:
            return None
        patched.add(module)
        return patch(fn)

    was = torch.are_deterministic_algorithms_enabled()
    try:
        whole._interpreter, executor._init_args_hst, whole._patch_lang = guard, watched, patch_once
        torch.use_deterministic_algorithms(True, warn_only=True)  # memory is then filled when it is made
        yield
    finally:
        whole._interpreter, executor._init_args_hst, whole._patch_lang = memory, prepare, patch
        torch.use_deterministic_algorithms(was)
