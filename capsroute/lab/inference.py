"""Predictions of any trained network, from images, texts and sets of vectors; imports nothing that only training needs.

Axes: b samples, n places, k classes.
"""

import json
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..credit import Credit, image_credit, text_credit
from ..nets import SST, Classifier, SmallNORB
from ..nets.hub import CONFIG, Hub
from ..pretrained import load
from .data import POLARITIES, SENTIMENTS
from .data.pairs import CATEGORIES
from .encoders import batch_by_length
from .errors import UserError, first_line
from .formatting import readable
from .preprocessing import (
    ImagePreprocessing,
    SetPreprocessing,
    TextPreprocessing,
    WordPreprocessing,
    make_preprocessing,
)
from .training.experiments import Weights, find_weights
from .training.task import load_network

MAX_CHARACTERS = 100_000  # of a text; more are cut off before tokenising, which takes many times their memory
BATCH_PLACES, PLACES_OF_IMAGE = 2048, 64  # computed at a time: few enough for any memory
PAIR_SIZE = 96  # rows and columns of the paper's stereo pairs
BYTE_ORDER_MARK = "\ufeff"


class Prediction(NamedTuple):
    """The network's answer for one input."""

    input: str  # the text, the file's name, or the number of the set
    label: str  # empty for an empty text, or after an error
    probabilities: dict[str, float]
    n_tokens: int | None  # of a text, that were read
    truncated: bool  # whether the text has more of them
    error: str  # why there is no answer

    @property
    def probability(self) -> float:
        return self.probabilities.get(self.label, 0.0)

    def ranked(self) -> list[tuple[str, float]]:
        """Return classes and their probabilities, the likeliest first."""
        return sorted(self.probabilities.items(), key=lambda pair: -pair[1])

    @property
    def problem(self) -> str:
        """The error, with the name of the input."""
        name = readable(self.input, 100)
        return self.error if self.input in self.error or name in self.error else f"{name}: {self.error}"


class Sample(NamedTuple):
    """An input, ready for the network."""

    data: Any  # one of those that the preprocessing collates
    pieces: Sequence[tuple[str, str]] = ()  # tokens of a text, each after the space before it
    truncated: bool = False


