"""The Stanford Sentiment Treebank: parsed sentences of film reviews with a sentiment for each phrase.

See Socher et al., EMNLP 2013. The published archive holds a file of trees for each split.
"""

import hashlib
import io
import zipfile
import zlib
from functools import partial
from pathlib import Path

from ..atomic_files import write_atomically
from .checks import DataError, check_split
from .downloads import download, file_digest
from .file_states import FileState, check_file, check_originals, check_present, find_file, name_write_errors, read_error
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
    path = _find(folder, name)
    check_present(folder, "" if path else f"{name} (or {INSIDE}/{name})", FETCH)
    assert path
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
    check_originals(states, FETCH)
    paths = []
    for name, path, _ in states:
        if path is None:
            archive = download(url, folder / ARCHIVE, f"sha256:{SHA256}", label="trees", progress=progress)
            content = _read_content(archive, name)
            parse_trees(content, _describe(archive, name))
            path = folder / INSIDE / name  # names inside the archive are never used as paths
            with name_write_errors(path):
                write_atomically(path, content)
        paths.append(path)
    return paths


def check(folder: Path) -> list[FileState]:
    """Read all three files and return the state of each; writes nothing."""
    folder = Path(folder)
    return [check_file(name, _find(folder, name), partial(_is_original, folder, name)) for name in FILES.values()]


def _find(folder: Path, name: str) -> Path | None:
    return find_file(folder / name, folder / INSIDE / name, folder / ARCHIVE)


def _is_original(folder: Path, name: str, path: Path) -> bool:
    """Compare a file's content with its checksum and with the same file in an original archive, or parse it."""
    content, archive = _read_content(path, name), folder / ARCHIVE
    if hashlib.sha256(content).hexdigest() == SHA256_OF[name]:
        return True
    if archive.is_file() and file_digest(archive, "sha256") == SHA256 and _read_content(archive, name) == content:
        return True
    parse_trees(content, name)
    return False


def _describe(path: Path, name: str) -> str:
    return str(path) if path.suffix == ".txt" else f"{path}, {INSIDE}/{name}"


def _read_content(path: Path, name: str) -> bytes:
    """Return the content of a text file, or of the file of that name inside an archive."""
    where, limit = _describe(path, name), f"expected at most {MAX_BYTES:,} bytes"
    if path.suffix == ".txt":
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"{where}: {limit}, got {size:,}")
        return path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive, archive.open(f"{INSIDE}/{name}") as member:
            content = member.read(MAX_BYTES + 1)  # whatever size the archive claims
    except KeyError as error:
        raise DataError(f"{where}: expected a file of this name inside, got none") from error
    # raised for archives that are damaged, of an unknown kind, or locked with a password
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{where}: expected a whole zip archive, got a damaged one ({error})") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{where}: {limit}, got more")
    return content
