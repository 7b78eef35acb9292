"""Classifying a sentence: probabilities, and the credit of every token and depth for each class."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...credit import text_credit
from ..errors import UserError
from ..predict import TextClassifier

MAX_CHARACTERS = 400
EXAMPLES = (
    "a fine film with a wonderful cast",
    "the plot is thin and the jokes are dull",
    "it is not a bad film",
    "the acting is superb , but the story is a mess",
)


class TextResult(NamedTuple):
    """The answer for a text, and what it rests on."""

    names: tuple[str, ...]  # of the classes
    probabilities: Tensor  # [k]
    tokens: list[str]
    use: Tensor  # [n, depth, k], shares of the hidden states that each class used
    net: Tensor  # [n, depth, k], benefit less cost in each class's score
    truncated: bool

    @property
    def winner(self) -> int:
        return int(self.probabilities.argmax())


@lru_cache(1)
def load_classifier() -> TextClassifier:
    return TextClassifier("treebank")


@torch.inference_mode()
def classify_text(text: str) -> TextResult:
    """Classify a text that is not empty."""
    if not isinstance(text, str) or not text.strip():
        raise UserError("Type a sentence.")
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"text: expected at most {MAX_CHARACTERS} characters, got {len(text):,}")
    classifier = load_classifier()
    (tokens,) = classifier.encoder.split_tokens([text])
    credit = text_credit(classifier.network, *classifier.encoder.encode([tokens.ids]))
    probabilities = credit.scores[0].softmax(0)
    return TextResult(classifier.names, probabilities, tokens.pieces, credit.use[0], credit.net[0], tokens.truncated)
