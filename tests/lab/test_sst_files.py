"""SST's files: reading, checking, error messages and fetching."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from capsroute.lab.data import sst
from capsroute.lab.data.published import ORIGINAL, READABLE, DataError
from capsroute.lab.data.sst import ARCHIVE
from http_server import Server, serve

CONTENT = {
    "train.txt": b"(3 (2 so) (3 good))\n(1 (2 so) (1 bad))\n",
    "dev.txt": b"(2 (2 so) (2 so))\n(4 good)\n(4 good)\n",
    "test.txt": b"(0 (2 so) (1 bad))\n",
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zipped(content: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in content.items():
            archive.writestr(zipfile.ZipInfo(name), value)
    return file.getvalue()


# names that a careless unpacker would write outside its folder
EVIL = {
    "../evil.txt": b"(2 a)",
    "/tmp/evil.txt": b"(2 a)",
    "trees/../../evil.txt": b"(2 a)",
    "trees/evil.txt": b"(2 a)",
}
PUBLISHED = zipped({f"trees/{name}": value for name, value in CONTENT.items()} | EVIL)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make a small archive the original."""
    if "data" not in request.fixturenames:
        monkeypatch.setattr(sst, "SHA256", sha256(PUBLISHED))
        monkeypatch.setattr(sst, "SHA256_OF", {name: sha256(value) for name, value in CONTENT.items()})


def put(folder: Path, content: dict[str, bytes] = CONTENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in content.items():
        (folder / name).write_bytes(value)
    return folder


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def states(folder: Path) -> list[str]:
    return [s.state for s in sst.check(folder)]


@pytest.mark.parametrize("inside", ["", "trees"])
def test_load_returns_phrases(tmp_path: Path, inside: str) -> None:
    put(tmp_path / inside)
    train, validation, test = (sst.load(tmp_path, split) for split in ("train", "validation", "test"))
    assert train.text == ["so good", "so", "good", "so bad", "bad"]
    np.testing.assert_array_equal(train.label, [3, 2, 3, 1, 1])
    assert validation.text == ["so so", "good", "good"]
    assert test.text == ["so bad"]
    two = sst.load(tmp_path, "validation", classes=2)
    assert two.text == ["good", "good"]
    np.testing.assert_array_equal(two.label, [1, 1])


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*nowhere. Run `capsroute data fetch sst`"):
        sst.load(tmp_path / "nowhere", "test")
    put(tmp_path)
    (tmp_path / "dev.txt").unlink()
    with pytest.raises(DataError, match=r"lacks dev\.txt \(or trees/dev\.txt\). Run `capsroute data fetch sst`"):
        sst.load(tmp_path, "validation")
    assert len(sst.load(tmp_path, "test").text) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ": expected trees, got an empty file"),
        (b"(2 a)\n(2 (2 so) (1", ", line 2: expected a word or (, got the end of the line"),
        (b"(2 a)\n(7 a)\n", ", line 2: expected a label from 0 to 4, got '7'"),
        (b"(2 \xe9)", ", line 1: expected text in UTF-8, got byte 0xe9 at place 4"),
    ],
)
def test_corrupt_file_is_reported(tmp_path: Path, content: bytes, words: str) -> None:
    put(tmp_path, CONTENT | {"test.txt": content})
    path = tmp_path / "test.txt"
    with pytest.raises(DataError) as raised:
        sst.load(tmp_path, "test")
    assert str(raised.value).startswith(f"{path}{words}. Delete {path} and run `capsroute data fetch sst`")
    assert states(tmp_path) == [ORIGINAL, ORIGINAL, f"corrupt: test.txt{words}"]
    assert not sst.check(tmp_path)[2].ok
    assert sst.load(tmp_path, "train").text


