"""Kernels that run their phases one after the other in a single launch, all programs waiting for each other between."""

import os
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Programs then run one after the other, none can wait for another, and every phase is a launch of its own."""
INTERPRETED_PROGRAMS = 3
COMPILED: dict[Hashable, Any] = {}
"""Kernels by what they were compiled for: finding it out takes Triton longer than many a launch."""


@triton.jit
def wait_for_all(p_count, n_waits):
    """Wait until every program has come here for the `n_waits`-th time, and see what all of them wrote."""
    tl.debug_barrier()
    tl.atomic_add(p_count, 1, sem="acq_rel", scope="gpu")
    target = n_waits * tl.num_programs(0)
    while tl.atomic_add(p_count, 0, sem="acq_rel", scope="gpu") < target:
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
        key: Determines all numbers among the arguments, and the kinds of tensors.
        args: The kernel's other arguments, constants included.
    """
    if isinstance(like, FakeTensor):
        return
    if INTERPRETED:
        count = torch.zeros(1, dtype=torch.int32)
        for phase in range(n_phases):
            kernel[(min(units, INTERPRETED_PROGRAMS),)](count, phase, phase + 1, *args, num_warps=warps)
        return
    count = torch.zeros(1, dtype=torch.int32, device=like.device)
    grid = min(units, programs_at_once(like.device, per_core)), 1, 1
    known = kernel, like.device, key
    with torch.cuda.device(like.device):
        if known in COMPILED:
            COMPILED[known][grid](count, 0, n_phases, *args)
        else:
            options = {"num_warps": warps, "num_stages": 1, "launch_cooperative_grid": True}
            COMPILED[known] = kernel[grid](count, 0, n_phases, *args, **options)


@lru_cache
def programs_at_once(device: torch.device, per_core: int) -> int:
    """Programs that a device runs at a time, if each of its multiprocessors holds so many."""
    return (
        INTERPRETED_PROGRAMS
        if INTERPRETED
        else per_core * torch.cuda.get_device_properties(device).multi_processor_count
    )
