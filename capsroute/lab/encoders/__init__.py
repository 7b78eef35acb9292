"""Frozen language models that turn texts into all of their hidden states, encoded once and read many times."""

from .embeddings import Embeddings, embed
from .encoder import Encoder, Tokens

__all__ = ["Embeddings", "Encoder", "Tokens", "embed"]
