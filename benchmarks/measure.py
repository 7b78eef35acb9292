"""Measure one implementation on one case: time of a call, time in a CUDA graph, and peak memory."""

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import psutil
import torch
from torch import Tensor

import capsroute.routing as routing
from capsroute import route
from capsroute.testing import Shape, draw_samples, make_inputs, over_budget
from cases import CASES, COMPILED, SEED
from memory import measure_cpu_peak, measure_cuda_peak
from records import Row

WARM_UPS = 3
MAX_REPEATS, MIN_REPEATS = 50, 5
BUDGET_S = 1.0
"""Seconds for the timed calls of one kind; slow calls are repeated less."""
CHECKED_VOTES = 2**20
PROCESSES = 16
"""Most processes that compile at the same time."""
REFERENCE_COPIES, MOMENTS_COPIES = 20, 6
"""Tensors of the size of the votes, or of the features, at the peak of `reference` and `moments`, about."""

Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Job:
    """One row to measure."""

    case: str
    impl: str
    mode: str
    device: str

    @property
    def shape(self) -> Shape:
        return CASES[self.case]

    @property
    def row(self) -> Row:
        """The row without numbers."""
        s = self.shape
        picked = routing.pick(s.case(device=self.device)) if self.impl == "auto" else ""
        return Row(self.case, s.batch, s.n_inp, s.n_out, self.impl, picked, self.mode)

    def skip(self, reason: str) -> Row:
        return replace(self.row, skipped=reason)


def make_call(shape: Shape, impl: str, mode: str, device: str) -> Call:
    """Return a function that routes fixed random inputs once."""
    inputs = make_inputs(shape, SEED, device=device)
    generator = torch.Generator().manual_seed(SEED + 1)
    capsules = (shape.batch, shape.n_out, shape.d_cov, shape.d_out)
    weights = [torch.randn(size, generator=generator).to(device) for size in (capsules[:2], capsules, capsules)]
    if impl in COMPILED:
        run = partial(torch.compile(route, dynamic=False), **inputs, impl=COMPILED[impl])
    else:
        run = partial(route, **inputs, impl=impl)

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return run()

    def forward_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(), list(inputs.values()), weights)

    return forward if mode == "forward" else forward_backward


def resolve_impl(job: Job) -> str:
    """Return the implementation of the library behind a job."""
    return routing.pick(job.shape.case(device=job.device)) if job.impl == "auto" else COMPILED.get(job.impl, job.impl)


