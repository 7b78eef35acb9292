"""The command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from capsroute.lab.cli import app
from capsroute.lab.data import Pairs
from capsroute.lab.data.toys import make_labels
from capsroute.lab.training.experiments import EXPERIMENTS
from capsroute.nets import SmallNORB
from capsroute.pretrained import SHIPPED
from capsroute.routing import triton
from capsroute.testing import SHAPES

runner = CliRunner()


def test_info_names_every_shape_and_why_an_implementation_cannot_run_it() -> None:
    result = runner.invoke(app, ["info"])
    assert result.exit_code == 0
    assert all(name in result.output for name in SHAPES)
    assert "torch" in result.output
    assert "(1) parameters differ between inputs" in result.output


@pytest.mark.parametrize(("lacking", "said"), [("", "by C++"), ("no compiler", "by Python: no compiler")])
def test_info_says_who_starts_fused_kernels(lacking: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "FOUND", {"cuda": "", "cpu": "no GPU"})
    monkeypatch.setattr(triton, "ready", lambda: lacking)
    assert f"plain calls of triton are started {said}\n" in runner.invoke(app, ["info", "--device", "cuda"]).output
    assert "plain calls" not in runner.invoke(app, ["info"]).output


def test_info_for_a_device_without_float64() -> None:
    result = runner.invoke(app, ["info", "--device", "mps"])
    assert result.exit_code == 0
    assert "the device has no float64" in result.output


@pytest.mark.parametrize("bad", [["--agreement", "cauchy"], ["--device", "toaster"]])
def test_info_refuses_what_it_does_not_know(bad: list[str]) -> None:
    result = runner.invoke(app, ["info", *bad])
    assert result.exit_code == 2
    assert bad[1] in result.output
    assert "Traceback" not in result.output


def test_no_command_shows_the_help() -> None:
    assert "info" in runner.invoke(app, []).output


def refused(*words: str, code: int = 1) -> str:
    """What a command says when it refuses: one message, no traceback."""
    result = runner.invoke(app, list(words))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_list_names_experiments_and_shipped_weights() -> None:
    output = runner.invoke(app, ["list"]).output
    for name in (*EXPERIMENTS, *SHIPPED):
        assert name in output


@pytest.mark.parametrize("command", ["train", "replicate"])
def test_training_refuses_what_it_does_not_know(command: str) -> None:
    assert "mnist: no such experiment, expected one of toys" in refused(command, "mnist")
    assert "epoch: no such field; did you mean epochs?" in refused(command, "smallnorb", "--set", "epoch=1")


def test_training_needs_an_experiment_or_a_run() -> None:
    assert "name an experiment" in refused("train")
    assert "--resume takes everything from the run's folder" in refused("train", "toys", "--resume", "somewhere")


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    for words in (["train", "--resume"], ["report"]):
        assert "not the folder of a run" in refused(*words, str(tmp_path))


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "there is a run here" in refused("train", "debug", "--out", str(tmp_path))


def test_missing_data_says_what_to_do(tmp_path: Path) -> None:
    output = refused("train", "smallnorb", "--set", f"folder={tmp_path}", "--out", str(tmp_path / "run"))
    assert "capsroute data fetch smallnorb" in output
    assert not (tmp_path / "run").exists()


def test_eval_refuses_what_is_not_weights(tmp_path: Path) -> None:
    assert "expected the folder of a run, a folder of weights, or one of" in refused("eval", str(tmp_path))
    assert "split: expected test, train or validation" in refused("eval", "smallnorb", "--split", "all")


def test_check_lists_every_file_and_fails_where_one_is_missing(tmp_path: Path) -> None:
    result = runner.invoke(app, ["data", "check", "smallnorb", "--folder", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.count("missing") == 6


def test_only_known_data_is_fetched() -> None:
    assert "name: expected one of smallnorb, sst, got 'mnist'" in refused("data", "fetch", "mnist")


@pytest.mark.data
def test_convert_writes_a_folder_that_loads(data: Path, tmp_path: Path) -> None:
    official = data / "official_checkpoints/smallNORB_pretrained_model_state_dict.pt"
    result = runner.invoke(app, ["convert", str(official), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "271,688 parameters" in result.output
    one, other = SmallNORB.from_official(official), SmallNORB.from_pretrained(tmp_path / "out")
    assert all(torch.equal(t, other.state_dict()[name]) for name, t in one.state_dict().items())


def test_convert_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"")
    assert "w.pt: expected the weights" in refused("convert", str(tmp_path / "w.pt"), str(tmp_path / "out"))


@pytest.mark.slow
def test_train_report_and_eval_of_a_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands on tiny toys, in the order a user meets them."""
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("capsroute.lab.data.toys.load", few_toys)
    run = tmp_path / "run"
    result = runner.invoke(app, ["train", "debug", "--out", str(run), "--report"])
    assert result.exit_code == 0, result.output
    assert "on instances never seen in training" in result.output
    assert (run / "report.html").exists()
    assert json.loads((run / "test.json").read_text())["total"] == 100
    result = runner.invoke(app, ["eval", str(run), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["right"] == json.loads((run / "test.json").read_text())["right"]
    several = tmp_path / "several"
    for _ in range(2):  # the second finds everything done
        result = runner.invoke(app, ["replicate", "debug", "--seeds", "2", "--out", str(several)])
        assert result.exit_code == 0, result.output
    summary = json.loads((several / "replicate.json").read_text())
    accuracies = [row["accuracy"] for row in summary["runs"]]
    assert summary["mean"] == pytest.approx(sum(accuracies) / 2)
    assert summary["standard deviation"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert [saved_seed(several, k) for k in range(2)] == [(0, 0), (1, 0)]


def saved_seed(folder: Path, k: int) -> tuple[int, int]:
    """Seed and number of instances held out of a run."""
    config = json.loads((folder / f"seed-{k}/config.json").read_text())
    return config["seed"], config["held_out"]


def few_toys(folder: Path, split: str, size: int, **_: object) -> Pairs:
    """Noise in place of toys, with their labels."""
    category, info = make_labels(split)
    some = np.arange(0, len(category), 40)
    images = np.random.default_rng(0).integers(0, 256, (len(some), 2, size, size), dtype=np.uint8)
    return Pairs(images, category[some], info[some])
