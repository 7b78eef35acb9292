"""Kernels that run their phases one after the other in a single launch, all programs waiting for each other between."""

# what kernels compute with has other types than Python sees
# pyright: reportOperatorIssue=false

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .launch import INTERPRETED, Pass, stream_of

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


def run_phases(run: Pass, n_phases: int, tensors: Sequence[Tensor]) -> None:
    """Launch a kernel that calls `wait_for_all` between phases, for all of them.

    Args:
        run: A single launch, of at most as many programs as run at a time; its first arguments are the counter with
            which its memory begins, the first phase and the end of phases.
        n_phases: The kernel's number of phases.
        tensors: The others.
    """
    like = tensors[0]
    if isinstance(like, FakeTensor):
        return
    if INTERPRETED:  # none can wait for another: every phase is a launch of its own
        (one,) = run.launches
        count, _, _, *args = one.arguments(run.pieces([torch.zeros(1, dtype=torch.int32), *tensors]))
        for phase in range(n_phases):
            one.kernel[one.grid](count, phase, phase + 1, *args, num_warps=one.options["num_warps"])
        return
    device = like.device
    count = COUNTERS.get((device.index, stream_of(device)))
    # a graph may be replayed on any stream, and so counts on memory of its own, which it clears itself
    if count is None or capturing(device):
        count = torch.zeros(1, dtype=torch.int32, device=device)
    run.start([count, *tensors])


def capturing(device: torch.device) -> bool:
    """Whether what is launched on a device's current stream becomes part of a graph."""
    if device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def keep_counter(like: Tensor) -> None:
    """Have launches on a tensor's device and its current stream count on the same memory from now on.

    Only calls outside of compiled graphs may ask for it: a graph's memory must not hold what outlives the graph.
    """
    if INTERPRETED or isinstance(like, FakeTensor):
        return
    where = like.device.index, stream_of(like.device)
    if where not in COUNTERS and not capturing(like.device):
        COUNTERS[where] = torch.zeros(1, dtype=torch.int32, device=like.device)


@lru_cache
def programs_at_once(device: torch.device, per_core: int) -> int:
    """Programs that a device runs at a time, if each of its multiprocessors holds so many."""
    return (
        INTERPRETED_PROGRAMS
        if INTERPRETED
        else per_core * torch.cuda.get_device_properties(device).multi_processor_count
    )
