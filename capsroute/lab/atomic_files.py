"""Atomic file writes: a reader finds the old content or the new, never a part of it; arrays have checksums."""

import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

CHUNK = 1 << 22  # bytes


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that replaces it when the block ends without an error."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes files that only their owner can read
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


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
