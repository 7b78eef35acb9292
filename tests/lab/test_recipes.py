"""Recipes, and the record of when they were tested."""

import csv
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from capsroute.lab.training.config import SettingError
from capsroute.lab.training.experiments import RECIPES, complete_config, make_config
from capsroute.lab.training.vision import Vision, VisionConfig
from small_vision import SplitLog, load_noise
from test_own_training import refuse, run

SHORT = ("--accelerator", "cpu", "--set", "epochs=1", "--set", "train_on=40", "--set", "n_parts=2")


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> SplitLog:
    """Return the splits that are loaded; toys are noise."""
    log: SplitLog = []
    monkeypatch.setattr("capsroute.lab.data.toys.load", load_noise(log))
    return log


def test_recipe_of_the_paper_is_the_experiment() -> None:
    assert complete_config("smallnorb", []) == complete_config("smallnorb", [], "paper") == make_config("smallnorb")
    assert complete_config("sst5", []) == complete_config("sst5", [], "paper")


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_train_the_papers_network(recipe: str) -> None:
    """They have its parameters, and 50 epochs."""
    config = complete_config("smallnorb", [], recipe)
    assert isinstance(config, VisionConfig)
    assert config.epochs == 50
    assert sum(p.numel() for p in Vision(config).network().parameters()) == 271_688


def test_our_recipe_is_named_and_settings_come_after_it(tmp_path: Path, splits: SplitLog) -> None:
    assert complete_config("smallnorb", ["weight_decay=0.3"], "ours").weight_decay == 0.3
    run("train", "debug", "--recipe", "ours", *SHORT, "--out", tmp_path / "ours")
    run("train", "debug", *SHORT, "--out", tmp_path / "paper")
    ours, paper = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "paper"))
    assert ours == paper | {"weight_decay": 0.1}
    assert "recipe: expected one of paper, ours, got 'theirs'" in refuse("train", "debug", "--recipe", "theirs")
    assert "recipe: expected paper for treebank" in refuse("train", "treebank", "--recipe", "ours")
    assert "--resume takes everything" in refuse("train", "--resume", tmp_path / "ours", "--recipe", "ours")
    with pytest.raises(SettingError, match="expected one of paper, ours"):
        complete_config("smallnorb", [], "theirs")


def read_rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_reading_of_test_samples_is_written_down_once(tmp_path: Path, splits: SplitLog) -> None:
    """Before the first test sample is read; the same runs may be tested again, others of the recipe may not."""
    file, before = tmp_path / "deeper" / "readings.csv", datetime.now(UTC)
    words = ("replicate", "debug", "--recipe", "ours", *SHORT, "--readings", file)
    run(*words, "--seeds", 2, "--out", tmp_path / "one", "--note", "first")
    assert splits == sorted(splits, reverse=True)  # all training before all tests
    assert splits.count("test") >= 2
    (row,) = read_rows(file)
    read = datetime.fromisoformat(row["read"])
    assert 0 <= (read - before.replace(microsecond=0)).total_seconds() < 600
    assert (row["experiment"], row["seeds"], row["note"]) == ("debug", "2", "first")
    assert row["folder"] == str(tmp_path / "one")
    assert "weight_decay=0.1" in row["settings"]
    run(*words, "--seeds", 2, "--out", tmp_path / "one")
    assert len(read_rows(file)) == 1
    splits.clear()
    for other in (("--seeds", 2, "--out", tmp_path / "two"), ("--seeds", 3, "--out", tmp_path / "one")):
        message = refuse(*words, *other, "--set", "validate_every=2")
        assert f"this recipe was tested on {row['read']}, 2 seeds in {tmp_path / 'one'}; --again" in message
    assert not splits
    assert not (tmp_path / "two").exists()
    run(*words, "--seeds", 1, "--out", tmp_path / "two", "--again")
    run(*words, "--seeds", 1, "--out", tmp_path / "three", "--set", "weight_decay=0.2")
    assert [row["recipe"] == other["recipe"] for other in read_rows(file)] == [True, True, False]


def test_edited_readings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "readings.csv").write_text("read,recipe\n")
    words = ("replicate", "debug", *SHORT, "--out", tmp_path / "out", "--readings", tmp_path / "readings.csv")
    assert "readings.csv: expected the columns read, recipe, experiment" in refuse(*words)
