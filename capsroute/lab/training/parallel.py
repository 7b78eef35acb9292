"""Calls that run several at a time: in processes of this machine, or on the machines of a Ray cluster."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

from ..errors import StoppedError, TerminatedError, UserError, import_extra
from .config import SettingError

GRACE = 60  # seconds to save what is being trained


class Cluster(NamedTuple):
    """Machines that Ray manages, and what a call needs of them."""

    address: str  # local: this machine alone; auto: the cluster it belongs to; or HOST:PORT
    cpus: int = 1
    gpus: float = 0  # 0.5: two calls share one


def map_calls(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], cluster: Cluster | None = None, jobs: int = 1
) -> Iterator[tuple[int, Any]]:
    """Yield the position of each call's arguments and its result, as calls end: here, in processes, or on a cluster."""
    if cluster and calls:
        return map_on_cluster(cluster, function, calls)
    if jobs > 1:
        return map_in_processes(jobs, function, calls)
    return ((k, function(*arguments)) for k, arguments in enumerate(calls))


def map_in_processes(
    jobs: int, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, Any]]:
    """Yield the position of each call's arguments and its result, those that end first coming first.

    Each call has a process of its own. An error of the function, or Ctrl-C, ends them all; runs save their state first.
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    threads = max(1, torch.get_num_threads() // jobs)
    waiting, running = list(range(len(calls))), {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                k = waiting.pop(0)
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=call_in_process, args=(there, threads, function, calls[k]))
                process.start()
                there.close()  # so that the end of the process ends the pipe
                running[here] = k, process
            here: Any = wait(list(running))[0]
            k, process = running[here]
            try:
                result = here.recv()
            except EOFError:
                raise UserError("a process died, perhaps for want of memory; the same command goes on") from None
            process.join()
            del running[here]
            if isinstance(result, Exception):
                raise result
            yield k, result
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT
        raise StoppedError("stopped and saved; the same command goes on", number) from None
    finally:
        for _, process in running.values():
            process.terminate()  # by SIGTERM, at which training saves its state
        for _, process in running.values():
            process.join()


def call_in_process(connection: Connection, threads: int, function: Callable[..., Any], arguments: Any) -> None:
    """Send back what a function returns, or the error a user can correct; others are printed with their traceback."""
    os.setpgrp()  # Ctrl-C goes to the process that started this one, which passes it on once
    threading.Thread(target=follow_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        connection.send(function(*arguments))
    except (UserError, ValueError, ImportError) as error:
        with suppress(BrokenPipeError):  # the other process is gone
            connection.send(error)


def follow_parent() -> None:
    """Wait until the process that started this one is gone, even if it was killed, and end this one too."""
    parent = multiprocessing.parent_process()
    if parent:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)


def map_on_cluster(
    cluster: Cluster, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, Any]]:
    """Yield the position of each call's arguments and its result, those that end first coming first.

    Calls run in this process's folder, which every machine must have. Ray repeats those whose process dies;
    an error of the function itself ends them all.
    """
    ray = import_extra("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that starts here reports to nobody
    try:
        ray.init(cluster.address)
    except (ConnectionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"ray: expected local, auto or the address of a cluster, got {cluster.address!r}; {reason}"
        ) from error
    try:
        available = ray.cluster_resources()
        for name, wanted in (("CPU", cluster.cpus), ("GPU", cluster.gpus)):  # a cluster may grow, this machine does not
            most = available.get(name, 0)
            if cluster.address == "local" and wanted > most:
                problem = f"expected at most {most:g}, which this machine has, got {wanted:g}"
                raise SettingError(f"{name.lower()}s: {problem}")
        task = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus)(call_like_here)
        here = os.getcwd(), os.environ.get("CAPSROUTE_DATA", ""), sys.argv
        waiting = {task.remote(*here, function, arguments): k for k, arguments in enumerate(calls)}
        while waiting:
            (done,), _ = ray.wait(list(waiting))
            yield waiting.pop(done), ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError) else error from None
    finally:
        ray.shutdown()


def call_like_here(folder: str, data: str, command: list[str], function: Callable[..., Any], arguments: Any) -> Any:
    """Call a function where Ray has started a process, with the folder and the command of the one that asked."""
    os.chdir(folder)
    sys.argv = command  # which runs record
    if data:
        os.environ["CAPSROUTE_DATA"] = data
    return function(*arguments)
