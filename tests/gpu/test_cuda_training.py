"""Training on a GPU: captured steps learn what plain steps learn, and resume bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capsroute.lab.errors import StoppedError
from capsroute.lab.training.environment import Environment
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.trainer import NonFiniteLossError, Trainer
from test_trainer import equal, read_log, read_state
from tiny import PoisonedSource, Tiny, TinyConfig, run_tiny

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # inductor explains its choices with them
]
PLAIN, CAPTURED, COMPILED = (
    Environment(accelerator="cuda", compile=compile, capture=capture)
    for compile, capture in ((False, False), (False, True), (True, True))
)


def make_trainer(folder: Path, environment: Environment = CAPTURED, **settings: object) -> Trainer:
    """Return a trainer that is ready for its first step."""
    trainer = Trainer(Tiny(TinyConfig(**settings)), RunFolder(folder), environment, environment.launch())
    trainer.prepare()
    return trainer


@pytest.mark.parametrize("settings", [{}, {"auxiliary_weight": 1.0}], ids=["plain loss", "auxiliary loss"])
@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
def test_captured_run_has_losses_of_plain_run(tmp_path: Path, compile: bool, settings: dict[str, float]) -> None:
    for name, capture in (("captured", True), ("plain", False)):
        environment = Environment(accelerator="cuda", compile=compile, capture=capture)
        run_tiny(tmp_path / name, environment=environment, **settings)
    logs = [RunFolder(tmp_path / name).training.read() for name in ("captured", "plain")]
    assert len(logs[0]["loss"]) == 6
    for name in ("loss", "step", "epoch", "lr", "beta1"):
        assert logs[0][name].tolist() == logs[1][name].tolist()


def test_captured_step_follows_hundreds_of_plain_steps(tmp_path: Path) -> None:
    """From one state after another both make the same step, bit for bit."""
    captured = make_trainer(tmp_path, epochs=60)
    plain = make_trainer(tmp_path, PLAIN, epochs=60)
    assert (captured.obstacle, plain.obstacle) == (None, "capture=False")
    for n in range(300):
        for t, like in zip(plain.step.state(), captured.step.state(), strict=True):
            t.data.copy_(like.data)
        captured.step()
        plain.step()
        assert torch.equal(captured.step.record[n % 5], plain.step.record[n % 5])
        assert all(map(torch.equal, captured.step.state(), plain.step.state())), n


@pytest.mark.parametrize("stop", [1, 7])
def test_stopped_run_resumes_bit_for_bit(tmp_path: Path, stop: int) -> None:
    run_tiny(tmp_path / "whole", environment=COMPILED)
    with pytest.raises(StoppedError):
        run_tiny(tmp_path / "halves", environment=COMPILED, stop_after=stop)
    run_tiny(tmp_path / "halves", resume=True, environment=COMPILED)
    assert equal(read_state(tmp_path / "halves"), read_state(tmp_path / "whole"))
    assert read_log(tmp_path / "halves") == read_log(tmp_path / "whole")


def test_run_resumes_on_another_device(tmp_path: Path) -> None:
    """Convolution weights lie in another memory order on the GPU; the optimiser's state must follow them."""
    here, there = (replace(PLAIN, accelerator=name, precision="64-true") for name in ("cpu", "cuda"))
    for name, first, second in (("gpu", there, there), ("both", here, there)):
        with pytest.raises(StoppedError):
            run_tiny(tmp_path / name, environment=first, stop_after=10)
        run_tiny(tmp_path / name, resume=True, environment=second)
    one, other = read_state(tmp_path / "gpu"), read_state(tmp_path / "both")
    for name, t in one.items():
        largest = float(t.abs().max()) if t.numel() else 0.0
        torch.testing.assert_close(other[name], t, rtol=0.05, atol=1e-3 * largest + 1e-12)


def test_same_seed_learns_same_bits(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_tiny(tmp_path / name, environment=COMPILED, n=200, epochs=2)
    assert equal(read_state(tmp_path / "one"), read_state(tmp_path / "two"))


def test_capture_leaves_state_unchanged(tmp_path: Path) -> None:
    trainer = Trainer(Tiny(TinyConfig()), RunFolder(tmp_path), CAPTURED, CAPTURED.launch())
    before = {name: t.clone() for name, t in trainer.model.state_dict().items()}
    trainer.prepare()
    assert trainer.obstacle is None
    assert equal(dict(trainer.model.state_dict()), before)
    assert not any(t.any() for t in (trainer.step.optimizer.avg, trainer.step.optimizer.avg_sq, trainer.step.record))
    trainer.step()
    assert int(trainer.model.state_dict()["convolve.0.num_batches_tracked"]) == 1
    assert not equal(dict(trainer.model.state_dict()), before)


def test_step_is_one_launch_without_sync(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    trainer = make_trainer(tmp_path)
    trainer.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        trainer.step()
    calls = [e.key for e in found.key_averages() if e.key.startswith("cu")]
    assert "cudaGraphLaunch" in calls
    assert not [name for name in calls if "LaunchKernel" in name or "Memcpy" in name or "StreamSynchronize" in name]


def test_non_finite_loss_saves_state_before_it(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError):
        run_tiny(tmp_path / "bad", environment=CAPTURED, poison=7, log_every=50)
    assert (tmp_path / "bad" / "failure.safetensors").exists()


def test_failed_capture_falls_back_to_plain_steps(tmp_path: Path) -> None:
    class Waiting(PoisonedSource):
        def augmented_batch(self, rows: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
            assert int(rows.max()) >= 0  # a graph cannot wait for a number
            return super().augmented_batch(rows, noise)

    class WaitingTask(Tiny):
        def source(self, split: str, device: torch.device) -> Waiting:
            return Waiting(self.pairs(split), device, -1)

    trainer = Trainer(WaitingTask(TinyConfig()), RunFolder(tmp_path), CAPTURED, CAPTURED.launch())
    trainer.prepare()
    assert str(trainer.obstacle).startswith("it cannot be captured: ")
    trainer.step()
    assert trainer.step.record[0].isfinite().all()
