"""The Stanford Sentiment Treebank: parsed sentences of film reviews with a sentiment for each phrase.

See Socher et al., EMNLP 2013. The published archive holds a file of trees for each split.
"""

import hashlib
import zipfile
from functools import partial
from pathlib import Path

from ..atomic_files import write_atomically
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
)
from .trees import Phrases, extract_phrases, parse_trees, read_trees

URL = "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
ARCHIVE = "trainDevTestTrees_PTB.zip"
SIZE = 789_539  # bytes
SHA256 = "5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc"
FETCH = "capsroute data fetch sst"
INSIDE = "trees"  # the archive's only folder
FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
SHA256_OF = {
    "train.txt": "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7",
    "dev.txt": "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40",
    "test.txt": "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761",
}


def load(folder: Path, split: str, classes: int = 5) -> Phrases:
    """Return the phrases of a split: each labelled phrase once for training, whole sentences otherwise.

    Args:
        folder: Holds train.txt, dev.txt and test.txt, or a folder `trees` with them.
        split: `"train"`, `"validation"` or `"test"`.
        classes: 5, or 2 to leave neutral phrases out.
    """
    folder, name = Path(folder), FILES[split]
    path = _find(folder, name)
    check_present(folder, "" if path else f"{name} (or {INSIDE}/{name})", FETCH)
    assert path
    try:
        trees = read_trees(path)
    except DataError as error:
        advice = f"Delete {path} and run `{FETCH}`, or copy it again from where you have it."
        raise DataError(f"{error}. {advice}") from error
    return extract_phrases(trees, classes, roots_only=split != "train")


def fetch(folder: Path, *, url: str = URL) -> list[Path]:
    """Download and verify the archive, unpack the files that are missing, and return the paths of all three.

    An existing file is never replaced: one that is not the original is an error.
    """
    states = check(folder)
    check_originals(states, FETCH)
    paths = []
    for name, path, _ in states:
        if path is None:
            target = Path(folder) / ARCHIVE
            archive = download(url, target, f"sha256:{SHA256}", SIZE, label="trees")
            path = Path(folder) / INSIDE / name  # names inside the archive are never used as paths
            with name_write_errors(path):
                write_atomically(path, _read_member(archive, name))
        paths.append(path)
    return paths


def check(folder: Path) -> list[FileState]:
    """Read all three files and return the state of each; writes nothing."""
    folder = Path(folder)
    return [check_file(name, _find(folder, name), partial(_is_original, folder)) for name in FILES.values()]


def _find(folder: Path, name: str) -> Path | None:
    return find_file(folder / name, folder / INSIDE / name)


def _is_original(folder: Path, path: Path) -> bool:
    """Compare a file's content with its checksum and with the same file in an original archive, or parse it."""
    content, archive = path.read_bytes(), folder / ARCHIVE
    if hashlib.sha256(content).hexdigest() == SHA256_OF[path.name]:
        return True
    if archive.is_file() and file_digest(archive, "sha256") == SHA256 and _read_member(archive, path.name) == content:
        return True
    parse_trees(content, path.name)
    return False


def _read_member(archive: Path, name: str) -> bytes:
    with zipfile.ZipFile(archive) as file:
        return file.read(f"{INSIDE}/{name}")
