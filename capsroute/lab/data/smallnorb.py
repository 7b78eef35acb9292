"""smallNORB in its original files: two splits, each of images (dat), categories (cat) and poses (info).

A file holds a binary matrix: a magic number for the type, the number of axes, at least three sizes, all little-endian
int32, then the data. See LeCun, Huang and Bottou, CVPR 2004, whose terms allow research use only.
"""

import gzip
import hashlib
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..atomic_files import atomic_write
from .checks import ORIGINAL, READABLE, DataError, FileState, check_all_original, check_split, read_error, write_error
from .downloads import CHUNK, download, file_digest
from .pairs import CATEGORIES, INSTANCES, SPLITS, Pairs

BASE_URL = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small"
FETCH = "capsroute data fetch smallnorb"
MAGIC = {"u1": 0x1E3D4C55, "<i4": 0x1E3D4C54}
POSES = {"elevation": range(9), "azimuth": range(0, 36, 2), "lighting": range(6)}  # or -1, unknown


class CorruptFileError(Exception):
    """Say what is wrong with a file's content, in words that follow its name."""


class Matrix(NamedTuple):
    """Content and checksums of one of the files."""

    name: str  # without .mat or .mat.gz
    split: str
    part: str  # dat, cat or info
    dtype: str
    shape: tuple[int, ...]
    md5_packed: str  # of NAME.mat.gz
    md5: str  # of NAME.mat

    @property
    def n_header(self) -> int:
        return 4 * (2 + max(len(self.shape), 3))

    @property
    def n_bytes(self) -> int:
        return self.n_header + math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _list_matrices() -> tuple[Matrix, ...]:
    stems = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
    shapes = {"dat": (24300, 2, 96, 96), "cat": (24300,), "info": (24300, 4)}
    md5s = {
        ("train", "dat"): ("66054832f9accfe74a0f4c36a75bc0a2", "8138a0902307b32dfa0025a36dfa45ec"),
        ("train", "cat"): ("23c8b86101fbf0904a000b43d3ed2fd9", "fd5120d3f770ad57ebe620eb61a0b633"),
        ("train", "info"): ("51dee1210a742582ff607dfd94e332e3", "19faee774120001fc7e17980d6960451"),
        ("test", "dat"): ("e4ad715691ed5a3a5f138751a4ceb071", "e9920b7f7b2869a8f1a12e945b2c166c"),
        ("test", "cat"): ("5aa791cd7e6016cf957ce9bdb93b8603", "fd5120d3f770ad57ebe620eb61a0b633"),
        ("test", "info"): ("a9454f3864d7fd4bb3ea7fc3eb84924e", "7c5b871cc69dcadec1bf6a18141f5edc"),
    }
    return tuple(
        Matrix(f"{stems[split]}-{part}", split, part, "u1" if part == "dat" else "<i4", shapes[part], md5_packed, md5)
        for (split, part), (md5_packed, md5) in md5s.items()
    )


MATRICES = _list_matrices()


def load(folder: Path, split: str) -> Pairs:
    """Return the pairs of a split, their images memory-mapped.

    A file that is there only as .mat.gz is unpacked on first use: beside itself, or into the data folder where its
    own folder cannot be written.

    Args:
        folder: Holds the split's three files, as .mat or .mat.gz.
        split: `"train"` or `"test"`.
    """
    check_split(split, SPLITS)
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Run `{FETCH}`, or name the folder that holds the files.")
    matrices = [m for m in MATRICES if m.split == split]
    missing = [f"{m.name}.mat.gz" for m in matrices if not find(folder, m)]
    if missing:
        raise DataError(
            f"{folder} lacks {', '.join(missing)} (or the same without .gz). Run `{FETCH}`, or name the folder "
            "that holds the files."
        )
    images, category, info = (_read_matrix(m, path) for m in matrices if (path := find(folder, m)))
    return Pairs(images, category.astype(np.int64), info.astype(np.int64))


def fetch(folder: Path, *, progress: bool = True, url: str = BASE_URL) -> list[Path]:
    """Download the files that are missing, verify all six, and return their paths.

    An existing file is never replaced: one that is not the original is an error.
    """
    folder = Path(folder)
    states = check(folder)
    check_all_original(states, FETCH)
    paths = []
    for m, s in zip(MATRICES, states, strict=True):
        target = folder / f"{m.name}.mat.gz"
        address, label = f"{url.rstrip('/')}/{target.name}", f"{m.split} {m.part}"
        paths.append(s.path or download(address, target, f"md5:{m.md5_packed}", label=label, progress=progress))
    return paths


def check(folder: Path) -> list[FileState]:
    """Read all six files and return the state of each; writes nothing."""
    return [_check_file(Path(folder), m) for m in MATRICES]


def find(folder: Path, m: Matrix) -> Path | None:
    """Return the file of a matrix, the unpacked one if both are there."""
    paths = [folder / f"{m.name}.mat", folder / f"{m.name}.mat.gz"]
    return next((path for path in paths if path.is_file()), None)


