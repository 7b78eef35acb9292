"""Launches with little in between: small routings take a GPU less time than Triton takes Python to start them.

All that does not change from call to call is put together once. A pass then asks where its tensors lie. If they lay
there before, as in a loop they mostly did, all that is left are calls of Triton's own C functions. Python in the thread
of a backward pass is slower than elsewhere, so that every line here counts.
"""

import os
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from triton import knobs

from .workspace import Layout

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Programs then run on the CPU, one after the other."""
COMPILED: dict[Hashable, Any] = {}
"""Compiled kernels by what they were compiled for, which Triton would find out anew each time."""
MOST_COMPILED = 4096
MOST_CALLS = 4
"""Sets of addresses whose calls a pass keeps: tensors of one step of a loop often live on into the next."""
Grid = tuple[int, int, int]
Call = tuple[Callable[..., Any], Sequence[Any]]
"""A function and its arguments."""
Caller = Callable[[int, Sequence[Any]], Call]
"""From a stream and a kernel's arguments, what launches the kernel."""


class At(NamedTuple):
    """Stands among a kernel's arguments for a piece of its pass's memory."""

    place: int


class Launch:
    """A launch on one device, complete but for where memory lies.

    Args:
        kernel: A jitted function.
        n_programs: How many programs of it.
        warps: Of each program.
        key: Determines what is compiled: constants, kinds of tensors, numbers that the kernel is specialised for.
        args: The kernel's arguments, constants included, an `At` for each piece of memory.
        together: Whether all programs have to run at a time.
    """

    def __init__(self, kernel: Any, n_programs: int, warps: int, key: Hashable, *args: Any, together: bool = False):
        self.kernel, self.grid, self.key = kernel, (n_programs, 1, 1), key
        self.options = {"num_warps": warps, "num_stages": 1, "launch_cooperative_grid": together}
        self.numbers = [arg for arg in args if type(arg) is not At]
        counted = iter(range(len(args)))
        self.order = itemgetter(*[len(self.numbers) + a.place if type(a) is At else next(counted) for a in args])
        self.callers: tuple[Caller, Caller] | None = None
        self.compiled: Any = None

    def arguments(self, pieces: Sequence[Any]) -> tuple[Any, ...]:
        """All of the kernel's, given addresses or tensors."""
        return self.order([*self.numbers, *pieces])

    def compile(self, device: torch.device, pieces: Sequence[Any]) -> tuple[Caller, Caller]:
        """How to launch the kernel for tensors like these, while nobody watches and while somebody does."""
        known = id(self.kernel), device, *self.options.values(), self.key  # a kernel's own hash takes long
        if known not in COMPILED:
            if len(COMPILED) >= MOST_COMPILED:
                COMPILED.clear()
            COMPILED[known] = self.kernel.warmup(*self.arguments(pieces), grid=self.grid, **self.options)
        self.compiled = compiled = COMPILED[known]
        grid = self.grid
        self.callers = unwatched(compiled, grid), lambda stream, args: (compiled[grid], args)
        return self.callers


class Pass:
    """Launches one after the other, all over the same memory.

    Args:
        memory: What the tensors of a pass are: for each `None`, a `Layout` where kernels get the pieces of a room, or
            a named tuple's class where they get as many tensors as it has fields as one piece.
        launches: Of the pass, whose places are those of all pieces in a row.
        counts: Whether its memory begins with a counter, which is not among `memory`.
    """

    def __init__(self, memory: Sequence[Any], launches: Sequence[Launch], counts: bool = False):
        self.memory, self.launches, self.counts = [*[None] * counts, *memory], launches, counts
        self.started = self.usual = False
        """Whether it was launched before, and whether more than once."""
        self.known: dict[tuple[int, ...], list[Call]] = {}

    def start(self, tensors: Sequence[Tensor]) -> None:
        """Launch on the tensors' device; for tensors without numbers do nothing."""
        like = tensors[0]
        if isinstance(like, FakeTensor):
            return
        if INTERPRETED:
            pieces = self.pieces(tensors)
            for one in self.launches:
                one.kernel[one.grid](*one.arguments(pieces), num_warps=one.options["num_warps"])
            return
        device = like.device
        if device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.start(tensors)
        where = stream_of(device), watched(), *[t.data_ptr() for t in tensors]
        for function, args in self.known.get(where) or self.calls(tensors, where):
            function(*args)
        self.started, self.usual = True, self.started

    def calls(self, tensors: Sequence[Tensor], where: tuple[int, ...]) -> list[Call]:
        """All launches, for tensors that lie where none lay the last few times."""
        stream, seen, *addresses = where
        pieces, calls = self.pieces(addresses), []
        for one in self.launches:
            callers = one.callers or one.compile(tensors[0].device, self.pieces(tensors))
            calls.append(callers[seen](stream, one.arguments(pieces)))
        if len(self.known) >= MOST_CALLS:
            self.known.clear()
        self.known[where] = calls
        return calls

    def pieces(self, memory: Sequence[Any]) -> list[Any]:
        """Tensors, or their addresses, with the pieces of rooms in the rooms' places."""
        pieces, rest = [], iter(memory)
        for kind in self.memory:
            if kind is None:
                pieces.append(next(rest))
            elif isinstance(kind, Layout):
                pieces += kind.pieces(next(rest))
            else:
                pieces.append(kind(*[next(rest) for _ in kind._fields]))
        return pieces


def stream_of(device: torch.device) -> int:
    """The current stream of a device."""
    return triton.runtime.driver.active.get_current_stream(device.index)  # pyright: ignore


def watched() -> bool:
    """Whether somebody, such as a profiler, has asked Triton to be told of launches."""
    before, after = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))


def unwatched(compiled: Any, grid: Grid) -> Caller:
    """Launches a compiled kernel without telling anybody."""
    try:
        run, about = compiled.run, (compiled.function, compiled.packed_metadata, None, None, None)
    except AttributeError:  # another version of Triton
        return lambda stream, args: (compiled[grid], args)
    return below(run, grid, about) or (lambda stream, args: (run, (*grid, stream, *about, *args)))


def below(run: Any, grid: Grid, about: tuple[Any, ...]) -> Caller | None:
    """The C function below Triton's launcher, if what it gets is always the same; the launcher is asked once.

    Which arguments come where differs by version. Scratch memory would be made anew for each launch.
    """
    sizes = [getattr(run, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
    if any(sizes) or getattr(run, "gsan_enabled", False) or not hasattr(run, "launch"):
        return None
    stream, arg, handed = object(), object(), []
    asked = copy(run)
    asked.launch = lambda *args: handed.extend(args)
    asked(*grid, stream, *about, arg)
    entry, at = run.launch, handed.index(stream)
    before, after, end = handed[:at], handed[at + 1 : -1], handed[-1]
    if end is arg:
        return lambda stream, args: (entry, (*before, stream, *after, *args))
    if end == (arg,):  # arguments as one tuple
        return lambda stream, args: (entry, (*before, stream, *after, args))
    return None
