"""Errors that the command line prints as a message, without a traceback."""

EXTRAS = {  # packages that are not part of the extra `train`, which most commands need
    "transformers": "text",
    "tokenizers": "text",
    "matplotlib": "report",
    "sklearn": "report",
    "gradio": "demo",
}


class UserError(RuntimeError):
    """Report something the user can correct; the message says what is wrong and what to do."""


class StoppedError(UserError):
    """Report that training was asked to stop and saved its state first."""


def needs_extra(package: str, extra: str) -> UserError:
    """Return the error for a missing package, naming the extra that installs it."""
    return UserError(f"{package} is not installed: pip install 'capsroute[{extra}]'")
