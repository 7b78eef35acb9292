"""Checksummed arrays of bytes on disk, in NumPy's format, to be memory-mapped."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from .atomic_files import atomic_write

CHUNK = 1 << 22  # bytes


def write_array(path: Path, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> None:
    """Write a uint8 array from its consecutive pieces, and a checksum, which other readers of the format ignore."""
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
