"""What an answer rests on: the net credit of pixels, words or vectors for the predicted class, as a picture or HTML.

Axes: m rows and n columns of an image, or n tokens or vectors; k classes.
"""

import math
import textwrap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ..credit import Credit, for_class, heat_maps
from ..nets.hub import Hub
from ..nets.trunks import Convolutions
from . import html
from .atomic_files import atomic_write
from .errors import UserError, import_extra
from .formatting import percent, readable
from .html import BLUE, ORANGE, Html
from .inference import Prediction, Predictor, Sample
from .preprocessing import ImagePreprocessing, open_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 480  # pixels of a picture's longer side, at least
MAX_SIDE = 1200
MAX_ROWS = 30  # vectors in a table or chart, those with the largest credit
N_COLUMNS = 8  # numbers of a vector that are shown
LINE = 90  # characters of a line in a picture of a text, and their size in points, which fills the picture
FONT_SIZE = 11.4


def explain(
    network: "str | PathLike[str] | Hub | Predictor", value: Any, *, name: str = "", device: str | torch.device = "cpu"
) -> "Explanation":
    """Return what the network's answer for one input rests on.

    Args:
        network: A run's folder, a folder of weights, the name of shipped weights, a network, or a `Predictor`.
        value: An image's file, a text, or a set of vectors `[n, d]`.
        name: What to call it; a text or a file is its own name.
        device: Device to run on.
    """
    predictor = network if isinstance(network, Predictor) else Predictor(network, device=device)
    name = name or (fspath(value) if isinstance(value, str | PathLike) else "input")
    sample = predictor.prepare(value)
    if not predictor.kind == "images" and not len(sample.data):
        raise UserError("text: expected some words, got none")
    (prediction,) = predictor([value], [name])
    if prediction.error:
        raise UserError(prediction.error)
    credit = predictor.credit(sample)
    if predictor.kind == "images":
        return ImageExplanation(prediction, *find_heat(predictor, value, sample, credit))
    places = for_class(credit.net, credit.scores)[0].double().cpu().numpy()  # [n]
    if predictor.kind == "texts":
        return TextExplanation(prediction, places[: len(sample.pieces)], sample.pieces)
    return SetExplanation(prediction, places[: len(sample.data)], sample.data)


@dataclass(frozen=True)
class Explanation(ABC):
    """The net credit of each place for the predicted class, against the others."""

    prediction: Prediction
    credit: np.ndarray  # [n], or [m, n] over the pixels of an image

    @property
    def caption(self) -> str:
        """One line that says what is shown."""
        name, probability = self.prediction.label, percent(self.prediction.probability)
        words = (
            f"“{name}”, {probability}. Blue raised its odds, orange lowered them: net credit for the predicted class."
        )
        return words + (" Only the beginning was read." if self.prediction.truncated else "")

    @abstractmethod
    def figure(self, caption: str = "") -> Html:
        """Return HTML of the input with its credit, above a caption; its own by default."""

    @abstractmethod
    def draw(self, figure: "Figure") -> None:
        """Draw the input with its credit on a figure of Matplotlib."""

    def plot(self) -> "Figure":
        """Return a figure of Matplotlib, which a notebook shows."""
        figure = import_extra("matplotlib.figure").Figure(layout="constrained", dpi=120)
        self.draw(figure)
        caption = self.caption.replace("$", r"\$")
        figure.suptitle("\n".join(textwrap.wrap(caption, 100)), fontsize=10)
        return figure

    def _repr_html_(self) -> str:
        return self.figure()

    def to_html(self) -> str:
        """Return a page in one file."""
        rows = [(name, percent(p)) for name, p in self.prediction.ranked()]
        table = html.table("Probabilities", ("class", "probability"), rows)
        section = html.Section("Explanation", [self.figure(), table])
        return html.page(readable(self.prediction.input, 80), [section], "Made by capsroute explain.")

    def save(self, path: str | PathLike[str]) -> None:
        """Write a picture (`.png`) or a page (`.html`)."""
        path = Path(path)
        match path.suffix.lower():
            case ".html":
                with atomic_write(path) as file:
                    file.write(self.to_html().encode("utf-8", "replace"))
            case ".png":
                with atomic_write(path) as file, warnings.catch_warnings(action="ignore"):  # letters fonts do not have
                    self.plot().savefig(file, format="png", bbox_inches="tight")
            case _:
                raise UserError(f"{path}: expected a name that ends with .png or .html")


