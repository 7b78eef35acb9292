"""Sentiment of texts by a trained network and its encoder; imports nothing that only training needs."""

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import torch

from ..nets import SST
from .data.trees import POLARITIES, SENTIMENTS
from .encoders import Encoder
from .errors import UserError
from .formatting import readable
from .training.weights import Weights, find_weights


class Prediction(NamedTuple):
    """The network's answer for one text."""

    text: str
    label: str  # empty for an empty text
    probabilities: dict[str, float]
    n_tokens: int  # that the encoder read
    truncated: bool  # whether the text has more of them

    @property
    def probability(self) -> float:
        return self.probabilities.get(self.label, 0.0)


class TextClassifier:
    """A trained network with its encoder.

    Args:
        weights: The name of shipped weights, a folder of weights, or a run's folder.
        encoder: Name or folder of the encoder, if not the one the network was trained with.
        device: Device to run on.
    """

    def __init__(self, weights: str, encoder: str | None = None, device: str | torch.device = "cpu"):
        device = _check_device(device)
        found = find_weights(weights)
        _check_run(found)
        network = _load_network(found)
        encoder = encoder or found.encoder()
        if not encoder:
            raise UserError(f"{weights}: does not say which encoder it was trained with; name it with --encoder")
        n_classes = network.routings[-1].n_out
        self.names: tuple[str, ...] = next((k for k in (SENTIMENTS, POLARITIES) if len(k) == n_classes), ())
        if not self.names:
            raise UserError(f"{weights}: expected a network with 5 classes or 2, got {n_classes}")
        self.encoder = Encoder(encoder, device=device)
        expected, got = tuple(network.depth_emb.shape), (self.encoder.depth, self.encoder.d_emb)
        if expected != got:
            sizes = "{} hidden states of width {}".format
            raise UserError(f"{self.encoder.name}: expected {sizes(*expected)}, as {weights} needs, got {sizes(*got)}")
        self.network = network.to(device)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[Prediction]:
        """Return a prediction for each text."""
        predictions = [Prediction(text, "", {}, 0, False) for text in texts]
        places = [k for k, text in enumerate(texts) if text.strip()]
        if not places:
            return predictions
        tokens = self.encoder.split_tokens([texts[k] for k in places])
        scores = self.network(*self.encoder.encode([t.ids for t in tokens])).a.double()
        for k, row, t in zip(places, scores.softmax(-1).tolist(), tokens, strict=True):
            probabilities = dict(zip(self.names, row, strict=True))
            label = max(probabilities, key=probabilities.__getitem__)
            predictions[k] = Prediction(texts[k], label, probabilities, len(t.ids), t.truncated)
        return predictions


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield lines of text; bytes that are not UTF-8 are replaced."""
    for line in stream:
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def format_prediction(prediction: Prediction, as_json: bool) -> str:
    """Return one line, safe to print on a terminal."""
    if as_json:
        return json.dumps(prediction._asdict())
    text = readable(prediction.text)
    if not prediction.label:
        return f"{'no text':16}       {text}"
    note = f" [only its first {prediction.n_tokens:,} tokens were read]" if prediction.truncated else ""
    return f"{prediction.label:16} {100 * prediction.probability:4.0f}%  {text}{note}"


def _check_run(weights: Weights) -> None:
    """Raise an error if the weights are of a run with another network."""
    if weights.run is None:
        return
    config = weights.run.read_json("config.json")
    experiment, head = config.get("experiment"), config.get("head")
    if head != "routing":
        other = f"{experiment}, which classifies images" if head is None else f"{experiment} with head={head}"
        raise UserError(f"{weights.name}: expected a run of the routing network on texts, got {other}")


def _load_network(weights: Weights) -> SST:
    """Load the network and check that the file holds all of its weights and no others."""
    if weights.experiment in ("smallnorb", "toys96"):
        raise UserError(f"{weights.name}: classifies images, not texts")
    try:
        return SST.from_pretrained(weights.folder).eval()
    except Exception as error:  # json, safetensors and torch raise unrelated classes
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(":.")
        message = f"{weights.folder}: expected weights of a network for texts, cannot load them ({reason})"
        raise UserError(message) from error


def _check_device(device: str | torch.device) -> torch.device:
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device: expected cpu, or cuda where there is a GPU, got {str(device)!r}") from error
