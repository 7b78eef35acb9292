"""Experiments that can be run by name, each a function that returns a complete config; weights by name or folder."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...nets import Classifier
from ...nets.hub import CONFIG, read_settings
from ...pretrained import SHIPPED, find_folder
from ..errors import UserError
from .config import SettingError, change_settings, check_types
from .language import Language, LanguageConfig
from .own import OwnConfig, OwnTask
from .own_kinds import ArraysConfig, ImagesConfig, OwnArrays, OwnImages, OwnTexts, TextsConfig
from .runs import RunFolder
from .vision import Vision, VisionConfig

RECIPES: dict[str, list[str]] = {  # what `--recipe` changes in an experiment on stereo pairs, before `--set`
    "paper": [],
    "ours": ["weight_decay=0.1"],  # chosen on held-out toys
}
ExperimentConfig = VisionConfig | LanguageConfig | OwnConfig
OWN: dict[type[Any], type[OwnTask]] = {ImagesConfig: OwnImages, TextsConfig: OwnTexts, ArraysConfig: OwnArrays}
# a steeper cycle than the paper's, for runs of minutes
SHORT_RUN: dict[str, Any] = {"beta1_max": 0.95, "beta1_min": 0.85, "beta2": 0.99, "mixup": 0.0}
OWN_RUN: dict[str, Any] = SHORT_RUN | {"lr_max": 2e-3, "log_every": 20}
GPT2_LARGE = "openai-community/gpt2-large"
MINILM = ("encoder=sentence-transformers/all-MiniLM-L6-v2", "encoder_precision=fp16")
TRAINED_WITH = {  # settings of shipped networks that differ from their experiment's
    "smallnorb": ("held_out=0",),
    "toys": ("held_out=0",),
    "sst5-minilm": MINILM,
    "sst2-minilm": MINILM,
}


def smallnorb() -> VisionConfig:
    """The paper's experiment: smallNORB, 50 epochs."""
    return VisionConfig(experiment="smallnorb", data="smallnorb")


def toys96() -> VisionConfig:
    """The paper's regime on rendered toys of smallNORB's size."""
    return VisionConfig(experiment="toys96", data="toys", epochs=30)


def toys() -> VisionConfig:
    """Rendered toys at 48x48, minutes on a CPU: small batches, a steeper cycle, no mixup, an auxiliary loss."""
    sizes: dict[str, Any] = {"size": 48, "padding": 0, "epochs": 1, "batch_size": 10}
    sizes |= {"validate_every": 0.25, "validate_on": 500}
    return VisionConfig(experiment="toys", data="toys", lr_max=2e-3, auxiliary_weight=3.0, **sizes, **SHORT_RUN)


def debug() -> VisionConfig:
    """A few steps on tiny toys, to check that everything runs."""
    limits: dict[str, Any] = {"train_on": 200, "validate_on": 100, "test_on": 100}
    return VisionConfig(experiment="debug", data="toys", size=32, padding=4, epochs=2, log_every=5, **limits)


def sst5() -> LanguageConfig:
    """The paper's experiment with five sentiments: GPT-2 large, 3 epochs over all phrases."""
    return LanguageConfig(experiment="sst5", data="sst", encoder=GPT2_LARGE, epochs=3)


def sst2() -> LanguageConfig:
    """The same with two sentiments, positive and negative; neutral phrases are left out."""
    return LanguageConfig(experiment="sst2", data="sst", encoder=GPT2_LARGE, epochs=3, classes=2)


def treebank() -> LanguageConfig:
    """Generated film reviews and a tiny encoder made for them, minutes on a CPU: a steeper cycle, no mixup."""
    return LanguageConfig(experiment="treebank", data="treebank", epochs=3, lr_max=5e-3, **SHORT_RUN)


def images() -> ImagesConfig:
    """Your own images, in folders by class."""
    return ImagesConfig(experiment="images", **OWN_RUN)


def texts() -> TextsConfig:
    """Your own texts with labels, from a table."""
    return TextsConfig(experiment="texts", **OWN_RUN)


def arrays() -> ArraysConfig:
    """Your own sets of vectors with labels, from a file of arrays."""
    return ArraysConfig(experiment="arrays", **OWN_RUN)


