"""The three kinds of one's own data: how each is read, prepared and batched, and the settings that follow from it."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...nets import Classifier
from ..atomic_files import cached_array
from ..data import folder as data_folder
from ..data.own.arrays import read_arrays
from ..data.own.images import LAYOUT, image_size, list_images
from ..data.own.labelled import (
    Labelled,
    check_classes,
    check_memory,
    describe_left_out,
    report_once,
    split_samples,
)
from ..data.own.tables import Columns, find_columns, read_table, read_texts
from ..encoders import embed
from ..encoders.loading import VisionModel, hash_files, load_vision_model
from ..errors import UserError
from ..preprocessing import FeaturePreprocessing, SetPreprocessing
from ..progress import progress_bar
from .own import OwnConfig, OwnTask
from .own_sources import SampleSource, StateSource, WordSource
from .task import Inputs, Source

MIN_EPOCHS, MAX_EPOCHS, N_VALIDATIONS = 4, 200, 20
FINE_TUNING = {"lr_max": 1e-4, "lr_min": 1e-6}  # a pretrained model forgets at higher rates
FEATURE_BATCH = 16  # images
FEW_TEXTS, FEW_BUCKETS, MANY_BUCKETS = 10_000, 2**13, 2**15  # few texts have few words, and fewer weights learn faster


def find_length(config: OwnConfig, data: Labelled, steps: int) -> dict[str, Any]:
    """Return batch size and epochs: about so many steps, but not too few epochs."""
    data = check_classes(data, Path(config.data), config.min_samples)
    shares = {"test_share": config.test_share, "validation_share": config.validation_share}
    n = int((split_samples(data, **shares, seed=config.split_seed) == "train").sum())
    n = min(n, config.train_on or n)
    batch_size = max(1, min(config.batch_size, n // 2))  # some samples may be left out when all are read
    epochs = min(MAX_EPOCHS, max(MIN_EPOCHS, math.ceil(steps * batch_size / max(n, 1))))
    return {"batch_size": batch_size, "epochs": epochs, "validate_every": max(1.0, round(epochs / N_VALIDATIONS))}


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(OwnConfig):
    """Settings of runs on images in folders by class; what is 0 is found from the images."""

    rows: int = 0  # pixels of the images that the network gets
    columns: int = 0
    size: int = 0  # pixels of their longer side, if rows and columns are 0
    channels: int = 0  # 1 for grey, 3 for colour
    views: int = 0  # 2 for stereo pairs
    shift: float = 0.1  # largest random shift, as a share of the side
    zoom: float = 0.1  # largest random change of size, as a share
    rotation: float = 10.0  # largest random rotation in degrees
    colour: float = 0.5  # how much colours are mixed at random; 0 where the shade itself tells classes apart
    flip: bool = False  # mirror half of the images
    backbone: str = ""  # a pretrained vision model instead of convolutions of our own
    frozen: bool = True  # keep the backbone as it is
    n_pairs: int = 3  # pairs of convolutions without a backbone
    d_out: int = 64  # their channels

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minimum(
            rows=0, columns=0, size=0, views=0, shift=0, zoom=0, rotation=0, colour=0, n_pairs=1, d_out=2
        )
        self.check("channels", self.channels in (0, 1, 3), "1 or 3")
        self.check("zoom", self.zoom < 1, "below 1")
        self.check(
            "flip", not (self.flip and self.views == 2), "false for stereo pairs, which it would turn inside out"
        )
        features = bool(self.backbone) and self.frozen
        self.check("mixup", not (self.mixup and features), "0 for features of a frozen backbone")


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
        return found | find_length(config, data, 600)

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


class ImageSource(Source):
    """Batches of images, which are stored on the device; training moves them and mixes their colours."""

    fixed_size = on_device = True

    def __init__(self, images: np.ndarray, target: Tensor, weights: Tensor | None, config: ImagesConfig):
        self.images = torch.from_numpy(images).to(target.device)  # [n, channels, m, n] uint8
        self.target, self.class_weights, self.config = target, weights, config
        channels = self.images.shape[1]
        self.n_noise = 5 + channels * (channels + 1)

    def batch(self, rows: Tensor) -> Inputs:
        return (self.images[rows].float() / 255,)

    def augmented_batch(self, rows: Tensor, noise: Tensor) -> Inputs:
        """Return images as a random camera sees them; what lies outside repeats the edge."""
        config, images = self.config, self.images[rows].float() / 255
        x, y, zoom, rotation = (2 * noise[:, :4] - 1).unbind(1)  # -1 to 1
        side = 1 + config.zoom * zoom
        flip = torch.where(noise[:, 4] < 0.5 * config.flip, -1.0, 1.0)
        angle = torch.deg2rad(config.rotation * rotation)
        aspect = images.shape[3] / images.shape[2]  # coordinates run from -1 to 1 on both axes
        cos, sin = side * angle.cos(), side * angle.sin()
        top = torch.stack([flip * cos, -sin / aspect, 2 * config.shift * x], 1)
        bottom = torch.stack([flip * sin * aspect, cos, 2 * config.shift * y], 1)
        grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
        images = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        return (self._mix_colours(images, noise[:, 5:]),)

    def _mix_colours(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return images in other colours: channels mixed by their deviations from the mean, and the mean moved."""
        channels = images.shape[1]
        normal = self.config.colour * math.sqrt(2) * torch.erfinv((2 * noise - 1).clamp(-0.999, 0.999))
        shift = normal[:, :channels, None, None] / 2
        matrix = torch.eye(channels, device=images.device) + normal[:, channels:].unflatten(1, (channels, channels))
        mean = images.mean((2, 3), keepdim=True)
        return torch.einsum("bij,bjmn->bimn", matrix, images - mean) + mean + shift


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


