"""Frozen language models: texts in, all of their hidden states out, encoded once and read many times."""

from .embeddings import Embeddings, embed
from .transformer import Encoder

__all__ = ["Embeddings", "Encoder", "embed"]
