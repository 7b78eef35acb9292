"""Embeddings on disk: written once, piece by piece, so that an interrupted run goes on where it stopped.

Each cache is a folder of its own with the numbers (`flat.bin`) and what is known of them (`state.json`): a checksum of
each piece that is done. The folder's name is a hash of all that the numbers depend on.
"""

import errno
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..atomic_files import write_atomically
from ..errors import UserError

VERSION = 1  # of the files: to be raised when their format changes
GB = 1e9
READ = 1 << 22  # bytes at once


class Cache:
    """One cache, to be filled and read by the process that holds its lock.

    Args:
        home: The folder of all caches.
        key: Names this one.
        sizes: Bytes of each of its pieces.
    """

    def __init__(self, home: Path, key: str, sizes: list[int]) -> None:
        self.home, self.key, self.sizes = home, key, sizes
        self.folder = home / key
        self.data, self.state = self.folder / "flat.bin", self.folder / "state.json"

    def fill(self, piece: Callable[[int], np.ndarray], limit: int, advance: Callable[[int], None]) -> None:
        """Write the pieces that are not there yet.

        Args:
            piece: Gives the bytes of a piece `[size]`.
            limit: Bytes that all caches may take; those that were not used for longest make room.
            advance: Called with the number of each piece that is there.
        """
        done = self._checked()
        for k in range(len(done)):
            advance(k)
        if len(done) < len(self.sizes):
            self._make_room(limit)
            try:
                self._write(done, piece, advance)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise UserError(
                    f"The disk is full: {self.folder} needs {sum(self.sizes) / GB:.1f} GB in all. Make room and run "
                    "again, which goes on from here, or choose a smaller --cache-gb, or none."
                ) from error
        with suppress(OSError):
            os.utime(self.state)  # when it was last used

    def map(self) -> np.ndarray:
        """The bytes of all pieces, mapped into memory; writing to them changes no file."""
        if not sum(self.sizes):
            return np.empty(0, np.uint8)
        return np.memmap(self.data, np.uint8, "c", shape=(sum(self.sizes),))

    def missing(self) -> int:
        """Bytes that are still to be written."""
        return max(0, sum(self.sizes) - _size(self.folder))

    def spare(self) -> int:
        """Bytes that can be written: what is free, and what other caches would give up."""
        return _free(self.home) + sum(_size(path) for _, path in self._others())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time fills a cache; the next one waits and finds it full."""
        self.home.mkdir(parents=True, exist_ok=True)
        path = self.home / f"{self.key}.lock"
        while True:
            with path.open("a+b") as file:
                _lock(file, wait=True)
                if not _is_at(file, path):
                    continue  # removed with its cache while we waited
                yield
                return

    def _checked(self) -> list[int]:
        """Checksums of the pieces that are there as they were written."""
        try:
            state = json.loads(self.state.read_text())
            if (state["version"], state["key"], state["sizes"]) != (VERSION, self.key, self.sizes):
                return []
            sums = [int(value) for value in state["sums"]][: len(self.sizes)]
            stat = self.data.stat()
        except (OSError, ValueError, KeyError, TypeError):
            return []
        if len(sums) == len(self.sizes) and [stat.st_size, stat.st_mtime_ns] == [sum(self.sizes), state["changed"]]:
            return sums  # untouched since it was finished
        good = []
        with self.data.open("rb") as file:
            for size, value in zip(self.sizes, sums, strict=False):
                if _checksum(file, size) != value:
                    break
                good.append(value)
        if len(good) == len(self.sizes):
            with suppress(OSError):  # another user's cache is read all the same
                if stat.st_size != sum(self.sizes):
                    os.truncate(self.data, sum(self.sizes))
                self._record(good)
        return good

    def _write(self, done: list[int], piece: Callable[[int], np.ndarray], advance: Callable[[int], None]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data.touch()
        with self.data.open("r+b") as file:
            file.truncate(sum(self.sizes[: len(done)]))
            file.seek(0, os.SEEK_END)
            for k in range(len(done), len(self.sizes)):
                content = piece(k).data
                if len(content) != self.sizes[k]:
                    raise ValueError(f"piece: expected {self.sizes[k]} bytes, got {len(content)}")
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # before it is recorded as done
                done.append(zlib.crc32(content))
                self._record(done)
                advance(k)

    def _record(self, sums: list[int]) -> None:
        changed = self.data.stat().st_mtime_ns
        state = {"version": VERSION, "key": self.key, "sizes": self.sizes, "sums": sums, "changed": changed}
        write_atomically(self.state, json.dumps(state).encode())

    def _others(self) -> list[tuple[float, Path]]:
        """The other caches and when each was last used."""
        if not self.home.is_dir():
            return []
        return [(_used(path), path) for path in self.home.iterdir() if path.is_dir() and path != self.folder]

    def _make_room(self, limit: int) -> None:
        """Remove the caches that were not used for longest, until this one has room."""
        others = sorted(self._others())
        total = sum(self.sizes) + sum(_size(path) for _, path in others)
        for _, path in others:
            if total <= limit and self.missing() <= _free(self.home):
                return
            size = _size(path)
            if _removed(path):
                total -= size


def _checksum(file: BinaryIO, size: int) -> int | None:
    """Of the next bytes of a file; none if there are not so many."""
    value = 0
    while size:
        content = file.read(min(size, READ))
        if not content:
            return None
        value, size = zlib.crc32(content, value), size - len(content)
    return value


def _free(folder: Path) -> int:
    """Bytes free on the disk of a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _used(folder: Path) -> float:
    """When a cache was last used; one without a state never was."""
    with suppress(OSError):
        return (folder / "state.json").stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    with suppress(OSError):
        return (folder / "flat.bin").stat().st_size
    return 0


def _removed(folder: Path) -> bool:
    """Remove a cache unless a process fills it; one that reads it keeps what it has mapped."""
    path = folder.with_name(f"{folder.name}.lock")
    with suppress(OSError), path.open("a+b") as file:
        if not _lock(file, wait=False) or not _is_at(file, path):
            return False
        for name in ("state.json", "flat.bin"):  # nothing else is ours
            (folder / name).unlink(missing_ok=True)
        for left in folder.glob("state.json.*.tmp"):
            left.unlink()
        path.unlink()
        with suppress(OSError):
            folder.rmdir()
        return True
    return False


def _lock(file: Any, *, wait: bool) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))  # a killed process loses it
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass  # no locks here: the checksums must do
    return True


def _is_at(file: Any, path: Path) -> bool:
    """Whether an open file is the one that lies there now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
