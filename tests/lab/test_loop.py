"""The loop: it stops and goes on anywhere, on one process or two, and never trains on what is not a number."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from capsroute.lab.atomic_files import write_atomically
from capsroute.lab.errors import StoppedError
from capsroute.lab.training import checkpoint
from capsroute.lab.training.checkpoint import CheckpointError
from capsroute.lab.training.environment import Machine
from capsroute.lab.training.loop import Loop, NonFiniteLossError
from capsroute.lab.training.runs import RunFolder
from tiny import Tiny, TinyConfig, run_tiny

ROOT = Path(__file__).parents[2]


def script(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "tests/tiny.py", str(folder), *options]
    environment = os.environ | {"PYTHONPATH": ".", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def succeed(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def state(folder: Path) -> dict[str, Tensor]:
    return checkpoint.read(folder / "checkpoint.safetensors")[0]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def learned(folder: Path) -> list[list[str]]:
    """The log without its clock."""
    rows = csv.reader((folder / "log.csv").read_text().splitlines())
    return [[cell for k, cell in enumerate(row) if k != 2] for row in rows]


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send Ctrl-C to the process when it has done so many steps."""
    advance = Loop._advance

    def then_stop(self: Loop, *args: object) -> None:
        advance(self, *args)
        if self.step_number == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Loop, "_advance", then_stop)


def test_a_run_leaves_a_complete_folder(tmp_path: Path) -> None:
    facts = run_tiny(tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert facts["steps"] == 15
    assert {"torch", "commit", "command", "device", "seconds", "parameters"} <= facts.keys()
    assert run.read_json("config.json")["batch_size"] == 8
    log = run.training.read()
    assert log["step"].tolist() == [3, 5, 8, 10, 13, 15]  # rows of three, cut where an epoch ends
    assert log["epoch"][-1] == 3
    assert run.validation.read()["epoch"].tolist() == [1, 2, 3]
    assert any((tmp_path / "run" / "tensorboard").iterdir())
    assert (run.model / "model.safetensors").exists()


def test_learning_lowers_the_loss(tmp_path: Path) -> None:
    """In half of the data at a time: in fewer, how far it comes depends on the last bits."""
    beta = {"beta1_max": 0.9, "beta1_min": 0.8, "beta2": 0.99}
    run_tiny(tmp_path, epochs=150, batch_size=20, lr_max=5e-2, **beta, log_every=5, mixup=0.0, held_out=0)
    loss = RunFolder(tmp_path).training.read()["loss"]
    assert loss[-5:].mean() < loss[0] - 0.2  # it starts at the logarithm of five classes
    assert not RunFolder(tmp_path).validation.read()


@pytest.mark.parametrize("stop", [1, 3, 7, 10])  # within a row, at its end, in a later epoch, at an epoch's end
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    run_tiny(tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(StoppedError, match=rf"after step {stop} of 15; go on with: capsroute train --resume"):
            run_tiny(tmp_path / "halves")
    assert checkpoint.read(tmp_path / "halves/checkpoint.safetensors")[1]["step"] == stop
    run_tiny(tmp_path / "halves", resume=True)
    assert same(state(tmp_path / "halves"), state(tmp_path / "whole"))
    assert learned(tmp_path / "halves") == learned(tmp_path / "whole")
    assert RunFolder(tmp_path / "halves").read_json("run.json")["resumed"][0]["step"] == stop


def test_a_guided_run_goes_on_bit_for_bit_and_leaves_the_network_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_tiny(tmp_path / "whole", guide=1.0)
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            run_tiny(tmp_path / "halves", guide=1.0)
    run_tiny(tmp_path / "halves", resume=True, guide=1.0)
    assert same(state(tmp_path / "halves"), state(tmp_path / "whole"))
    run_tiny(tmp_path / "alone")
    guided, alone = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "alone"))
    assert guided.keys() == alone.keys()
    assert not same(guided, alone)


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    options = ["--epochs", "40"]
    process = script(tmp_path / "killed", *options)
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed/checkpoint.safetensors").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    step = checkpoint.read(tmp_path / "killed/checkpoint.safetensors")[1]["step"]
    assert 0 < step < 200
    with (tmp_path / "killed/log.csv").open("a") as log:
        log.write("9999,1.0,0.5")  # a line that the kill cut short
    run_tiny(tmp_path / "killed", resume=True, epochs=40)
    run_tiny(tmp_path / "whole", epochs=40)
    assert same(state(tmp_path / "killed"), state(tmp_path / "whole"))
    assert learned(tmp_path / "killed") == learned(tmp_path / "whole")


