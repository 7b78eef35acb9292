"""Weights by the name a user gives: a run's folder, a folder of weights, or the name of shipped weights."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...nets.hub import CONFIG, read_settings
from ...pretrained import SHIPPED, find_folder
from ..errors import UserError
from .config import SettingError
from .experiments import ExperimentConfig, make_config, read_config
from .runs import RunFolder

MINILM = ("encoder=sentence-transformers/all-MiniLM-L6-v2", "encoder_precision=fp16")
TRAINED_WITH = {  # settings of shipped networks that differ from their experiment's
    "smallnorb": ("held_out=0",),
    "toys": ("held_out=0",),
    "sst5-minilm": MINILM,
    "sst2-minilm": MINILM,
}


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
