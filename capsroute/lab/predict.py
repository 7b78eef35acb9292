"""Sentiment of texts by a trained network and its encoder; imports nothing that only training needs."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..nets import SST
from .data import POLARITIES, SENTIMENTS
from .encoders import Encoder
from .errors import UserError
from .formatting import readable
from .training.task import load_network
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
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise UserError(f"device: expected cpu, or cuda where there is a GPU, got {str(device)!r}") from error
        found = find_weights(weights)
        network = load_text_network(found)
        self.names: tuple[str, ...] = SENTIMENTS if network.config["n_classes"] == len(SENTIMENTS) else POLARITIES
        encoder = encoder or found.encoder()
        if not encoder:
            raise UserError(f"{weights}: does not say which encoder it was trained with; name it with --encoder")
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


def format_prediction(prediction: Prediction, as_json: bool) -> str:
    """Return one line, safe to print on a terminal."""
    if as_json:
        return json.dumps(prediction._asdict())
    text = readable(prediction.text)
    if not prediction.label:
        return f"{'no text':16}       {text}"
    note = f" [only its first {prediction.n_tokens:,} tokens were read]" if prediction.truncated else ""
    return f"{prediction.label:16} {100 * prediction.probability:4.0f}%  {text}{note}"


def load_text_network(weights: Weights) -> SST:
    """Load a routing network for texts; anything else is refused."""
    if weights.run:
        config = weights.run.read_json("config.json")
        experiment, head = config.get("experiment"), config.get("head")
        if head != "routing":
            other = f"{experiment}, which classifies images" if head is None else f"{experiment} with head={head}"
            raise UserError(f"{weights.name}: expected a run of the routing network on texts, got {other}")
    if weights.experiment in ("smallnorb", "toys96"):
        raise UserError(f"{weights.name}: classifies images, not texts")
    return load_network(SST, weights.folder, SENTIMENTS, POLARITIES)
