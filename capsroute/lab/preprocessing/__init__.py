"""From images, texts and sets of vectors to the inputs of a classifier, for training and prediction alike."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from torch import Tensor

from .images import FeaturePreprocessing, ImagePreprocessing
from .sets import SetPreprocessing
from .texts import TextPreprocessing, WordPreprocessing

__all__ = [
    "FeaturePreprocessing",
    "ImagePreprocessing",
    "Inputs",
    "Preprocessing",
    "SetPreprocessing",
    "TextPreprocessing",
    "WordPreprocessing",
    "make_preprocessing",
    "preprocessing_settings",
]

Inputs = tuple[Tensor, Tensor | None]
"""Arguments of a classifier: its inputs, and their mask where it takes one."""
KINDS: dict[str, type[Any]] = {
    "images": ImagePreprocessing,
    "features": FeaturePreprocessing,
    "words": WordPreprocessing,
    "texts": TextPreprocessing,
    "sets": SetPreprocessing,
}


class Preprocessing(Protocol):
    """Makes the inputs of a classifier."""

    # one sample, of what a user gives: a file, a text, an array; raises UserError if it cannot be read
    def prepare(self, item: Any) -> Any: ...

    # a batch of samples
    def collate(self, samples: Sequence[Any]) -> Inputs: ...


def make_preprocessing(settings: Mapping[str, Any], **changes: Any) -> Any:
    """Return the preprocessing of saved settings, `{"name": ..., ...}`; `changes` replace some of them."""
    settings = {**settings, **changes}
    name = settings.pop("name", None)
    if name not in KINDS:
        raise ValueError(f"preprocessing: expected one of {list(KINDS)} as its name, got {name!r}")
    return KINDS[name](**settings)


def preprocessing_settings(preprocessing: Any) -> dict[str, Any]:
    """Return the settings to save; the device belongs to a machine and is left out."""
    name = next(name for name, kind in KINDS.items() if isinstance(preprocessing, kind))
    settings = {key: value for key, value in asdict(preprocessing).items() if key != "device"}
    return {"name": name, **settings}
