"""The runs that can be asked for by name: each a function that returns a complete config."""

from collections.abc import Callable
from typing import Any

from .config import Config, SettingError, from_dict
from .language import Language, LanguageConfig
from .task import Task
from .vision import Vision, VisionConfig


def smallnorb() -> VisionConfig:
    """The paper's experiment: smallNORB, 50 epochs."""
    return VisionConfig(experiment="smallnorb", data="smallnorb")


def toys96() -> VisionConfig:
    """The paper's regime on rendered toys of smallNORB's size."""
    return VisionConfig(experiment="toys96", data="toys", epochs=30)


def toys() -> VisionConfig:
    """Rendered toys at 48x48, for minutes on a CPU: smaller batches, a steeper cycle, no mixup, and a guide."""
    return VisionConfig(
        experiment="toys",
        data="toys",
        size=48,
        padding=0,
        epochs=1,
        batch_size=10,
        lr_max=2e-3,
        beta1_max=0.95,
        beta1_min=0.85,
        beta2=0.99,
        mixup=0.0,
        guide=3.0,
        validate_every=0.25,
        validate_on=500,
    )


def debug() -> VisionConfig:
    """A few steps on tiny toys, to see that everything runs."""
    return VisionConfig(
        experiment="debug",
        data="toys",
        size=32,
        padding=4,
        epochs=2,
        log_every=5,
        train_on=200,
        validate_on=100,
        test_on=100,
    )


def sst5() -> LanguageConfig:
    """The paper's experiment with five sentiments: GPT-2 large, 3 epochs over all phrases."""
    return LanguageConfig(experiment="sst5", data="sst", encoder="openai-community/gpt2-large", epochs=3)


def sst2() -> LanguageConfig:
    """The same without what is neutral: positive or negative."""
    return LanguageConfig(experiment="sst2", data="sst", encoder="openai-community/gpt2-large", epochs=3, classes=2)


def treebank() -> LanguageConfig:
    """Generated film reviews and a tiny encoder made for them, for minutes on a CPU: a steeper cycle, no mixup."""
    return LanguageConfig(
        experiment="treebank",
        data="treebank",
        epochs=3,
        lr_max=5e-3,
        beta1_max=0.95,
        beta1_min=0.85,
        beta2=0.99,
        mixup=0.0,
    )


NAMED = (toys, toys96, smallnorb, debug, treebank, sst5, sst2)
EXPERIMENTS: dict[str, Callable[[], VisionConfig | LanguageConfig]] = {e.__name__: e for e in NAMED}


def config_of(name: str) -> VisionConfig | LanguageConfig:
    """An experiment's config, by name."""
    if name not in EXPERIMENTS:
        raise SettingError(f"{name}: no such experiment, expected one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]()


def saved_config(values: dict[str, Any]) -> VisionConfig | LanguageConfig:
    """The config a run's folder holds."""
    return from_dict(type(config_of(str(values.get("experiment")))), values)


def task_of(config: Config) -> Task:
    """The network and data of a config."""
    if isinstance(config, VisionConfig):
        return Vision(config)
    if isinstance(config, LanguageConfig):
        return Language(config)
    raise TypeError(f"config: expected one of an experiment, got {type(config).__name__}")
