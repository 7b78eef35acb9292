"""The command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import capsroute
from capsroute.lab.cli import app
from capsroute.lab.training.experiments import EXPERIMENTS
from capsroute.nets import SST, SmallNORB
from capsroute.pretrained import ALIASES, HOME, SHIPPED
from capsroute.testing import SHAPES
from conftest import ROOT
from small_vision import load_noise

runner = CliRunner(env={"COLUMNS": "80"})
COMMANDS = (
    *("train", "study", "sweep", "replicate", "eval", "report", "figures", "convert"),
    *("predict", "explain", "export", "serve", "demo", "list", "info"),
)


def succeed(*words: str) -> str:
    """Run a command and return its output."""
    result = runner.invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def refuse(*words: str) -> str:
    """Run a command that must fail, and return its message on one line."""
    result = runner.invoke(app, list(words))
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)  # a message, not a traceback
    return " ".join(result.output.split())


def test_version_and_help() -> None:
    assert succeed("--version") == f"capsroute {capsroute.__version__}\n"
    assert all(command in runner.invoke(app, []).output for command in COMMANDS)
    for command in (*([c] for c in COMMANDS), ["data", "fetch"], ["data", "check"]):
        assert f"Example: capsroute {' '.join(command)}" in " ".join(succeed(*command, "--help").split())
    for command in ("eval", "predict", "figures"):  # one meaning of names everywhere
        assert ", ".join([*SHIPPED, *ALIASES]) in " ".join(succeed(command, "--help").replace("│", " ").split())


def test_info_names_shapes_and_obstacles() -> None:
    output = succeed("info")
    assert all(name in output for name in SHAPES)
    assert "torch" in output
    assert "auto" in output
    on_mps = " ".join(succeed("info", "--device", "mps").split())
    assert "no (1)" in on_mps
    assert "(1) " in on_mps.partition("no (1)")[2]
    assert "the device has no float64" in on_mps


@pytest.mark.parametrize("bad", [["--agreement", "cauchy"], ["--device", "toaster"]])
def test_info_refuses_unknown_names(bad: list[str]) -> None:
    result = runner.invoke(app, ["info", *bad])
    assert result.exit_code == 2
    assert bad[1] in result.output
    assert "Traceback" not in result.output


def test_list_names_experiments_and_true_training_commands() -> None:
    output = " ".join(succeed("list").split())
    for name in (*EXPERIMENTS, *SHIPPED, *ALIASES):
        assert name in output
    assert "capsroute train sst5 --set encoder=sentence-transformers/all-MiniLM-L6-v2" in output
    assert "…" not in output


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--vrsion"], "; did you mean --version?"),
        (["train", "toys", "--sed", "3"], "; did you mean --seed or --set?"),
        (["data", "check", "sst", "--foldr", "x"], "; did you mean --folder?"),
        (["list", "--zzz"], ""),
    ],
)
def test_unknown_option_is_one_line(words: list[str], hint: str) -> None:
    result = runner.invoke(app, words)
    option = next(word for word in words if word.startswith("--"))
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{option}: no such option{hint}\n")
    assert "Did you mean 'train'?" in runner.invoke(app, ["trian"]).output


@pytest.mark.parametrize("command", ["train", "replicate"])
def test_training_refuses_unknown_names_and_devices(command: str) -> None:
    assert "mnist: no such experiment, expected one of toys" in refuse(command, "mnist")
    message = refuse(command, "smallnorb", "--set", "epoch=1")
    assert message == "epoch: smallnorb has no such field; did you mean epochs?"
    if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        assert refuse(command, "debug", "--accelerator", "gpu").startswith("accelerator=gpu, devices=1")


def test_training_needs_experiment_or_run(tmp_path: Path) -> None:
    assert "name an experiment" in refuse("train")
    assert "--resume takes everything from the run's folder" in refuse("train", "toys", "--resume", "somewhere")
    assert "not the folder of a run" in refuse("train", "--resume", str(tmp_path))
    assert "expected the folder of a run" in refuse("report", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert "there is a run here" in refuse("train", "debug", "--out", str(tmp_path))


def test_missing_data_names_fetch_command(tmp_path: Path) -> None:
    output = refuse("train", "smallnorb", "--set", f"folder={tmp_path}", "--out", str(tmp_path / "run"))
    assert "capsroute data fetch smallnorb" in output
    assert not (tmp_path / "run").exists()


def test_eval_refuses_other_names_and_splits(tmp_path: Path) -> None:
    assert "expected the folder of a run, a folder of weights, or one of" in refuse("eval", str(tmp_path))
    assert "split: expected test, train or validation" in refuse("eval", "smallnorb", "--split", "all")
    SmallNORB(n_parts=2, n_channels=2).save_pretrained(tmp_path)
    assert "say which data to use, for example --on smallnorb" in refuse("eval", str(tmp_path))


def test_eval_refuses_other_number_of_classes(tmp_path: Path) -> None:
    SST(depth=4, d_emb=32, n_classes=3, encoder="none").save_pretrained(tmp_path / "texts")
    message = refuse("eval", str(tmp_path / "texts"), "--on", "sst5")
    assert "expected a network with 5 classes (very negative, " in message
    assert message.endswith("got one with 3")
    SmallNORB(n_parts=2, n_channels=2, n_classes=3).save_pretrained(tmp_path / "images")
    assert refuse("eval", str(tmp_path / "images"), "--on", "toys").endswith("got one with 3")
    assert "expected weights for text-classification" in refuse("eval", str(HOME / "toys"), "--on", "sst5")


def test_short_names_mean_shipped_weights_everywhere(tmp_path: Path) -> None:
    for alias, name in ALIASES.items():
        one, other = (capsroute.load(k).state_dict() for k in (alias, name))
        assert all(torch.equal(t, other[key]) for key, t in one.items())
        gone = tmp_path / "gone"  # both commands get as far as the data or the encoder
        assert str(tmp_path) in refuse("eval", alias, "--set", f"folder={tmp_path}", "--set", f"encoder={gone}")
        assert str(gone) in refuse("predict", alias, "a film", "--encoder", str(gone))
        assert f"{alias}: these weights come without a run" in refuse("report", alias)
        assert "reads sentences" in refuse("figures", alias, "--out", str(tmp_path))


def test_data_check_shows_full_names_and_fails_for_missing_files(tmp_path: Path) -> None:
    result = runner.invoke(app, ["data", "check", "smallnorb", "--folder", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.count("missing") == 6
    for split, part in (("training", "5x46789"), ("testing", "5x01235")):
        for kind in ("dat", "cat", "info"):
            assert f"smallnorb-{part}x9x18x6x2x96x96-{split}-{kind} " in result.output
    assert "name: expected one of smallnorb, sst, got 'mnist'" in refuse("data", "fetch", "mnist")


@pytest.mark.data
def test_convert_writes_folder_that_loads(data: Path, tmp_path: Path) -> None:
    official = data / "official_checkpoints/smallNORB_pretrained_model_state_dict.pt"
    assert "271,688 parameters" in succeed("convert", str(official), str(tmp_path / "out"))
    one, other = SmallNORB.from_official(official), SmallNORB.from_pretrained(tmp_path / "out")
    assert all(torch.equal(t, other.state_dict()[name]) for name, t in one.state_dict().items())


def test_convert_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"")
    assert "w.pt: expected the weights" in refuse("convert", str(tmp_path / "w.pt"), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("typer", [], "train"),
        ("lightning", ["train", "debug"], "train"),
        ("transformers", ["predict", "treebank", "a film"], "text"),
    ],
)
def test_missing_package_names_extra(missing: str, words: list[str], extra: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from capsroute.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{missing} is not installed: pip install 'capsroute[{extra}]'" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_train_report_eval_and_replicate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands on tiny toys, in the order a user meets them."""
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("capsroute.lab.data.toys.load", load_noise([]))
    run, few = tmp_path / "run", ["--set", "epochs=1", "--set", "train_on=60", "--set", "validate_on=20"]
    assert "on instances never seen in training" in succeed("train", "debug", "--out", str(run), "--report", *few)
    assert (run / "report.html").exists()
    tested = json.loads((run / "test.json").read_text())
    assert tested["total"] == 100
    assert json.loads(succeed("eval", str(run), "--json"))["right"] == tested["right"]
    several = tmp_path / "several"
    for _ in range(2):  # the second finds every run finished
        succeed(
            "replicate", "debug", "--seeds", "2", "--out", str(several), "--readings", str(tmp_path / "r.csv"), *few
        )
    summary = json.loads((several / "replicate.json").read_text())
    accuracies = [row["accuracy"] for row in summary["runs"]]
    assert summary["mean"] == pytest.approx(sum(accuracies) / 2)
    assert summary["standard deviation"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    configs = [json.loads((several / f"seed-{k}/config.json").read_text()) for k in range(2)]
    assert [(config["seed"], config["held_out"]) for config in configs] == [(0, 0), (1, 0)]
