"""The Stanford Sentiment Treebank: sentences of film reviews, parsed, with a sentiment for each of their phrases.

See Socher et al., EMNLP 2013. The published archive holds a file of trees for each split.
"""

import hashlib
import io
import zipfile
import zlib
from pathlib import Path

from ..atomic_files import write_atomically
from . import downloads as files
from . import trees
from .downloads import ORIGINAL, READABLE, DataError, FileState
from .trees import Phrases, Tree

URL = "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
ARCHIVE = "trainDevTestTrees_PTB.zip"
SHA256 = "5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc"
FETCH = "capsroute data fetch sst"
INSIDE = "trees"  # the archive's only folder
FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
SHA256_OF = {
    "train.txt": "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7",
    "dev.txt": "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40",
    "test.txt": "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761",
}
LIMIT = 100_000_000  # bytes beyond which a file is none of these


def load(folder: Path, split: str, classes: int = 5) -> Phrases:
    """The phrases of a split: each labelled phrase once for training, whole sentences for validation and test.

    Args:
        folder: Where train.txt, dev.txt and test.txt lie, or a folder `trees` with them, or the archive.
        split: `"train"`, `"validation"` or `"test"`.
        classes: 5, or 2 without what is neutral.
    """
    if split not in FILES:
        raise ValueError(f"split: expected one of {list(FILES)}, got {split!r}")
    return trees.phrases(read(folder, split), classes, roots_only=split != "train")


def read(folder: Path, split: str) -> list[Tree]:
    """The trees of a split."""
    folder, name = Path(folder), FILES[split]
    advice = f"Run `{FETCH}`, or name the folder that holds the files."
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. {advice}")
    path = find(folder, name)
    if path is None:
        raise DataError(f"{folder} lacks {name} (or {INSIDE}/{name}). {advice}")
    try:
        return trees.decode(_content(path, name), _named(path, name))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from error
    except DataError as error:
        raise DataError(
            f"{error}. Delete {path} and run `{FETCH}`, or copy it again from where you have it."
        ) from error


def fetch(folder: Path, *, progress: bool = True, url: str = URL) -> list[Path]:
    """Download the archive unless its files are there, verify it, and unpack what is missing.

    A download that was cut off goes on where it stopped. No file that is already there is ever replaced: one that is
    not the original is an error.

    Args:
        folder: Where to; made if absent.
        progress: Show a bar.
        url: Where from.
    """
    folder = Path(folder)
    states = check(folder)
    wrong = [f"{s.path} ({s.state})" for s in states if s.path and s.path.suffix == ".txt" and s.state != ORIGINAL]
    if wrong:
        raise DataError(
            f"Not the published files: {'; '.join(wrong)}. Move them away or name another folder, and run `{FETCH}` "
            "again."
        )
    archive = folder / ARCHIVE
    paths = []
    for s in states:
        if s.path is None or s.path.suffix != ".txt":
            with files.bars(progress and not archive.exists()) as bar:
                files.download(url, archive, f"sha256:{SHA256}", bar("trees"))
            paths.append(_unpack(archive, s.name, folder / INSIDE / s.name))
        else:
            paths.append(s.path)
    return paths


def check(folder: Path) -> list[FileState]:
    """What each of the three files is, judged by all of its content; writes nothing."""
    return [_state(Path(folder), name) for name in FILES.values()]


def find(folder: Path, name: str) -> Path | None:
    """The file to read for a split: unpacked rather than the archive."""
    paths = [folder / name, folder / INSIDE / name, folder / ARCHIVE]
    return next((path for path in paths if path.is_file()), None)


def _state(folder: Path, name: str) -> FileState:
    path = find(folder, name)
    if path is None:
        part = files.partial(folder / ARCHIVE)
        begun = f", {files.megabytes(part.stat().st_size)} downloaded so far" if part.is_file() else ""
        return FileState(name, None, f"missing{begun}")
    try:
        content = _content(path, name)
        if _original(folder / ARCHIVE, name, content):
            return FileState(name, path, ORIGINAL)
        trees.decode(content, name)
        return FileState(name, path, READABLE)
    except DataError as error:
        return FileState(name, path, f"corrupt: {error}")
    except OSError as error:
        return FileState(name, path, f"unreadable: {error.strerror or error}")


def _original(archive: Path, name: str, content: bytes) -> bool:
    """Whether a file is as published: by its own checksum, or by that of an archive beside it that holds the same."""
    if hashlib.sha256(content).hexdigest() == SHA256_OF[name]:
        return True
    return archive.is_file() and files.digest(archive, "sha256") == SHA256 and _content(archive, name) == content


def _named(path: Path, name: str) -> str:
    return str(path) if path.suffix == ".txt" else f"{path}, {INSIDE}/{name}"


def _content(path: Path, name: str) -> bytes:
    """What a file holds, or a file of its name inside an archive."""
    if path.suffix == ".txt":
        size = path.stat().st_size
        if size > LIMIT:
            raise DataError(f"{path}: expected at most {LIMIT:,} bytes, got {size:,}")
        return path.read_bytes()
    where = _named(path, name)
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive, archive.open(f"{INSIDE}/{name}") as member:
            content = member.read(LIMIT + 1)  # whatever size the archive claims
    except KeyError as error:
        raise DataError(f"{where}: expected a file of this name inside, got none") from error
    # what zipfile raises where an archive is damaged, of an unknown kind, or locked with a password
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{where}: expected a whole zip archive, got a damaged one ({error})") from error
    if len(content) > LIMIT:
        raise DataError(f"{where}: expected at most {LIMIT:,} bytes, got more")
    return content


def _unpack(archive: Path, name: str, target: Path) -> Path:
    """Write one file of the archive to `target`, which appears only when whole; the archive's names lead nowhere."""
    content = _content(archive, name)
    trees.decode(content, _named(archive, name))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise files.unwritable(target, error) from error
    return target
