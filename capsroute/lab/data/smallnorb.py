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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..atomic_files import atomic_write
from .checks import DataError, check_split
from .downloads import CHUNK, download, file_digest
from .file_states import FileState, check_file, check_originals, check_present, find_file, name_write_errors, read_error
from .pairs import CATEGORIES, INSTANCES, SPLITS, Pairs

BASE_URL = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small"
FETCH = "capsroute data fetch smallnorb"
ADVICE = f"Delete it and run `{FETCH}`, or copy it again from where you have it."
MAGIC = {"u1": 0x1E3D4C55, "<i4": 0x1E3D4C54}
POSES = {"elevation": range(9), "azimuth": range(0, 36, 2), "lighting": range(6)}  # or -1, unknown


class Matrix(NamedTuple):
    """Hold the content and checksums of one of the files."""

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


STEMS = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
PARTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "dat": ("u1", (24300, 2, 96, 96)),
    "cat": ("<i4", (24300,)),
    "info": ("<i4", (24300, 4)),
}
MD5S = {
    ("train", "dat"): ("66054832f9accfe74a0f4c36a75bc0a2", "8138a0902307b32dfa0025a36dfa45ec"),
    ("train", "cat"): ("23c8b86101fbf0904a000b43d3ed2fd9", "fd5120d3f770ad57ebe620eb61a0b633"),
    ("train", "info"): ("51dee1210a742582ff607dfd94e332e3", "19faee774120001fc7e17980d6960451"),
    ("test", "dat"): ("e4ad715691ed5a3a5f138751a4ceb071", "e9920b7f7b2869a8f1a12e945b2c166c"),
    ("test", "cat"): ("5aa791cd7e6016cf957ce9bdb93b8603", "fd5120d3f770ad57ebe620eb61a0b633"),
    ("test", "info"): ("a9454f3864d7fd4bb3ea7fc3eb84924e", "7c5b871cc69dcadec1bf6a18141f5edc"),
}
MATRICES = tuple(
    Matrix(f"{STEMS[split]}-{part}", split, part, *PARTS[part], *md5s) for (split, part), md5s in MD5S.items()
)


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
    found = {m: _find(folder, m) for m in MATRICES if m.split == split}
    missing = ", ".join(f"{m.name}.mat.gz" for m, path in found.items() if not path)
    check_present(folder, missing and f"{missing} (or the same without .gz)", FETCH)
    images, category, info = (_read_matrix(m, path) for m, path in found.items() if path)
    return Pairs(images, category.astype(np.int64), info.astype(np.int64))


def fetch(folder: Path, *, progress: bool = True, url: str = BASE_URL) -> list[Path]:
    """Download the files that are missing, verify all six, and return their paths.

    An existing file is never replaced: one that is not the original is an error.
    """
    folder = Path(folder)
    states = check(folder)
    check_originals(states, FETCH)
    paths = []
    for m, s in zip(MATRICES, states, strict=True):
        target = folder / f"{m.name}.mat.gz"
        address, label = f"{url.rstrip('/')}/{target.name}", f"{m.split} {m.part}"
        paths.append(s.path or download(address, target, f"md5:{m.md5_packed}", label=label, progress=progress))
    return paths


def check(folder: Path) -> list[FileState]:
    """Read all six files and return the state of each; writes nothing."""
    return [check_file(m.name, _find(Path(folder), m), partial(_is_original, m)) for m in MATRICES]


def _find(folder: Path, m: Matrix) -> Path | None:
    return find_file(folder / f"{m.name}.mat", folder / f"{m.name}.mat.gz")


def _is_original(m: Matrix, path: Path) -> bool:
    return (path.suffix == ".gz" and file_digest(path, "md5") == m.md5_packed) or _scan(m, path) == m.md5


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
        raise DataError("it is cut short, its compressed data have no end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"it does not decompress ({error})") from error


def _read_matrix(m: Matrix, path: Path) -> np.ndarray:
    """Memory-map a matrix after checking its header, size and, except of images, values."""
    packed = path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    if path == packed:
        path = _unpack(m, packed)
    again = f"Delete it: the next run unpacks it again from {packed}."
    with _name_read_errors(path, again if packed.is_file() else ADVICE):
        with path.open("rb") as file:
            head = file.read(m.n_header)
        _check_header(m, head, path.stat().st_size)
        array = np.memmap(path, m.dtype, mode="r", offset=m.n_header, shape=m.shape)
        if m.part != "dat":
            _check_values(m, array)
    return array


def _unpack(m: Matrix, packed: Path) -> Path:
    target = _choose_unpacked(packed)
    if not target.is_file():
        with name_write_errors(target), atomic_write(target) as file, _name_read_errors(packed, ADVICE):
            _scan(m, packed, file.write)
    return target


def _choose_unpacked(packed: Path) -> Path:
    """Return where a packed file is unpacked to."""
    from . import folder as data_folder  # the package may import this module

    if os.access(packed.parent, os.W_OK):
        return packed.with_suffix("")
    stat = packed.stat()  # a file that changes is unpacked anew
    key = hashlib.sha256(f"{packed.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    return data_folder() / "unpacked" / key / packed.stem


@contextmanager
def _name_read_errors(path: Path, advice: str) -> Iterator[None]:
    """Turn an error about a file's content, or from opening it, into one that names the file and says what to do."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path} is corrupt: {error}. {advice}") from error
    except OSError as error:
        if error.filename != str(path):  # it concerns a file that is being written
            raise
        raise read_error(path, error) from error


def _check_header(m: Matrix, head: bytes, n_bytes: int) -> None:
    if n_bytes < m.n_header:
        raise DataError(f"it has {n_bytes:,} bytes, where {m.n_bytes:,} are expected")
    magic, ndim, *sizes = struct.unpack_from(f"<{m.n_header // 4}i", head)
    if magic != MAGIC[m.dtype]:
        kinds = {b"\x1f\x8b": ", but is still compressed (its name should end in .mat.gz)", b"<": ", but a web page"}
        what = next((words for start, words in kinds.items() if head.startswith(start)), "")
        raise DataError(f"it is no matrix of {np.dtype(m.dtype)}{what}")
    if ndim != len(m.shape) or tuple(sizes[:ndim]) != m.shape:
        raise DataError(f"its header says {ndim} axes of sizes {sizes}, where {list(m.shape)} are expected")
    if n_bytes != m.n_bytes:
        size = f"more than {m.n_bytes:,} bytes" if n_bytes > m.n_bytes else f"{n_bytes:,} bytes"
        raise DataError(f"it has {size}, where {m.n_bytes:,} are expected")


def _check_values(m: Matrix, values: np.ndarray) -> None:
    allowed = {"category": tuple(range(len(CATEGORIES)))}
    if m.part == "info":
        allowed = {"instance": INSTANCES[m.split]} | {name: (-1, *codes) for name, codes in POSES.items()}
    for (name, expected), column in zip(allowed.items(), values.reshape(len(values), -1).T, strict=True):
        wrong = ~np.isin(column, expected)
        if wrong.any():
            k = int(wrong.argmax())
            raise DataError(f"the {name} of pair {k:,} is {column[k]}, where {list(expected)} are expected")
