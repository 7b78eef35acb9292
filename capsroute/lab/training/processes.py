"""Calls that run in processes of this machine, several at a time."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..errors import StoppedError, TerminatedError, UserError

GRACE = 60  # seconds to save what is being trained


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
