"""A step as a whole, which a graph would hold, run without one: it learns what plain steps learn."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from capsroute.lab.errors import StoppedError
from capsroute.lab.training import checkpoint
from capsroute.lab.training.environment import Machine
from capsroute.lab.training.loop import Loop, NonFiniteLossError
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.step import WholeStep, why_not_captured
from test_loop import learned, same, state, stop_after
from tiny import Tiny, TinyConfig, run_tiny

DOUBLE = Machine(accelerator="cpu", precision="64-true")


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps as on a GPU, but not captured."""
    let_be_whole(monkeypatch)


def let_be_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsroute.lab.training.loop.why_not_captured", lambda *_: None)
    monkeypatch.setattr(WholeStep, "capture", lambda self: None)
    monkeypatch.setattr("capsroute.lab.training.loop.BY_CHANNELS", ("cpu",))


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, t in one.items():
        assert t.dtype == other[name].dtype
        torch.testing.assert_close(other[name], t, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("settings", [{}, {"guide": 1.0}], ids=["plain loss", "guided"])
def test_it_learns_what_plain_steps_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, float]
) -> None:
    run_tiny(tmp_path / "plain", machine=DOUBLE, **settings)
    let_be_whole(monkeypatch)
    run_tiny(tmp_path / "whole", machine=DOUBLE, **settings)
    assert_close(state(tmp_path / "plain"), state(tmp_path / "whole"))
    logs = [RunFolder(tmp_path / name).training.read() for name in ("plain", "whole")]
    assert logs[0].keys() == logs[1].keys()
    for name in logs[0].keys() - {"seconds"}:
        np.testing.assert_allclose(logs[1][name], logs[0][name], rtol=1e-6, atol=1e-7, err_msg=name)  # float32's record


@pytest.mark.usefixtures("whole")
def test_it_stops_and_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tiny(tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            run_tiny(tmp_path / "halves")
    run_tiny(tmp_path / "halves", resume=True)
    assert same(state(tmp_path / "halves"), state(tmp_path / "whole"))
    assert learned(tmp_path / "halves") == learned(tmp_path / "whole")


@pytest.mark.parametrize("first", ["plain", "whole"])
def test_either_kind_of_step_goes_on_from_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    run_tiny(tmp_path / "plain", machine=DOUBLE)
    for half, kind in enumerate(("plain", "whole") if first == "plain" else ("whole", "plain")):
        with monkeypatch.context() as patch:
            if kind == "whole":
                let_be_whole(patch)
            if half:
                run_tiny(tmp_path / "halves", resume=True, machine=DOUBLE)
            else:
                stop_after(patch, 7)
                with pytest.raises(StoppedError):
                    run_tiny(tmp_path / "halves", machine=DOUBLE)
    assert_close(state(tmp_path / "plain"), state(tmp_path / "halves"))


@pytest.mark.usefixtures("whole")
def test_a_loss_that_is_not_finite_stops_with_the_state_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NonFiniteLossError):
        run_tiny(tmp_path / "bad", poison=7, log_every=50)
    tensors, facts = checkpoint.read(tmp_path / "bad/failure.safetensors")
    assert 7 in facts["rows"]
    assert facts["weights finite"]
    assert float(tensors["optimizer.0.step"]) == facts["step"]
    assert len(tensors["record"]) == facts["step"]


def test_what_cannot_be_captured_is_done_plainly_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: WholeStep) -> None:
        self.run()  # as far as a trial gets
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    machine = Machine(accelerator="cpu")
    monkeypatch.setattr("capsroute.lab.training.loop.why_not_captured", lambda *_: None)
    monkeypatch.setattr(WholeStep, "capture", refuse)
    loop = Loop(Tiny(TinyConfig()), RunFolder(tmp_path), machine, machine.fabric(), None)
    assert not isinstance(loop._step(), WholeStep)
    assert loop.obstacle == "it cannot be captured: operation not permitted when stream is capturing"


def test_obstacles_are_named() -> None:
    class Somewhere:
        device, world_size = torch.device("cuda"), 1

    @dataclasses.dataclass
    class Lying:
        resident: bool

    here, network = Somewhere(), torch.nn.Linear(1, 1)
    assert why_not_captured(here, Lying(True), network) is None
    assert why_not_captured(here, Lying(False), network) == "the data does not fit on the device"
    half = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    assert why_not_captured(here, Lying(True), half) == "weights are torch.bfloat16, not all of float32"
    here.world_size = 2
    assert why_not_captured(here, Lying(True), network) == "several processes exchange gradients"
    here.device = torch.device("cpu")
    assert why_not_captured(here, Lying(True), network) == "only a CUDA device has graphs"
