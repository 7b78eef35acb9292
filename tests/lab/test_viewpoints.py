"""Subsets of viewpoints: they hold just what they should, of training and validation alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsroute.lab.data import Pairs, toys
from capsroute.lab.data.viewpoints import match_views, parse_angles
from capsroute.lab.errors import UserError
from capsroute.lab.training.config import SettingError, change_settings
from capsroute.lab.training.experiments import make_config
from capsroute.lab.training.vision import Vision


@pytest.fixture
def no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let toys have labels without images."""

    def load(folder: Path, split: str, size: int, **_: Any) -> Pairs:
        category, info = toys.make_labels(split)
        return Pairs(np.zeros((len(category), 2, 1, 1), np.uint8), category, info)

    monkeypatch.setattr(toys, "load", load)


@pytest.mark.parametrize(
    ("name", "text", "degrees"),
    [
        ("azimuth", "all", list(range(0, 360, 20))),
        ("azimuth", "third", [0, 20, 40, 300, 320, 340]),
        ("azimuth", "300-40", [0, 20, 40, 300, 320, 340]),
        ("azimuth", "20-40, 200", [20, 40, 200]),
        ("elevation", "all", list(range(30, 75, 5))),
        ("elevation", "third", [30, 35, 40]),
        ("elevation", "70", [70]),
    ],
)
def test_names_and_ranges_of_angles(name: str, text: str, degrees: list[int]) -> None:
    assert parse_angles(name, text) == degrees


@pytest.mark.parametrize(
    "setting",
    ["azimuths=half", "azimuths=", "azimuths=10", "azimuths=0-20-40", "azimuths=360", "elevations=40-30"],
)
def test_what_is_no_range_is_an_error_that_says_what_is(setting: str) -> None:
    name = setting.partition("=")[0]
    with pytest.raises(SettingError, match=rf"{name}: expected all, third or ranges in degrees such as .*, of multip"):
        change_settings(make_config("toys"), [setting])


@pytest.mark.usefixtures("no_images")
def test_training_and_validation_have_these_views_alone() -> None:
    config = change_settings(make_config("toys"), ["azimuths=third", "elevations=50-70", "validate_on=none"])
    task = Vision(config)
    train, validation, test = (task.pairs(split) for split in ("train", "validation", "test"))
    for pairs, n_toys in ((train, 20), (validation, 5)):
        assert set(pairs.azimuth) == {0, 2, 4, 30, 32, 34}
        assert set(pairs.elevation) == {4, 5, 6, 7, 8}
        assert len(pairs.category) == n_toys * 6 * 5 * 6  # toys, azimuths, elevations, lightings
    assert len(test.category) == 24_300
    assert match_views(test, "third", "50-70").sum() == 25 * 6 * 5 * 6


@pytest.mark.usefixtures("no_images")
def test_unknown_poses_are_an_error_unless_all_views_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = toys.load(Path(), "train", 96)
    info = pairs.info.copy()
    info[:, 1:] = -1
    monkeypatch.setattr("capsroute.lab.data.smallnorb.load", lambda *_: pairs._replace(info=info))
    assert len(Vision(make_config("smallnorb")).pairs("train").category) == 19_440
    for name in ("azimuth", "elevation"):
        config = change_settings(make_config("smallnorb"), [f"{name}s=third"])
        with pytest.raises(UserError, match=f"{name}s: expected all, because the {name}s of these pairs are unknown"):
            Vision(config).pairs("train")