def test_a_run_that_ended_is_not_run_again(tmp_path: Path) -> None:
    run_tiny(tmp_path)
    before = state(tmp_path)
    run_tiny(tmp_path, resume=True)
    assert same(before, state(tmp_path))


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    run_tiny(tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: not a whole checkpoint"):
        run_tiny(tmp_path, resume=True)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def fail(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_loss_that_is_not_finite_stops_with_the_state_before_it(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError, match=r"the loss of step \d+ \(epoch 1, batch \d\) is not finite") as caught:
        run_tiny(tmp_path / "bad", poison=7, log_every=50)
    tensors, facts = checkpoint.read(tmp_path / "bad/failure.safetensors")
    assert f"step {facts['step']}" in str(caught.value)
    assert 7 in facts["rows"]
    assert facts["weights finite"]
    assert tensors["inputs.0"].isnan().any()
    run_tiny(tmp_path / "good", epochs=1)
    assert not (tmp_path / "good/failure.safetensors").exists()
    # the state is the one that the run had just before that step
    config = TinyConfig(poison=7, log_every=50)
    machine = Machine(accelerator="cpu")
    loop = Loop(Tiny(config), RunFolder(tmp_path / "again"), machine, machine.fabric(), None)
    step = loop._step()
    for _ in range(facts["step"]):
        loop._advance(step)
    assert all(torch.equal(t, tensors[f"network.{name}"]) for name, t in loop.network.state_dict().items())


def test_two_processes_compute_the_gradients_of_one(tmp_path: Path) -> None:
    """After one step RAdam's first moment is the gradient, scaled; batch statistics are in there too."""
    options = ["--epochs", "1", "--n", "8", "--precision", "64-true"]
    processes = [script(tmp_path / "one", *options), script(tmp_path / "two", *options, "--devices", "2")]
    for process in processes:
        succeed(process)
    one, two = state(tmp_path / "one"), state(tmp_path / "two")
    assert one.keys() == two.keys()
    assert RunFolder(tmp_path / "two").read_json("run.json")["processes"] == 2
    gradients = {name: t for name, t in one.items() if name.endswith("exp_avg")}
    largest = max(t.abs().max() for t in gradients.values())
    assert largest > 0
    for name, t in one.items():
        torch.testing.assert_close(
            two[name], t, rtol=1e-9, atol=1e-12 * float(largest), msg=lambda m, n=name: f"{n}: {m}"
        )


def test_processes_must_divide_the_batch() -> None:
    class Three:
        world_size, is_global_zero = 3, True

    with pytest.raises(ValueError, match="batch_size: expected a multiple of the 3 processes, got 8"):
        Loop(Tiny(TinyConfig()), RunFolder(Path("nowhere")), Machine(), Three(), None)


def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size: expected at most the 40 samples, got 41"):
        run_tiny(tmp_path, batch_size=41)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux")
def test_one_step_at_full_size_takes_little_memory(tmp_path: Path) -> None:
    """The paper's network, batch 20, 96x96: at most 1.5 GiB above the idle process."""
    code = """
import torch
from pathlib import Path
from capsroute.nets import SmallNORB
from capsroute.lab.training.regime import Regime, mixed_loss
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20
network, regime = SmallNORB(), Regime()
optimizer = regime.optimizer(network)
images, target, weight = torch.rand(20, 2, 96, 96), torch.randint(5, (20,)), torch.rand(20)
idle = peak()
for _ in range(2):
    optimizer.zero_grad()
    mixed_loss(network(images).a, target, target.flip(0), weight)[0].backward()
    optimizer.step()
print(peak() - idle)
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0.1 < float(answer.stdout) < 1.5
