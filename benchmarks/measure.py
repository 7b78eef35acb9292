"""Measure one rival on one case: time called and waited for, called in a row, in a CUDA graph; and peak memory."""

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from capsroute.testing import Shape, make_inputs, over_budget, samples
from memory import cuda_peak
from records import Key, Row
from rivals import SEED, bytes_free, bytes_needed, impl_of, make_call, output_weights, reason_to_skip

WARM_UPS = 3
REPEATS, FEWEST = 50, 5
EAGER_S, IN_A_ROW_S = 2.0, 1.0
"""Seconds that slow calls may take together, which are repeated less for it."""
CHECKED_VOTES = 2**20
AT_A_TIME = 16
"""Processes that compile at a time, whose share of the memory a case must fit to be compiled before its turn."""


@dataclass(frozen=True)
class Job:
    """One row to measure."""

    name: str
    shape: Shape
    rival: str
    mode: str
    device: str

    @property
    def row(self) -> Row:
        """Without numbers yet."""
        s = self.shape
        picked = impl_of("auto", s.case(device=self.device)) if self.rival == "auto" else ""
        return Row(self.name, s.batch, s.n_inp, s.n_out, self.rival, picked, self.mode)

    @property
    def key(self) -> Key:
        s = self.shape
        return self.name, s.batch, s.n_inp, s.n_out, self.rival, self.mode


def measure(job: Job) -> Row:
    """Its row; what keeps a rival from the case is in it."""
    clean()
    if reason := reason_to_skip(job.rival, job.shape, job.device):
        return replace(job.row, skipped=reason)
    try:
        return _measure(job)
    except Exception as error:
        return replace(job.row, skipped=kind_of(error))


def _measure(job: Job) -> Row:
    inputs, weights = make_inputs(job.shape, SEED, device=job.device), output_weights(job.shape, job.device)
    call, on_gpu = make_call(job.rival, job.mode, inputs, weights), job.device == "cuda"
    for _ in range(WARM_UPS):
        returned = sum(t.nbytes for t in call()) / 2**20
        clean(keep_compiled=True)  # lest what the last call returned counts as needed by the next
    once = eager(call, job.device, 1)[0]
    repeats = max(FEWEST, min(REPEATS, int(1e3 * EAGER_S / once)))
    p20, p50, p80 = np.percentile(eager(call, job.device, repeats), (20, 50, 80)).tolist()
    peak = cuda_peak(call) if on_gpu else None
    row = replace(job.row, p20_ms=p20, p50_ms=p50, p80_ms=p80, peak_mib=peak, returned_mib=returned, repeats=repeats)
    clean(keep_compiled=True)
    if not on_gpu:
        return row
    repeats = max(FEWEST, min(REPEATS, int(1e3 * IN_A_ROW_S / once)))
    return replace(row, in_a_row_ms=in_a_row(call, repeats), captured_ms=captured(call, repeats))


def eager(call: Callable[[], object], device: str, repeats: int) -> list[float]:
    """Milliseconds of calls, each waited for."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def in_a_row(call: Callable[[], object], repeats: int) -> float:
    """Median milliseconds on the GPU from one call to the next that nobody waits for, as in training."""
    call()  # so that the first is not waited for either
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return float(np.median([one.elapsed_time(next_) for one, next_ in pairwise(marks)]))


def captured(call: Callable[[], object], repeats: int) -> float | None:
    """Median milliseconds of a call that a graph holds, as training captures it: without what Python takes.

    None where it cannot be captured; the process is then not to be used again.
    """
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = call()
        median = in_a_row(graph.replay, repeats)
        del kept
        return median
    except Exception:
        return None


def warm(job: Job) -> str:
    """Compile what the job needs, into caches on disk; says what went wrong."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # others compile beside it
    impl = impl_of(job.rival, job.shape.case(device=job.device))
    if bytes_needed(impl, job.shape) < bytes_free(job.device) / AT_A_TIME:
        inputs, weights = make_inputs(job.shape, SEED, device=job.device), output_weights(job.shape, job.device)
        make_call(job.rival, job.mode, inputs, weights)()
    return ""


def check(job: Job) -> str:
    """How its results differ from the float64 reference's, on a smaller case; empty if they may."""
    small = job.shape.at_most(CHECKED_VOTES)
    wrong = over_budget(
        samples(small, job.device), impl_of(job.rival, job.shape.case(device=job.device)), torch.float32
    )
    return "wrong: " * bool(wrong) + "; ".join(f"{name} {how}" for name, how in wrong.items())


STEPS = {"warm": warm, "check": check}


def prepare(asked: tuple[str, Job]) -> str:
    """What may be done for many jobs at once; empty if all is well, or the job cannot run anyway."""
    step, job = asked
    clean()
    if reason_to_skip(job.rival, job.shape, job.device):
        return ""
    try:
        return STEPS[step](job)
    except Exception as error:
        return kind_of(error)


def clean(keep_compiled: bool = False) -> None:
    """Let go of what earlier calls left."""
    if not keep_compiled:
        torch.compiler.reset()  # or the sizes of an earlier case count against its limit of recompilations
    gc.collect()
    torch.cuda.empty_cache()  # what PyTorch keeps for later does not count as free


def kind_of(error: Exception) -> str:
    """What went wrong, without a message that may hold paths."""
    return "out of memory" if isinstance(error, torch.OutOfMemoryError) else f"failed: {type(error).__name__}"
