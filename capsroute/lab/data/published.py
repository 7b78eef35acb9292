"""Published files: their states, verified downloads through pooch, and the error that all datasets raise."""

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..atomic_files import staging_folder
from ..errors import UserError, import_extra
from ..progress import progress_bar

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


CHUNK = 1 << 16  # bytes
TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two packets


def file_digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


@contextmanager
def name_write_errors(path: Path) -> Iterator[None]:
    """Create the folder that a file or folder is written into, and name that file in errors of writing it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = "the disk is full. Free some space and run again"
        else:
            why = f"{error.strerror or error}. Name a folder that you may write to"
        raise DataError(f"{path} cannot be written: {why}.") from error


def download(
    url: str,
    path: Path,
    known_hash: str,
    max_bytes: int,
    *,
    label: str = "",
    retries: int = 2,
    timeout: tuple[float, float] = TIMEOUT,
) -> Path:
    """Download `url` to `path`, which appears only when it is complete and its checksum is right.

    Args:
        url: An http or https address.
        path: Where to. An existing file is never replaced: it is verified, and must be the right one.
        known_hash: `"md5:..."` or `"sha256:..."`.
        max_bytes: Where to stop: the file's size, or what it cannot exceed.
        label: Text in front of the progress bar; the file's name by default.
        retries: Attempts after the first one fails.
        timeout: Seconds to connect, and between two packets.
    """
    algorithm, expected = known_hash.split(":")
    if path.exists():
        return _check_digest(path, algorithm, expected)
    pooch = import_extra("pooch")
    from requests import RequestException

    registry, urls = {path.name: known_hash}, {path.name: url}
    stream = partial(_stream, max_bytes=max_bytes, label=label or path.name, timeout=timeout)
    by_hand = f"download {url} by other means and put it into {path.parent}"
    pooch.get_logger().setLevel("ERROR")  # the progress bar says it all
    with name_write_errors(path), staging_folder(path) as staging:
        if path.exists():  # another process has downloaded it in the meantime
            return _check_digest(path, algorithm, expected)
        files: Any = pooch.create(staging, "", registry=registry, urls=urls, retry_if_failed=retries)
        try:
            os.replace(files.fetch(path.name, downloader=stream), path)
            return path
        except RequestException as error:
            while error.__context__:  # libraries wrap "connection refused" several times
                error = error.__context__
            raise DataError(f"{url} cannot be downloaded: {error}. Run again later, or {by_hand}.") from error
        except ValueError as error:
            raise DataError(
                f"What came from {url} is not the published file: its {algorithm.upper()} is not {expected}. It was "
                f"removed. If a proxy or login page answers in the server's place, use another network, or {by_hand}."
            ) from error


def _check_digest(path: Path, algorithm: str, expected: str) -> Path:
    if file_digest(path, algorithm) != expected:
        raise DataError(f"{path} is not the published file: its {algorithm.upper()} differs. Delete it and run again.")
    return path


def _stream(url: str, output_file: str, _: Any, *, max_bytes: int, label: str, timeout: tuple[float, float]) -> None:
    """Write the response to a file as sent: pooch's own downloader unpacks a .gz that is labelled as an encoding."""
    import requests
    from urllib3.exceptions import HTTPError

    with requests.get(url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=timeout) as response:
        if 400 <= response.status_code < 500 and response.status_code not in (408, 425, 429):
            raise DataError(
                f"{url} cannot be downloaded: the server answers {response.status_code} {response.reason}. "
                "Check the address, or get the file elsewhere."
            )
        response.raise_for_status()
        size = response.headers.get("Content-Length", "")
        total, received = int(size) if size.isdigit() else None, 0
        with open(output_file, "wb") as file, progress_bar(label, total, in_bytes=True) as advance:
            try:
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    received += len(chunk)
                    if max(received, total or 0) > max_bytes:
                        raise DataError(
                            f"What comes from {url} is not the published file: it has more than {max_bytes:,} bytes. "
                            "The download was stopped. Check the address, or get the file elsewhere."
                        )
                    file.write(chunk)
                    advance(len(chunk))
            except HTTPError as error:  # not a RequestException, which pooch tries again
                raise requests.ConnectionError(error) from error
