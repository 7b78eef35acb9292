"""Errors that the command line prints as a message, without a traceback."""

from importlib import import_module
from signal import SIGINT
from typing import Any

EXTRAS = {  # packages that are not part of the extra `train`, which most commands need
    "transformers": "text",
    "tokenizers": "text",
    "matplotlib": "report",
    "pandas": "text",
    "pyarrow": "parquet",
    "timm": "timm",
    "torchvision": "timm",  # which imports it
    "optuna": "sweep",
    "ray": "ray",
    "gradio": "demo",
    "starlette": "demo",
    "fastapi": "serve",
    "uvicorn": "serve",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
}


class UserError(RuntimeError):
    """Report something the user can correct; the message says what is wrong and what to do."""


class StoppedError(UserError):
    """Report that training was asked to stop by a signal and saved its state first."""

    def __init__(self, message: str, signal: int = SIGINT):
        super().__init__(message)
        self.signal = signal


class TerminatedError(KeyboardInterrupt):
    """Stop at once because of SIGTERM, as Ctrl-C does."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(":.")


def needs_extra(package: str) -> UserError:
    """Return the error for a missing package, naming the extra that installs it."""
    return UserError(f"{package} is not installed: pip install 'capsroute[{EXTRAS.get(package, 'train')}]'")


def import_extra(name: str) -> Any:
    """Import a module of an extra, or raise the error that names the extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise needs_extra((error.name or name).partition(".")[0]) from error
