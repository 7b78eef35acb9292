"""Studies and sweeps: which runs they make, what their table says, and that they can be stopped."""

import csv
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsroute.lab.errors import UserError
from capsroute.lab.training.config import SettingError
from capsroute.lab.training.experiments import make_config, make_task
from capsroute.lab.training.parallel import map_in_processes
from capsroute.lab.training.runs import RunFolder, read_checkpoint
from capsroute.lab.training.study import compare, make_grid, read_study
from conftest import ROOT
from own_data import make_points
from small_vision import SplitLog, load_noise
from test_own_training import refuse, run

pytest.importorskip("optuna")

TINY = """
experiment = "debug"
folds = 2
seeds = 2

[common]
epochs = 1
train_on = 40
validate_on = 20
n_parts = 2

[settings]
paper = {}
"decay, smooth" = { weight_decay = 0.1, label_smoothing = 0.1 }
"""


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("own") / "sets.npz"
    np.savez(file, **make_points(20))
    return file


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> SplitLog:
    """Return the splits that are loaded; toys are noise."""
    log: SplitLog = []
    monkeypatch.setattr("capsroute.lab.data.toys.load", load_noise(log))
    return log


def test_study_runs_settings_on_held_out_toys(tmp_path: Path, splits: SplitLog) -> None:
    """Differences are those of runs with the same toys and seed, and no test sample is loaded."""
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    output = run("study", file, "--out", tmp_path, "--accelerator", "cpu").output
    assert output.count("has ended") == 8
    assert set(splits) == {"train"}
    folder = tmp_path / "study-tiny"
    assert (folder / "comparison.png").stat().st_size
    rows = read_rows(folder / "runs.csv")
    settings = ("paper", "decay, smooth")
    expected = [(name, fold, seed) for name in settings for fold in "01" for seed in "01"]
    assert [(row["setting"], row["fold"], row["seed"]) for row in rows] == expected
    folders = [RunFolder(folder / one.name) for one in read_study(file).runs()]
    for row, one in zip(rows, folders, strict=True):
        config = one.read_json("config.json")
        assert [str(config["fold"]), str(config["seed"]), config["held_out"]] == [row["fold"], row["seed"], 1]
        assert config["weight_decay"] == (0.0 if row["setting"] == "paper" else 0.1)
        assert float(row["accuracy"]) == one.validation.read()["accuracy"][-1]
        assert not one.scores.exists()
    assert folders[0].read_record()["instances held out"] != folders[2].read_record()["instances held out"]
    table = {row["setting"]: row for row in read_rows(folder / "comparison.csv")}
    accuracy = [float(row["accuracy"]) for row in rows]
    differences = [other - one for one, other in zip(accuracy[:4], accuracy[4:], strict=True)]
    by_toy = [statistics.mean(differences[:2]), statistics.mean(differences[2:])]
    assert float(table["decay, smooth"]["difference"]) == pytest.approx(statistics.mean(by_toy))
    assert float(table["decay, smooth"]["standard error"]) == pytest.approx(statistics.stdev(by_toy) / 2**0.5)
    assert table["paper"]["difference"] == ""
    again = run("study", file, "--out", tmp_path, "--accelerator", "cpu").output
    assert "has ended" not in again
    assert again.splitlines()[-4:] == output.splitlines()[-4:]