def estimate_bytes(impl: str, shape: Shape) -> int:
    """Estimate the memory that a shape needs above its inputs; 0 for implementations that stream."""
    if impl == "reference":
        return REFERENCE_COPIES * shape.votes * torch.float32.itemsize
    if impl == "moments":
        n_features = shape.d_cov * (shape.d_inp * (shape.d_inp + 1) // 2 + shape.d_inp) + 1
        numbers = (shape.n_inp + shape.n_out) * n_features + shape.n_inp * shape.n_out
        return MOMENTS_COPIES * shape.batch * numbers * torch.float64.itemsize
    return 0


def free_bytes(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available


def reason_to_skip(job: Job) -> str:
    """Return why an implementation cannot run a case here; empty if it can."""
    impl = resolve_impl(job)
    if reasons := routing.IMPLS[impl].reasons_against(job.shape.case(device=job.device)):
        return "; ".join(reasons)
    needed, free = estimate_bytes(impl, job.shape), free_bytes(job.device)
    return f"needs about {needed / 2**30:.0f} GiB of {free / 2**30:.0f} GiB free" if needed > free else ""


def time_calls(call: Call, device: str, repeats: int) -> list[float]:
    """Return milliseconds of calls, with a synchronisation after each."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def time_back_to_back(call: Callable[[], object], repeats: int) -> float:
    """Return the median milliseconds between the ends of calls on the GPU, without synchronising."""
    call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return float(np.median([start.elapsed_time(end) for start, end in pairwise(events)]))


def time_captured(call: Call, repeats: int) -> float | None:
    """Return the median milliseconds of a call replayed from a CUDA graph; None if it cannot be captured."""
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = call()
        median = time_back_to_back(graph.replay, repeats)
        del outputs  # kept until here because the graph writes into it
        return median
    except Exception:
        return None


def measure(job: Job) -> Row:
    """Measure a job in this process; a failure is recorded in the row."""
    clear_memory()
    torch.compiler.reset()
    if reason := reason_to_skip(job):
        return job.skip(reason)
    try:
        return _measure(job)
    except Exception as error:
        return job.skip(describe_error(error))


def _measure(job: Job) -> Row:
    call = make_call(job.shape, job.impl, job.mode, job.device)
    for _ in range(WARM_UPS):
        call()
        clear_memory()
    once = time_calls(call, job.device, 1)[0]
    repeats = max(MIN_REPEATS, min(MAX_REPEATS, int(1e3 * BUDGET_S / once)))
    p20, p50, p80 = np.percentile(time_calls(call, job.device, repeats), (20, 50, 80)).tolist()
    row = replace(job.row, p20_ms=p20, p50_ms=p50, p80_ms=p80, repeats=repeats)
    if job.device == "cpu":
        return row
    with torch.autograd.set_multithreading_enabled(False):
        one_thread = float(np.median(time_calls(call, job.device, repeats)))
    row = replace(row, one_thread_ms=one_thread, peak_mib=measure_cuda_peak(call))
    clear_memory()
    return replace(row, back_to_back_ms=time_back_to_back(call, repeats), captured_ms=time_captured(call, repeats))


def measure_in_rounds(jobs: list[Job], repeats: int) -> list[Row]:
    """Measure the jobs of one case on a CPU, taking turns in random order so that noise affects all alike."""
    torch.compiler.reset()
    rows = {job: job.skip(reason_to_skip(job)) for job in jobs}
    calls = {}
    for job in [job for job in jobs if not rows[job].skipped]:
        try:
            calls[job] = make_call(job.shape, job.impl, job.mode, "cpu")
            for _ in range(WARM_UPS):
                calls[job]()
        except RuntimeError as error:
            rows[job] = job.skip(describe_error(error))
            del calls[job]
    times: dict[Job, list[float]] = {job: [] for job in calls}
    shuffler = random.Random(SEED)
    for _ in range(repeats):
        for job in shuffler.sample(list(calls), len(calls)):
            times[job] += time_calls(calls[job], "cpu", 1)
    for job, values in times.items():
        p20, p50, p80 = np.percentile(values, (20, 50, 80)).tolist()
        peak = measure_cpu_peak(job.case, job.impl, job.mode)
        rows[job] = replace(job.row, p20_ms=p20, p50_ms=p50, p80_ms=p80, peak_mib=peak, repeats=repeats)
    return list(rows.values())


def check_result(job: Job) -> str:
    """Compare with the float64 reference on a smaller shape; return what is over its error budget."""
    if job.impl in ("reference", *COMPILED) or reason_to_skip(job):
        return ""
    small = job.shape.at_most(CHECKED_VOTES)
    # not job.impl: `auto` may choose another implementation for the smaller shape
    wrong = over_budget(draw_samples(small, job.device), resolve_impl(job), torch.float32)
    return "; ".join(f"{name} {how}" for name, how in wrong.items())


def compile_ahead(job: Job) -> str:
    """Compile what a job needs into the caches on disk, unless it needs more than its share of the memory."""
    if not reason_to_skip(job) and estimate_bytes(resolve_impl(job), job.shape) < free_bytes(job.device) / PROCESSES:
        make_call(job.shape, job.impl, job.mode, job.device)()
    return ""


def clear_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()  # otherwise cached blocks count as used


def describe_error(error: Exception) -> str:
    """Name an error without its message, which may hold paths."""
    return "out of memory" if isinstance(error, torch.OutOfMemoryError) else f"failed: {type(error).__name__}"
