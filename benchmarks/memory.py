"""Peak memory of a call above its inputs, in MiB; as a script, that of a fresh process on a CPU."""

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

PROC = Path("/proc/self")
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""Makes glibc return freed tensors at once; otherwise the peak varies by a tenth from run to run."""


def measure_cuda_peak(call: Callable[[], object]) -> float:
    """Return the peak on the GPU of a call that ran before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure_cpu_peak(case: str, impl: str, mode: str) -> float | None:
    """Return the peak in a fresh process: this one would reuse freed memory unnoticed. None where Linux is missing."""
    if not (PROC / "clear_refs").exists():
        return None
    command = [sys.executable, __file__, case, impl, mode]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | ALLOCATOR)
    return float(done.stdout) if done.returncode == 0 else None


def measure_own_peak(call: Callable[[], object]) -> float:
    """Return by how much this process grows during a call."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    (PROC / "clear_refs").write_text("5")  # resets the high-water mark
    before = read_status_kib("VmRSS")
    call()
    return max(0, read_status_kib("VmHWM") - before) / 2**10


def read_status_kib(field: str) -> int:
    lines = (PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def main(case: str, impl: str, mode: str) -> None:
    from cases import CASES, COMPILED
    from measure import Job, make_call, resolve_impl

    call = make_call(CASES[case], impl, mode, "cpu")
    if impl in COMPILED:
        call()  # at full size, because compiling needs memory too
    else:
        small = CASES[case].at_most(2**12)
        make_call(small, resolve_impl(Job(case, impl, mode, "cpu")), mode, "cpu")()  # loads libraries, starts threads
    print(measure_own_peak(call))


if __name__ == "__main__":
    main(*sys.argv[1:])