def test_differences_are_paired() -> None:
    """They leave out runs without a counterpart; of one fold, the standard error is over seeds."""
    rows: list[dict[str, Any]] = [
        {"setting": setting, "fold": 0, "seed": seed, "accuracy": accuracy, "step at 90%": step, "seconds": 1.0}
        for setting, seed, accuracy, step in [
            *[("base", 0, 0.9, 10), ("base", 1, 0.7, None), ("base", 3, 0.5, 30)],
            *[("new", 0, 0.93, 10), ("new", 1, 0.71, 20), ("new", 2, 0.1, 30)],
        ]
    ]
    rows.append({"setting": "new", "fold": 0, "seed": 3, "problem": "the loss is not finite"})
    base, new = compare(rows, "base")
    assert (base["setting"], new["setting"]) == ("base", "new")
    assert (base["runs"], new["runs"], base["failed"], new["failed"]) == (3, 3, 0, 1)
    assert base["accuracy"] == pytest.approx(0.7)
    assert base["deviation"] == pytest.approx(0.2)
    assert base["difference"] is None
    assert base["step at 90%"] is None
    assert new["step at 90%"] == 20
    assert new["difference"] == pytest.approx(0.02)
    assert new["standard error"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("experiment", "cannot be read as TOML"),
        ("", "expected an experiment"),
        ("experiment = 'debug'\n[settings]\na = 1", "below [settings] a table of FIELD = VALUE for each name"),
        ("experiment = 'debug'\nsplit = 'test'", "split: no such entry, expected some of experiment, settings"),
        ("experiment = 'debug'\nseeds = 0", "seeds: expected a whole number above 0, got 0"),
        ("experiment = 'debug'\nseeds = true", "seeds: expected a whole number above 0, got True"),
        ("experiment = 'debug'\nsettings = 3", "settings: expected a table, got 3"),
        ("experiment = 'debug'\n[settings]\na = {epoch = 1}", "epoch: debug has no such field; did you mean epochs?"),
        ("experiment = 'debug'\nfolds = 6\n[settings]\na = {}", "a: fold: expected below the number of folds"),
        ("experiment = 'treebank'\nfolds = 2\n[settings]\na = {}", "folds: expected 1 for treebank"),
        (
            "experiment = 'debug'\nfolds = 2\n[settings]\na = {fold = 1}",
            "fold: expected no value in a study, which has a number of folds",
        ),
        ("experiment = 'debug'\n[settings]\na = {held_out = 0}", "held_out: expected more than 0"),
        ("experiment = 'debug'\nrecipe = 'x'\n[settings]\na = {}", "recipe: expected one of paper, ours, got 'x'"),
    ],
)
def test_mistakes_in_a_study_are_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(text)
    assert words in refuse("study", file, "--out", tmp_path, "--accelerator", "cpu")
    assert not list(tmp_path.glob("study-*/*-seed*"))


def test_values_of_a_study_are_settings(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'experiment = "toys"\nrecipe = "ours"\n[common]\nlr_max = 1e-3\n[settings]\na = {kinds = true, routing = "em"}'
    )
    (one,) = read_study(file).runs()
    assert (one.config.lr_max, one.config.weight_decay, one.setting) == (1e-3, 0.1, "a")
    assert (getattr(one.config, "kinds", None), getattr(one.config, "routing", None)) == (True, "em")


STUDIES = sorted(ROOT.glob("results/**/*.toml"))
STUDIES = [file for file in STUDIES if "\ndata = " not in file.read_text()]  # others name files that are not here


@pytest.mark.parametrize("file", STUDIES, ids=lambda path: path.stem)
def test_studies_in_results_can_be_run(file: Path) -> None:
    """Their runs have other settings each, and networks of at most 310,000 parameters."""
    runs = read_study(file).runs()
    assert len({one.key for one in runs}) == len({one.name for one in runs}) == len(runs)
    for one in runs:
        network: Any = make_task(one.config).network()
        assert sum(p.numel() for p in network.parameters()) <= 310_000


def test_grid_has_every_combination() -> None:
    study = make_grid("toys", ["epochs=1", "lr_max=1e-3,2e-3", "n_parts=2,4,2"], 3)
    assert list(study.settings) == [f"lr_max={lr}, n_parts={n}" for lr in ("1e-3", "2e-3") for n in (2, 4)]
    assert len(study.runs()) == 12
    assert {run.config.epochs for run in study.runs()} == {1}


def test_sweep_compares_on_validation_and_goes_on(sets: Path, tmp_path: Path) -> None:
    words = ("sweep", "arrays", sets, "--set", "epochs=1", "--set", "n_parts=2,4", "--accelerator", "cpu")
    assert "run 4 of 4, n_parts=4-fold0-seed1, has ended" in run(*words, "--seeds", 2, "--out", tmp_path).output
    assert [row["runs"] for row in read_rows(tmp_path / "comparison.csv")] == ["2", "2"]
    assert "has ended" not in run(*words, "--seeds", 2, "--out", tmp_path).output
    shutil.rmtree(tmp_path / "n_parts=2-fold0-seed0")  # which the record knows
    assert run(*words, "--seeds", 3, "--out", tmp_path).output.count("has ended") == 2
    others = [word if word != "epochs=1" else "epochs=2" for word in words]
    assert "with other settings" in refuse(*others, "--seeds", 2, "--out", tmp_path)
    assert "expected one with several values" in refuse("sweep", "arrays", sets, "--set", "epochs=1")
    assert "seed: expected no value in a study" in refuse("sweep", "arrays", sets, "--set", "seed=1,2")
    none_held_out = ("--set", "validation_share=0", "--set", "n_parts=1,2")
    assert "validation_share" in refuse("sweep", "arrays", sets, *none_held_out)


