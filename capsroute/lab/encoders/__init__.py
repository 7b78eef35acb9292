"""Frozen language models that turn texts into all of their hidden states, encoded once and read many times."""

from .embeddings import Embeddings, batch_by_length, embed
from .encoder import Encoder, Tokens

__all__ = ["Embeddings", "Encoder", "Tokens", "batch_by_length", "embed"]
