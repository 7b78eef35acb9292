"""Files from elsewhere: downloads that resume, unpacking that is whole or absent, and errors a user can act on."""

import errno
import gzip
import hashlib
import importlib
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import UserError

ORIGINAL, READABLE = "original", "readable, but not the published original"
CHUNK = 1 << 16  # bytes; a broken connection loses at most this much
TIMEOUT = (10, 30)  # seconds to connect, and between two bytes
TRIES = 5  # in a row, counted anew whenever one brings something
PAUSE = 1.0  # seconds after the first of them, doubled after each
BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers that may be better next time
ABANDONED = 3600.0  # seconds after which nobody is still writing a temporary file

Report = Callable[[int, int | None], None]  # bytes so far, and of all where the server says


class DataError(UserError):
    """Data are missing or not as they must be; the message names the file or address and says what to do."""


class DamagedError(Exception):
    """What is wrong with a file's content, in words that follow its name."""


class FileState(NamedTuple):
    """What lies in a folder in place of one of a dataset's files."""

    name: str
    path: Path | None
    state: str

    @property
    def ok(self) -> bool:
        return self.state in (ORIGINAL, READABLE)


def needed(module: str) -> Any:
    """Import what only downloads need."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise DataError(f"Downloading needs {package}. Install it: pip install {package}") from error


def digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def megabytes(n: int) -> str:
    return f"{n / 1e6:.1f} MB"


def partial(path: Path) -> Path:
    """Where a download lies until it is whole."""
    return path.with_name(path.name + ".part")


def chunks(path: Path) -> Iterator[bytes]:
    """A file's content piece by piece, decompressed if its name ends in .gz."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except EOFError as error:
        raise DamagedError("it is cut short, its compressed data have no end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DamagedError(f"it does not decompress ({error})") from error


def unpack(packed: Path, target: Path, limit: int, accept: Callable[[Path], object]) -> None:
    """Decompress `packed` to `target`, which appears only when whole.

    Args:
        packed: A gzip file.
        target: Where its content goes, by way of a temporary name in the same folder.
        limit: Size in bytes beyond which the content is wrong.
        accept: Raises `DamagedError` when the content, whose path it is given, is not what it should be.
    """
    _sweep(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with open(handle, "wb") as file:
            for chunk in chunks(packed):
                file.write(chunk)
                if file.tell() > limit:
                    raise DamagedError(f"it unpacks to more than the {limit:,} bytes it should")
            file.flush()
            os.fsync(file.fileno())
        accept(temporary)
        shutil.copymode(packed, temporary)  # a temporary file is its owner's alone
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _sweep(target: Path) -> None:
    """Remove what killed runs left of earlier attempts; what another process is still writing is young."""
    for left in target.parent.glob(f"{target.name}.*.tmp"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()


@contextmanager
def bars(show: bool) -> Iterator[Callable[[str], Report]]:
    """Progress bars, one for each label that is asked for."""
    if not show:
        yield lambda label: lambda done, total: None
        return
    progress, console = needed("rich.progress"), needed("rich.console").Console(stderr=True)
    columns = [progress.TextColumn("{task.description}"), progress.BarColumn(), progress.DownloadColumn()]
    columns += [progress.TransferSpeedColumn(), progress.TimeRemainingColumn()]
    with progress.Progress(*columns, console=console) as shown:

        def bar(label: str) -> Report:
            tasks = []

            def report(done: int, total: int | None) -> None:
                if not tasks:  # begins at what an earlier run brought, which is no part of the speed
                    tasks.append(shown.add_task(label, total=total, completed=done))
                shown.update(tasks[0], total=total, completed=done)

            return report

        yield bar


def download(url: str, path: Path, known_hash: str, report: Report = lambda done, total: None) -> Path:
    """Bring what lies at `url` to `path`, where it appears only when whole and right.

    Until then it lies in `path` + ".part", and a run that was cut off, even killed, goes on from there.

    Args:
        url: An http or https address.
        path: Where to. A file that is there already must be the right one, and is left as it is.
        known_hash: `"md5:..."` or `"sha256:..."`.
        report: Called as bytes arrive.
    """
    algorithm, expected = known_hash.split(":")
    by_hand = f"or download {url} by other means and put it into {path.parent}"
    if path.exists():
        if digest(path, algorithm) == expected:
            return path
        raise DataError(f"{path} is not the published file: its {algorithm.upper()} differs. Delete it and run again.")
    pooch, resume = needed("pooch"), Resume(partial(path), report)
    log = pooch.get_logger()
    level = log.level
    log.setLevel("ERROR")  # the bars say what it would say
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        anew = False
        while True:
            try:
                pooch.retrieve(url, known_hash, fname=path.name, path=path.parent, downloader=resume)
                return path
            except ValueError as error:
                if anew or not resume.resumed:
                    raise DataError(
                        f"What came from {url} is not the published file: its {algorithm.upper()} is not {expected}. "
                        f"It was removed. If a proxy or login page answers in the server's place, use another network; "
                        f"{by_hand}."
                    ) from error
                anew = True  # bytes of an earlier answer may have spoilt the whole; pooch has removed it
    except ConnectionError as error:
        kept = f" Run again to go on from {megabytes(resume.kept)};" if resume.kept else " Run again later,"
        raise DataError(f"{url} cannot be downloaded: {error}.{kept} {by_hand}.") from error
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        log.setLevel(level)


def unwritable(path: Path, error: OSError) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"{path} cannot be written: the disk is full. Free some space and run again.")
    return DataError(f"{path} cannot be written: {error.strerror or error}. Name a folder that you may write to.")


class Resume:
    """Downloads for pooch, but keeps what has arrived and asks only for the rest."""

    def __init__(self, part: Path, report: Report):
        self.part, self.report = part, report
        self.resumed = False

    @property
    def kept(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        os.unlink(output_file)  # empty, and a killed run would leave it behind
        with _owned(self.part) as file:
            self.resumed = file.seek(0, os.SEEK_END) > 0
            try:
                self._complete(url, file)
            except BaseException:
                if not self.kept:
                    self.part.unlink()
                raise
            os.fsync(file.fileno())
        os.replace(self.part, output_file)

    def _complete(self, url: str, file: BinaryIO) -> None:
        """Try until the file is whole, giving up when too many tries in a row bring nothing new."""
        requests, urllib3 = needed("requests"), needed("urllib3")
        tries, most = 0, file.tell()
        while True:
            try:
                return self._receive(url, file)
            except ValueError as error:
                raise DataError(f"{url} is no address to download from: {error}") from error
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                tries = 1 if file.tell() > most else tries + 1
                most = max(most, file.tell())
                if tries == TRIES:
                    raise ConnectionError(f"{TRIES} tries failed, the last with: {_root(error)}") from error
                time.sleep(PAUSE * 2 ** (tries - 1))

    def _receive(self, url: str, file: BinaryIO) -> None:
        """One request for what is missing, and its answer."""
        requests = needed("requests")
        have = file.seek(0, os.SEEK_END)
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            start, total = _span(answer)
            if answer.status_code == 416 and total == have:
                return
            if answer.status_code == 416 or (answer.status_code == 206 and start != have):
                file.truncate(0)
                raise requests.RequestException("the server has no such rest of the file")
            if answer.status_code in BUSY:
                raise requests.RequestException(f"the server answers {answer.status_code} {answer.reason}")
            if answer.status_code not in (200, 206):
                raise DataError(
                    f"{url} cannot be downloaded: the server answers {answer.status_code} {answer.reason}. "
                    "Check the address, or get the file elsewhere."
                )
            if answer.status_code == 200 and have:  # all of it, whatever was asked
                file.seek(0)
                file.truncate()
            self.resumed = answer.status_code == 206
            self.report(file.tell(), total)
            # as sent: some servers call a .gz file an encoding, which requests would undo
            for chunk in answer.raw.stream(CHUNK, decode_content=False):
                file.write(chunk)
                file.flush()
                self.report(file.tell(), total)
            if total is not None and file.tell() != total:
                raise requests.RequestException(f"the connection ended after {file.tell():,} of {total:,} bytes")


def _root(error: BaseException) -> BaseException:
    """What lies at the bottom of an error: libraries wrap "connection refused" several times."""
    while error.__context__:
        error = error.__context__
    return error


def _span(answer: Any) -> tuple[int | None, int | None]:
    """Where an answer begins in its file, and the size of the file, as far as the server says."""
    found = re.match(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", answer.headers.get("Content-Range", ""))
    if found:
        start, total = (None if n is None else int(n) for n in found.groups())
        return start, total
    size = answer.headers.get("Content-Length", "")
    return 0, int(size) if size.isdigit() else None


@contextmanager
def _owned(path: Path) -> Iterator[BinaryIO]:
    """A file to read and write, made if absent, that no other process downloads to."""
    path.touch()
    with path.open("r+b") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a killed process loses it
            mine = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            mine = False
        except (ImportError, OSError):
            mine = True  # no locks here: the checksum must do
        if not mine:
            raise DataError(f"{path} belongs to a download in another process. Wait for it to end and run again.")
        yield file
