"""What networks learn from: files in their original formats, or made on the spot."""

import os
from pathlib import Path

from .pairs import CATEGORIES, SPLITS, Pairs
from .trees import POLARITIES, SENTIMENTS, Phrases

__all__ = ["CATEGORIES", "POLARITIES", "SENTIMENTS", "SPLITS", "Pairs", "Phrases", "folder"]


def folder() -> Path:
    """Where data lies: `CAPSROUTE_DATA`, or a cache below the user's home."""
    named = os.environ.get("CAPSROUTE_DATA")
    return Path(named) if named else Path.home() / ".cache" / "capsroute"
