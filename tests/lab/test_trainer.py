"""Training: complete run folders, bit-exact resume, several processes, non-finite losses."""

import copy
import csv
import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from capsroute.lab.atomic_files import write_atomically
from capsroute.lab.errors import StoppedError, UserError
from capsroute.lab.training.environment import Environment
from capsroute.lab.training.regime import mix, mixed_loss, plan_epoch
from capsroute.lab.training.runs import CheckpointError, RunFolder, read_checkpoint
from capsroute.lab.training.step import WithAuxiliaryReadouts, copy_tensors, find_capture_obstacle
from capsroute.lab.training.trainer import NonFiniteLossError, Trainer
from conftest import ROOT
from tiny import SIZE, Tiny, TinyConfig, run_tiny

DOUBLE = Environment(accelerator="cpu", precision="64-true")


def start_script(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "tests/lab/tiny.py", str(folder), *options]
    environment = os.environ | {"PYTHONPATH": ".", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def read_state(folder: Path) -> dict[str, Tensor]:
    return read_checkpoint(folder / "checkpoint.safetensors")[0]


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def read_log(folder: Path) -> list[list[str]]:
    """Return the rows of the training log without the column of seconds."""
    rows = csv.reader((folder / "log.csv").read_text().splitlines())
    return [[cell for k, cell in enumerate(row) if k != 2] for row in rows]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 15 steps."""
    folder = tmp_path_factory.mktemp("complete") / "run"
    run_tiny(folder)
    return folder


def test_run_writes_complete_folder(complete: Path) -> None:
    run = RunFolder(complete)
    facts = run.read_json("run.json")
    assert facts["steps"] == 15
    assert {"torch", "commit", "command", "device", "seconds", "parameters"} <= facts.keys()
    assert run.read_json("config.json")["batch_size"] == 8
    log = run.training.read()
    assert log["step"].tolist() == [3, 5, 8, 10, 13, 15]  # rows of three steps, shorter where an epoch ends
    assert log["epoch"][-1] == 3
    assert run.validation.read()["epoch"].tolist() == [1, 2, 3]
    assert any((complete / "tensorboard").iterdir())
    assert (run.model / "model.safetensors").exists()


def test_training_lowers_loss(tmp_path: Path) -> None:
    settings = {
        "lr_max": 5e-2,
        "beta1_max": 0.9,
        "beta1_min": 0.8,
        "beta2": 0.99,
        "mixup": 0.0,
        "auxiliary_weight": 1.0,
    }
    run_tiny(tmp_path, epochs=60, batch_size=20, log_every=5, save_every=60.0, held_out=0, **settings)
    loss = RunFolder(tmp_path).training.read()["loss"]
    assert loss[-5:].mean() < loss[0] - 0.4  # it starts at the logarithm of five classes
    assert not RunFolder(tmp_path).validation.read()


@pytest.mark.parametrize(
    "settings", [{}, {"auxiliary_weight": 1.0}, {"mixup": 1.0, "cutmix": 0.5}, {"sam": 0.3}], ids=lambda s: ",".join(s)
)
def test_trainer_matches_textbook_loop(tmp_path: Path, settings: dict[str, float]) -> None:
    """A loop over plans with torch's own RAdam ends with the same weights, up to float64 rounding."""
    run_tiny(tmp_path, environment=DOUBLE, batch_size=10, **settings)
    config = TinyConfig(batch_size=10, **settings)  # pyright: ignore[reportArgumentType]
    weight = config.auxiliary_weight
    source, steps = Tiny(config).source("train", torch.device("cpu")), 12
    assert source is not None
    torch.manual_seed(config.seed)
    model = WithAuxiliaryReadouts(Tiny(config).network(), 5) if weight else Tiny(config).network()
    model.double()
    optimizer = torch.optim.RAdam(model.parameters(), betas=(config.beta1_max, config.beta2))
    for step in range(steps):
        plan = plan_epoch(config, 40, seed=config.seed, epoch=step // 4, n_noise=2)
        rows, share, noise, box = (t[step % 4] for t in plan)
        images, partners = (source.augmented_batch(rows[k], noise[k])[0] for k in range(2))
        targets = source.target[rows[0]], source.target[rows[1]], share
        mixed = mix(images, partners, share)
        for k, (top, left, bottom, right) in enumerate((box * SIZE).round().int().tolist()):
            if box[k].any():
                mixed[k] = images[k]
                mixed[k, :, top:bottom, left:right] = partners[k, :, top:bottom, left:right]

        def compute_gradients(mixed: Tensor = mixed, targets: tuple[Tensor, ...] = targets) -> None:
            scores = model(mixed.double()).a.float()  # as Fabric returns them
            loss = mixed_loss(scores, *targets)[0]
            for scores in model.scores if isinstance(model, WithAuxiliaryReadouts) else ():
                loss = loss + weight * mixed_loss(scores, *targets)[0]
            optimizer.zero_grad()
            loss.backward()

        compute_gradients()
        if config.sam:
            before = copy.deepcopy(model.state_dict())
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            with torch.no_grad():
                for p in model.parameters():
                    p += config.sam * (0.0 if p.grad is None else p.grad) / gradient.norm()
            compute_gradients()
            model.load_state_dict(before)
        lr, beta1 = config.schedule(step, steps)
        optimizer.param_groups[0] |= {"lr": lr, "betas": (beta1, config.beta2)}
        optimizer.step()
    state = read_state(tmp_path)
    for name, t in model.state_dict().items():
        torch.testing.assert_close(
            state[f"network.{name}"], t, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("stop", [1, 3, 7, 10])  # within a row, at its end, in a later epoch, at an epoch's end
def test_stopped_run_resumes_bit_for_bit(tmp_path: Path, complete: Path, stop: int) -> None:
    with pytest.raises(StoppedError, match=rf"after step {stop} of 15; go on with: capsroute train --resume"):
        run_tiny(tmp_path, stop_after=stop)
    assert read_checkpoint(tmp_path / "checkpoint.safetensors")[1]["step"] == stop
    run_tiny(tmp_path, resume=True)
    assert equal(read_state(tmp_path), read_state(complete))
    assert read_log(tmp_path) == read_log(complete)
    assert RunFolder(tmp_path).read_json("run.json")["resumed"][0]["step"] == stop


def test_auxiliary_loss_resumes_bit_for_bit_and_leaves_no_readouts(tmp_path: Path, complete: Path) -> None:
    run_tiny(tmp_path / "whole", auxiliary_weight=1.0)
    with pytest.raises(StoppedError):
        run_tiny(tmp_path / "halves", auxiliary_weight=1.0, stop_after=7)
    run_tiny(tmp_path / "halves", resume=True, auxiliary_weight=1.0)
    assert equal(read_state(tmp_path / "halves"), read_state(tmp_path / "whole"))
    auxiliary, plain = (load_file(folder / "model/model.safetensors") for folder in (tmp_path / "whole", complete))
    assert auxiliary.keys() == plain.keys()
    assert not equal(auxiliary, plain)


def test_averaged_run_resumes_bit_for_bit_and_saves_the_mean(tmp_path: Path) -> None:
    settings = {"average": 0.9, "weight_decay": 0.1, "lr_max": 1e-2, "mixup": 1.0, "cutmix": 0.5, "sam": 0.05}
    run_tiny(tmp_path / "whole", **settings)
    with pytest.raises(StoppedError):
        run_tiny(tmp_path / "halves", stop_after=7, **settings)
    run_tiny(tmp_path / "halves", resume=True, **settings)
    saved = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "halves")]
    assert equal(*saved)
    state, network = read_state(tmp_path / "whole"), Tiny(TinyConfig()).network()
    for k, (name, _) in enumerate(network.named_parameters()):
        assert torch.equal(saved[0][name], state[f"optimizer.{k}.mean"])
    source = Tiny(TinyConfig()).source("train", torch.device("cpu"))
    assert source is not None
    (images,) = source.batch(torch.arange(40))
    mean = images[:, 0].mean()  # statistics are those of the training set, up to its shifts
    assert saved[0]["convolve.0.running_mean"][0] == pytest.approx(mean.item(), rel=0.05)


def test_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    process = start_script(tmp_path / "killed", "--epochs", "15")
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed/checkpoint.safetensors").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    step = read_checkpoint(tmp_path / "killed/checkpoint.safetensors")[1]["step"]
    assert 0 < step < 75
    with (tmp_path / "killed/log.csv").open("a") as log:
        log.write("9999,1.0,0.5")  # a line cut short by the kill
    run_tiny(tmp_path / "killed", resume=True, epochs=15)
    run_tiny(tmp_path / "whole", epochs=15)
    assert equal(read_state(tmp_path / "killed"), read_state(tmp_path / "whole"))
    assert read_log(tmp_path / "killed") == read_log(tmp_path / "whole")


def test_finished_run_is_not_repeated_and_damaged_checkpoint_is_refused(tmp_path: Path, complete: Path) -> None:
    shutil.copytree(complete, tmp_path / "run")
    run_tiny(tmp_path / "run", resume=True)
    assert equal(read_state(complete), read_state(tmp_path / "run"))
    file = tmp_path / "run/checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: the checkpoint is damaged"):
        run_tiny(tmp_path / "run", resume=True)