@dataclass(frozen=True)
class ImageExplanation(Explanation):
    """Credit over the pixels of an image."""

    image: np.ndarray = field(repr=False)  # bytes [m, n, 3]

    def overlay(self) -> np.ndarray:
        """Return the image in grey under its credit, bytes `[m, n, 3]`; the pixels with least credit have no colour."""
        grey = np.asarray(Image.fromarray(self.image).convert("L"), float)[..., None]
        size = np.abs(self.credit)[..., None]
        least, most = float(size.min()), float(size.max())
        strength = (size - least) / max(most - least, most / 2, 1e-12)  # even credit is no pattern to stretch
        hue = np.where(self.credit[..., None] > 0, np.array(BLUE, float), np.array(ORANGE, float))
        cover = 0.75 * strength
        return ((1 - cover) * (0.5 * grey + 110) + cover * hue).clip(0, 255).round().astype(np.uint8)

    def figure(self, caption: str = "") -> Html:
        views = [html.image(html.encode_png(pixels), alt) for pixels, alt in self._views()]
        return html.panels(caption or self.caption, *views)

    def draw(self, figure: "Figure") -> None:
        rows, columns = self.credit.shape
        figure.set_size_inches(9, min(9, max(2.5, 4.3 * rows / columns + 0.7)))
        for axes, (pixels, title) in zip(figure.subplots(1, 2), self._views(), strict=True):
            axes.imshow(pixels)
            axes.set_title(title, fontsize=10)
            axes.axis("off")

    def _views(self) -> list[tuple[np.ndarray, str]]:
        return [(self.image, "The image"), (self.overlay(), "Net credit")]


@dataclass(frozen=True)
class TextExplanation(Explanation):
    """Credit of the words or tokens of a text."""

    pieces: Sequence[tuple[str, str]]  # each after the space before it

    def figure(self, caption: str = "") -> Html:
        return html.figure(html.tinted_words(self.pieces, self.credit.tolist()), caption or self.caption)

    def draw(self, figure: "Figure") -> None:
        places, line, column = [], 0, 0  # line and column of each piece
        for space, piece in self.pieces:
            start = column + bool(space and column)
            if column and start + len(piece) > LINE:
                line, start = line + 1, 0
            places.append((line, start))
            column = start + len(piece)
        n_lines = min(line + 1, 2 * MAX_ROWS)  # a page
        figure.set_size_inches(9, 0.8 + 0.32 * n_lines)
        axes = figure.subplots()
        axes.set(xlim=(0, LINE), ylim=(n_lines - 0.3, -0.7))
        axes.axis("off")
        shares = self.credit / max(float(np.abs(self.credit).max()), 1e-12)
        for (line, start), (_, piece), share in zip(places, self.pieces, shares.tolist(), strict=True):
            if line < n_lines:
                span = start / LINE, (start + min(len(piece), LINE)) / LINE
                axes.axhspan(line - 0.4, line + 0.4, *span, color=_hue(share), alpha=0.6 * abs(share), lw=0)
                word = readable(piece, LINE).replace("$", r"\$")
                axes.text(start, line, word, family="monospace", fontsize=FONT_SIZE, va="center")


