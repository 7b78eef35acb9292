"""Recipes by name: what `--recipe` makes of an experiment on stereo pairs before settings are applied."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from .config import Config, SettingError
from .vision import VisionConfig

SomeConfig = TypeVar("SomeConfig", bound=Config)


def paper(config: VisionConfig) -> VisionConfig:
    """The experiment as it is: the paper's network and regime."""
    return config


def ours(config: VisionConfig) -> VisionConfig:
    """The paper's network and regime with decoupled weight decay, chosen on held-out toys."""
    return dataclasses.replace(config, weight_decay=0.1)


RECIPES: dict[str, Callable[[VisionConfig], VisionConfig]] = {make.__name__: make for make in (paper, ours)}


def apply_recipe(name: str, config: SomeConfig) -> SomeConfig:
    """Return the config that a recipe makes of an experiment's; `paper` leaves every one as it is."""
    if name not in RECIPES:
        raise SettingError(f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}")
    if name == "paper":
        return config
    if not isinstance(config, VisionConfig):
        raise SettingError(f"recipe: expected paper for {config.experiment}, others are for stereo pairs, got {name!r}")
    return RECIPES[name](config)