def test_failed_write_leaves_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"no space left: '{file}'"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_non_finite_loss_saves_state_before_it(tmp_path: Path, complete: Path) -> None:
    with pytest.raises(NonFiniteLossError, match=r"the loss of step \d+ \(epoch 1, batch \d\) is not finite") as caught:
        run_tiny(tmp_path / "bad", poison=7, log_every=50)
    tensors, facts = read_checkpoint(tmp_path / "bad/failure.safetensors")
    assert f"step {facts['step']}" in str(caught.value)
    assert 7 in facts["rows"]
    assert facts["weights finite"]
    assert len(tensors["record"]) == facts["step"]
    assert tensors["inputs.0"].isnan().any()
    assert not (complete / "failure.safetensors").exists()
    with pytest.raises(StoppedError):  # the state is that of a run stopped just before the bad step
        run_tiny(tmp_path / "stopped", poison=7, log_every=50, stop_after=facts["step"])
    stopped = read_state(tmp_path / "stopped")
    assert all(torch.equal(t, tensors[name]) for name, t in stopped.items())


def test_two_processes_compute_gradients_of_one(tmp_path: Path) -> None:
    """After one step RAdam's first moment is the scaled gradient; batch statistics are in the state too."""
    options = ["--epochs", "1", "--n", "8", "--precision", "64-true", "--devices", "2"]
    process = start_script(tmp_path / "two", *options)
    run_tiny(tmp_path / "one", environment=DOUBLE, epochs=1, n=8)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    one, two = read_state(tmp_path / "one"), read_state(tmp_path / "two")
    assert one.keys() == two.keys()
    assert RunFolder(tmp_path / "two").read_json("run.json")["processes"] == 2
    largest = max(float(t.abs().max()) for name, t in one.items() if name.endswith(".avg"))
    assert largest > 0
    for name, t in one.items():
        torch.testing.assert_close(two[name], t, rtol=1e-9, atol=1e-12 * largest, msg=lambda m, n=name: f"{n}: {m}")


