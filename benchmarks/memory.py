"""Peak memory of one rival above its inputs, in MiB; as a script, that of this fresh process."""

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import typer

from capsroute.testing import make_inputs
from cases import CASES
from rivals import COMPILED, SEED, impl_of, make_call, output_weights

PROC = Path("/proc/self")
TINY_VOTES = 2**12
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""Has glibc give freed tensors back at once; what it keeps otherwise differs by a tenth from run to run."""


def cuda_peak(call: Callable[[], object]) -> float:
    """Peak on the GPU of a call that ran before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def cpu_peak(shape: str, rival: str, mode: str) -> float | None:
    """Peak of a fresh process, for in this one memory once freed would be used again unseen."""
    if not (PROC / "clear_refs").exists():
        return None
    command = [sys.executable, __file__, shape, rival, mode]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | ALLOCATOR)
    return float(ended.stdout) if ended.returncode == 0 else None


def own_peak(call: Callable[[], object]) -> float:
    """How far this process grows during a call."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    (PROC / "clear_refs").write_text("5")  # the high-water mark starts anew
    before = status_kib("VmRSS")
    call()
    return max(0, status_kib("VmHWM") - before) / 2**10


def status_kib(field: str) -> int:
    lines = (PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def warm_up(shape: str, rival: str, mode: str) -> None:
    """Load libraries and start threads, on a few samples and inputs."""
    tiny = CASES[shape].at_most(TINY_VOTES)
    make_call(impl_of(rival, CASES[shape].case()), mode, make_inputs(tiny, SEED), output_weights(tiny, "cpu"))()


def main(shape: str, rival: str, mode: str) -> None:
    """Print the peak memory of RIVAL routing SHAPE on a CPU, MODE being forward or forward+backward."""
    inputs, weights = make_inputs(CASES[shape], SEED), output_weights(CASES[shape], "cpu")
    call = make_call(rival, mode, inputs, weights)
    if rival in COMPILED:
        call()  # at full size, for compiling takes memory of its own
    else:
        warm_up(shape, rival, mode)
    print(own_peak(call))


if __name__ == "__main__":
    typer.run(main)