def test_check_returns_states(tmp_path: Path) -> None:
    put(tmp_path / "trees")
    (tmp_path / "trees" / "train.txt").write_bytes(b"(2 mine)\n")
    (tmp_path / "trees" / "test.txt").unlink()
    before = names(tmp_path)
    assert [(s.name, s.path, s.state, s.ok) for s in sst.check(tmp_path)] == [
        ("train.txt", tmp_path / "trees" / "train.txt", READABLE, True),
        ("dev.txt", tmp_path / "trees" / "dev.txt", ORIGINAL, True),
        ("test.txt", None, "missing", False),
    ]
    assert names(tmp_path) == before
    assert states(tmp_path / "nowhere") == ["missing"] * 3


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # pooch waits before it tries again
    with serve(monkeypatch, {ARCHIVE: PUBLISHED}) as server:
        yield server


def fetch(mirror: Server, folder: Path) -> list[Path]:
    return sst.fetch(folder, url=f"{mirror.url}/{ARCHIVE}")


FETCHED = {ARCHIVE, "trees/train.txt", "trees/dev.txt", "trees/test.txt"}


def test_fetch_unpacks_only_the_trees(mirror: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made" / "here"
    paths = sst.fetch(folder, url=f"{mirror.url}/{ARCHIVE}")
    assert {path.name: path.read_bytes() for path in paths} == CONTENT
    assert names(tmp_path) == {f"made/here/{name}" for name in FETCHED}
    assert states(folder) == [ORIGINAL] * 3
    assert fetch(mirror, folder) == paths
    assert len(mirror.requests) == 1
    assert capsys.readouterr() == ("", "")


def test_fetch_unpacks_only_missing_files(mirror: Server, tmp_path: Path) -> None:
    put(tmp_path)
    assert [path.parent for path in fetch(mirror, tmp_path)] == [tmp_path] * 3
    (tmp_path / "dev.txt").unlink()
    assert [path.parent for path in fetch(mirror, tmp_path)] == [tmp_path, tmp_path / "trees", tmp_path]
    assert names(tmp_path) == {ARCHIVE, "train.txt", "trees/dev.txt", "test.txt"}
    (tmp_path / "train.txt").unlink()
    fetch(mirror, tmp_path)
    assert len(mirror.requests) == 1  # the archive was kept


def test_fetch_refuses_other_files(mirror: Server, tmp_path: Path) -> None:
    put(tmp_path, {"train.txt": b"(2 mine)", "dev.txt": b"(2"})
    with pytest.raises(DataError) as raised:
        fetch(mirror, tmp_path)
    wrong = f"{tmp_path / 'train.txt'} ({READABLE}); {tmp_path / 'dev.txt'} (corrupt: dev.txt, line 1: expected"
    assert wrong in str(raised.value)
    assert "Move them away" in str(raised.value)
    assert not mirror.requests
    assert names(tmp_path) == {"train.txt", "dev.txt"}


def test_fetch_refuses_wrong_archive(mirror: Server, tmp_path: Path) -> None:
    mirror.files[ARCHIVE] = zipped({f"trees/{name}": value for name, value in CONTENT.items()})
    with pytest.raises(DataError, match="is not the published file: its SHA256 is not"):
        fetch(mirror, tmp_path)
    assert not names(tmp_path)
    (tmp_path / ARCHIVE).write_bytes(mirror.files[ARCHIVE])
    with pytest.raises(DataError, match=r"PTB\.zip is not the published file: its SHA256 differs. Delete it"):
        fetch(mirror, tmp_path)
    assert names(tmp_path) == {ARCHIVE}


def test_content_of_verified_archive_is_original(
    mirror: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the checksum of a file inside differs."""
    monkeypatch.setattr(sst, "SHA256_OF", dict.fromkeys(CONTENT, "0" * 64))
    paths = fetch(mirror, tmp_path)
    assert states(tmp_path) == [ORIGINAL] * 3
    assert fetch(mirror, tmp_path) == paths
    (tmp_path / ARCHIVE).unlink()
    assert states(tmp_path) == [READABLE] * 3


def test_unwritable_folder_is_reported(mirror: Server, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(PUBLISHED)
    (tmp_path / "trees").write_text("a file")
    with pytest.raises(DataError, match=r"train\.txt cannot be written: .*Name a folder that you may write to"):
        fetch(mirror, tmp_path)


@pytest.mark.data
def test_real_files_are_original(data: Path) -> None:
    assert states(data / "sst") == [ORIGINAL] * 3