def test_seeds_train_at_once(sets: Path, tmp_path: Path) -> None:
    words = ("replicate", "arrays", sets, "--set", "epochs=1", "--seeds", 2, "--readings", tmp_path / "readings.csv")
    output = run(*words, "--jobs", 2, "--out", tmp_path / "both", "--accelerator", "cpu").output
    assert output.count("trained in") == 2
    runs = [RunFolder(tmp_path / "both" / f"seed-{seed}") for seed in range(2)]
    assert all(one.finished and one.scores.exists() for one in runs)
    assert len({one.read_record()["weights"] for one in runs}) == 2


def test_run_that_diverges_is_counted_and_others_go_on(sets: Path, tmp_path: Path) -> None:
    words = ("sweep", "arrays", sets, "--set", "epochs=2", "--set", "lr_max=1e30,1e-3", "--set", "warmup=0.01")
    output = run(*words, "--out", tmp_path, "--accelerator", "cpu").output
    assert "is not finite" in output
    assert [row["failed"] for row in read_rows(tmp_path / "comparison.csv")] == ["0", "1"]
    assert "has ended" not in run(*words, "--out", tmp_path, "--accelerator", "cpu").output


def test_processes_return_results_and_errors() -> None:
    calls = [("toys",), ("smallnorb",), ("debug",)]
    found = dict(map_in_processes(2, make_config, calls))
    assert [found[k].experiment for k in range(3)] == [name for (name,) in calls]
    with pytest.raises(SettingError, match="mnist: no such experiment"):
        list(map_in_processes(2, make_config, [("mnist",), ("toys",)]))
    with pytest.raises(UserError, match="a process died"):
        list(map_in_processes(2, os._exit, [(1,)]))


@pytest.mark.slow
def test_stopped_jobs_are_saved_and_go_on(sets: Path, tmp_path: Path) -> None:
    """Two runs train at once; they save their state when the process above them is gone, and at Ctrl-C."""
    words = ["sweep", "arrays", str(sets), "--set", "n_parts=2,4", "--set", "epochs=5000", "--set", "log_every=1"]
    command = [sys.executable, "-m", "capsroute", *words, "--jobs", "2", "--out", str(tmp_path), "--accelerator", "cpu"]
    folders = [RunFolder(tmp_path / f"n_parts={n}-fold0-seed0") for n in (2, 4)]

    def stop_after(steps: list[int], number: signal.Signals) -> tuple[int, str]:
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, **options) as process:
            wait_until(
                lambda: all(f.training.read().get("step", [0])[-1] > n for f, n in zip(folders, steps, strict=True))
            )
            process.send_signal(number)
            _, message = process.communicate(timeout=60)  # whose end is that of all processes
        return process.returncode, message

    assert stop_after([5, 5], signal.SIGKILL) == (-signal.SIGKILL, "")
    steps = [read_checkpoint(folder.checkpoint)[1]["step"] for folder in folders]
    assert min(steps) > 5
    assert stop_after(steps, signal.SIGINT) == (130, "stopped and saved; the same command goes on\n")
    for folder, step in zip(folders, steps, strict=True):
        assert [entry["step"] for entry in folder.read_record()["resumed"]] == [step]
        assert read_checkpoint(folder.checkpoint)[1]["step"] > step


def wait_until(happens: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_sweep_by_ray_gives_what_one_process_gives(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data and runs have relative names, and what is done is not repeated, by either."""
    pytest.importorskip("ray", reason="ray is missing: pip install 'capsroute[ray]'")
    monkeypatch.chdir(tmp_path)
    shutil.copy(sets, "sets.npz")
    words = ("sweep", "arrays", "sets.npz", "--set", "epochs=1", "--set", "n_parts=2,4", "--accelerator", "cpu")
    assert run(*words, "--out", "ray", "--ray", "local").output.count("has ended") == 2
    run(*words, "--out", "alone")
    one, other = (
        [(row["setting"], row["accuracy"]) for row in read_rows(tmp_path / name / "runs.csv")]
        for name in ("ray", "alone")
    )
    assert one == other
    assert "has ended" not in run(*words, "--out", "ray").output
    assert "run 3 of 4" in run(*words, "--out", "ray", "--seeds", 2).output
    assert "gpus: expected at most" in refuse(*words, "--out", "other", "--ray", "local", "--gpus", 1000)


def test_sweep_says_what_ray_needs(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ("sweep", "arrays", sets, "--set", "n_parts=2,4", "--out", tmp_path / "out")
    assert "ray is not installed: pip install 'capsroute[ray]'" in refuse(*words, "--ray", "local")
    assert "expected --ray with them" in refuse(*words, "--cpus", 2)
    assert "expected --cpus and --gpus with --ray" in refuse(*words, "--ray", "local", "--jobs", 2)
    assert not (tmp_path / "out").exists()
