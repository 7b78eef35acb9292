"""Time all rivals on one case in rounds, in one process: for CPUs, whose noise then hits all of them alike."""

import random
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from rich.markup import escape

from capsroute.testing import make_inputs
from jobs import console
from measure import Job, clean, kind_of
from memory import cpu_peak
from origin import Others
from records import Row
from rivals import SEED, Call, make_call, output_weights, reason_to_skip

WARM_UPS = 2

Calls = dict[tuple[str, str], Call]


def warm_up(calls: Calls) -> dict[tuple[str, str], str]:
    """Run every call, compiling what has to be, and return why those that cannot run fail."""
    failed = {}
    for key, call in calls.items():
        try:
            for _ in range(WARM_UPS):
                call()
        except RuntimeError as error:
            failed[key] = kind_of(error)
            console.print(f"[yellow]{' '.join(key)} failed:[/] {escape(str(error))}")
    return failed


def time_calls(calls: Calls, repeats: int, tick: Callable[[], None]) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of each call, one of each per round, so that noise hits all rivals alike."""
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    shuffler = random.Random(SEED)
    for _ in range(repeats):
        # shuffled, for a call also pays for the caches and memory that the one before it leaves
        for key in shuffler.sample(list(calls), len(calls)):
            start = time.perf_counter()
            calls[key]()
            times[key].append(1e3 * (time.perf_counter() - start))
        tick()
    return times


def measure_rounds(jobs: list[Job], repeats: int, tick: Callable[[], None]) -> tuple[list[Row], float]:
    """Rows of jobs on one case, and the share of the cores that other programs took meanwhile."""
    clean()
    sizes = jobs[0].shape
    inputs, weights = make_inputs(sizes, SEED), output_weights(sizes, "cpu")
    skipped = {(job.rival, job.mode): reason_to_skip(job.rival, sizes, "cpu") for job in jobs}
    calls = {key: make_call(*key, inputs, weights) for key, reason in skipped.items() if not reason}
    skipped |= warm_up(calls)
    calls = {key: call for key, call in calls.items() if not skipped[key]}
    others = Others()
    times = time_calls(calls, repeats, tick)
    others_busy = others.busy()

    rows = []
    for job in jobs:
        key = job.rival, job.mode
        if skipped[key]:
            rows.append(replace(job.row, skipped=skipped[key]))
        else:
            p20, p50, p80 = np.percentile(times[key], (20, 50, 80)).tolist()
            peak = cpu_peak(job.name, *key)
            rows.append(replace(job.row, p20_ms=p20, p50_ms=p50, p80_ms=p80, peak_mib=peak, repeats=repeats))
        tick()
    return rows, others_busy