@dataclass(frozen=True)
class SetExplanation(Explanation):
    """Credit of the vectors of a set."""

    vectors: np.ndarray = field(repr=False)  # [n, d]

    def figure(self, caption: str = "") -> Html:
        columns = [f"{k}" for k in range(min(N_COLUMNS, self.vectors.shape[1]))]
        rows = [(k, f"{self.credit[k]:+.3f}", *self._numbers(k)) for k in self._largest()]
        left_out = len(self.credit) - len(rows)
        more = f" {left_out:,} more inputs had less credit." if left_out else ""
        table = html.table("Inputs with the largest credit, and their numbers", ("input", "net credit", *columns), rows)
        return html.figure(table, (caption or self.caption) + more)

    def draw(self, figure: "Figure") -> None:
        rows = self._largest()
        values = self.credit[rows]
        figure.set_size_inches(9, 1.2 + 0.24 * len(rows))
        axes = figure.subplots()
        axes.barh(range(len(rows)), values, color=list(map(_hue, values)))
        axes.set_yticks(range(len(rows)), [f"{k}: {', '.join(self._numbers(k)[:4])}" for k in rows], fontsize=8)
        axes.invert_yaxis()
        axes.axvline(0, color="grey", lw=0.8)
        axes.set_xlabel("net credit")

    def _largest(self) -> list[int]:
        """Return the inputs with the largest credit, the largest first."""
        return np.argsort(-np.abs(self.credit), kind="stable")[:MAX_ROWS].tolist()

    def _numbers(self, k: int) -> list[str]:
        return [f"{value:.3g}" for value in self.vectors[k, :N_COLUMNS].tolist()]


def find_heat(predictor: Predictor, value: Any, sample: Sample, credit: Credit) -> tuple[np.ndarray, np.ndarray]:
    """Return the credit of the predicted class over an image's pixels `[m, n]`, and the image as bytes `[m, n, 3]`."""
    shape = predictor.preprocessing
    fitted: ImagePreprocessing = getattr(shape, "images", shape)
    size = (fitted.rows, fitted.columns)
    trunk = getattr(predictor.network, "trunk", None)
    if trunk is None or isinstance(trunk, Convolutions):  # the layout of locations is known
        layout = {} if trunk is None else {"first": 0, "stride": trunk.stride}
        heat = for_class(heat_maps(credit.net.unsqueeze(1), size, **layout).flatten(2).mT, credit.scores)[0]
    else:
        places, grid = for_class(credit.net.flatten(1, -2), credit.scores), credit.net.shape[1:3]  # [1, places]
        if credit.net.ndim == 3:  # tokens: those of the first view, of which the last are patches
            places = places[:, : places.shape[1] // fitted.views]
            grid = find_grid(places.shape[1], size)
        places = places[:, -math.prod(grid) :].unflatten(1, (1, *grid))
        heat = nn.functional.interpolate(places, size, mode="bilinear")[0]
    heat = heat.reshape(size).float().cpu()
    image = open_image(value[0] if isinstance(value, list | tuple) else value).convert("RGB")
    left, top, right, bottom = fitted.find_box(image.size)
    heat = heat[top:bottom, left:right]
    image = resize_picture(image, min(MAX_SIDE, max(SIDE, *image.size)))
    heat = nn.functional.interpolate(heat[None, None], (image.height, image.width), mode="bilinear")[0, 0]
    return heat.numpy(), np.asarray(image)


def find_grid(n_tokens: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of the patches that tokens stand for: of the smallest for which there are enough."""
    grids = ((size[0] // patch, size[1] // patch) for patch in range(1, max(size) + 1))
    return next(((m, n) for m, n in grids if 0 < m * n <= n_tokens), (1, 1))


def resize_picture(image: Image.Image, longest: int) -> Image.Image:
    """Return an image whose longer side has so many pixels; those of a tiny image become squares."""
    method = Image.Resampling.BICUBIC if max(image.size) > 32 else Image.Resampling.NEAREST
    width, height = (max(1, round(longest * side / max(image.size))) for side in image.size)
    return image.resize((width, height), method)


def _hue(credit: float) -> list[float]:
    return [c / 255 for c in (BLUE if credit > 0 else ORANGE)]
