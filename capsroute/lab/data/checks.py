"""The error that all datasets raise, and states of published files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError

ORIGINAL, READABLE = "original", "readable, but not the published original"


class DataError(UserError):
    """Report data that is missing or wrong; the message names the file or address and says what to do."""


class FileState(NamedTuple):
    """Hold the state of one of a dataset's files: `ORIGINAL`, `READABLE`, `"missing"`, or what is wrong with it."""

    name: str
    path: Path | None
    state: str

    @property
    def ok(self) -> bool:
        return self.state in (ORIGINAL, READABLE)


def read_error(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.")


def find_file(*paths: Path) -> Path | None:
    """Return the first path that is a file."""
    return next((path for path in paths if path.is_file()), None)


def check_present(folder: Path, missing: str, command: str) -> None:
    """Raise unless the folder exists and nothing is missing in it."""
    advice = f"Run `{command}`, or name the folder that holds the files."
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. {advice}")
    if missing:
        raise DataError(f"{folder} lacks {missing}. {advice}")


def check_file(name: str, path: Path | None, is_original: Callable[[Path], bool]) -> FileState:
    """Return the state of a file, given a function that reads all of it or raises a `DataError`."""
    if path is None:
        return FileState(name, None, "missing")
    try:
        return FileState(name, path, ORIGINAL if is_original(path) else READABLE)
    except DataError as error:
        return FileState(name, path, f"corrupt: {error}")
    except OSError as error:
        return FileState(name, path, f"unreadable: {error.strerror or error}")


def check_originals(states: Iterable[FileState], command: str) -> None:
    """Raise if any existing file differs from the published one, so that `command` never overwrites it."""
    wrong = [f"{s.path} ({s.state})" for s in states if s.path and s.state != ORIGINAL]
    if wrong:
        raise DataError(
            f"Not the published files: {'; '.join(wrong)}. Move them away or name another folder, and run `{command}` "
            "again."
        )
