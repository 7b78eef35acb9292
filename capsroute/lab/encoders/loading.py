"""Loading pretrained models of `transformers` and `timm`, without running code that comes with them."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...nets.hub import check_repeated
from ...nets.trunks import find_features
from ..errors import UserError, first_line, import_extra

HUB_TIMEOUT = 10.0  # seconds
UNUSED = "pooler"  # weights that no hidden state depends on, which many checkpoints lack
REASONS = {  # in place of words that advise to unpickle, or to load a part
    "weights_only": "its weights are damaged, or hold more than tensors, which could execute code",
    "ignore_mismatched_sizes": "its weights have other shapes than its config.json says",
}
SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin", ".jinja")  # of the files that make a model


def load_model(name: str, dtype: torch.dtype, revision: str | None = None) -> tuple[Any, Any, Callable[[], str]]:
    """Load a model from a folder, the local cache of downloads, or else the Hugging Face hub, there at a revision.

    Returns:
        The tokenizer, the model, and a function that returns a string that changes with either of them.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            expected = "the folder of a model in the format of `transformers`"
            raise UserError(f"encoder: expected {expected}, {name} has no config.json")
        return *_load(str(folder), dtype, None, local=True), cache(lambda: hash_files(folder))
    if folder.is_absolute() or name.startswith(".") or folder.exists() or name.count("/") > 1:
        raise UserError(f"encoder: expected the folder of a model, found none at {name}")
    try:
        tokenizer, model = _load(name, dtype, revision, local=True)
    except UserError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        _check_hub(name)
        tokenizer, model = _load(name, dtype, revision, local=False)
    commit = find_commit(name, revision)
    return tokenizer, model, lambda: f"{name}@{commit}"


def find_commit(name: str, revision: str | None = None) -> str | None:
    """Return the commit on the hub of a model that was downloaded by its name; none of one in a folder."""
    from huggingface_hub import try_to_load_from_cache

    if Path(name).expanduser().is_dir():
        return None
    path = try_to_load_from_cache(name, "config.json", revision=revision)  # in a folder named after the commit
    return Path(path).parent.name if isinstance(path, str) else None


@contextmanager
def silence_transformers(progress: bool = False) -> Iterator[None]:
    """Suppress what `transformers` prints about every model; `progress` keeps its bars, for downloads."""
    logging = import_extra("transformers.utils.logging")
    verbosity, enabled = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if enabled:
            logging.enable_progress_bar()


def _load(name: str, dtype: torch.dtype, revision: str | None, *, local: bool) -> tuple[Any, Any]:
    try:
        with silence_transformers(progress=not local):
            from transformers import AutoModel, AutoTokenizer, PreTrainedConfig

            options: dict[str, Any] = {"revision": revision, "local_files_only": local}
            check_repeated(PreTrainedConfig.get_config_dict(name, **options)[0], "config.json")
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
            # a checkpoint without safetensors is unpickled with weights_only, which runs no code
            model, report = AutoModel.from_pretrained(
                name, dtype=dtype, weights_only=True, output_loading_info=True, **options
            )
    except (UserError, ModuleNotFoundError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = next((words for sign, words in REASONS.items() if sign in str(error)), first_line(error))
        raise UserError(f"encoder: {name} cannot be loaded ({reason})") from error
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"encoder: expected a model with a fast tokenizer, {name} has none")
    missing = sorted(key for key in map(str, report["missing_keys"]) if UNUSED not in key)
    if missing or report["mismatched_keys"]:
        lacking = f"{len(missing)} are missing, the first is {missing[0]}" if missing else "some have another shape"
        raise UserError(f"encoder: expected all of a model's weights in {name}, but {lacking}")
    return tokenizer, model


def _check_hub(name: str) -> None:
    """Raise unless the hub can be reached and has the model; `from_pretrained` would try for half a minute."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except Exception as error:
        problem = f"{name} was not downloaded before, and the Hugging Face hub does not give it"
        advice = "Check name and connection; a folder that holds a model works too."
        raise UserError(f"encoder: {problem} ({first_line(error)}). {advice}") from error


def hash_files(folder: Path) -> str:
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in SUFFIXES):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
        total.update(f"{path.name}:{path.stat().st_size}:".encode() + digest)
    return total.hexdigest()


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
