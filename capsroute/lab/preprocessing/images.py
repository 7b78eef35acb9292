"""Images as arrays of one size, or as features of a frozen vision model."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ...nets.trunks import find_features
from ..encoders.vision import VisionModel, load_vision_model
from ..errors import UserError

MAX_PIXELS = 50_000_000  # of an image
MAX_NAME = 300  # letters of a name that a message repeats: a line of text may stand where a name should
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # the other decoders are old, or start programs


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


def open_image(source: Any) -> Image.Image:
    """Return an upright image without transparency, of a file, an image of PIL or an array.

    Files of other formats, and those with too many pixels, are refused before they are decoded.
    """
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim not in (2, 3):
            raise UserError(f"image: expected bytes [m, n] or [m, n, 3], got {source.dtype} {list(source.shape)}")
        return Image.fromarray(source)
    name = str(fspath(source))[:MAX_NAME] if isinstance(source, str | PathLike) else "image"
    try:
        with nullcontext(source) if isinstance(source, Image.Image) else Image.open(source, formats=FORMATS) as file:
            if file.width * file.height > MAX_PIXELS:
                limit = f"at most {MAX_PIXELS // 1_000_000} million pixels"
                raise UserError(f"{name}: expected {limit}, got {file.width:,} by {file.height:,}")
            image = ImageOps.exif_transpose(file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or "it is something else, or damaged"
        raise UserError(f"{name}: expected an image ({', '.join(FORMATS)}), {reason}") from error
    if image.mode.startswith(("I", "F")):  # more than 8 bits a pixel
        pixels = np.asarray(image, float)
        image = Image.fromarray((255 * pixels / max(pixels.max(), 1)).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image
