"""smallNORB in its original files: two splits, each of images (dat), categories (cat) and poses (info).

The files hold binary matrices: a magic number that says the type, the number of axes, at least three sizes, all
little-endian int32, then the data. See LeCun, Huang and Bottou, CVPR 2004, whose terms allow research use only.
"""

import hashlib
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import downloads as files
from .downloads import ORIGINAL, READABLE, DamagedError, DataError, FileState
from .pairs import CATEGORIES, SPLITS, Pairs

BASE_URL = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small"
FETCH = "capsroute data fetch smallnorb"
MAGIC = {"u1": 0x1E3D4C55, "<i4": 0x1E3D4C54}
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}  # the split is by toy
POSES = {"elevation": range(9), "azimuth": range(0, 36, 2), "lighting": range(6)}  # or -1, unknown


class Matrix(NamedTuple):
    """What a file must hold."""

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


def _matrices() -> tuple[Matrix, ...]:
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


MATRICES = _matrices()


def load(folder: Path, split: str) -> Pairs:
    """The pairs of a split, their images memory-mapped.

    A file that is there only as .mat.gz is unpacked first, once: beside itself, or, where that folder cannot be
    written, into a cache.

    Args:
        folder: Where the split's three files lie, as .mat or .mat.gz.
        split: `"train"` or `"test"`.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {list(SPLITS)}, got {split!r}")
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Run `{FETCH}`, or name the folder that holds the files.")
    wanted = {m.part: m for m in MATRICES if m.split == split}
    found = {part: find(folder, m) for part, m in wanted.items()}
    missing = [f"{wanted[part].name}.mat.gz" for part, path in found.items() if path is None]
    if missing:
        raise DataError(
            f"{folder} lacks {', '.join(missing)} (or the same without .gz). Run `{FETCH}`, or name the folder "
            "that holds the files."
        )
    arrays = {part: _read(wanted[part], path) for part, path in found.items() if path is not None}
    return Pairs(arrays["dat"], arrays["cat"].astype(np.int64), arrays["info"].astype(np.int64))


def fetch(folder: Path, *, progress: bool = True, url: str = BASE_URL) -> list[Path]:
    """Download those of the six files that are missing, and verify all.

    A download that was cut off goes on where it stopped. No file that is already there is ever replaced: one that is
    not the original is an error.

    Args:
        folder: Where to; made if absent.
        progress: Show a bar for each file.
        url: Where from.
    """
    folder = Path(folder)
    states = check(folder)
    wrong = [f"{s.path} ({s.state})" for s in states if s.path and s.state != ORIGINAL]
    if wrong:
        raise DataError(
            f"Not the published files: {'; '.join(wrong)}. Move them away or name another folder, and run `{FETCH}` "
            "again."
        )
    paths = []
    with files.bars(progress) as bar:
        for m, s in zip(MATRICES, states, strict=True):
            target = folder / f"{m.name}.mat.gz"
            address, md5 = f"{url.rstrip('/')}/{target.name}", f"md5:{m.md5_packed}"
            paths.append(s.path or files.download(address, target, md5, bar(f"{m.split} {m.part}")))
    return paths


def check(folder: Path) -> list[FileState]:
    """What each of the six files is, judged by all of its content; writes nothing."""
    return [_state(Path(folder), m) for m in MATRICES]


def find(folder: Path, m: Matrix) -> Path | None:
    """The file to read for a matrix: unpacked rather than packed."""
    paths = [folder / f"{m.name}.mat", folder / f"{m.name}.mat.gz"]
    return next((path for path in paths if path.is_file()), None)


def _state(folder: Path, m: Matrix) -> FileState:
    path = find(folder, m)
    if path is None:
        part = files.partial(folder / f"{m.name}.mat.gz")
        begun = f", {files.megabytes(part.stat().st_size)} downloaded so far" if part.is_file() else ""
        return FileState(m.name, None, f"missing{begun}")
    try:
        if path.suffix == ".gz" and files.digest(path, "md5") == m.md5_packed:
            return FileState(m.name, path, ORIGINAL)
        return FileState(m.name, path, ORIGINAL if _survey(m, path) == m.md5 else READABLE)
    except DamagedError as error:
        return FileState(m.name, path, f"corrupt: {error}")
    except OSError as error:
        return FileState(m.name, path, f"unreadable: {error.strerror or error}")


def _survey(m: Matrix, path: Path) -> str:
    """Check a file as `_open` does, but in one pass that serves packed files too; the MD5 of its content."""
    md5, size = hashlib.md5(usedforsecurity=False), 0
    kept = b""  # the header, and where they are few the values
    for chunk in files.chunks(path):
        md5.update(chunk)
        size += len(chunk)
        kept += chunk if m.part != "dat" or len(kept) < m.n_header else b""
        if size > m.n_bytes:
            break
    _check_header(m, kept, size)
    if m.part != "dat":
        _check_values(m, np.frombuffer(kept, m.dtype, offset=m.n_header).reshape(m.shape))
    return md5.hexdigest()


def _read(m: Matrix, path: Path) -> np.ndarray:
    if path.suffix != ".gz":
        beside = path.with_name(f"{path.name}.gz")
        with _blaming(path, beside if beside.is_file() else None):
            return _open(m, path)
    target = _place(path)
    if not target.is_file():
        with _blaming(path):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                files.unpack(path, target, m.n_bytes, lambda unpacked: _open(m, unpacked))
            except OSError as error:
                if error.filename == str(path):
                    raise
                raise files.unwritable(target, error) from error
    with _blaming(target, path):
        return _open(m, target)


def _place(packed: Path) -> Path:
    """Where the content of a packed file goes."""
    from . import folder as cache  # the package may import this module

    if os.access(packed.parent, os.W_OK):
        return packed.with_suffix("")
    stat = packed.stat()  # another file, or the same one changed, is unpacked apart
    key = hashlib.sha256(f"{packed.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    return cache() / "unpacked" / key / packed.stem


@contextmanager
def _blaming(path: Path, packed: Path | None = None) -> Iterator[None]:
    """Turn what is wrong with a file into an error that names it and says what to do."""
    try:
        yield
    except DamagedError as error:
        advice = f"Delete it and run `{FETCH}`, or copy it again from where you have it."
        if packed:
            advice = f"Delete it: the next run unpacks it again from {packed}."
        raise DataError(f"{path} is corrupt: {error}. {advice}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from error


def _open(m: Matrix, path: Path) -> np.ndarray:
    """A file's matrix, memory-mapped; its header, its size and, except of images, its values are right."""
    with path.open("rb") as file:
        head = file.read(m.n_header)
    _check_header(m, head, path.stat().st_size)
    array = np.memmap(path, m.dtype, mode="r", offset=m.n_header, shape=m.shape)
    if m.part != "dat":
        _check_values(m, array)
    return array


