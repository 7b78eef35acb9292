"""The memory checker finds kernels that access what they may not; tests of kernels run under it."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from capsroute.routing.triton.grid import INTERPRETED
from capsroute.routing.triton.workspace import Buffer, Layout
from guarded import guarded

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="checks the interpreter's memory alone")


@triton.jit
def copy(p_from, p_to, n_from, n_to):
    o = tl.arange(0, 64)
    tl.store(p_to + o, tl.load(p_from + o, mask=o < n_from, other=0.0), mask=o < n_to)


@pytest.mark.parametrize(("n_from", "n_to", "out"), [(40, 40, False), (41, 40, True), (40, 41, True)])
def test_access_outside_of_tensors_fails(n_from: int, n_to: int, out: bool) -> None:
    source, target = torch.rand(41)[:40], torch.rand(41)[:40]
    with guarded():
        call: Any = copy[(1,)]
        if not out:
            return call(source, target, n_from, n_to)
        with pytest.raises(Exception, match="accesses 1 addresses outside"):
            call(source, target, n_from, n_to)


def test_access_beyond_a_buffer_of_a_workspace_fails() -> None:
    layout = Layout(Buffer(torch.float32, 32), Buffer(torch.float32, 32))
    with guarded():
        one, two = layout.split(layout.allocate(torch.rand(1)))
        call: Any = copy[(1,)]
        call(one, two, 32, 32)
        with pytest.raises(Exception, match="accesses 1 addresses outside"):
            call(one, torch.rand(64), 33, 64)


def test_uninitialised_memory_is_nan() -> None:
    layout = Layout(Buffer(torch.float32, 8), Buffer(torch.float64, 8))
    with guarded():
        pieces = layout.split(layout.allocate(torch.rand(1)))
        assert all(piece.isnan().all() for piece in (*pieces, torch.rand(1).new_empty(5)))
    assert not torch.are_deterministic_algorithms_enabled()
