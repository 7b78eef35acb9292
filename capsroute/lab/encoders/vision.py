"""Pretrained vision models of `transformers` and `timm`, loaded without running code that comes with them."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...nets.trunks import find_features
from ..errors import UserError, first_line, import_extra
from .loading import find_commit, silence_transformers

SIDE = 224  # pixels, where a model does not say
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet, where it says nothing of them either


class VisionModel(NamedTuple):
    """A pretrained model, and what it takes and returns."""

    model: nn.Module
    library: str  # "transformers" or "timm"
    config: dict[str, Any]  # what `capsroute.nets.trunks.make_backbone` makes it from
    revision: str | None  # commit on the hub
    side: int  # pixels of its images
    mean: list[float]  # of their channels, values from 0 to 1
    std: list[float]
    d_out: int
    has_maps: bool  # features [b, d, rows, columns] and not tokens [b, n, d]

    def trunk(self) -> dict[str, Any]:
        """Return the settings of a trunk `backbone`."""
        names = ("library", "config", "d_out", "has_maps", "mean", "std")
        return {"name": "backbone"} | {name: getattr(self, name) for name in names}


def load_vision_model(name: str, revision: str | None = None) -> VisionModel:
    """Load a vision model by its folder or its name on the hub; names with `timm/` in front are those of timm."""
    found = _load_timm(name.removeprefix("timm/")) if name.startswith("timm/") else _load_transformers(name, revision)
    with torch.no_grad():
        try:
            features = find_features(found["model"].eval(), torch.zeros(1, 3, found["side"], found["side"]))
        except Exception as error:
            raise UserError(f"backbone: expected a model that takes images alone, {name} does not: {error}") from error
    if features.ndim not in (3, 4):
        raise UserError(f"backbone: expected tokens or feature maps, those of {name} have shape {list(features.shape)}")
    has_maps = features.ndim == 4
    return VisionModel(**found, d_out=features.shape[1 if has_maps else 2], has_maps=has_maps)


def _load_transformers(name: str, revision: str | None) -> dict[str, Any]:
    """Return a model of `transformers`, and what its files say of it."""
    folder = Path(name).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or name.startswith(".") or name.count("/") > 1):
        raise UserError(f"backbone: expected the folder of a model, found none at {name}")
    try:
        with silence_transformers(progress=not folder.is_dir()):
            from transformers import AutoModel, ImageProcessingMixin

            model = AutoModel.from_pretrained(name, revision=revision, weights_only=True)
            try:
                images, _ = ImageProcessingMixin.get_image_processor_dict(name, revision=revision)
            except OSError:  # a model without settings of its images
                images = {}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"backbone: {name} cannot be loaded ({first_line(error)}); give a model's folder or its name"
        ) from error
    size: Any = getattr(model.config, "image_size", None) or images.get("crop_size") or images.get("size") or SIDE
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or SIDE
    size = size if isinstance(size, int) else max(size)
    config = {"model_type": model.config.model_type, **model.config.to_diff_dict()}
    config.pop("transformers_version", None)
    colours = {"mean": list(images.get("image_mean") or MEAN), "std": list(images.get("image_std") or STD)}
    found = {"model": model, "library": "transformers", "config": config, "side": size, **colours}
    return found | {"revision": find_commit(name, revision)}


def _load_timm(name: str) -> dict[str, Any]:
    """Return a model of `timm`, and what the library says of it."""
    timm = import_extra("timm")
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(f"backbone: timm cannot load {name} ({error})") from error
    images = timm.data.resolve_model_data_config(model)
    colours = {"mean": list(images["mean"]), "std": list(images["std"])}
    side = max(images["input_size"][1:])
    return {"model": model, "library": "timm", "config": {"name": name}, "revision": None, "side": side, **colours}
