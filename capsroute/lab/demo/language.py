"""Classifying a sentence: probabilities, and the credit of every token and depth for each class."""

from functools import lru_cache

import torch

from ...credit import Credit, text_credit
from ..encoders import Tokens
from ..errors import UserError
from ..inference import Predictor

MAX_CHARACTERS = 400
EXAMPLES = (
    "a fine film with a wonderful cast",
    "the plot is thin and the jokes are dull",
    "it is not a bad film",
    "the acting is superb , but the story is a mess",
)


@lru_cache(1)
def load_predictor() -> Predictor:
    return Predictor("treebank")


@torch.inference_mode()
def classify_text(text: str) -> tuple[Tokens, Credit]:
    """Return the tokens of a text that is not empty, and their credit, of a batch of one, with the class scores."""
    if not isinstance(text, str) or not text.strip():
        raise UserError("Type a sentence.")
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"text: expected at most {MAX_CHARACTERS} characters, got {len(text):,}")
    classifier = load_predictor()
    encoder = classifier.preprocessing.model
    (tokens,) = encoder.split_tokens([text])
    return tokens, text_credit(classifier.network, *encoder.encode([tokens.ids]))
