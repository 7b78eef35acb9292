"""Launches with little in between: small routings take a GPU less time than Triton takes Python to start them."""

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from triton import knobs

from .room import Room

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Programs then run on the CPU, one after the other."""
LAUNCHES: dict[Hashable, Callable[..., None]] = {}
"""Compiled kernels by what they were compiled for, which Triton would find out anew each time."""
MOST_LAUNCHES = 4096


def launch(
    kernel: Any, n_programs: int, like: Tensor, warps: int, key: Hashable, *args: Any, together: bool = False
) -> None:
    """Launch a kernel on a tensor's device; for a tensor without numbers do nothing.

    Args:
        kernel: A jitted function.
        n_programs: How many programs of it.
        like: A tensor on the device.
        warps: Of each program.
        key: Determines what is compiled: constants, kinds of tensors, numbers that the kernel is specialised for.
        args: The kernel's arguments, constants included; a `Room` stands for its pieces.
        together: Whether all programs have to run at a time.
    """
    if isinstance(like, FakeTensor):
        return
    if INTERPRETED:
        kernel[(n_programs,)](*spread(args), num_warps=warps)
        return
    device = like.device
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(kernel, n_programs, like, warps, key, *args, together=together)
    grid = n_programs, 1, 1
    known = id(kernel), device, grid, key  # a kernel's own hash takes long
    start = LAUNCHES.get(known)
    if start is not None:
        return start(stream_of(like), *spread(args, compiled=True))
    if len(LAUNCHES) >= MOST_LAUNCHES:
        LAUNCHES.clear()
    options = {"num_warps": warps, "num_stages": 1, "launch_cooperative_grid": together}
    LAUNCHES[known] = launcher(kernel[grid](*spread(args), **options), grid)


def stream_of(like: Tensor) -> int:
    """The current stream of a tensor's device."""
    return triton.runtime.driver.active.get_current_stream(like.device.index)  # pyright: ignore


def spread(args: Sequence[Any], compiled: bool = False) -> Sequence[Any]:
    """Arguments with the pieces of rooms in the rooms' places: addresses for a compiled kernel, tensors otherwise."""
    rooms = [k for k, arg in enumerate(args) if type(arg) is Room]
    if rooms:
        args = list(args)
        for k in reversed(rooms):
            args[k : k + 1] = args[k].addresses() if compiled else args[k].tensors()
    return args


def launcher(compiled: Any, grid: tuple[int, int, int]) -> Callable[..., None]:
    """A function of a stream and arguments that launches a compiled kernel."""

    def plainly(stream: int, *args: Any) -> None:
        compiled[grid](*args, stream=stream)

    def directly(stream: int, *args: Any) -> None:
        if watched():
            return plainly(stream, *args)
        run(*grid, stream, function, metadata, None, None, None, *args)  # nothing recorded, and nobody told

    try:
        run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    except AttributeError:  # another version of Triton
        return plainly
    return directly


def watched() -> bool:
    """Whether somebody, such as a profiler, has asked Triton to be told of launches."""
    before, after = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))
