"""A memory checker for interpreted kernels, as compute-sanitizer is for compiled ones.

A kernel may access its tensor arguments, every buffer of a workspace being one, and nothing beyond their ends.
Uninitialised memory holds NaN, so that a kernel which reads it returns NaN.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Guard:
    """The interpreter's memory with a check of every access."""

    def __init__(self, memory: Any):
        self.memory = memory
        self.starts = self.ends = np.zeros(0, np.uint64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def allow(self, args: Any) -> None:
        """Allow accesses to the tensors among arguments alone."""
        assert all(t.is_contiguous() for t in tensors(args))
        extents = sorted({(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors(args) if t.numel()})
        self.starts, self.ends = (np.array(side, np.uint64) for side in zip(*extents, strict=True))

    def check(self, places: Any, mask: Any, size: int) -> None:
        """Raise an error for an access outside of the allowed tensors."""
        touched = np.asarray(places)[np.asarray(mask, bool)].astype(np.uint64)
        within = np.maximum(np.searchsorted(self.starts, touched, "right"), 1) - 1
        out = (touched < self.starts[within]) | (touched + np.uint64(size) > self.ends[within])
        assert not out.any(), f"a kernel accesses {out.sum()} addresses outside of its tensors"

    def load(self, places: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self.check(places, mask, np.dtype(dtype).itemsize)
        return self.memory.load(places, mask, other, dtype)

    def store(self, places: Any, value: Any, mask: Any) -> Any:
        self.check(places, mask, value.dtype.itemsize)
        return self.memory.store(places, value, mask)


def tensors(args: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments, which may be tuples."""
    if isinstance(args, Tensor):
        yield args
    elif isinstance(args, list | tuple):
        for arg in args:
            yield from tensors(arg)
    elif hasattr(args, "base"):  # a tensor as another type
        yield from tensors(args.base)


@contextmanager
def guarded() -> Iterator[None]:
    """Check the accesses of kernels that run in this context."""
    from triton.runtime import interpreter

    triton_interpreter: Any = interpreter
    memory, executor, patch = (
        triton_interpreter._interpreter,
        triton_interpreter.GridExecutor,
        triton_interpreter._patch_lang,
    )
    guard, prepare = Guard(memory), executor._init_args_hst
    patched: set[int] = set()

    def prepare_guarded(self: Any, args: Any, kwargs: Any) -> Any:
        patched.clear()
        prepared = prepare(self, args, kwargs)
        guard.allow(prepared[0])
        return prepared

    def patch_once(fn: Any) -> Any:
        """Patch a module once per launch, which the interpreter does at every call of a function: much faster."""
        module = id(fn.__globals__)
        if module in patched:
            return None
        patched.add(module)
        return patch(fn)

    was = torch.are_deterministic_algorithms_enabled()
    try:
        triton_interpreter._interpreter, executor._init_args_hst, triton_interpreter._patch_lang = (
            guard,
            prepare_guarded,
            patch_once,
        )
        torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
        yield
    finally:
        triton_interpreter._interpreter, executor._init_args_hst, triton_interpreter._patch_lang = (
            memory,
            prepare,
            patch,
        )
        torch.use_deterministic_algorithms(was)