@dataclass(frozen=True, kw_only=True)
class TextsConfig(OwnConfig):
    """Settings of runs on texts with labels."""

    text: str = ""  # columns; guessed where they are not named
    label: str = ""
    encoder: str = ""  # a frozen transformer; by default words are read without one
    encoder_precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    depths: str = ""  # hidden states of the encoder that are read, such as 8 or 6,8,10; all by default
    max_tokens: int | None = None  # longer texts are truncated; none for the encoder's limit, or 512 words
    cache: Literal["auto", "disk", "memory", "none"] = "auto"  # where hidden states are stored
    cache_gb: float = 20.0  # gigabytes they may take on disk
    n_buckets: int = 0  # vectors of words and their pieces, without an encoder; found from the number of texts
    dropout: float = 0.3  # share of the words that training hides, without an encoder
    noise: float = 0.6  # deviation of the random factors of an encoder's features in training

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minimum(cache_gb=0, max_tokens=1, n_buckets=0, noise=0)
        numbers = self.depths.split(",") if self.depths else []
        self.check("depths", all(number.strip().isdecimal() for number in numbers), "numbers such as 8 or 6,8,10")
        self.check("depths", bool(self.encoder) or not numbers, "none without an encoder")
        self.check("dropout", 0 <= self.dropout < 1, "at least 0 and below 1")
        self.check("mixup", not self.mixup, "0 for texts, which differ in length")


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
        return columns._asdict() | buckets | find_length(config, data, 600)

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


@dataclass(frozen=True, kw_only=True)
class ArraysConfig(OwnConfig):
    """Settings of runs on sets of vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("mixup", not self.mixup, "0 for sets, which differ in size")


class OwnArrays(OwnTask):
    """Sets of vectors with labels, in a file."""

    kind, samples = "arrays", "sets"
    expected = "a file .npz or .safetensors with the arrays x and label"
    config: ArraysConfig

    @classmethod
    def find_settings(cls, config: ArraysConfig) -> dict[str, Any]:
        return find_length(config, read_arrays(Path(config.data), config.group_by), 800)

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
