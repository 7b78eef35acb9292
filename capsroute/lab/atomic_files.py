"""Atomic file writes: a reader finds the old content or the new, never a part of it; arrays have checksums.

What a killed process leaves behind is removed by the next one that writes the same file.
"""

import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from filelock import FileLock

CHUNK = 1 << 22  # bytes


@contextmanager
def reserve_name(target: Path) -> Iterator[Path]:
    """Yield a free name beside `target`, for what is renamed to it; one process at a time has it, and others wait."""
    lock, temporary = FileLock(target.with_name(f".{target.name}.lock")), target.with_name(f".{target.name}.tmp")
    with lock:
        remove(temporary)  # left by a process that was killed
        try:
            yield temporary
        finally:
            remove(temporary)
            Path(lock.lock_file).unlink(missing_ok=True)  # processes that wait for it notice, and make another


def remove(path: Path) -> None:
    """Remove a file or folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that replaces it when the block ends without an error."""
    try:
        with reserve_name(path) as temporary, temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # a full disk's error has none
        raise


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target`, in which its content is made before it is renamed."""
    with reserve_name(target) as staging:
        staging.mkdir()
        yield staging


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
