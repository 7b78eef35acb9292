"""Training, evaluation and cost of single models for `benchmarks/lm.py`."""

import functools
import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsroute.lab.lm import GPT
from lm_text import Text
from memory import measure_cuda_peak, measure_own_peak

MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"output": "softmax"},
    "tied": {"output": "tied"},
    "linear": {"output": "softmax_depths"},
    "depths": {"output": "depths"},
    "slices": {"output": "slices"},
    "once": {"output": "depths", "n_iters": 1},
    "past": {"output": "softmax", "past": 16},
}
"""Settings of the models that are compared."""


class Preset(NamedTuple):
    """Sizes of a study."""

    n_blocks: int
    d: int
    n_heads: int
    length: int
    batch: int
    n_steps: int
    subwords: tuple[int, ...]
    chunk: int | None  # positions whose votes are in memory at once, all if none
    sizes: tuple[int, int, int] | None  # bytes of the ranges that are used, all if none
    rates: tuple[float, ...]


class Machine(NamedTuple):
    """Where and how models run."""

    device: str
    compiled: bool = False  # cross entropy under torch.compile
    bfloat16: bool = False  # autocast

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16)

    def clock(self) -> float:
        """Return seconds: of this process on a CPU, which others may share, of the wall on a GPU."""
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def make_model(name: str, n_subwords: int, preset: Preset) -> GPT:
    sizes = n_subwords, preset.n_blocks, preset.d, preset.n_heads, preset.length
    return GPT(*sizes, **MODELS[name])


@functools.lru_cache(maxsize=1)
def place_model(name: str, n_subwords: int, preset: Preset, machine: Machine) -> GPT:
    """Return a model on its device, the same for all runs, so that it is compiled once."""
    model = make_model(name, n_subwords, preset).to(machine.device)
    if machine.compiled:
        model.score = torch.compile(model.score, dynamic=False)
    return model


def find_nats(model: GPT, ids: Tensor, targets: Tensor, preset: Preset, machine: Machine) -> Tensor:
    """Return the summed cross entropy, of routed scores in chunks: those of a softmax layer need no recomputation."""
    chunk = preset.chunk if hasattr(model.output, "routing") else None
    with machine.autocast():
        return model.nats(ids.to(machine.device), targets.to(machine.device), chunk)


def make_optimizer(model: nn.Module, rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)


def schedule(step: int, n_steps: int) -> float:
    """Return the factor of the rate: a linear start over a twentieth of the steps, then half a cosine to zero."""
    warm = max(1, n_steps // 20)
    return (step + 1) / warm if step < warm else 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (n_steps - warm))


def take_step(model: GPT, optimizer: torch.optim.Optimizer, window: Tensor, preset: Preset, machine: Machine) -> Tensor:
    """Take a step on windows `[b, length + 1]` and return the mean cross entropy."""
    loss = find_nats(model, window[:, :-1], window[:, 1:], preset, machine) / window[:, 1:].numel()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train_model(
    name: str, rate: float, seed: int, text: Text, n_subwords: int, preset: Preset, machine: Machine
) -> tuple[GPT, float]:
    """Return a trained model and its steps per second; a seed gives its weights and the texts it sees."""
    torch.manual_seed(seed)
    start = make_model(name, n_subwords, preset)
    model = place_model(name, n_subwords, preset, machine)
    model.load_state_dict(start.state_dict())
    random, optimizer = torch.Generator().manual_seed(seed), make_optimizer(model, rate)
    place, began = torch.arange(preset.length + 1), 0.0
    late = min(10, preset.n_steps // 2)  # steps before the clock starts, for compilation
    for step in range(preset.n_steps):
        if step == late:
            began = machine.clock()
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule(step, preset.n_steps)
        starts = torch.randint(len(text.ids) - preset.length, (preset.batch, 1), generator=random)
        take_step(model, optimizer, text.ids[starts + place].long(), preset, machine)
    return model, (preset.n_steps - late) / (machine.clock() - began)


@torch.no_grad()
def find_bits(model: GPT, text: Text, n_subwords: int, preset: Preset, machine: Machine) -> float:
    """Return bits per byte of a text, all of whose subwords are scored once, in windows one after the other."""
    ids = torch.cat([torch.tensor([n_subwords - 1]), text.ids.long()])  # the last subword stands for the start
    size = preset.batch * preset.length
    n = -(-len(text.ids) // size) * size
    inputs, targets = torch.zeros(n, dtype=torch.long), torch.full((n,), -100)  # which cross entropy ignores
    inputs[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]
    nats = 0.0
    for pair in zip(inputs.split(size), targets.split(size), strict=True):
        x, y = (t.view(preset.batch, preset.length) for t in pair)
        nats += float(find_nats(model, x, y, preset, machine))
    return nats / math.log(2) / text.n_bytes


def measure_costs(name: str, n_subwords: int, preset: Preset, machine: Machine, n_steps: int = 5) -> dict[str, float]:
    """Return the fewest milliseconds of a training step, and the MiB it takes above weights and optimizer."""
    model = place_model(name, n_subwords, preset, machine)
    optimizer = make_optimizer(model, 1e-4)
    window, times = torch.randint(n_subwords, (preset.batch, preset.length + 1)), []

    def step() -> None:
        take_step(model, optimizer, window, preset, machine)
        optimizer.zero_grad()

    for _ in range(2):
        step()
    for _ in range(n_steps):
        start = machine.clock()
        step()
        times.append(machine.clock() - start)
    peak = measure_own_peak if machine.device == "cpu" else measure_cuda_peak
    return {"milliseconds": 1e3 * min(times), "mib": peak(step)}
