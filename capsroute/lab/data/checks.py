"""Errors, file states and argument checks that all datasets share."""

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError

ORIGINAL, READABLE = "original", "readable, but not the published original"


class DataError(UserError):
    """Report data that is missing or wrong; the message names the file or address and says what to do."""


class FileState(NamedTuple):
    """State of one of a dataset's files: `ORIGINAL`, `READABLE`, `"missing"`, or what is wrong with it."""

    name: str
    path: Path | None
    state: str

    @property
    def ok(self) -> bool:
        return self.state in (ORIGINAL, READABLE)


def write_error(path: Path, error: OSError) -> DataError:
    """Return the error for a file or folder that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"{path} cannot be written: the disk is full. Free some space and run again.")
    return DataError(f"{path} cannot be written: {error.strerror or error}. Name a folder that you may write to.")


def read_error(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.")


def check_all_original(states: Iterable[FileState], command: str) -> None:
    """Raise if any existing file differs from the published one, so that `command` never overwrites it."""
    wrong = [f"{s.path} ({s.state})" for s in states if s.path and s.state != ORIGINAL]
    if wrong:
        raise DataError(
            f"Not the published files: {'; '.join(wrong)}. Move them away or name another folder, and run `{command}` "
            "again."
        )


def check_split(split: str, splits: Iterable[str]) -> None:
    if split not in splits:
        raise ValueError(f"split: expected one of {list(splits)}, got {split!r}")


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raise unless `value` is an integer from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name}: expected {wanted}, got {value}")
