"""Folders of runs: made once, locked while they are written, complete or resumable, damage and edits told in words."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from capsroute.lab.atomic_files import atomic_write, staging_folder, write_atomically
from capsroute.lab.cli import app
from capsroute.lab.errors import StoppedError, UserError
from capsroute.lab.training.config import SettingError
from capsroute.lab.training.environment import Environment
from capsroute.lab.training.evaluate import score_run
from capsroute.lab.training.experiments import find_weights, make_config, read_config
from capsroute.lab.training.runs import CheckpointError, RunFolder, read_checkpoint
from tiny import Tiny, TinyConfig, run_tiny

ONE = SimpleNamespace(is_global_zero=True, broadcast=lambda value: value)  # process


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("complete") / "run"
    run_tiny(folder, epochs=1)
    return folder


@pytest.fixture
def run(complete: Path, tmp_path: Path) -> RunFolder:
    """A copy of a finished run."""
    return RunFolder(Path(shutil.copytree(complete, tmp_path / "run")))


def edit_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def flip_bit(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)


def test_runs_of_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [RunFolder.create(make_config("debug"), None, ONE).path for _ in range(5)]
    assert len(set(folders)) == 5
    assert all(folder.is_dir() for folder in folders)


def test_run_is_not_overwritten(run: RunFolder) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    for start in (lambda: RunFolder.create(make_config("debug"), str(run.path), ONE), lambda: run_tiny(run.path)):
        with pytest.raises(UserError, match="there is a run here; continue it with `capsroute train --resume"):
            start()
    assert {path: path.read_bytes() for path in before} == before


def test_run_is_locked_while_it_is_written(tmp_path: Path, run: RunFolder) -> None:
    with run.lock(), pytest.raises(UserError, match=f"{run.path}: another process is training here"):
        run_tiny(run.path, resume=True, epochs=1)
    run_tiny(run.path, resume=True, epochs=1)  # the lock is free again
    with RunFolder(tmp_path / "new").lock(), pytest.raises(UserError, match="another process is training here"):
        run_tiny(tmp_path / "new")


def test_run_killed_at_its_start_resumes(tmp_path: Path, complete: Path) -> None:
    run = RunFolder(tmp_path)
    shutil.copy(complete / "config.json", tmp_path)  # the first file that is written
    with pytest.raises(CheckpointError, match="the run has not finished; go on with `capsroute train --resume"):
        find_weights(str(tmp_path))
    run_tiny(tmp_path, resume=True, epochs=1)
    assert run.weights.read_bytes() == RunFolder(complete).weights.read_bytes()
    assert "resumed" not in run.read_record()


def test_run_killed_at_its_end_is_not_finished(run: RunFolder) -> None:
    record = run.read_record()
    weights = record.pop("weights")
    run.write_json("run.json", record)  # the last thing written
    shutil.copy(run.weights, run.model / "model.safetensors.1.tmp")
    with pytest.raises(CheckpointError, match="the run has not finished; go on with `capsroute train --resume"):
        find_weights(str(run.path))
    run_tiny(run.path, resume=True, epochs=1)
    assert run.read_record()["weights"] == weights
    assert find_weights(str(run.path)).folder == run.model
    assert {path.name for path in run.model.iterdir()} == {"README.md", "config.json", "model.safetensors"}


@pytest.mark.parametrize("damage", [lambda file: flip_bit(file, -100), lambda file: os.truncate(file, 1000)])
def test_damaged_weights_are_told_and_written_again(
    run: RunFolder, complete: Path, damage: Callable[[Path], None]
) -> None:
    damage(run.weights)
    with pytest.raises(CheckpointError, match=r"not the weights the run ended with; .* writes them again"):
        find_weights(str(run.path))
    run_tiny(run.path, resume=True, epochs=1)
    assert run.weights.read_bytes() == RunFolder(complete).weights.read_bytes()


@pytest.mark.parametrize("place", [20, 1000, -1])  # in the header, in its facts or names, in the last tensor
def test_damaged_checkpoint_is_refused(run: RunFolder, place: int) -> None:
    flip_bit(run.checkpoint, place)
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: the checkpoint is damaged"):
        run_tiny(run.path, resume=True, epochs=1)


def test_edited_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run_tiny(tmp_path, stop_after=4)
    edited = r"config.json: batch_size is 10, was 8; epochs is 5, was 3; a run goes on with the settings it began with"
    with pytest.raises(UserError, match=edited):
        run_tiny(tmp_path, resume=True, epochs=5, batch_size=10)
    assert read_checkpoint(tmp_path / "checkpoint.safetensors")[1]["step"] == 4
    run_tiny(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("config.json", "epochs", "3", "expected a whole number, got '3'"),
        ("config.json", "epochs", True, "expected a whole number, got True"),
        ("config.json", "lr_max", None, "expected a number, got None"),
        ("config.json", "validate_on", 2.5, "expected a whole number or none, got 2.5"),
        ("config.json", "data", "mnist", "expected one of toys, smallnorb, got 'mnist'"),
        ("config.json", "folder", ["x"], "expected text, got"),
        ("config.json", "epochs", 0, "expected at least 1, got 0"),
        ("run.json", "parameters", "many", "expected a whole number, got 'many'"),
        ("run.json", "resumed", 5, "expected a list, got 5"),
        ("run.json", "weights", None, "expected a hash, got None"),
    ],
)
def test_wrong_types_in_saved_files_are_named(tmp_path: Path, name: str, field: str, value: object, words: str) -> None:
    run = RunFolder(tmp_path)
    run.write_json("config.json", vars(make_config("debug")))
    run.write_json("run.json", {"parameters": 1})
    edit_json(tmp_path / name, **{field: value})
    read = read_config if name == "config.json" else RunFolder.read_record
    with pytest.raises(SettingError) as caught:
        read(run)
    assert f"{tmp_path / name}: {field}: {words}" in str(caught.value)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, SystemExit)  # a message, not a traceback


def test_deeply_nested_json_is_a_message(run: RunFolder) -> None:
    (run.path / "run.json").write_text("[" * 100_000)
    with pytest.raises(SettingError, match=r"run\.json: cannot be read"):
        run.read_record()


def test_damaged_scores_are_computed_again(run: RunFolder) -> None:
    fabric, task = Environment(accelerator="cpu").launch(), Tiny(TinyConfig(epochs=1))
    scores, result = score_run(run, task, fabric, progress=False)
    flip_bit(run.scores, -1)
    again, same = score_run(run, task, fabric, progress=False)
    assert torch.equal(again, scores)
    assert same == result
    assert torch.equal(read_checkpoint(run.scores)[0]["scores"], scores)


def test_damaged_log_is_named(run: RunFolder) -> None:
    text = run.training.path.read_text()
    run.training.path.write_text(text.replace(".", "x", 1))
    with pytest.raises(UserError, match=r"log\.csv: expected 9 numbers separated by commas"):
        run_tiny(run.path, resume=True, epochs=1)
    run.training.path.unlink()
    run_tiny(run.path, resume=True, epochs=1)


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / ".other.tmp"
    (tmp_path / ".file.tmp").write_bytes(b"left")
    other.write_bytes(b"left")
    with ThreadPoolExecutor(1) as pool:
        with atomic_write(file) as one:
            later = pool.submit(write_atomically, file, b"two")  # waits while another writer is alive
            one.write(b"one")
            assert not file.exists()
        later.result()
    assert file.read_bytes() == b"two"
    assert {path.name for path in tmp_path.iterdir()} == {"file", other.name}
    with pytest.raises(ZeroDivisionError), atomic_write(file) as one:
        one.write(bytes(1 // 0))
    assert file.read_bytes() == b"two"
    other.unlink()
    (tmp_path / ".folder.tmp" / "part").mkdir(parents=True)
    with staging_folder(tmp_path / "folder") as staging:
        assert not list(staging.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"file"}
