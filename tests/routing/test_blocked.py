"""Blocks of votes: results do not depend on how votes are cut, and blocks bound memory."""

import os
import subprocess
import sys
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import pytest
import torch

from capsroute.routing import IMPLS
from capsroute.routing.agreement import AGREEMENTS
from capsroute.routing.blocked import cut_blocks
from capsroute.testing import Shape, Target, make_inputs, make_targets, over_budget, run, targets_over_budget
from conftest import ROOT

route = IMPLS["blocked"].route
CASES = {
    f"{'fixed' if i else 'any'} inputs, {'fixed' if j else 'any'} outputs": Shape(2, 21, 11, 2, 3, 2, i, j)
    for i, j in product((True, False), repeat=2)
}
CASES["kinds of inputs"] = Shape(2, 21, 11, 2, 3, 2, n_kinds=3)
PEAK = """
import sys
import torch
from capsroute.routing import IMPLS
from capsroute.routing.agreement import AGREEMENTS
from capsroute.testing import Shape, make_inputs
sys.path.insert(0, "benchmarks")
from memory import measure_own_peak
def go(shape):
    inputs = make_inputs(shape)
    def call():
        out = IMPLS["blocked"].route(*inputs.values(), 2, AGREEMENTS["gaussian"], 1e-5, block_votes=2**16)
        torch.autograd.grad([t.sum() for t in out], list(inputs.values()))
    return call
go(Shape(1, 80, 2_000, 1, 4, 4))()
print(measure_own_peak(go(Shape(1, 512, 20_000, 1, 4, 4))))
"""


def count_blocks(shape: Shape, block_votes: int) -> list[int]:
    """Return the number of slices of samples, inputs and outputs."""
    B = (1, shape.n_out, shape.d_cov, shape.d_out)
    return [len(slices) for slices in cut_blocks((shape.batch, shape.n_inp), B, shape.kinds, block_votes)]


@lru_cache(maxsize=1)
def targets(name: str, agreement: str) -> list[Target]:
    """Make targets in float64, kept for the next test."""
    drawn = (make_inputs(CASES[name], seed, torch.float64) for seed in range(12))
    return make_targets(drawn, torch.float64, agreement=agreement)


# blocks of one output, of several with a smaller last one, of some inputs with all outputs, and of a sample
@pytest.mark.parametrize(
    ("agreement", "block_votes", "blocks"),
    [
        ("gaussian", 1, [2, 1, 11]),
        ("gaussian", 300, [2, 1, 4]),
        ("gaussian", 400, [2, 3, 1]),
        ("gaussian", 924, [2, 1, 1]),
        ("gaussian", 1848, [1, 1, 1]),
        ("kmeans", 100, [2, 1, 11]),
        ("kmeans", 400, [2, 3, 1]),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_blocks_of_any_size_stay_within_budget(name: str, agreement: str, block_votes: int, blocks: list[int]) -> None:
    """In float64, for blocks are never so small in use."""
    assert count_blocks(CASES[name], block_votes) == blocks
    impl = partial(route, block_votes=block_votes)
    assert targets_over_budget(targets(name, agreement), impl, torch.float64, agreement=agreement) == {}


@pytest.mark.parametrize(("n_out", "d_cov"), [(1_000, 1), (300, 4)])
def test_many_outputs_and_infinite_scores_stay_within_budget(n_out: int, d_cov: int) -> None:
    shape = Shape(2, 9, n_out, d_cov, 4, 2)
    samples = [make_inputs(shape, seed) for seed in range(12)]
    for inputs in samples:
        inputs["a_inp"] = inputs["a_inp"].detach()
        inputs["a_inp"][0, :3] = torch.tensor([-torch.inf, torch.inf, -100.0])
    assert count_blocks(shape, 2**10)[2] > 1
    assert over_budget(samples, partial(route, block_votes=2**10)) == {}


@pytest.mark.parametrize(
    ("n_inp", "n_kinds", "n_out", "block_votes", "blocks"), [(9, 3, 2, 32, [1, 2, 1]), (4, 2, 3, 18, [1, 1, 2])]
)
@pytest.mark.parametrize("name", CASES)
def test_gradients_match_finite_differences(
    name: str, n_inp: int, n_kinds: int, n_out: int, block_votes: int, blocks: list[int]
) -> None:
    """With votes cut by inputs, and by outputs."""
    case = CASES[name]
    n_kinds = n_kinds if case.n_kinds > 1 else 1
    shape = Shape(1, n_inp, n_out, 1, 2, 2, case.fixed_inp, case.fixed_out, n_kinds)
    assert count_blocks(shape, block_votes) == blocks
    inputs = list(make_inputs(shape, dtype=torch.float64).values())
    settings = 3, AGREEMENTS["gaussian"], 1e-2
    assert torch.autograd.gradcheck(lambda *args: tuple(route(*args, *settings, block_votes=block_votes)), inputs)


def test_masked_sample_and_empty_batch() -> None:
    inputs = {name: t.detach() for name, t in make_inputs(CASES["any inputs, fixed outputs"]).items()}
    inputs["a_inp"][0] = -torch.inf
    impl = partial(route, block_votes=50)
    found = run(inputs, impl)
    assert all(t.isfinite().all() for t in found.values())
    empty = run(inputs | {name: inputs[name][:0] for name in ("a_inp", "mu_inp")}, impl)
    assert empty["mu"].shape == (0, 11, 2, 2)
    assert empty["dW"].abs().sum() == 0


@pytest.mark.parametrize(
    ("n_inp", "block_votes", "whole"), [(100, 32_000, True), (100, 31_999, False), (3, 12_000, True), (0, 1, True)]
)
def test_outputs_are_cut_only_where_few_inputs_fit(n_inp: int, block_votes: int, whole: bool) -> None:
    """Not where a block holds eight inputs with all outputs, or all inputs there are."""
    assert (count_blocks(Shape(1, n_inp, 1_000, 1, 2, 4), block_votes)[2] == 1) == whole


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system cannot reset a peak")
def test_peak_memory_is_below_one_number_per_pair() -> None:
    """Below 39 MiB, a number for each pair of an input and an output; votes would take 156."""
    allocator = {"MALLOC_MMAP_THRESHOLD_": str(2**16), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PEAK]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=os.environ | allocator)
    assert float(ended.stdout) < 512 * 20_000 * 4 / 2**20