def _check_header(m: Matrix, head: bytes, n_bytes: int) -> None:
    if n_bytes < m.n_header:
        raise DamagedError(f"it has {n_bytes:,} bytes, where {m.n_bytes:,} are expected")
    magic, ndim, *sizes = struct.unpack_from(f"<{m.n_header // 4}i", head)
    if magic != MAGIC[m.dtype]:
        kinds = {b"\x1f\x8b": ", but is still compressed (its name should end in .mat.gz)", b"<": ", but a web page"}
        what = next((words for start, words in kinds.items() if head.startswith(start)), "")
        raise DamagedError(f"it is no matrix of {np.dtype(m.dtype)}{what}")
    if ndim != len(m.shape) or tuple(sizes[:ndim]) != m.shape:
        raise DamagedError(f"its header says {ndim} axes of sizes {sizes}, where {list(m.shape)} are expected")
    if n_bytes != m.n_bytes:
        size = f"more than {m.n_bytes:,} bytes" if n_bytes > m.n_bytes else f"{n_bytes:,} bytes"
        raise DamagedError(f"it has {size}, where {m.n_bytes:,} are expected")


def _check_values(m: Matrix, values: np.ndarray) -> None:
    allowed = {"category": tuple(range(len(CATEGORIES)))}
    if m.part == "info":
        allowed = {"instance": INSTANCES[m.split]} | {name: (-1, *known) for name, known in POSES.items()}
    for (name, good), column in zip(allowed.items(), values.reshape(len(values), -1).T, strict=True):
        wrong = ~np.isin(column, good)
        if wrong.any():
            k = int(wrong.argmax())
            raise DamagedError(f"the {name} of pair {k:,} is {column[k]}, where {list(good)} are expected")
