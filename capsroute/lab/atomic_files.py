"""Atomic file writes: a reader finds the old content or the new, never a part of it; arrays have checksums.

What a killed process leaves behind is removed by the next one that writes the same file: a living writer holds a lock.
"""

import glob
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from filelock import FileLock, lock_descriptor

CHUNK = 1 << 22  # bytes


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that replaces it when the block ends without an error."""
    _remove_abandoned(path)
    handle, name = _create_temporary(path)
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)  # mkstemp makes files that only their owner can read
            os.replace(name, path)  # while it is open, and so locked
    except OSError as error:
        error.filename = str(path)  # a full disk's error has none
        raise
    finally:
        Path(name).unlink(missing_ok=True)


def _create_temporary(path: Path) -> tuple[int, str]:
    """Create a locked file beside `path`; returns its descriptor and name."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
        with suppress(OSError):  # some network file systems have no locks, and nothing is removed there
            lock_descriptor(handle)
        if os.fstat(handle).st_nlink:  # nobody removed it before it was locked
            return handle, name
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of `path` whose writers were killed."""
    for name in glob.glob(f"{glob.escape(str(path))}.*.tmp"):
        with suppress(OSError), open(name, "rb") as file:
            if lock_descriptor(file.fileno(), blocking=False):
                os.unlink(name)


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target`, in which its content is made before it is renamed.

    One process at a time has it; others wait. What a killed one left in it is removed.
    """
    lock, staging = FileLock(target.with_name(f".{target.name}.lock")), target.with_name(f".{target.name}.tmp")
    with lock:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            Path(lock.lock_file).unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)


def write_array(path: Path, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> None:
    """Write a uint8 array in NumPy's format from its consecutive pieces, and a checksum, which others ignore."""
    with atomic_write(path) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        checksum = n_bytes = 0
        for piece in pieces:
            data = np.ascontiguousarray(piece).data
            checksum, n_bytes = zlib.crc32(data, checksum), n_bytes + data.nbytes
            file.write(data)
        if n_bytes != int(np.prod(shape)):
            raise ValueError(f"pieces: expected {int(np.prod(shape)):,} bytes, got {n_bytes:,}")
        file.write(checksum.to_bytes(4, "little"))


def map_array(path: Path, shape: tuple[int, ...], mode: Literal["r", "c"] = "r") -> np.ndarray | None:
    """Memory-map an array that `write_array` wrote; returns None if it is missing, damaged or of another shape."""
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            if np.lib.format.read_array_header_1_0(file) != (shape, False, np.dtype(np.uint8)):
                return None
            checksum, left = 0, int(np.prod(shape))
            while data := file.read(min(left, CHUNK)):
                checksum, left = zlib.crc32(data, checksum), left - len(data)
            if left or file.read() != checksum.to_bytes(4, "little"):
                return None
    except (FileNotFoundError, ValueError):
        return None
    return np.load(path, mmap_mode=mode)


def cached_array(
    path: Path, shape: tuple[int, ...], make: Callable[[], Iterable[np.ndarray]], mode: Literal["r", "c"] = "r"
) -> np.ndarray:
    """Memory-map a uint8 array, first written from the pieces that `make` yields if it is missing or damaged.

    Of several processes one writes it, and the others wait.
    """
    array = map_array(path, shape, mode)
    if array is not None:
        return array
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        array = map_array(path, shape, mode)  # another process may have written it in the meantime
        if array is None:
            write_array(path, shape, make())
            array = np.load(path, mmap_mode=mode)
    return array
