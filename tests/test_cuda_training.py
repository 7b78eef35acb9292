"""The loop on a GPU: a captured step learns what plain steps learn, and stops and goes on bit for bit."""

from pathlib import Path

import pytest
import torch

from capsroute.errors import StoppedError
from capsroute.training.loop import Loop
from capsroute.training.machine import Machine
from capsroute.training.runs import RunFolder
from test_loop import learned, same, state, stop_after
from tiny import run_tiny

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # inductor explains its choices with them
]


def machine(compile: bool = False) -> Machine:
    return Machine(accelerator="cuda", compile=compile)


@pytest.mark.parametrize("compile", [False, True])
def test_a_captured_step_has_the_losses_of_plain_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile: bool
) -> None:
    run_tiny(tmp_path / "captured", machine=machine(compile))
    monkeypatch.setattr("capsroute.training.loop.why_not_captured", lambda *_: "plain steps were asked for")
    run_tiny(tmp_path / "plain", machine=machine(compile))
    losses = [RunFolder(tmp_path / name).training.read()["loss"] for name in ("captured", "plain")]
    assert len(losses[0]) == 6
    assert abs(losses[0] - losses[1]).max() < 1e-6


@pytest.mark.parametrize("stop", [1, 7])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    run_tiny(tmp_path / "whole", machine=machine(compile=True))
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(StoppedError):
            run_tiny(tmp_path / "halves", machine=machine(compile=True))
    run_tiny(tmp_path / "halves", resume=True, machine=machine(compile=True))
    assert same(state(tmp_path / "halves"), state(tmp_path / "whole"))
    assert learned(tmp_path / "halves") == learned(tmp_path / "whole")


def test_the_same_seed_learns_the_same_bits(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_tiny(tmp_path / name, machine=machine(compile=True), n=200, epochs=2)
    assert same(state(tmp_path / "one"), state(tmp_path / "two"))


def test_the_step_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_steps = []
    advance = Loop._advance
    monkeypatch.setattr(
        Loop, "_advance", lambda self, step, batch: (plain_steps.append(step), advance(self, step, batch))[1]
    )
    run_tiny(tmp_path, machine=machine())
    assert {type(step).__name__ for step in plain_steps} == {"CapturedStep"}
