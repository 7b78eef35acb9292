"""The command line."""

from . import train, study, use, infer, info  # noqa: I001, in the order of the help
from .app import app

__all__ = ["app", "infer", "info", "study", "train", "use"]
