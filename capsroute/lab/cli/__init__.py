"""The command line."""

from . import train, study, use, infer, serve, data, info  # noqa: I001, in the order of the help
from .app import app

__all__ = ["app", "data", "infer", "info", "serve", "study", "train", "use"]
