"""The progress bar: drawn in a terminal alone, and by the first process alone."""

import io
import sys

import pytest
import torch.distributed as dist
from rich.console import Console

from capsroute.lab.progress import print_once, progress_bar


def draw(*, terminal: bool = True, **options) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress_bar("Rendering", 4, console=console, **options) as advance:
        advance()
        advance(2, label="Almost done")
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_bar_shows_label_and_progress() -> None:
    shown = draw()
    assert "Almost done" in shown
    assert "75%" in shown
    assert "100%" in draw(completed=1)
    assert "3/4 bytes" in draw(in_bytes=True)


def test_bar_is_silent_without_terminal_or_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw(terminal=False) == draw(show=False) == ""
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.delattr("rich.progress", raising=False)
    assert draw() == ""


def test_other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        assert bool(draw()) is (rank == 0)
        print_once(f"rank {rank}")
    assert capsys.readouterr() == ("", "rank 0\n")
