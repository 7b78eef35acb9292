"""Milliseconds of a captured training step of sst5, and of fetching and mixing embeddings alone, on a GPU.

`python benchmarks/sst_step.py encoder=FOLDER [field=value ...]`
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from capsroute.lab.training.config import change
from capsroute.lab.training.environment import Machine
from capsroute.lab.training.experiments import config_of, task_of
from capsroute.lab.training.language import TextSource
from capsroute.lab.training.loop import Loop
from capsroute.lab.training.runs import RunFolder


def milliseconds(go: Callable[[], object], n: int = 200) -> float:
    for _ in range(20):
        go()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n):
        go()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / n


def main() -> None:
    machine = Machine(accelerator="cuda")
    fabric = machine.fabric()
    fabric.launch()
    task = task_of(change(config_of("sst5"), sys.argv[1:]))
    loop = Loop(task, RunFolder(Path(tempfile.mkdtemp())), machine, fabric, None)
    assert isinstance(loop.source, TextSource)
    step = loop._step()
    if loop.obstacle:
        raise RuntimeError(loop.obstacle)
    assert step.plan is not None
    fetch = partial(loop.gradients.fetch, step.plan, step.at[:1])
    fetch()  # lets libraries allocate before the capture
    torch.cuda.synchronize()
    fetching = torch.cuda.CUDAGraph()
    with torch.cuda.graph(fetching):
        kept = fetch()

    times = {
        "longest": loop.source.embeddings.longest,
        "whole step ms": milliseconds(partial(loop._advance, step)),
        "embeddings and mixing alone ms": milliseconds(fetching.replay),
        "peak MiB": round(torch.cuda.max_memory_allocated() / 2**20),
    }
    del kept
    print(json.dumps(times))


if __name__ == "__main__":
    main()
