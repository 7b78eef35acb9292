"""The grid barrier, launches in phases, and workspaces."""

import itertools
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from capsroute.routing.triton import grid
from capsroute.routing.triton.grid import Launch, launch_all
from capsroute.routing.triton.workspace import ALIGNMENT, Buffer, Layout

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOP_BIT = -(2**31)


class Pair(NamedTuple):
    one: Any
    two: Any


@triton.jit
def store_arrivals_kernel(p_out):
    pid = tl.program_id(0)
    tl.store(p_out + pid, grid.arrival(pid, tl.num_programs(0)))


@triton.jit
def sum_neighbours_kernel(p_count, first, last, p_numbers, n):
    """Add to each number its neighbour's, `last - first` times."""
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    for phase in range(first, last):
        if phase > first:
            grid.wait_for_all(p_count)
        for k in range(pid, n, n_pids):
            here, there = p_numbers + phase * n + k, p_numbers + phase * n + (k + 1) % n
            tl.store(p_numbers + (phase + 1) * n + k, tl.load(here) + tl.load(there))


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("start", [0, TOP_BIT])
def test_top_bit_flips_when_last_program_arrives(n: int, start: int) -> None:
    steps = torch.zeros(n, dtype=torch.int32, device=DEVICE)
    store_arrivals_kernel[(n,)](steps)
    for order in itertools.permutations(steps.tolist()):
        count = torch.tensor(start, dtype=torch.int32)
        for step in order[:-1]:
            count += step
            assert (count ^ start) >= 0
        count += order[-1]
        assert (count ^ start) == TOP_BIT  # and nothing else is left in it


@pytest.mark.parametrize("n_programs", [1, 3])
def test_phases_see_writes_of_all_programs(n_programs: int) -> None:
    n, n_phases = 7, 4
    numbers = torch.zeros(n_phases + 1, n, dtype=torch.int64, device=DEVICE)
    numbers[0] = torch.arange(n)
    launch_all([Launch(sum_neighbours_kernel, n_programs, 4, (numbers, n), n_phases)], numbers)
    expected = numbers[0]
    for row in numbers[1:]:
        expected = expected + expected.roll(-1)
        assert torch.equal(row, expected)


def test_workspace_splits_into_disjoint_aligned_buffers() -> None:
    pair = Pair(Buffer(torch.float64, 7), Buffer(torch.float16, 0))
    layout = Layout(Buffer(torch.float32, 3, 50), pair, Buffer(torch.int32, 1))
    workspace = layout.allocate(torch.zeros(1, device=DEVICE)).zero_()
    first, pair, last = layout.split(workspace)
    assert isinstance(pair, Pair)
    views = [first, *pair, last]
    assert [t.dtype for t in views] == [torch.float32, torch.float64, torch.float16, torch.int32]
    assert all(
        t.numel() >= n and t.nbytes < n * t.itemsize + ALIGNMENT for t, n in zip(views, (150, 7, 0, 1), strict=True)
    )
    assert not any((t.data_ptr() - workspace.data_ptr()) % ALIGNMENT for t in views if t.numel())
    for k, t in enumerate(views):
        t.fill_(k + 1)
    assert [set(t.tolist()) for t in views] == [{1}, {2}, set(), {4}]
