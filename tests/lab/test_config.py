"""Settings by name, and what is said of those that do not exist or do not fit."""

import dataclasses
from pathlib import Path

import pytest

from capsroute.lab.training.config import SettingError, change_settings
from capsroute.lab.training.experiments import EXPERIMENTS, make_config, make_task, read_config
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.vision import VisionConfig


def test_settings_get_their_types() -> None:
    config = change_settings(
        make_config("smallnorb"), ["epochs=3", "lr_max=1e-3", "seed=7", "validate_on=none", "folder=a b"]
    )
    assert (config.epochs, config.lr_max, config.seed, config.validate_on) == (3, 1e-3, 7, None)
    assert isinstance(config, VisionConfig)
    assert config.folder == "a b"
    assert make_config("smallnorb").epochs == 50


def test_last_value_counts() -> None:
    assert change_settings(make_config("smallnorb"), ["epochs=3", "epochs=4"]).epochs == 4


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("epoch=3", "epoch: smallnorb has no such field; did you mean epochs?"),
        ("epochs=three", "epochs: expected a whole number, got 'three'"),
        ("epochs=1.5", "epochs: expected a whole number, got '1.5'"),
        ("lr_max=fast", "lr_max: expected a number, got 'fast'"),
        ("data=mnist", "data: expected one of toys, smallnorb, got 'mnist'"),
        ("train_on=", "train_on: expected a whole number or none, got ''"),
        ("experiment=other", "experiment: smallnorb has no such field"),
        ("xyzzy=1", "xyzzy: smallnorb has no such field; the fields are epochs, batch_size, "),
    ],
)
def test_wrong_setting_is_one_line(setting: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        change_settings(make_config("smallnorb"), [setting])
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("epochs", "'epochs': expected FIELD=VALUE"),
        ("epochs=0", "epochs: expected at least 1, got 0"),
        ("held_out=5", "held_out: expected at most 4"),
        ("size=48", "size: expected 96, smallNORB has no other, got 48"),
        ("padding=-1", "padding: expected at least 0, got -1"),
        ("validate_every=nan", "validate_every: expected above 0, got nan"),
    ],
)
def test_value_out_of_range_names_range(setting: str, words: str) -> None:
    with pytest.raises(SettingError, match=words.replace("'", ".")):
        change_settings(make_config("smallnorb"), [setting])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_saved_config_is_read_back(name: str, tmp_path: Path) -> None:
    config, run = make_config(name), RunFolder(tmp_path)
    run.write_json("config.json", dataclasses.asdict(config))
    assert read_config(run) == config
    assert make_task(config).config is config


def test_config_of_another_version_names_file_and_differing_fields(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_json("config.json", dataclasses.asdict(make_config("smallnorb")) | {"dropout": 0.5})
    with pytest.raises(SettingError, match=r"config\.json: .*of another version, they differ in: dropout"):
        read_config(run)


def test_unknown_experiment_lists_experiments() -> None:
    with pytest.raises(SettingError, match="mnist: no such experiment, expected one of toys, toys96, smallnorb"):
        make_config("mnist")


def test_smallnorb_has_the_papers_settings() -> None:
    config = make_config("smallnorb")
    assert isinstance(config, VisionConfig)
    assert (config.epochs, config.batch_size, config.padding, config.mixup) == (50, 20, 16, 0.2)
    assert (config.lr_min, config.lr_max, config.beta1_max, config.beta1_min) == (1e-5, 5e-4, 0.999, 0.8991)
