"""Plain calls by `native.cpp`, which gets the very launches that Python would start, written down once per case."""

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..mapping import Tensors
from .build import Build
from .launch import Launch, Pass, stream_of, watched
from .sizes import Sizes
from .workspace import Layout

N_PLACES = 1 + 7 + 2 + 3 + 6
"""In a pass's memory: a counter, arguments, rooms, outputs and gradients."""
FORMATS = {"i8": "<b", "i32": "<i", "i64": "<q", "u32": "<I", "u64": "<Q", "fp32": "<f", "fp64": "<d"}
"""Of numbers among a kernel's arguments."""
MOST_AFTER = 2
"""Addresses of scratch memory, empty here, that kernels take after all other arguments."""


class Spot(NamedTuple):
    """Where something will lie: in which piece of a pass's memory, how many bytes from its start."""

    place: int
    offset: int = 0

    def __add__(self, n_bytes: int) -> "Spot":  # pyright: ignore
        return Spot(self.place, self.offset + n_bytes)


class Slot(NamedTuple):
    """An argument of a kernel: a number in bits, its place below zero, or where something lies."""

    place: int
    value: int
    size: int


class Kernels:
    """Both passes of a case.

    Their memory is, forward, arguments, room, what is kept, and outputs; backward, arguments, what was kept, room,
    gradients of outputs, and gradients. A counter may come before.

    Args:
        sizes: Of the case.
        fwd: The forward pass.
        bwd: The backward pass.
        rooms: For what is kept, and for what each pass itself needs.
        whole: Whether gradients are what the backward pass writes, and there is something to write.
    """

    def __init__(self, sizes: Sizes, fwd: Pass, bwd: Pass, rooms: Sequence[Layout], whole: bool):
        self.sizes, self.run_fwd, self.run_bwd, self.rooms, self.whole = sizes, fwd, bwd, rooms, whole
        self.native: Build | None = None
        self.plans: dict[bool, Any] = {}
        """For `native.cpp`, with the backward pass and without: it is not compiled before it is wanted."""

    def direct(self, inputs: Sequence[Any]) -> Tensors | None:
        """The output capsules; nothing where Python has to route, at first for instance."""
        native = self.native
        if native is None or native.module is None or not self.run_fwd.usual or watched():
            return None
        both = self.run_bwd.usual
        if both not in self.plans:
            self.plans[both] = self.described(native, both)
        plan = self.plans[both]
        return plan and native.module.route(plan, self, stream_of(inputs[0].device), *inputs)

    def described(self, native: Build, both: bool) -> Any:
        """All that `native.cpp` has to know of the case; nothing if it does not serve."""
        n, counts = self.sizes, self.run_fwd.counts or self.run_bwd.counts
        passes = [self.run_fwd, self.run_bwd][: 1 + both]
        written = [[write(one, pieces) for one, pieces in launches(run)] for run in passes]
        if not self.whole or not all(map(all, written)):
            return None
        fwd, bwd = written if both else (*written, [])
        return native.module.make_plan(fwd, bwd, *[room.nbytes for room in self.rooms], counts, [n.j], [n.j, n.c, n.h])


def launches(run: Pass) -> Iterator[tuple[Launch, list[Any]]]:
    """Of a pass, each with the places of all memory."""
    spots = [Spot(place) for place in range(N_PLACES)]
    pieces = run.pieces(spots if run.counts else spots[1:])
    return ((one, pieces) for one in run.launches)


def write(one: Launch, pieces: Sequence[Any]) -> tuple[Any, ...] | None:
    """A kernel, its programs, their threads, shared memory, whether they run together, and arguments.

    Nothing if the kernel does not take these arguments: how Triton hands them over is known for some versions only.
    """
    try:
        compiled, about = one.compiled, one.compiled.metadata
        slots = slots_of(compiled.src.signature.values(), one.arguments(pieces))
        kernel, threads, shared = compiled.function, 32 * about.num_warps, about.shared
        fit = fits(compiled.asm["ptx"], slots)
    except (AttributeError, KeyError, ValueError):
        return None
    if not fit:
        return None
    args = [(slot.place, slot.value) for slot in [*slots, *[Slot(-1, 0, 8)] * MOST_AFTER]]
    return kernel, one.grid[0], threads, shared, one.options["launch_cooperative_grid"], args


def fits(ptx: str, slots: Sequence[Slot]) -> bool:
    """Whether a kernel takes these arguments, and after them addresses of scratch memory at most."""
    taken = re.search(r"\.entry[^(]*\(([^)]*)\)", ptx)
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)", taken[1])] if taken else []
    return sizes in [[slot.size for slot in slots] + [8] * n for n in range(MOST_AFTER + 1)]


def slots_of(kinds: Any, args: Any) -> list[Slot]:
    """Arguments that a kernel gets when it runs, tuples' one by one, given their types as Triton names them."""
    slots = []
    for kind, arg in zip(kinds, args, strict=True):
        if not isinstance(kind, str):
            slots += slots_of(kind, arg)
        elif kind[0] == "*":
            slots.append(Slot(arg.place, arg.offset, 8))
        elif kind != "constexpr":
            packed = struct.pack(FORMATS[kind], arg)
            slots.append(Slot(-1, int.from_bytes(packed, "little"), len(packed)))
    return slots
