"""Texts as hidden states of a frozen transformer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from ..encoders import Encoder
from ..errors import UserError


@dataclass(frozen=True)
class TextPreprocessing:
    """Tokenises texts and encodes them."""

    encoder: str  # name on the Hugging Face hub, or folder
    max_tokens: int | None = None  # longer texts are truncated; none for the encoder's limit
    precision: str = "fp32"
    revision: str | None = None  # commit on the hub; none for the newest
    device: str = "cpu"

    @cached_property
    def model(self) -> Encoder:
        """The encoder, loaded when it is first needed."""
        options = {"max_tokens": self.max_tokens, "revision": self.revision}
        return Encoder(self.encoder, precision=self.precision, device=self.device, **options)

    def prepare(self, item: Any) -> list[int]:
        """Return the ids of a text's tokens."""
        if not isinstance(item, str):
            raise UserError(f"text: expected text, got {type(item).__name__}")
        return self.model.tokenize([item])[0]

    def collate(self, samples: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return hidden states `[b, depth, n, d]` and the mask `[b, n]`."""
        mask, states = self.model.encode(samples)
        return states.float().movedim(2, 1), mask