class Predictor:
    """A trained network, with its preprocessing and the names of its classes.

    Args:
        source: A run's folder, a folder of weights, the name of shipped weights, or a network.
        encoder: Name or folder of the frozen model below the network, if not the one it was trained with.
        device: Device to run on.
    """

    def __init__(
        self, source: str | PathLike[str] | Hub, *, encoder: str | None = None, device: str | torch.device = "cpu"
    ):
        try:
            torch.ones(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:  # as `meta`, which holds no numbers
            raise UserError(f"device: expected cpu, or cuda where there is a GPU, got {str(device)!r}") from error
        self.name, self.device = source if isinstance(source, str) else "network", torch.device(device)
        if isinstance(source, Hub):
            weights, network = None, source
        else:
            self.name = fspath(source)
            weights = find_weights(self.name)
            network = load_weights(weights)
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise UserError(f"{self.name}: expected finite weights, {name} has NaN or infinity")
        self.network: Any = network.eval().to(self.device)
        self.classes, self.preprocessing = self._find_preprocessing(weights, encoder)

    @property
    def kind(self) -> str:
        """What the network classifies: `"images"`, `"texts"` or `"arrays"`."""
        if isinstance(self.network, Classifier):
            return self.network.kind
        return "texts" if isinstance(self.network, SST) else "images"

    @property
    def views(self) -> int:
        """How many images of one thing the network takes: 2 for stereo pairs."""
        return getattr(getattr(self.preprocessing, "images", self.preprocessing), "views", 1)

    def prepare(self, value: Any) -> Sample:
        """Return an input ready for the network; raises `UserError` for one that cannot be read.

        Args:
            value: A text; a set of vectors `[n, d]`; or an image: a file, one opened, an image of PIL, bytes
                `[m, n, 3]`, or a list of the views of one thing.
        """
        match self.preprocessing:
            case WordPreprocessing() | TextPreprocessing():
                return self._prepare_text(value)
            case SetPreprocessing():
                sample = Sample(self.preprocessing.prepare(value))
                if not len(sample.data):
                    raise UserError("vectors: expected at least one, got none")
                return sample
        return Sample(self.preprocessing.prepare(value))

    @torch.inference_mode()
    def scores(self, samples: Sequence[Sample]) -> Tensor:
        """Return the class scores of samples, `[b, k]`, in batches of about the same length."""
        is_image = self.kind == "images"
        lengths = [PLACES_OF_IMAGE if is_image else max(1, len(sample.data)) for sample in samples]
        scores = torch.empty(len(samples), len(self.classes), dtype=torch.float64)
        for rows in batch_by_length(lengths, BATCH_PLACES):
            scores[rows] = self.network(*self.arguments([samples[k] for k in rows])).a.double().cpu()
        return scores

    def __call__(self, values: Iterable[Any], names: Sequence[str] | None = None) -> list[Prediction]:
        """Return a prediction for each input; one that cannot be read has an error instead of a label.

        Args:
            values: Inputs, as `prepare` takes them.
            names: What to call them; texts and files are their own names.
        """
        values = list(values)
        names = names or [fspath(v) if isinstance(v, str | PathLike) else str(k) for k, v in enumerate(values)]
        predictions: list[Prediction] = []
        samples: dict[int, Sample] = {}
        for k, (name, value) in enumerate(zip(names, values, strict=True)):
            error, n_tokens = "", None
            try:
                sample = self.prepare(value)
                n_tokens = len(sample.pieces) if self.kind == "texts" else None
                if n_tokens != 0:  # an empty text has no class, and is no error
                    samples[k] = sample
            except UserError as problem:
                error = str(problem)
            predictions.append(Prediction(name, "", {}, n_tokens, False, error))
        scores = self.scores(list(samples.values()))
        for (k, sample), row in zip(samples.items(), scores, strict=True):
            shares = row.softmax(-1)
            if not shares.isfinite().all():
                predictions[k] = predictions[k]._replace(error="the network's scores are not finite")
                continue
            found: dict[str, Any] = {"probabilities": dict(zip(self.classes, shares.tolist(), strict=True))}
            found["label"] = max(found["probabilities"], key=found["probabilities"].__getitem__)
            predictions[k] = predictions[k]._replace(**found, truncated=sample.truncated)
        return predictions

    @torch.no_grad()
    def credit(self, sample: Sample) -> Credit:
        """Return the credit of a sample's places: rows and columns of an image, tokens, or vectors.

        Kinds of parts are summed, so its fields are `[1, n, k]`, or `[1, rows, columns, k]` where there is a map.
        """
        arguments = self.arguments([sample])
        if isinstance(self.network, Classifier):
            found, axes = self.network.credit(*arguments), (1,) if self.network.trunk.n_kinds is None else (1, 2)
        elif isinstance(self.network, SST):
            found, axes = text_credit(self.network, *arguments), (2,)
        else:
            found, axes = image_credit(self.network, *arguments), (1,)
        *shares, scores = found
        return Credit(*(share.sum(axes) for share in shares), scores=scores)

    def arguments(self, samples: Sequence[Sample]) -> tuple[Tensor, ...]:
        """Return the arguments of the network for a batch."""
        inputs, mask = self.preprocessing.collate([sample.data for sample in samples])
        inputs = inputs.to(self.device)
        if mask is None:
            return (inputs,)
        mask = mask.to(self.device)
        return (mask, inputs.movedim(1, 2)) if isinstance(self.network, SST) else (inputs, mask)

    def _prepare_text(self, text: Any) -> Sample:
        if not isinstance(text, str):
            raise UserError(f"text: expected text, got {type(text).__name__}")
        text = text.removeprefix(BYTE_ORDER_MARK)
        short = text[:MAX_CHARACTERS]
        if isinstance(self.preprocessing, WordPreprocessing):
            pieces = [(word.space, word.text) for word in self.preprocessing.split(short)]
            n_read = sum(len(space) + len(piece) for space, piece in pieces)
            return Sample(self.preprocessing.prepare(short), pieces, bool(text[n_read:].strip()))
        if not short.strip():
            return Sample([])
        (tokens,) = self.preprocessing.model.split_tokens([short])
        pieces = list(zip(tokens.spaces, tokens.pieces, strict=True))
        return Sample(tokens.ids, pieces, tokens.truncated or len(text) > len(short))

    def _find_preprocessing(self, weights: Weights | None, encoder: str | None) -> tuple[tuple[str, ...], Any]:
        """Return the names of the classes, and the preprocessing."""
        if isinstance(self.network, SmallNORB):
            size = getattr(weights.config(), "size", PAIR_SIZE) if weights and weights.run else PAIR_SIZE
            return CATEGORIES, ImagePreprocessing(size, size, channels=1, views=2)
        if isinstance(self.network, Classifier):
            return self.network.classes, self._make_preprocessing(weights, encoder)
        classes = SENTIMENTS if self.network.config["n_classes"] == len(SENTIMENTS) else POLARITIES
        encoder = encoder or (weights.encoder() if weights else self.network.encoder)
        if not encoder:
            raise UserError(f"{self.name}: does not say which encoder it was trained with; name it with --encoder")
        preprocessing = TextPreprocessing(encoder, device=str(self.device))
        expected, got = tuple(self.network.depth_emb.shape), (preprocessing.model.depth, preprocessing.model.d_emb)
        if expected != got:
            sizes = "{} hidden states of width {}".format
            raise UserError(f"{encoder}: expected {sizes(*expected)}, as {self.name} needs, got {sizes(*got)}")
        return classes, preprocessing

    def _make_preprocessing(self, weights: Weights | None, encoder: str | None) -> Any:
        settings, changes = self.network.config["preprocessing"], {}
        if frozen := next((name for name in ("encoder", "backbone") if name in settings), None):
            beside = weights.folder / frozen if weights else Path()
            changes = {frozen: encoder or (str(beside) if weights and beside.is_dir() else settings[frozen])}
            changes["device"] = str(self.device)
        try:
            return make_preprocessing(settings, **changes)
        except (TypeError, ValueError) as error:
            problem = f"{self.name}: does not say how its inputs are made from files"
            raise UserError(f"{problem} ({error}); save it with its preprocessing") from error


def load_weights(weights: Weights) -> Hub:
    """Load a network that can predict; baselines and damaged files are refused."""
    file = weights.folder / CONFIG
    try:
        kind = json.loads(file.read_text())["network"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: expected the settings of a network, cannot read them ({error})") from error
    if kind == "SST":
        return load_network(SST, weights.folder, SENTIMENTS, POLARITIES)
    if kind == "SmallNORB":
        return load_network(SmallNORB, weights.folder, CATEGORIES)
    try:
        return load(weights.folder)
    except Exception as error:  # json, safetensors and torch raise unrelated classes
        problem = f"{weights.folder}: expected the weights of a network, cannot load them"
        raise UserError(f"{problem} ({first_line(error)})") from error
