"""From images, texts and sets of vectors to the inputs of a classifier, for training and prediction alike.

`prepare` takes what a user gives, a file, a text or an array, and raises `UserError` if it cannot be read; `collate`
makes the arguments of a classifier of a batch of samples: its inputs, and their mask or none.
"""

import re
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import islice
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..nets.trunks import find_features
from .encoders import Encoder
from .encoders.loading import VisionModel, load_vision_model
from .errors import UserError

MAX_PIXELS = 50_000_000  # of an image
MAX_NAME = 300  # letters of a name that a message repeats: a line of text may stand where a name should
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # the other decoders are old, or start programs
WORD = re.compile(r"\w+|[^\w\s]")
PIECES = 8  # numbers of a word: its own and those of its pieces
PIECE_LETTERS = 3


@dataclass(frozen=True)
class ImagePreprocessing:
    """Reads images, turns them upright, and fits them into a size without changing their shape.

    What a narrower image leaves free repeats its edge. Of a stereo pair the right image follows the left.
    """

    rows: int
    columns: int
    channels: int = 3  # 1 for grey
    views: int = 1  # images of one thing: 2 for stereo pairs

    def prepare(self, item: Any) -> np.ndarray:
        """Return bytes `[views * channels, rows, columns]` of a file, an image of PIL, an array, or a list of them."""
        views = list(item) if isinstance(item, list | tuple) else [item]
        if len(views) == 1:
            views *= self.views  # one image serves both eyes
        if len(views) != self.views:
            raise UserError(f"image: expected {self.views} views of one thing, got {len(views)}")
        return np.concatenate([self._fit(open_image(view)) for view in views])

    def collate(self, samples: Sequence[np.ndarray]) -> tuple[Tensor, None]:
        """Return images `[b, views * channels, rows, columns]` in 0..1."""
        return torch.from_numpy(np.stack(samples)).float() / 255, None

    def _fit(self, image: Image.Image) -> np.ndarray:
        image = image.convert("L" if self.channels == 1 else "RGB")
        image = ImageOps.contain(image, (self.columns, self.rows), Image.Resampling.BICUBIC)
        pixels = np.asarray(image).reshape(image.height, image.width, self.channels).transpose(2, 0, 1)
        left, top, right, bottom = self._box(image)
        return np.pad(pixels, [(0, 0), (top, self.rows - bottom), (left, self.columns - right)], mode="edge")

    def find_box(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return where an image of some width and height lies among rows and columns: left, top, right, bottom."""
        return self._box(ImageOps.contain(Image.new("1", size), (self.columns, self.rows)))

    def _box(self, image: Image.Image) -> tuple[int, int, int, int]:
        left, top = (self.columns - image.width) // 2, (self.rows - image.height) // 2
        return left, top, left + image.width, top + image.height


@dataclass(frozen=True)
class FeaturePreprocessing:
    """Reads images as `ImagePreprocessing` does, and finds their features."""

    backbone: str  # name on a hub, or folder
    rows: int
    columns: int
    views: int = 1
    revision: str | None = None  # commit on the hub; none for the newest
    device: str = "cpu"

    channels = 3

    @cached_property
    def images(self) -> ImagePreprocessing:
        return ImagePreprocessing(self.rows, self.columns, self.channels, self.views)

    @cached_property
    def model(self) -> VisionModel:
        """The vision model, loaded when it is first needed."""
        found = load_vision_model(self.backbone, self.revision)
        found.model.to(self.device).requires_grad_(False)
        return found

    def prepare(self, item: Any) -> np.ndarray:
        """Return bytes `[views * channels, rows, columns]`, see `ImagePreprocessing`."""
        return self.images.prepare(item)

    @torch.no_grad()
    def collate(self, samples: Sequence[np.ndarray]) -> tuple[Tensor, None]:
        """Return features `[b, n, d]`: tokens, or the locations of a feature map by rows; those of all views."""
        found = self.model
        pixels = self.images.collate(samples)[0].to(self.device).unflatten(1, (self.views, self.channels))
        mean, std = (torch.tensor(t, device=self.device)[:, None, None] for t in (found.mean, found.std))
        features = find_features(found.model, ((pixels - mean) / std).flatten(0, 1))
        if found.has_maps:
            features = features.flatten(2).movedim(1, 2)
        return features.unflatten(0, (len(samples), self.views)).flatten(1, 2), None


def open_image(source: Any, formats: tuple[str, ...] = FORMATS, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return an upright image without transparency, of a file, an image of PIL or an array.

    Files of other formats, and those with too many pixels, are refused before they are decoded.
    """
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim not in (2, 3):
            raise UserError(f"image: expected bytes [m, n] or [m, n, 3], got {source.dtype} {list(source.shape)}")
        return Image.fromarray(source)
    name = str(fspath(source))[:MAX_NAME] if isinstance(source, str | PathLike) else "image"
    try:
        with nullcontext(source) if isinstance(source, Image.Image) else Image.open(source, formats=formats) as file:
            if file.width * file.height > max_pixels:
                limit = f"at most {max_pixels // 1_000_000} million pixels"
                raise UserError(f"{name}: expected {limit}, got {file.width:,} by {file.height:,}")
            image = ImageOps.exif_transpose(file)
    except UserError:
        raise
    except Exception as error:  # decoders raise unrelated classes
        reason = getattr(error, "strerror", None) or "it is something else, or damaged"
        raise UserError(f"{name}: expected an image ({', '.join(formats)}), {reason}") from error
    if image.mode.startswith(("I", "F")):  # more than 8 bits a pixel
        pixels = np.asarray(image, float)
        image = Image.fromarray((255 * pixels / max(pixels.max(), 1)).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


@dataclass(frozen=True)
class SetPreprocessing:
    """Checks sets of vectors `[n, d]` and pads them to a batch."""

    d: int  # size of a vector

    def prepare(self, item: Any) -> np.ndarray:
        """Return a set as float32 `[n, d]`."""
        vectors = np.asarray(item)
        if vectors.ndim != 2 or vectors.shape[1] != self.d or vectors.dtype.kind not in "fiub":
            raise UserError(f"vectors: expected numbers [n, {self.d}], got {vectors.dtype} {list(vectors.shape)}")
        if not np.isfinite(vectors).all():
            raise UserError("vectors: expected finite numbers, got NaN or infinity")
        return vectors.astype(np.float32)

    def collate(self, samples: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return vectors `[b, n, d]`, zero where they are padded, and the mask `[b, n]`."""
        n = max(map(len, samples), default=0)
        x, mask = np.zeros((len(samples), n, self.d), np.float32), np.zeros((len(samples), n), np.float32)
        for row, sample in enumerate(samples):
            x[row, : len(sample)], mask[row, : len(sample)] = sample, 1
        return torch.from_numpy(x), torch.from_numpy(mask)


@dataclass(frozen=True)
class TextPreprocessing:
    """Tokenises texts and encodes them."""

    encoder: str  # name on the Hugging Face hub, or folder
    max_tokens: int | None = None  # longer texts are truncated; none for the encoder's limit
    precision: str = "fp32"
    revision: str | None = None  # commit on the hub; none for the newest
    depths: list[int] | None = None  # hidden states that are read; none for all
    device: str = "cpu"

    @cached_property
    def model(self) -> Encoder:
        """The encoder, loaded when it is first needed."""
        options: dict[str, Any] = {"max_tokens": self.max_tokens, "revision": self.revision, "depths": self.depths}
        return Encoder(self.encoder, precision=self.precision, device=self.device, **options)

    def prepare(self, item: Any) -> list[int]:
        """Return the ids of a text's tokens."""
        return self.model.tokenize([check_text(item)])[0]

    def collate(self, samples: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return hidden states `[b, depth, n, d]` and the mask `[b, n]`."""
        mask, states = self.model.encode(samples)
        return states.float().movedim(2, 1), mask


class Word(NamedTuple):
    text: str
    space: str  # before it


@dataclass(frozen=True)
class WordPreprocessing:
    """Splits texts into words and hashes each word and its pieces of three letters."""

    n_buckets: int = 2**15
    max_words: int = 512  # longer texts are truncated

    def prepare(self, item: Any) -> np.ndarray:
        """Return the numbers of a text's words `[n, pieces]`; 0 stands for no piece."""
        words = [hash_word(word.text, self.n_buckets) for word in self.split(check_text(item))]
        return np.array(words, np.int64).reshape(-1, PIECES)

    def split(self, text: str) -> list[Word]:
        """Return the words that are read, each with the space before it."""
        words, end = [], 0
        for match in islice(WORD.finditer(text), self.max_words):
            words.append(Word(match[0], text[end : match.start()]))
            end = match.end()
        return words

    def collate(self, samples: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return numbers `[b, n, pieces]` and the mask `[b, n]`; a text without words has one place that is masked."""
        n = max(1, *map(len, samples))
        x = np.zeros((len(samples), n, PIECES), np.int64)
        for row, sample in enumerate(samples):
            x[row, : len(sample)] = sample
        return torch.from_numpy(x), torch.from_numpy((x[..., 0] != 0).astype(np.float32))


@lru_cache(2**16)
def hash_word(word: str, n_buckets: int) -> tuple[int, ...]:
    """Return the numbers of a word and of its pieces, from 1 to `n_buckets - 1`; 0 stands for no piece."""
    framed = f"<{unicodedata.normalize('NFKC', word).lower()}>"
    pieces = [framed, *(framed[k : k + PIECE_LETTERS] for k in range(len(framed) - PIECE_LETTERS + 1))]
    numbers = [1 + zlib.crc32(piece.encode("utf-8", "replace")) % (n_buckets - 1) for piece in pieces[:PIECES]]
    return (*numbers, *[0] * (PIECES - len(numbers)))


def check_text(item: Any) -> str:
    if not isinstance(item, str):
        raise UserError(f"text: expected text, got {type(item).__name__}")
    return item


KINDS: dict[str, type[Any]] = {
    "images": ImagePreprocessing,
    "features": FeaturePreprocessing,
    "words": WordPreprocessing,
    "texts": TextPreprocessing,
    "sets": SetPreprocessing,
}


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
