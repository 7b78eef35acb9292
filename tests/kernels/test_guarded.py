"""That kernels which touch what they should not are found; `test_triton.py` and `test_triton_votes.py` run so."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from capsroute.routing.triton.grid import INTERPRETED
from capsroute.routing.triton.workspace import Layout, Piece
from guarded import guarded

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="only the interpreter's memory is watched")


@triton.jit
def copy(p_from, p_to, n_from, n_to):
    o = tl.arange(0, 64)
    tl.store(p_to + o, tl.load(p_from + o, mask=o < n_from, other=0.0), mask=o < n_to)


@pytest.mark.parametrize(("n_from", "n_to", "out"), [(40, 40, False), (41, 40, True), (40, 41, True)])
def test_kernels_may_touch_their_tensors_alone(n_from: int, n_to: int, out: bool) -> None:
    """Memory goes on behind both."""
    source, target = torch.rand(41)[:40], torch.rand(41)[:40]
    with guarded():
        call: Any = copy[(1,)]
        if not out:
            return call(source, target, n_from, n_to)
        with pytest.raises(Exception, match="touches 1 places outside"):
            call(source, target, n_from, n_to)


def test_a_piece_of_a_room_ends_where_the_next_begins() -> None:
    layout = Layout(Piece(torch.float32, 32), Piece(torch.float32, 32))
    with guarded():
        one, two = layout.pieces(layout.make(torch.rand(1)))
        call: Any = copy[(1,)]
        call(one, two, 32, 32)
        with pytest.raises(Exception, match="touches 1 places outside"):
            call(one, torch.rand(64), 33, 64)


def test_memory_that_nobody_wrote_is_not_a_number() -> None:
    layout = Layout(Piece(torch.float32, 8), Piece(torch.float64, 8))
    with guarded():
        pieces = layout.pieces(layout.make(torch.rand(1)))
        assert all(piece.isnan().all() for piece in (*pieces, torch.rand(1).new_empty(5)))
    assert not torch.are_deterministic_algorithms_enabled()
