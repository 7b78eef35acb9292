"""Atomic file writes: a reader finds the old content or the new, never a part of it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
