"""Kernels that run their phases one after the other in a single launch, all programs waiting for each other between."""

# what kernels compute with has other types than Python sees
# pyright: reportOperatorIssue=false

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .launch import INTERPRETED, launch, stream_of

INTERPRETED_PROGRAMS = 3
COUNTERS: dict[tuple[int, int], Tensor] = {}
"""By device and stream, what programs count on: a stream's launches come one after the other and leave it as it was."""


@triton.jit
def arrival(pid, n_programs):
    """What a program adds to the counter when it comes to a wait.

    The first program's number and a one from each of the others add up to the top bit alone. So it flips when the last
    of them comes, the bits below are zero again, and nobody has to clear them for the next wait or the next launch.
    """
    return tl.where(pid == 0, (1 - n_programs) ^ -2147483648, 1)


@triton.jit
def wait_for_all(p_count):
    """Wait until every program has come here, and see what all of them wrote."""
    tl.debug_barrier()
    step = arrival(tl.program_id(0), tl.num_programs(0))
    before = tl.atomic_add(p_count, step, sem="acq_rel", scope="gpu")
    while (tl.atomic_add(p_count, 0, sem="acq_rel", scope="gpu") ^ before) >= 0:
        pass
    tl.debug_barrier()


def run_phases(
    kernel: Any, n_phases: int, units: int, like: Tensor, warps: int, per_core: int, key: Hashable, *args: Any
) -> None:
    """Launch `kernel(p_count, first, last, *args)` for all phases, over at most as many programs as run at a time.

    Args:
        kernel: A jitted function that calls `wait_for_all` between phases.
        n_phases: Its number of phases.
        units: Pieces of work in the largest phase.
        like: A tensor on the device.
        warps: Of each program.
        per_core: Programs that a multiprocessor holds at a time.
        key: Determines what is compiled: constants, kinds of tensors, numbers that the kernel is specialised for.
        args: The kernel's other arguments, constants included; a `Room` stands for its pieces.
    """
    if isinstance(like, FakeTensor):
        return
    if INTERPRETED:  # none can wait for another: every phase is a launch of its own
        count = torch.zeros(1, dtype=torch.int32)
        for phase in range(n_phases):
            launch(kernel, min(units, INTERPRETED_PROGRAMS), like, warps, key, count, phase, phase + 1, *args)
        return
    if like.device.index != torch.cuda.current_device():
        with torch.cuda.device(like.device):
            return run_phases(kernel, n_phases, units, like, warps, per_core, key, *args)
    count = COUNTERS.get((like.device.index, stream_of(like)))
    # a graph may be replayed on any stream, and so counts on memory of its own, which it clears itself
    if count is None or torch.cuda.is_current_stream_capturing():
        count = torch.zeros(1, dtype=torch.int32, device=like.device)
    programs = min(units, programs_at_once(like.device, per_core))
    launch(kernel, programs, like, warps, key, count, 0, n_phases, *args, together=True)


def keep_counter(like: Tensor) -> None:
    """Have launches on a tensor's device and its current stream count on the same memory from now on.

    Only calls outside of compiled graphs may ask for it: a graph's memory must not hold what outlives the graph.
    """
    if INTERPRETED or isinstance(like, FakeTensor):
        return
    where = like.device.index, stream_of(like)
    if where not in COUNTERS:
        with torch.cuda.device(like.device):
            if not torch.cuda.is_current_stream_capturing():
                COUNTERS[where] = torch.zeros(1, dtype=torch.int32, device=like.device)


@lru_cache
def programs_at_once(device: torch.device, per_core: int) -> int:
    """Programs that a device runs at a time, if each of its multiprocessors holds so many."""
    return (
        INTERPRETED_PROGRAMS
        if INTERPRETED
        else per_core * torch.cuda.get_device_properties(device).multi_processor_count
    )
