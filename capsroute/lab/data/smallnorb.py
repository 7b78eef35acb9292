"""smallNORB in its original files: two splits, each of images (dat), categories (cat) and poses (info).

A file holds a binary matrix: a magic number for the type, the number of axes, at least three sizes, all little-endian
int32, then the data. See LeCun, Huang and Bottou, CVPR 2004, whose terms allow research use only.
"""

import gzip
import hashlib
import math
import struct
import tomllib
import zlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..atomic_files import atomic_write
from .pairs import CATEGORIES, INSTANCES, Pairs
from .published import (
    DataError,
    FileState,
    check_file,
    check_originals,
    check_present,
    download,
    file_digest,
    find_file,
    name_write_errors,
    read_error,
)

BASE_URL = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small"
FETCH = "capsroute data fetch smallnorb"
MAGIC = {"u1": 0x1E3D4C55, "<i4": 0x1E3D4C54}
POSES = {"elevation": range(-1, 9), "azimuth": (-1, *range(0, 36, 2)), "lighting": range(-1, 6)}  # -1 is unknown


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


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MATRICES = tuple(Matrix(**(row | {"shape": tuple(row["shape"])})) for row in TABLE["matrix"])


def load(folder: Path, split: str) -> Pairs:
    """Return the pairs of a split, their images memory-mapped; a .mat.gz alone is unpacked beside itself on first use.

    Args:
        folder: Holds the split's three files, as .mat or .mat.gz.
        split: `"train"` or `"test"`.
    """
    folder = Path(folder)
    found = {m: _find(folder, m) for m in MATRICES if m.split == split}
    missing = ", ".join(f"{m.name}.mat.gz" for m, path in found.items() if not path)
    check_present(folder, missing and f"{missing} (or the same without .gz)", FETCH)
    images, category, info = (_read_matrix(m, path) for m, path in found.items() if path)
    return Pairs(images, category.astype(np.int64), info.astype(np.int64))


def fetch(folder: Path, *, url: str = BASE_URL) -> list[Path]:
    """Download the files that are missing, verify all six, and return their paths.

    An existing file is never replaced: one that is not the original is an error.
    """
    states = check(folder)
    check_originals(states, FETCH)
    paths = []
    for m, s in zip(MATRICES, states, strict=True):
        target = Path(folder) / f"{m.name}.mat.gz"
        address, label = f"{url.rstrip('/')}/{target.name}", f"{m.split} {m.part}"
        most = m.n_bytes + m.n_bytes // 1000 + 1000  # gzip makes no more of it, even of noise
        paths.append(s.path or download(address, target, f"md5:{m.md5_packed}", most, label=label))
    return paths


def check(folder: Path) -> list[FileState]:
    """Read all six files and return the state of each; writes nothing."""
    return [check_file(m.name, _find(Path(folder), m), partial(_is_original, m)) for m in MATRICES]


def _find(folder: Path, m: Matrix) -> Path | None:
    return find_file(folder / f"{m.name}.mat", folder / f"{m.name}.mat.gz")


def _is_original(m: Matrix, path: Path) -> bool:
    if path.suffix == ".gz" and file_digest(path, "md5") == m.md5_packed:
        return True
    content = _read_bytes(m, path)
    _parse(m, content)
    return hashlib.md5(content.data, usedforsecurity=False).hexdigest() == m.md5


def _read_matrix(m: Matrix, path: Path) -> np.ndarray:
    """Memory-map a matrix, unpacked from a .mat.gz."""
    packed = path.with_name(f"{m.name}.mat.gz")
    advice = f"Delete it: the next run unpacks it again from {packed}."
    if path == packed or not packed.is_file():
        advice = f"Delete it and run `{FETCH}`, or copy it again from where you have it."
    try:
        content = _read_bytes(m, path)
        matrix = _parse(m, content)
    except DataError as error:
        raise DataError(f"{path} is corrupt: {error}. {advice}") from error
    except OSError as error:
        raise read_error(path, error) from error
    if path != packed:
        return matrix
    target = packed.with_suffix("")
    with name_write_errors(target), atomic_write(target) as file:
        file.write(content.data)
    return _read_matrix(m, target)


def _read_bytes(m: Matrix, path: Path) -> np.ndarray:
    """Return a file's content: memory-mapped, or decompressed if its name ends in .gz, up to one byte too many."""
    if path.suffix != ".gz":
        return np.memmap(path, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    try:
        with gzip.open(path) as file:
            return np.frombuffer(file.read(m.n_bytes + 1), np.uint8)
    except EOFError as error:
        raise DataError("it is cut short, its compressed data have no end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"it does not decompress ({error})") from error


def _parse(m: Matrix, content: np.ndarray) -> np.ndarray:
    """Return the matrix that the bytes of a file hold, after checking header, size and, of labels, values."""
    n_bytes = len(content)
    if n_bytes < m.n_header:
        raise DataError(f"it has {n_bytes:,} bytes, where {m.n_bytes:,} are expected")
    head = content[: m.n_header].tobytes()
    magic, ndim, *sizes = struct.unpack(f"<{m.n_header // 4}i", head)
    if magic != MAGIC[m.dtype]:
        kinds = {b"\x1f\x8b": ", but is still compressed (its name should end in .mat.gz)", b"<": ", but a web page"}
        what = next((words for start, words in kinds.items() if head.startswith(start)), "")
        raise DataError(f"it is no matrix of {np.dtype(m.dtype)}{what}")
    if ndim != len(m.shape) or tuple(sizes[:ndim]) != m.shape:
        raise DataError(f"its header says {ndim} axes of sizes {sizes}, where {list(m.shape)} are expected")
    if n_bytes != m.n_bytes:
        size = f"more than {m.n_bytes:,} bytes" if n_bytes > m.n_bytes else f"{n_bytes:,} bytes"
        raise DataError(f"it has {size}, where {m.n_bytes:,} are expected")
    matrix = content[m.n_header :].view(m.dtype).reshape(m.shape)
    allowed = {"dat": {}, "cat": {"category": range(len(CATEGORIES))}, "info": {"instance": INSTANCES[m.split]} | POSES}
    for k, (name, expected) in enumerate(allowed[m.part].items()):
        column = matrix.reshape(len(matrix), -1)[:, k]
        wrong = ~np.isin(column, expected)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(f"the {name} of pair {row:,} is {column[row]}, where {list(expected)} are expected")
    return matrix
