"""The three kinds of one's own data: how each is read, prepared and batched, and the settings that follow from it."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...nets import Classifier
from ..atomic_files import cached_array
from ..data import folder as data_folder
from ..data.own import (
    Labelled,
    check_classes,
    find_columns,
    image_size,
    list_images,
    read_arrays,
    read_table,
    read_texts,
    split_samples,
)
from ..data.own.images import LAYOUT
from ..data.own.labelled import check_memory, describe_left_out, report_once
from ..data.own.tables import Columns
from ..encoders import embed
from ..encoders.loading import hash_files
from ..encoders.vision import VisionModel, load_vision_model
from ..errors import UserError
from ..preprocessing import FeaturePreprocessing, SetPreprocessing
from ..progress import progress_bar
from .own import OwnTask
from .own_config import ArraysConfig, ImagesConfig, OwnConfig, TextsConfig
from .own_sources import ImageSource, SampleSource, StateSource, WordSource
from .task import Source

MAX_EPOCHS, N_VALIDATIONS = 200, 20
FINE_TUNING = {"lr_max": 1e-4, "lr_min": 1e-6}  # a pretrained model forgets at higher rates
FEATURE_BATCH = 16  # images
FEW_TEXTS, FEW_BUCKETS, MANY_BUCKETS = 10_000, 2**13, 2**15  # few texts have few words, and fewer weights learn faster


def find_length(config: OwnConfig, data: Labelled, steps: int, least: int) -> dict[str, Any]:
    """Return batch size and epochs: about so many steps, but at least so many epochs."""
    data = check_classes(data, Path(config.data), config.min_samples)
    shares = {"test_share": config.test_share, "validation_share": config.validation_share}
    n = int((split_samples(data, **shares, seed=config.split_seed) == "train").sum())
    n = min(n, config.train_on or n)
    batch_size = max(1, min(config.batch_size, n // 2))  # some samples may be left out when all are read
    epochs = min(MAX_EPOCHS, max(least, math.ceil(steps * batch_size / max(n, 1))))
    return {"batch_size": batch_size, "epochs": epochs, "validate_every": max(1.0, round(epochs / N_VALIDATIONS))}


class OwnImages(OwnTask):
    """Images in folders by class."""

    kind = samples = "images"
    expected = f"a folder with {LAYOUT}"
    config: ImagesConfig

    @classmethod
    def find_settings(cls, config: ImagesConfig) -> dict[str, Any]:
        data = list_images(Path(config.data), config.group_by)
        found = image_size(data.items, config.size or None)
        if config.backbone:
            found |= {"rows": (side := load_vision_model(config.backbone).side), "columns": side, "channels": 3}
            found |= {"mixup": 0.0} if config.frozen else FINE_TUNING
        return found | find_length(config, data, 600, 4)

    def settings(self) -> dict[str, Any]:
        config = self.config
        sizes = {"rows": config.rows, "columns": config.columns, "views": config.views}
        if config.backbone and config.frozen:
            found = self.model
            place = config.backbone if not Path(config.backbone).is_dir() else str(Path(config.backbone).resolve())
            return {"name": "features", "backbone": place, "revision": found.revision, **sizes}
        return {"name": "images", "channels": config.channels, **sizes}

    def trunk(self) -> dict[str, Any]:
        config = self.config
        if not config.backbone:
            channels = config.channels * config.views
            return {"name": "convolutions", "n_channels": channels, "n_pairs": config.n_pairs, "d_out": config.d_out}
        if config.frozen:
            return {"name": "vectors", "d_inp": self.model.d_out}
        if config.views > 1:
            raise UserError("backbone: a trained backbone takes single images; leave out --unfreeze for stereo pairs")
        return self.model.trunk()

    @cached_property
    def model(self) -> VisionModel:
        """The pretrained model of a new network."""
        return load_vision_model(self.config.backbone)

    def initialise(self, network: Classifier) -> None:
        super().initialise(network)
        if network.config["trunk"]["name"] == "backbone":
            network.trunk.model.load_state_dict(self.model.model.state_dict())

    def describe_inputs(self) -> str:
        config = self.config
        colour = "stereo pairs" if config.views == 2 else "grey" if config.channels == 1 else "colour"
        return f"{config.rows}x{config.columns} pixels, {colour}"

    def read(self) -> Labelled:
        listed = list_images(Path(self.config.data), self.config.group_by)
        fitted: Any = self.preprocessing
        n_bytes = 2 * len(listed.items) * fitted.rows * fitted.columns * fitted.channels * fitted.views  # stacked, too
        check_memory(self.config.data, n_bytes, "use smaller images, --set size=N, or fewer of them")
        pixels, problems = [], {}
        with ThreadPoolExecutor() as pool, progress_bar("Reading images", len(listed.items)) as advance:
            for k, found in enumerate(pool.map(self._prepare, listed.items)):
                pixels.append(found)
                if isinstance(found, UserError):
                    problems[k] = str(found)
                advance()
        if len(problems) == len(pixels):
            raise UserError(f"{self.config.data}: none of its images can be read: {problems[0]}")
        if problems:
            report_once(describe_left_out("images cannot be read and are", len(pixels), list(problems.values())))
        data = listed._replace(items=pixels).take([k for k in range(len(pixels)) if k not in problems])
        if isinstance(self.preprocessing, FeaturePreprocessing):
            data = data._replace(items=find_features(self.preprocessing, data.items))
        return data

    def make_source(self, samples: Sequence[Any], target: Tensor, weights: Tensor | None) -> Source:
        if isinstance(self.preprocessing, FeaturePreprocessing):
            return SampleSource(samples, target, weights, SetPreprocessing(samples[0].shape[-1]))
        return ImageSource(np.stack(samples), target, weights, self.config)

    def _prepare(self, views: Sequence[Path]) -> np.ndarray | UserError:
        try:
            return self.preprocessing.prepare(list(views))
        except UserError as error:
            return error


def find_features(preprocessing: FeaturePreprocessing, pixels: Sequence[np.ndarray]) -> np.ndarray:
    """Return the features of prepared images, float16 `[n, places, d]`, from a file that keeps them."""
    place = Path(preprocessing.backbone)
    total = hashlib.blake2b(str(preprocessing).encode() + (hash_files(place) if place.is_dir() else "").encode())
    for image in pixels:
        total.update(image.data)
    path = data_folder() / "features" / f"{total.hexdigest()[:32]}.npy"
    n_places, d = preprocessing.collate(pixels[:1])[0].shape[1:]

    def encode_batches() -> Iterator[np.ndarray]:
        starts = range(0, len(pixels), FEATURE_BATCH)
        with progress_bar("Finding features", len(starts)) as advance:
            for start in starts:
                features = preprocessing.collate(pixels[start : start + FEATURE_BATCH])[0]
                yield features.half().cpu().contiguous().numpy().view(np.uint8)
                advance()

    stored = cached_array(path, (len(pixels), 2 * n_places * d), encode_batches)
    return stored.view(np.float16).reshape(len(pixels), n_places, d)


class OwnTexts(OwnTask):
    """Texts with labels, in a table."""

    kind = samples = "texts"
    expected = "a file .csv, .tsv, .jsonl or .parquet with texts and labels"
    config: TextsConfig

    @classmethod
    def find_settings(cls, config: TextsConfig) -> dict[str, Any]:
        columns = find_columns(Path(config.data), config.text, config.label)
        report_once(f"{config.data}: texts from the column {columns.text!r}, labels from {columns.label!r}")
        data = read_texts(Path(config.data), columns, config.group_by)
        buckets = {"n_buckets": FEW_BUCKETS if len(data.labels) <= FEW_TEXTS else MANY_BUCKETS}
        return columns._asdict() | buckets | find_length(config, data, 600, 4)

    def settings(self) -> dict[str, Any]:
        config = self.config
        if not config.encoder:
            limit = {"max_words": config.max_tokens} if config.max_tokens else {}
            return {"name": "words", "n_buckets": config.n_buckets} | limit
        place = config.encoder if not Path(config.encoder).is_dir() else str(Path(config.encoder).resolve())
        depths = {"depths": [int(depth) for depth in config.depths.split(",")]} if config.depths else {}
        return {
            "name": "texts",
            "encoder": place,
            "max_tokens": config.max_tokens,
            "precision": config.encoder_precision,
        } | depths

    def saved_settings(self) -> dict[str, Any]:
        revision = {"revision": self.preprocessing.model.revision} if self.config.encoder else {}
        return self.settings() | revision

    def trunk(self) -> dict[str, Any]:
        if not self.config.encoder:
            return {"name": "words", "n_buckets": self.config.n_buckets}
        encoder = self.preprocessing.model
        return {"name": "vectors", "d_inp": encoder.d_emb, "n_kinds": encoder.depth}

    def describe_inputs(self) -> str:
        if self.config.encoder:
            return f"read by {self.config.encoder}, which stays as it is"
        return "words read by the built-in trunk, which knows none in advance (--encoder names a transformer)"

    def read(self) -> Labelled:
        file, columns = Path(self.config.data), Columns(self.config.text, self.config.label)
        if self.trained:  # other data may have other columns
            known = set(read_table(file).columns)
            columns = find_columns(file, *(name if name in known else "" for name in columns))
        return read_texts(file, columns, self.config.group_by)

    def make_source(self, samples: Sequence[Any], target: Tensor, weights: Tensor | None) -> Source:
        config, preprocessing = self.config, self.preprocessing
        if not hasattr(preprocessing, "model"):
            return WordSource(samples, target, weights, preprocessing, config.dropout)
        cache: dict[str, Any] = {"cache": config.cache, "cache_gb": config.cache_gb}
        encoder = preprocessing.model
        states = embed(encoder, samples, folder=data_folder(), device=target.device, **cache)
        return StateSource(states, target, weights, config.noise)


class OwnArrays(OwnTask):
    """Sets of vectors with labels, in a file."""

    kind, samples = "arrays", "sets"
    expected = "a file .npz or .safetensors with the arrays x and label"
    config: ArraysConfig

    @classmethod
    def find_settings(cls, config: ArraysConfig) -> dict[str, Any]:
        return find_length(config, read_arrays(Path(config.data), config.group_by), 800, 4)

    def settings(self) -> dict[str, Any]:
        return {"name": "sets", "d": int(self.found.items[0].shape[-1])}

    def trunk(self) -> dict[str, Any]:
        return {"name": "vectors", "d_inp": self.preprocessing.d}

    def describe_inputs(self) -> str:
        return f"vectors of {self.preprocessing.d} numbers"

    def read(self) -> Labelled:
        items = []
        for vectors, where in zip(self.found.items, self.found.places, strict=True):
            try:
                items.append(self.preprocessing.prepare(vectors))
            except UserError as error:
                raise UserError(f"{where}: {error}") from error
        return self.found._replace(items=items)

    def make_source(self, samples: Sequence[Any], target: Tensor, weights: Tensor | None) -> Source:
        return SampleSource(samples, target, weights, self.preprocessing)

    @cached_property
    def found(self) -> Labelled:
        """The sets as they are in the file."""
        return read_arrays(Path(self.config.data), self.config.group_by)
