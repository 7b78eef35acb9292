"""Datasets: smallNORB and SST in their original files, rendered toys, and a generated treebank."""

import os
from pathlib import Path

from .pairs import CATEGORIES, Pairs
from .trees import POLARITIES, SENTIMENTS, Phrases

__all__ = ["CATEGORIES", "POLARITIES", "SENTIMENTS", "Pairs", "Phrases", "folder"]


def folder() -> Path:
    """Return the data folder: `CAPSROUTE_DATA`, or a cache in the user's home."""
    named = os.environ.get("CAPSROUTE_DATA")
    return Path(named) if named else Path.home() / ".cache" / "capsroute"
