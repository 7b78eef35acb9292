"""Blocks of votes: the same however they are cut, by inputs or by outputs too, in memory that blocks bound."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from capsroute.routing import route
from capsroute.routing.blocked import Plan, passes, streams
from capsroute.testing import Judged, Shape, judged, make_inputs, over, over_budget, run
from conftest import ROOT

CASES = {
    f"{'fixed' if i else 'any'} inputs, {'fixed' if j else 'any'} outputs": Shape(2, 21, 11, 2, 3, 2, i, j)
    for i, j in product((True, False), repeat=2)
}
PEAK = """
import sys
import torch
from capsroute.routing.agreement import AGREEMENTS
from capsroute.routing.blocked import route
from capsroute.testing import Shape, make_inputs
sys.path.insert(0, "benchmarks")
from memory import own_peak
def go(shape):
    inputs = make_inputs(shape)
    def call():
        out = route(*inputs.values(), 2, AGREEMENTS["gaussian"], 1e-5, block_votes=2**16)
        torch.autograd.grad([t.sum() for t in out], list(inputs.values()))
    return call
go(Shape(1, 80, 2_000, 1, 4, 4))()
print(own_peak(go(Shape(1, 512, 20_000, 1, 4, 4))))
"""


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which passes have gone over blocks."""
    found: set[str] = set()

    def watch(name: str, way: str, forward: Callable[..., Any]) -> None:
        monkeypatch.setattr(name, lambda *args: (found.add(way), forward(*args))[1])

    watch("capsroute.routing.blocked.forward", "inputs", passes.forward)
    watch("capsroute.routing.blocked.streams.forward", "outputs too", streams.forward)
    return found


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the size of blocks."""
    return lambda block_votes: monkeypatch.setattr("capsroute.routing.blocked.CPU_VOTES", block_votes)


@lru_cache(maxsize=1)
def twelve(name: str, agreement: str) -> list[Judged]:
    """Samples in float64, kept for the next test."""
    drawn = (make_inputs(CASES[name], seed, torch.float64) for seed in range(12))
    return judged(drawn, torch.float64, agreement=agreement)


@pytest.mark.parametrize("block_votes", [1, 100, 300])
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("name", CASES)
def test_blocks_of_outputs_give_the_same(name: str, agreement: str, block_votes: int, cut, ways) -> None:
    """From a single output to several, the last block smaller; in float64, for blocks are never so small."""
    cut(block_votes)
    assert over(twelve(name, agreement), "blocked", torch.float64, agreement=agreement) == {}
    assert ways == {"outputs too"}


@pytest.mark.parametrize(("n_out", "d_cov"), [(3_000, 1), (1_000, 4)])
def test_many_outputs_and_few_inputs(n_out: int, d_cov: int, cut, ways) -> None:
    """In float32, with infinite scores, within the error budget."""
    samples = [make_inputs(Shape(2, 9, n_out, d_cov, 4, 2), seed) for seed in range(12)]
    for inputs in samples:
        inputs["a_inp"] = inputs["a_inp"].detach()
        inputs["a_inp"][0, :3] = torch.tensor([-torch.inf, torch.inf, -100.0])
    cut(2**12)
    assert over_budget(samples, "blocked", torch.float32) == {}
    assert ways == {"outputs too"}


@pytest.mark.parametrize(("fewest", "way"), [(1, "inputs"), (8, "outputs too")])
@pytest.mark.parametrize("name", CASES)
def test_gradients_over_blocks(name: str, fewest: int, way: str, cut, ways, monkeypatch) -> None:
    """Against finite differences, whichever way votes are cut."""
    monkeypatch.setattr(streams, "FEWEST_INPUTS", fewest)
    shape = Shape(1, 4, 3, 1, 2, 2, CASES[name].fixed_inp, CASES[name].fixed_out)
    inputs = make_inputs(shape, dtype=torch.float64)
    cut(18)
    assert torch.autograd.gradcheck(lambda *args: tuple(route(*args, impl="blocked", eps=1e-2)), list(inputs.values()))
    assert ways == {way}


def test_a_sample_without_any_share_and_none_at_all(cut) -> None:
    """Masked inputs alone, and a batch of no samples."""
    inputs = {name: t.detach() for name, t in make_inputs(CASES["any inputs, fixed outputs"]).items()}
    inputs["a_inp"][0] = -torch.inf
    cut(50)
    found = run(inputs, "blocked")
    assert all(t.isfinite().all() for t in found.values())
    empty = run(inputs | {name: inputs[name][:0] for name in ("a_inp", "mu_inp")}, "blocked")
    assert empty["mu"].shape == (0, 11, 2, 2)
    assert empty["dW"].abs().sum() == 0


def test_few_outputs_are_never_cut() -> None:
    """Where a block holds eight inputs beside all outputs, or all inputs there are, one pass does."""
    B = torch.empty(1, 1_000, 1, 4)
    for n_inp, block_votes, whole in [(100, 32_000, True), (100, 31_999, False), (3, 12_000, True), (0, 1, True)]:
        found = streams.cut_outputs(torch.empty(1, n_inp, 1, 2), B, Plan(3, None, 0, block_votes))
        assert (found is None) == whole


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not count a peak anew")
def test_memory_grows_with_inputs_plus_outputs() -> None:
    """Its peak is below a single number for each pair of an input and an output: 39 MiB; votes would take 156."""
    allocator = {"MALLOC_MMAP_THRESHOLD_": str(2**16), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PEAK]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=os.environ | allocator)
    assert float(ended.stdout) < 512 * 20_000 * 4 / 2**20
