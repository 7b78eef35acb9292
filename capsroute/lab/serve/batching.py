"""Answers to requests that come at the same time, computed together in one thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, NamedTuple

from .guard import Limits, RefusedError

BATCH = 32  # inputs computed together

Answer = Callable[[Sequence[Any]], Sequence[Any]]


class Job(NamedTuple):
    """The inputs of a request."""

    answer: Answer
    values: Sequence[Any]
    future: "asyncio.Future[Sequence[Any]]"


class Batcher:
    """Gathers what waits while the thread is busy. One thread, so that memory does not grow with requests.

    Args:
        limits: How many inputs may wait, and how long.
    """

    def __init__(self, limits: Limits):
        self.limits, self.n_waiting = limits, 0
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "capsroute")

    async def submit(self, answer: Answer, values: Sequence[Any]) -> Sequence[Any]:
        """Return `answer(values)`, computed with those of other requests; refuses if too much waits."""
        if self.n_waiting + len(values) > self.limits.waiting:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many inputs are waiting; try again later")
        job = Job(answer, values, asyncio.get_running_loop().create_future())
        self.n_waiting += len(values)
        self._jobs.put_nowait(job)
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await job.future
        except TimeoutError:
            reason = f"no answer within {self.limits.answer_seconds:g} seconds; try again later"
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, reason) from None
        finally:
            self.n_waiting -= len(values)

    async def run(self) -> None:
        """Compute answers until this task is cancelled."""
        job = None
        try:
            while True:
                jobs = [job or await self._jobs.get()]
                job, n = None, len(jobs[0].values)
                while n < BATCH and not self._jobs.empty():
                    job = self._jobs.get_nowait()
                    if job.answer != jobs[0].answer:
                        break
                    jobs.append(job)
                    n, job = n + len(job.values), None
                await self._compute([job for job in jobs if not job.future.done()])  # others gave up
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _compute(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        values = [value for job in jobs for value in job.values]
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, jobs[0].answer, values)
        except Exception as error:  # every request that waits gets it
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(error)
            return
        start = 0
        for job in jobs:
            if not job.future.done():
                job.future.set_result(found[start : start + len(job.values)])
            start += len(job.values)