def test_batch_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    three = SimpleNamespace(world_size=3, is_global_zero=True)
    with pytest.raises(ValueError, match="batch_size: expected a multiple of the 3 processes, got 8"):
        Trainer(Tiny(TinyConfig()), RunFolder(tmp_path), Environment(), three)
    with pytest.raises(ValueError, match="batch_size: expected at most the 40 samples, got 41"):
        run_tiny(tmp_path, batch_size=41)


def test_half_precision_weights_train(tmp_path: Path) -> None:
    run_tiny(tmp_path, environment=Environment(accelerator="cpu", precision="bf16-true"), epochs=1)
    state = read_state(tmp_path)
    assert state["network.routings.0.W"].dtype == torch.bfloat16
    assert state["optimizer.0.avg"].dtype == torch.float32
    assert all(t.isfinite().all() for t in state.values())


@pytest.mark.parametrize("accelerator", ["gpu", "toaster"])
def test_missing_accelerator_is_a_message(accelerator: str) -> None:
    if accelerator == "gpu" and (torch.cuda.is_available() or torch.backends.mps.is_available()):
        pytest.skip("there is a GPU here")
    with pytest.raises(UserError, match=rf"accelerator={accelerator}, devices=1, .*--accelerator cpu works everywhere"):
        Environment(accelerator=accelerator).launch()


def test_capture_obstacles_are_named() -> None:
    resident, streamed = SimpleNamespace(on_device=True), SimpleNamespace(on_device=False)
    gpu = SimpleNamespace(device=torch.device("cuda"), world_size=1)
    assert find_capture_obstacle(gpu, resident) is None
    assert find_capture_obstacle(gpu, streamed) == "the data does not fit on the device"
    gpu.world_size = 2
    assert find_capture_obstacle(gpu, resident) == "several processes exchange gradients"
    gpu.device = torch.device("cpu")
    assert find_capture_obstacle(gpu, resident) == "only a CUDA device has graphs"


def test_failed_capture_falls_back_to_plain_steps(tmp_path: Path) -> None:
    environment = Environment(accelerator="cpu")
    trainer = Trainer(Tiny(TinyConfig()), RunFolder(tmp_path), environment, environment.launch())
    assert trainer.obstacle == "only a CUDA device has graphs"

    def refuse() -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    trainer.obstacle, trainer.step.capture = None, refuse
    trainer.prepare()
    assert trainer.obstacle == "it cannot be captured: operation not permitted when stream is capturing"
    trainer.step()
    assert trainer.step.record[0].isfinite().all()


def test_copied_tensors_restore_state_in_place() -> None:
    parameter, counts = torch.nn.Parameter(torch.randn(3)), torch.arange(3)
    state, places = [parameter, counts], [parameter.data_ptr(), counts.data_ptr()]
    copies = [torch.zeros_like(t) for t in state]
    copy_tensors(state, copies)
    expected = parameter.detach().clone()
    with torch.no_grad():
        parameter.add_(1)
    counts.zero_()
    copy_tensors(copies, state)
    assert torch.equal(parameter, expected)
    assert torch.equal(counts, torch.arange(3))
    assert [t.data_ptr() for t in state] == places
    assert parameter.requires_grad


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux")
def test_full_size_step_takes_little_memory() -> None:
    """The paper's network, batch 20, 96x96: at most 1.5 GiB above the idle process."""
    code = """
import torch
from pathlib import Path
from capsroute.nets import SmallNORB
from capsroute.lab.training.radam import ScheduledRAdam
from capsroute.lab.training.regime import mixed_loss
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20
network = SmallNORB()
optimizer = ScheduledRAdam(network.parameters(), [(1e-4, 0.9)] * 2)
images, target, weight = torch.rand(20, 2, 96, 96), torch.randint(5, (20,)), torch.rand(20)
idle = peak()
for step in range(2):
    network.zero_grad()
    mixed_loss(network(images).a, target, target.flip(0), weight)[0].backward()
    optimizer.step(torch.tensor([step]))
print(peak() - idle)
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0.1 < float(answer.stdout) < 1.5
