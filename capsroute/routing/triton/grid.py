"""Launches, and the barrier between the phases of a kernel whose programs all run at a time."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

INTERPRETED = knobs.runtime.interpret
"""Whether kernels run on the CPU, one program after the other."""
INTERPRETED_PROGRAMS = 3


@triton.jit
def arrival(pid, n_programs):
    """Return what a program adds to the barrier's counter when it arrives.

    The first program's number and a one from each other program add up to the top bit alone: it flips when the last of
    them arrives, and the bits below are zero again, so that the next barrier needs no reset.
    """
    return tl.where(pid == 0, (1 - n_programs) ^ -2147483648, 1)


@triton.jit
def wait_for_all(p_count):
    """Wait until every program of the grid arrives; all their writes are visible afterwards."""
    tl.debug_barrier()
    step = arrival(tl.program_id(0), tl.num_programs(0))
    before = tl.atomic_add(p_count, step, sem="acq_rel", scope="gpu")
    while (tl.atomic_add(p_count, 0, sem="acq_rel", scope="gpu") ^ before) >= 0:
        pass
    tl.debug_barrier()


class Launch(NamedTuple):
    """A kernel, its grid, and its arguments.

    A kernel with phases also takes, before `args`, the barrier's counter, the first phase and the end of phases; all
    its programs must be resident at a time.
    """

    kernel: Any
    n_programs: int
    n_warps: int
    args: tuple[Any, ...]
    n_phases: int = 0

    def options(self) -> dict[str, Any]:
        """Return the launch options."""
        return {"num_warps": self.n_warps, "num_stages": 1, "launch_cooperative_grid": self.n_phases > 0}


def launch_all(launches: Iterable[Launch], like: Tensor) -> None:
    """Launch kernels one after the other on the current stream of a tensor's device."""
    with torch.cuda.device_of(like):
        for one in launches:
            start, options = one.kernel[(one.n_programs,)], one.options()
            if not one.n_phases:
                start(*one.args, **options)
                continue
            count = torch.zeros(1, dtype=torch.int32, device=like.device)
            # interpreted programs cannot wait for each other
            for phase in range(one.n_phases) if INTERPRETED else [0]:
                start(count, phase, phase + 1 if INTERPRETED else one.n_phases, *one.args, **options)


def count_cores(device: torch.device) -> int:
    """Return a GPU's number of multiprocessors, 0 under the interpreter."""
    return 0 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


def resident_programs(cores: int, per_core: int) -> int:
    """Return how many programs run at a time if each multiprocessor holds `per_core`."""
    return cores * per_core or INTERPRETED_PROGRAMS
