"""Work off jobs in processes of their own, so that one that dies or hangs costs its own row alone."""

import multiprocessing as mp
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from measure import Job, measure, prepare
from records import Key, Row
from rivals import COMPILED

JOB_S = 120.0
"""Seconds that a job may take, compiling included."""
PATIENCE_S = 5.0
SPAWN = mp.get_context("spawn")  # a forked process cannot use the GPU
OUT_OF_TIME = "no time left"
console = Console()

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Clock:
    """Time left of a budget; without one there is always enough."""

    def __init__(self, budget_s: float | None):
        self.end = None if budget_s is None else time.monotonic() + budget_s

    def left(self) -> float:
        return float("inf") if self.end is None else self.end - time.monotonic()


class GoneError(Exception):
    """A worker died, or took too long and was stopped."""


class Worker(Generic[Asked, Answer]):
    """A process that answers with a function, started when asked, and anew after it died or was stopped."""

    def __init__(self, function: Callable[[Asked], Answer]):
        self.function = function
        self.process: Any = None
        self.pipe: Any = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def ask(self, asked: Asked, limit_s: float) -> Answer:
        if not self.alive:
            self._start()
        try:
            self.pipe.send(asked)
            if self.pipe.poll(min(limit_s, 1e6)):
                return self.pipe.recv()
            reason = f"took more than {limit_s:.0f} s"
            self.process.kill()
        except (EOFError, OSError):
            reason = "its process died"
        self.stop()
        raise GoneError(reason)

    def stop(self) -> None:
        """Let it end, or end it where it hangs."""
        if self.process is not None:
            self.pipe.close()
            self.process.join(PATIENCE_S)
            self.process.kill()
            self.process.join()
        self.process = None

    def _start(self) -> None:
        self.pipe, other = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(self.function, other), daemon=True)
        self.process.start()
        other.close()  # so that the end of the process is the end of the pipe


def serve(function: Callable[[Any], Any], pipe: Connection) -> None:
    """What a worker does."""
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        pipe.send(function(asked))


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def together(
    function: Callable[[Asked], Answer],
    asked: list[Asked],
    clock: Clock,
    what: str,
    done: Callable[[Asked, Answer | str], None] = lambda *_: None,
) -> list[Answer | str]:
    """Answers from as many processes as there are cores but two; a text says why there is none.

    `done` is told of each as soon as it is there, one at a time.
    """
    workers = [Worker(function) for _ in range(max(1, min(len(asked), (os.cpu_count() or 1) - 2)))]
    idle: SimpleQueue[Worker[Asked, Answer]] = SimpleQueue()
    for worker in workers:
        idle.put(worker)
    turn = Lock()

    def one(item: Asked) -> Answer | str:
        worker = idle.get()
        try:
            answer = worker.ask(item, clock.left()) if clock.left() > 0 else OUT_OF_TIME
        except GoneError as gone:
            answer = str(gone) if clock.left() > 0 else OUT_OF_TIME
        idle.put(worker)
        with turn:
            done(item, answer)
            bar.advance(task)
        return answer

    with progress_bar() as bar, ThreadPoolExecutor(len(workers)) as pool:
        task = bar.add_task(what, total=len(asked))
        answers = list(pool.map(one, asked))
    for worker in workers:
        worker.stop()
    return answers


def prepare_all(jobs: list[Job], clock: Clock, checked: bool) -> dict[Key, str]:
    """Compile for all jobs at once, check them if asked, and return those whose results are wrong, and how."""
    compiled = [("warm", job) for job in jobs if job.rival == "triton" or job.rival in COMPILED]
    judged = [("check", job) for job in jobs if checked and job.rival not in ("reference", *COMPILED)]
    asked = compiled + judged
    answers = together(prepare, asked, clock, "compile and check")
    for (step, job), answer in zip(asked, answers, strict=True):
        if answer:
            console.print(f"[yellow]{job.name} {job.rival}, {step}: {escape(answer)}[/]")
    return {job.key: said for (_, job), said in zip(asked, answers, strict=True) if said.startswith("wrong: ")}


def work_off(
    jobs: Iterable[Job], wrong: dict[Key, str], clock: Clock, done: Callable[[Row], None], stops: Callable[[Job], str]
) -> int:
    """Measure jobs one after the other, and return how many were left when time ran out.

    Args:
        jobs: In order; those that compile come last, for they take longest.
        wrong: Reasons not to time some of them.
        clock: Stops between jobs, or in one that would take too long.
        done: Told of every row as soon as there is one.
        stops: Why a job need not be tried after those before it; empty if it is.
    """
    ordered = sorted(jobs, key=lambda job: job.rival in COMPILED)
    worker = Worker(measure)
    with progress_bar() as bar:
        task = bar.add_task("measure", total=len(ordered))
        for number, job in enumerate(ordered):
            if clock.left() <= 0:
                worker.stop()
                return len(ordered) - number
            bar.update(task, description=f"{job.name} {job.rival}")
            if reason := wrong.get(job.key) or stops(job):
                row = replace(job.row, skipped=reason)
            else:
                row = answered(worker, job, clock)
            if row is None:
                return len(ordered) - number
            done(row)
            bar.advance(task)
    worker.stop()
    return 0


def answered(worker: Worker[Job, Row], job: Job, clock: Clock) -> Row | None:
    """A job's row, whatever becomes of the worker; none where time ran out, which says nothing of the job."""
    try:
        row = worker.ask(job, min(JOB_S, clock.left()))
    except GoneError as gone:
        return replace(job.row, skipped=str(gone)) if clock.left() > 0 else None
    failed = row.skipped.startswith(("failed", "out of memory"))
    if failed or (job.device == "cuda" and row.p50_ms is not None and row.captured_ms is None):
        worker.stop()  # also a capture that failed may spoil what comes after
    return row
