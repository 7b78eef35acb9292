"""The Stanford Sentiment Treebank: parsed sentences of film reviews with a sentiment for each phrase.

See Socher et al., EMNLP 2013. The published archive holds a file of trees for each split.
"""

import hashlib
import io
import zipfile
import zlib
from pathlib import Path

from ..atomic_files import write_atomically
from .checks import ORIGINAL, READABLE, DataError, FileState, check_all_original, check_split, read_error, write_error
from .downloads import download, file_digest
from .trees import Phrases, Tree, extract_phrases, parse_trees

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
MAX_BYTES = 100_000_000  # a larger file is none of these


def load(folder: Path, split: str, classes: int = 5) -> Phrases:
    """Return the phrases of a split: each labelled phrase once for training, whole sentences otherwise.

    Args:
        folder: Holds train.txt, dev.txt and test.txt, or a folder `trees` with them, or the archive.
        split: `"train"`, `"validation"` or `"test"`.
        classes: 5, or 2 to leave neutral phrases out.
    """
    check_split(split, FILES)
    return extract_phrases(read(folder, split), classes, roots_only=split != "train")


def read(folder: Path, split: str) -> list[Tree]:
    """Return the trees of a split."""
    folder, name = Path(folder), FILES[split]
    advice = f"Run `{FETCH}`, or name the folder that holds the files."
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. {advice}")
    path = find(folder, name)
    if path is None:
        raise DataError(f"{folder} lacks {name} (or {INSIDE}/{name}). {advice}")
    try:
        return parse_trees(_read_content(path, name), _describe(path, name))
    except OSError as error:
        raise read_error(path, error) from error
    except DataError as error:
        raise DataError(
            f"{error}. Delete {path} and run `{FETCH}`, or copy it again from where you have it."
        ) from error


def fetch(folder: Path, *, progress: bool = True, url: str = URL) -> list[Path]:
    """Download and verify the archive, unpack the files that are missing, and return the paths of all three.

    An existing file is never replaced: one that is not the original is an error.
    """
    folder = Path(folder)
    states = [s if s.path and s.path.suffix == ".txt" else s._replace(path=None) for s in check(folder)]
    check_all_original(states, FETCH)
    paths = []
    for s in states:
        if s.path is None:
            archive = download(url, folder / ARCHIVE, f"sha256:{SHA256}", label="trees", progress=progress)
            paths.append(_unpack(archive, s.name, folder / INSIDE / s.name))
        else:
            paths.append(s.path)
    return paths


def check(folder: Path) -> list[FileState]:
    """Read all three files and return the state of each; writes nothing."""
    return [_check_file(Path(folder), name) for name in FILES.values()]


def find(folder: Path, name: str) -> Path | None:
    """Return the file to read for a split, the archive if there is no other."""
    paths = [folder / name, folder / INSIDE / name, folder / ARCHIVE]
    return next((path for path in paths if path.is_file()), None)


def _check_file(folder: Path, name: str) -> FileState:
    path = find(folder, name)
    if path is None:
        return FileState(name, None, "missing")
    try:
        content = _read_content(path, name)
        if _is_original(folder / ARCHIVE, name, content):
            return FileState(name, path, ORIGINAL)
        parse_trees(content, name)
        return FileState(name, path, READABLE)
    except DataError as error:
        return FileState(name, path, f"corrupt: {error}")
    except OSError as error:
        return FileState(name, path, f"unreadable: {error.strerror or error}")


def _is_original(archive: Path, name: str, content: bytes) -> bool:
    """Compare a file's content with its checksum, or with the same file in an original archive."""
    if hashlib.sha256(content).hexdigest() == SHA256_OF[name]:
        return True
    return archive.is_file() and file_digest(archive, "sha256") == SHA256 and _read_content(archive, name) == content


def _describe(path: Path, name: str) -> str:
    return str(path) if path.suffix == ".txt" else f"{path}, {INSIDE}/{name}"


def _read_content(path: Path, name: str) -> bytes:
    """Return the content of a text file, or of the file of that name inside an archive."""
    if path.suffix == ".txt":
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"{path}: expected at most {MAX_BYTES:,} bytes, got {size:,}")
        return path.read_bytes()
    where = _describe(path, name)
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive, archive.open(f"{INSIDE}/{name}") as member:
            content = member.read(MAX_BYTES + 1)  # whatever size the archive claims
    except KeyError as error:
        raise DataError(f"{where}: expected a file of this name inside, got none") from error
    # raised for archives that are damaged, of an unknown kind, or locked with a password
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{where}: expected a whole zip archive, got a damaged one ({error})") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{where}: expected at most {MAX_BYTES:,} bytes, got more")
    return content


def _unpack(archive: Path, name: str, target: Path) -> Path:
    """Write one file of the archive to `target`; names inside the archive are never used as paths."""
    content = _read_content(archive, name)
    parse_trees(content, _describe(archive, name))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise write_error(target, error) from error
    return target
