"""Settings by name: an unknown field or a wrong type is an error that lists the right ones."""

import dataclasses
import json

import pytest

from capsroute.lab.training.config import SettingError, change, from_dict
from capsroute.lab.training.experiments import EXPERIMENTS, config_of, saved_config, task_of
from capsroute.lab.training.vision import VisionConfig


def test_settings_are_applied_in_their_types() -> None:
    config = change(config_of("smallnorb"), ["epochs=3", "lr_max=1e-3", "seed=7", "validate_on=none", "folder=a b"])
    assert (config.epochs, config.lr_max, config.seed, config.validate_on) == (3, 1e-3, 7, None)
    assert config.folder == "a b"
    assert config_of("smallnorb").epochs == 50


def test_the_last_of_a_name_wins() -> None:
    assert change(config_of("smallnorb"), ["epochs=3", "epochs=4"]).epochs == 4


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("epoch=3", "epoch: no such field; did you mean epochs?"),
        ("epochs=three", "epochs: expected a whole number, got 'three'"),
        ("epochs=1.5", "epochs: expected a whole number, got '1.5'"),
        ("lr_max=fast", "lr_max: expected a number, got 'fast'"),
        ("data=mnist", "data: expected one of toys, smallnorb, got 'mnist'"),
        ("train_on=", "train_on: expected a whole number or none, got ''"),
        ("experiment=other", "experiment: no such field"),
    ],
)
def test_a_wrong_setting_lists_the_right_ones(setting: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        change(config_of("smallnorb"), [setting])
    assert words in str(caught.value)
    assert "epochs = 50 (a whole number)" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("epochs", "'epochs': expected field=value"),
        ("epochs=0", "epochs: expected at least 1, got 0"),
        ("held_out=5", "held_out: expected at most 4"),
        ("size=48", "size: expected 96, smallNORB has no other, got 48"),
        ("padding=-1", "padding: expected at least 0, got -1"),
        ("validate_every=nan", "validate_every: expected above 0, got nan"),
    ],
)
def test_a_value_out_of_range_says_the_range(setting: str, words: str) -> None:
    with pytest.raises(SettingError, match=words.replace("'", ".")):
        change(config_of("smallnorb"), [setting])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_saved_config_is_read_back(name: str) -> None:
    config = config_of(name)
    assert saved_config(json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert task_of(config).config is config


def test_a_config_of_another_version_names_what_differs() -> None:
    values = dataclasses.asdict(config_of("smallnorb")) | {"dropout": 0.5}
    with pytest.raises(SettingError, match="dropout"):
        from_dict(VisionConfig, values)


def test_an_unknown_experiment_lists_the_known() -> None:
    with pytest.raises(SettingError, match="mnist: no such experiment, expected one of toys, toys96, smallnorb"):
        config_of("mnist")


def test_the_papers_experiment_has_the_papers_settings() -> None:
    config = config_of("smallnorb")
    assert isinstance(config, VisionConfig)
    assert (config.epochs, config.batch_size, config.padding, config.mixup) == (50, 20, 16, 0.2)
    assert (config.lr_min, config.lr_max, config.beta1_max, config.beta1_min) == (1e-5, 5e-4, 0.999, 0.8991)