def _check_file(folder: Path, m: Matrix) -> FileState:
    path = find(folder, m)
    if path is None:
        return FileState(m.name, None, "missing")
    try:
        if path.suffix == ".gz" and file_digest(path, "md5") == m.md5_packed:
            return FileState(m.name, path, ORIGINAL)
        return FileState(m.name, path, ORIGINAL if _scan(m, path) == m.md5 else READABLE)
    except CorruptFileError as error:
        return FileState(m.name, path, f"corrupt: {error}")
    except OSError as error:
        return FileState(m.name, path, f"unreadable: {error.strerror or error}")


def _scan(m: Matrix, path: Path, write: Callable[[bytes], object] = lambda chunk: None) -> str:
    """Check a file, packed or not, in one pass; pass its content on to `write` and return its MD5."""
    md5, size = hashlib.md5(usedforsecurity=False), 0
    head = b""  # of images the header alone, of labels everything
    for chunk in _read_chunks(path):
        md5.update(chunk)
        size += len(chunk)
        head += chunk if m.part != "dat" or len(head) < m.n_header else b""
        if size > m.n_bytes:
            break
        write(chunk)
    _check_header(m, head, size)
    if m.part != "dat":
        _check_values(m, np.frombuffer(head, m.dtype, offset=m.n_header).reshape(m.shape))
    return md5.hexdigest()


def _read_chunks(path: Path) -> Iterator[bytes]:
    """Yield a file's content, decompressed if its name ends in .gz."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except EOFError as error:
        raise CorruptFileError("it is cut short, its compressed data have no end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise CorruptFileError(f"it does not decompress ({error})") from error


def _read_matrix(m: Matrix, path: Path) -> np.ndarray:
    if path.suffix != ".gz":
        packed = path.with_name(f"{path.name}.gz")
        with _name_file(path, packed if packed.is_file() else None):
            return _map_matrix(m, path)
    target = _choose_unpacked(path)
    if not target.is_file():
        with _name_file(path):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(target) as file:
                    _scan(m, path, file.write)
            except OSError as error:
                raise read_error(path, error) if error.filename == str(path) else write_error(target, error) from error
    with _name_file(target, path):
        return _map_matrix(m, target)


def _choose_unpacked(packed: Path) -> Path:
    """Return where a packed file is unpacked to."""
    from . import folder as data_folder  # the package may import this module

    if os.access(packed.parent, os.W_OK):
        return packed.with_suffix("")
    stat = packed.stat()  # a file that changes is unpacked anew
    key = hashlib.sha256(f"{packed.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    return data_folder() / "unpacked" / key / packed.stem


@contextmanager
def _name_file(path: Path, packed: Path | None = None) -> Iterator[None]:
    """Turn an error about a file's content into one that names the file and says what to do."""
    try:
        yield
    except CorruptFileError as error:
        advice = f"Delete it and run `{FETCH}`, or copy it again from where you have it."
        if packed:
            advice = f"Delete it: the next run unpacks it again from {packed}."
        raise DataError(f"{path} is corrupt: {error}. {advice}") from error
    except OSError as error:
        raise read_error(path, error) from error


def _map_matrix(m: Matrix, path: Path) -> np.ndarray:
    """Memory-map a file whose header, size and, except of images, values have been checked."""
    with path.open("rb") as file:
        head = file.read(m.n_header)
    _check_header(m, head, path.stat().st_size)
    array = np.memmap(path, m.dtype, mode="r", offset=m.n_header, shape=m.shape)
    if m.part != "dat":
        _check_values(m, array)
    return array


def _check_header(m: Matrix, head: bytes, n_bytes: int) -> None:
    if n_bytes < m.n_header:
        raise CorruptFileError(f"it has {n_bytes:,} bytes, where {m.n_bytes:,} are expected")
    magic, ndim, *sizes = struct.unpack_from(f"<{m.n_header // 4}i", head)
    if magic != MAGIC[m.dtype]:
        kinds = {b"\x1f\x8b": ", but is still compressed (its name should end in .mat.gz)", b"<": ", but a web page"}
        what = next((words for start, words in kinds.items() if head.startswith(start)), "")
        raise CorruptFileError(f"it is no matrix of {np.dtype(m.dtype)}{what}")
    if ndim != len(m.shape) or tuple(sizes[:ndim]) != m.shape:
        raise CorruptFileError(f"its header says {ndim} axes of sizes {sizes}, where {list(m.shape)} are expected")
    if n_bytes != m.n_bytes:
        size = f"more than {m.n_bytes:,} bytes" if n_bytes > m.n_bytes else f"{n_bytes:,} bytes"
        raise CorruptFileError(f"it has {size}, where {m.n_bytes:,} are expected")


def _check_values(m: Matrix, values: np.ndarray) -> None:
    allowed = {"category": tuple(range(len(CATEGORIES)))}
    if m.part == "info":
        allowed = {"instance": INSTANCES[m.split]} | {name: (-1, *codes) for name, codes in POSES.items()}
    for (name, expected), column in zip(allowed.items(), values.reshape(len(values), -1).T, strict=True):
        wrong = ~np.isin(column, expected)
        if wrong.any():
            k = int(wrong.argmax())
            raise CorruptFileError(f"the {name} of pair {k:,} is {column[k]}, where {list(expected)} are expected")