EXPERIMENTS: dict[str, Callable[[], ExperimentConfig]] = {
    make.__name__: make for make in (toys, toys96, smallnorb, debug, treebank, sst5, sst2, images, texts, arrays)
}


def make_config(experiment: str) -> ExperimentConfig:
    """Return the config of an experiment."""
    if experiment not in EXPERIMENTS:
        raise SettingError(f"{experiment}: no such experiment, expected one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[experiment]()


def complete_config(experiment: str, settings: list[str], recipe: str = "paper") -> ExperimentConfig:
    """Return the config of an experiment by a recipe, with settings applied; others follow from one's own data."""
    config = make_config(experiment)
    if recipe not in RECIPES:
        raise SettingError(f"recipe: expected one of {', '.join(RECIPES)}, got {recipe!r}")
    if RECIPES[recipe] and not isinstance(config, VisionConfig):
        raise SettingError(f"recipe: expected paper for {experiment}, others are for stereo pairs, got {recipe!r}")
    config = change_settings(config, [*RECIPES[recipe], *settings])
    if not isinstance(config, OwnConfig):
        return config
    task = OWN[type(config)]
    if not config.data:
        raise SettingError(f"DATA: expected {task.expected}; give it as in `capsroute train {experiment} DATA`")
    given = {setting.partition("=")[0] for setting in settings}
    found = {name: value for name, value in task.find_settings(config).items() if name not in given}
    return dataclasses.replace(config, **found, data=str(Path(config.data).resolve()))


def read_config(run: RunFolder) -> ExperimentConfig:
    """Return the config of a run; errors name its file."""
    values = run.read_json("config.json")
    try:
        kind = type(make_config(str(values.get("experiment"))))
        if differing := values.keys() ^ {field.name for field in dataclasses.fields(kind)}:
            names = ", ".join(sorted(differing))
            raise SettingError(f"the saved settings are of another version, they differ in: {names}")
        check_types(kind, values)
        return kind(**values)
    except ValueError as error:
        raise SettingError(f"{run.path / 'config.json'}: {error}") from error


def make_task(config: ExperimentConfig, network: Classifier | None = None) -> Vision | Language | OwnTask:
    """Return the network and data of a config; a trained classifier says how one's own data are read for it."""
    if isinstance(config, OwnConfig):
        return OWN[type(config)](config, network)
    return Vision(config) if isinstance(config, VisionConfig) else Language(config)


class Weights(NamedTuple):
    """Trained weights, and what is known of their training."""

    name: str  # as the user gave it
    folder: Path  # of model.safetensors
    run: RunFolder | None  # that trained them
    experiment: str | None  # that trained them, if they are shipped

    def config(self, experiment: str | None = None) -> ExperimentConfig:
        """Return the config they were trained with, or, if that is not known, that of an experiment."""
        if self.run:
            return read_config(self.run)
        kind = self._settings().get("kind")  # of a classifier of one's own data
        if kind and not experiment:
            return make_config(kind)
        if not (self.experiment or experiment):
            raise SettingError(f"{self.folder}: say which data to use, for example --on smallnorb")
        return make_config(self.experiment or experiment or "")

    def encoder(self) -> str:
        """Return the encoder a network for texts needs: the folder beside its weights, or the name it was given."""
        beside = self.folder / "encoder"
        if beside.is_dir():
            return str(beside)
        return str(self._settings().get("encoder", ""))

    def _settings(self) -> dict[str, Any]:
        """Return the network's settings; loading it says what is wrong with them."""
        with suppress(ValueError):
            return read_settings(self.folder / CONFIG)
        return {}


def find_weights(name: str) -> Weights:
    """Return the weights that a name or a folder stands for; every command that takes weights takes these names."""
    run = RunFolder(Path(name))
    if run.started:
        return Weights(name, run.final_weights(), run, None)
    try:
        folder = find_folder(name)
    except ValueError as error:
        raise UserError(str(error)) from error
    shipped = not folder.is_relative_to(name)  # found by a name, not at a path
    return Weights(name, folder, None, SHIPPED[folder.name] if shipped else None)


def training_command(shipped: str) -> str:
    """Return the command that trained shipped weights."""
    return " ".join(["capsroute train", SHIPPED[shipped], *(f"--set {s}" for s in TRAINED_WITH.get(shipped, ()))])
