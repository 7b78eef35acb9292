"""Time the whole training step of the smallNORB network on a GPU, and what its graph is made of.

`python benchmarks/step.py --help`
"""

import json
import re
import tempfile
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from capsroute.lab.data import CATEGORIES, Pairs
from capsroute.lab.training.environment import Machine
from capsroute.lab.training.loop import Loop
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.vision import Vision, VisionConfig
from origin import origin
from records import RESULTS

SEED = 0
SAMPLES = 24_300  # as many as smallNORB has to train on
WARM, REPEATS, RUN, PROFILED = 20, 50, 200, 20
KINDS = {
    "routing": "route|feature_sums|first_sums|^models|_fwd_kernel|_bwd_kernel",
    "convolution": "conv|cudnn|xmma|cutlass|implicit|wgrad|dgrad|nchwToNhwc|nhwcToNchw|gemm|cublas|splitK",
    "compiled": "^triton_",
    "copies": "Memcpy|Memset|copy|CatArray",
    "several tensors": "multi_tensor",
}
"""Parts of a step, by names of kernels; the first that fits, else "other"."""


class Noise(Vision):
    """The paper's network on images made at random: their values do not change what a step costs."""

    def _load(self, split: str, device: torch.device | None) -> Pairs:
        return self.noise

    @cached_property
    def noise(self) -> Pairs:
        rng = np.random.default_rng(SEED)
        images = rng.integers(0, 256, (SAMPLES, 2, 96, 96), dtype=np.uint8)
        return Pairs(images, np.arange(SAMPLES) % len(CATEGORIES), np.zeros((SAMPLES, 4), int))


def make_loop(folder: Path, batch_size: int, compile: bool, epochs: int = 50) -> Loop:
    machine = Machine(accelerator="cuda", compile=compile)
    fabric = machine.fabric()
    fabric.launch()
    config = VisionConfig(
        experiment="step", data="smallnorb", held_out=0, batch_size=batch_size, epochs=epochs, seed=SEED
    )
    return Loop(Noise(config), RunFolder(folder), machine, fabric, None)


def median(call: Callable[[], float]) -> float:
    return float(np.median([call() for _ in range(REPEATS)]))


def waited(step: Callable[[], None]) -> float:
    """Milliseconds until the device has done a step."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)


def on_host(step: Callable[[], None]) -> float:
    """Milliseconds until the host may go on."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - began)


def on_device(step: Callable[[], None]) -> float:
    """Milliseconds between two marks on the device."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    marks[0].record()
    step()
    marks[1].record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1])


def in_a_row(step: Callable[[], None]) -> float:
    """Milliseconds a step takes among many that follow each other."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(RUN):
        step()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / RUN


def of_an_epoch(batch_size: int, compile: bool) -> float:
    """Milliseconds a step takes in a run with its log, copies of the state and checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        loop = make_loop(Path(folder), batch_size, compile, epochs=2)
        loop.start(resume=False, note="")
        loop.go()
        return 1e3 * loop.seconds / loop.steps


def kernels_of(step: Callable[[], None]) -> list[tuple[str, float, float]]:
    """Name, launches and microseconds a step of every kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    events = [e for e in found.key_averages() if e.self_device_time_total]
    rows = [(e.key, e.count / PROFILED, e.self_device_time_total / PROFILED) for e in events]
    return sorted(rows, key=lambda row: -row[2])


def kind_of(kernel: str) -> str:
    return next((kind for kind, names in KINDS.items() if re.search(names, kernel)), "other")


def show(kernels: list[tuple[str, float, float]], most: int) -> None:
    total = sum(us for *_, us in kernels)
    print(f"{sum(n for _, n, _ in kernels):.0f} kernels a step, {total:.0f} us of work")
    for kind in (*KINDS, "other"):
        own = [(n, us) for name, n, us in kernels if kind_of(name) == kind]
        print(f"  {sum(us for _, us in own):8.1f} us  {sum(n for n, _ in own):6.1f}  {kind}")
    print(f"the longest {most}:")
    for name, n, us in kernels[:most]:
        print(f"  {us:8.1f} us  {n:6.1f}  {name[:130]}")


TIMES = {"waited ms": waited, "host ms": on_host, "device ms": on_device}


def measure(advance: Callable[[], None]) -> dict[str, Any]:
    for _ in range(WARM):
        advance()
    torch.cuda.reset_peak_memory_stats()
    times = {name: median(lambda f=f: f(advance)) for name, f in TIMES.items()}
    return times | {
        "in a row ms": in_a_row(advance),
        "peak MiB, images included": torch.cuda.max_memory_allocated() / 2**20,
    }


def main(
    batch_size: Annotated[int, typer.Option(help="Samples of a step.")] = 20,
    compile: Annotated[bool, typer.Option(help="Compile what is around routing.")] = True,
    plain: Annotated[bool, typer.Option(help="Time plain calls too.")] = False,
    epoch: Annotated[bool, typer.Option(help="Time two epochs of a run too.")] = True,
    most: Annotated[int, typer.Option(help="Kernels to list.")] = 25,
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default="benchmarks/results/kernels")] = RESULTS
    / "kernels",
    commit: Annotated[str | None, typer.Option(help="Commit to record, of files that were copied.")] = None,
) -> None:
    """Write step.json, and list the longest kernels."""
    rows: list[dict[str, Any]] = []
    for captured in (False, True) if plain else (True,):
        with tempfile.TemporaryDirectory() as folder:
            loop = make_loop(Path(folder), batch_size, compile)
            if not captured:
                loop.obstacle = "plain calls were asked for"
            began = time.perf_counter()
            step = loop._step()
            start = {"start s": time.perf_counter() - began, "obstacle": loop.obstacle}
            row = {"case": f"smallNORB network, whole step, batch {batch_size}", "captured": loop.obstacle is None}
            row |= {"compiled": compile} | start | measure(partial(loop._advance, step))
            rows.append({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
            print(*(f"{k}: {v}" for k, v in rows[-1].items()), sep="  ", flush=True)
    if epoch:
        rows[-1]["epoch ms a step"] = round(of_an_epoch(batch_size, compile), 4)
        print("of two epochs, with log and checkpoints:", rows[-1]["epoch ms a step"], "ms a step", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "step.json").write_text(json.dumps(origin("cuda", SEED, commit) | {"rows": rows}, indent=2) + "\n")
    show(kernels_of(partial(loop._advance, step)), most)


if __name__ == "__main__":
    typer.run(main)
