"""Texts as hidden states of a frozen transformer, or as words hashed to numbers, which needs no download."""

import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..encoders import Encoder
from ..errors import UserError

WORD = re.compile(r"\w+|[^\w\s]")
PIECES = 8  # numbers of a word: its own and those of its pieces
PIECE_LETTERS = 3


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
