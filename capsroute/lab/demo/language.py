"""What the network for sentences makes of one: classes, and what each class used of every token and owes to it."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...credit import text_credit
from ..errors import UserError
from ..predict import Judge

MAX_CHARACTERS = 400
EXAMPLES = (
    "a fine film with a wonderful cast",
    "the plot is thin and the jokes are dull",
    "it is not a bad film",
    "the acting is superb , but the story is a mess",
)


class Reading(NamedTuple):
    """What came of one text."""

    names: tuple[str, ...]  # of the classes
    chances: Tensor  # [k]
    tokens: list[str]
    use: Tensor  # [n, depth, k], shares that each class used
    net: Tensor  # [n, depth, k], what each class's score owes to them: benefit less cost
    whole: bool  # whether all of the text was read

    @property
    def winner(self) -> int:
        return int(self.chances.argmax())


@lru_cache(1)
def judge() -> Judge:
    """The shipped network with its encoder, loaded once."""
    return Judge("treebank")


@torch.inference_mode()
def read(text: str) -> Reading | None:
    """Judge a text; none where there is nothing to judge."""
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        got = f"{len(text):,}" if isinstance(text, str) else type(text).__name__
        raise UserError(f"text: expected at most {MAX_CHARACTERS} characters, got {got}")
    if not text.strip():
        return None
    encoder, network = judge().encoder, judge().network
    tokens, cut = encoder.tokens(text)
    credit = text_credit(network, *encoder.encode(encoder.tokenize([text])))
    net = (credit.benefit - credit.cost)[0]
    return Reading(judge().names, credit.scores[0].softmax(0), tokens, credit.use[0], net, not cut)
