"""The loop on a GPU: a captured step learns what plain steps learn, and stops and goes on bit for bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from capsroute.lab.errors import StoppedError
from capsroute.lab.training.environment import Environment
from capsroute.lab.training.trainer import Trainer, NonFiniteLossError
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.step import PlainStep, WholeStep
from capsroute.lab.training.vision import PairSource
from test_loop import learned, same, state, stop_after
from tiny import Tiny, TinyConfig, run_tiny

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # inductor explains its choices with them
]


def machine(compile: bool = False) -> Environment:
    return Environment(accelerator="cuda", compile=compile)


def made(folder: Path, compile: bool = False, **settings: object) -> Trainer:
    here = machine(compile)
    fabric = here.fabric()
    fabric.launch()
    return Trainer(Tiny(TinyConfig(**settings)), RunFolder(folder), here, fabric, None)


def go_plainly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("capsroute.lab.training.trainer.why_not_captured", lambda *_: "plain steps were asked for")


@pytest.mark.parametrize("settings", [{}, {"auxiliary_weight": 1.0}], ids=["plain loss", "guided"])
@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
def test_a_captured_step_has_the_losses_of_plain_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile: bool, settings: dict[str, float]
) -> None:
    run_tiny(tmp_path / "captured", machine=machine(compile), **settings)
    go_plainly(monkeypatch)
    run_tiny(tmp_path / "plain", machine=machine(compile), **settings)
    logs = [RunFolder(tmp_path / name).training.read() for name in ("captured", "plain")]
    assert len(logs[0]["loss"]) == 6
    assert logs[0]["loss"].tolist() == logs[1]["loss"].tolist()
    for name in ("step", "epoch", "lr", "beta1"):
        assert logs[0][name].tolist() == logs[1][name].tolist()


def test_a_captured_step_follows_hundreds_of_plain_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one state after another both make the same step, bit for bit."""
    captured = made(tmp_path, epochs=60)
    step = captured._step()
    assert isinstance(step, WholeStep)
    go_plainly(monkeypatch)
    plain = made(tmp_path, epochs=60)
    other = plain._step()
    assert not isinstance(other, WholeStep)
    for n in range(300):
        for t, like in zip(other.state(), PlainStep.state(step), strict=True):  # counts of steps included
            t.data.copy_(like.data)
        captured._advance(step)
        step.settle()
        plain._advance(other)
        assert torch.equal(captured.record[n % 5], plain.record[n % 5])
        assert all(map(torch.equal, PlainStep.state(step), other.state())), n


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


def test_trials_before_the_capture_leave_no_trace(tmp_path: Path) -> None:
    loop = made(tmp_path)
    before = {name: t.clone() for name, t in loop.learner.state_dict().items()}
    step = loop._step()
    assert loop.obstacle is None
    assert same(dict(loop.learner.state_dict()), before)
    assert all(not t.any() for state in loop.optimizer.state.values() for t in state.values())
    assert not loop.record.any()
    loop._advance(step)
    assert int(loop.learner.state_dict()["convolve.0.num_batches_tracked"]) == 1
    assert not same(dict(loop.learner.state_dict()), before)


def test_a_step_is_one_launch_and_waits_for_nothing(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    loop = made(tmp_path)
    step = loop._step()
    loop._advance(step)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
    calls = [e.key for e in found.key_averages() if e.key.startswith("cu")]
    assert "cudaGraphLaunch" in calls
    assert not [name for name in calls if "LaunchKernel" in name or "Memcpy" in name or "StreamSynchronize" in name]


def test_a_loss_that_is_not_finite_stops_with_the_state_before_it(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError):
        run_tiny(tmp_path / "bad", machine=machine(), poison=7, log_every=50)
    assert (tmp_path / "bad" / "failure.safetensors").exists()


def test_what_cannot_be_captured_is_done_plainly_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered = PairSource.altered

    def waiting(self: PairSource, rows: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        assert int(rows.max()) >= 0  # a graph cannot wait for a number
        return altered(self, rows, noise)

    monkeypatch.setattr(PairSource, "altered", waiting)
    loop = made(tmp_path)
    step = loop._step()
    assert not isinstance(step, WholeStep)
    assert str(loop.obstacle).startswith("it cannot be captured: ")
    loop._advance(step)
    assert loop.record[0].isfinite().all()
