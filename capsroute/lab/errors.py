"""Errors that the command line prints as a message, without a traceback."""

from importlib import import_module
from signal import SIGINT
from typing import Any

PACKAGES = {  # of each extra but `train`, which most commands need
    "text": ("transformers", "tokenizers", "pandas"),
    "report": ("matplotlib",),
    "parquet": ("pyarrow",),
    "timm": ("timm", "torchvision"),  # the first imports the second
    "sweep": ("optuna",),
    "ray": ("ray",),
    "demo": ("gradio", "starlette"),
    "serve": ("fastapi", "uvicorn"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
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
    extra = next((extra for extra, packages in PACKAGES.items() if package in packages), "train")
    return UserError(f"{package} is not installed: pip install 'capsroute[{extra}]'")


def import_extra(name: str) -> Any:
    """Import a module of an extra, or raise the error that names the extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise needs_extra((error.name or name).partition(".")[0]) from error
