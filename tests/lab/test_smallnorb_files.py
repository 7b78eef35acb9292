"""smallNORB's files: what is read, what is refused and in which words, and what is fetched."""

import errno
import gzip
import hashlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from capsroute.lab.data import downloads as files
from capsroute.lab.data import smallnorb
from capsroute.lab.data.downloads import DataError
from capsroute.lab.data.smallnorb import ORIGINAL, READABLE, Matrix
from conftest import ROOT
from http_server import Server, serving

N = 20  # pairs in the small copies


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def mat(array: np.ndarray) -> bytes:
    """A binary matrix, written apart from the package."""
    sizes = [*array.shape, 1, 1][: max(array.ndim, 3)]
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    return struct.pack(f"<{2 + len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


def labels(split: str, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    instances = [4, 6, 7, 8, 9] if split == "train" else [0, 1, 2, 3, 5]
    poses = [rng.choice(instances, n), rng.integers(-1, 9, n), 2 * rng.integers(0, 18, n), rng.integers(-1, 6, n)]
    return {"cat": rng.integers(0, 5, n).astype(np.int32), "info": np.stack(poses, axis=1).astype(np.int32)}


def content(split: str) -> dict[str, np.ndarray]:
    """What the small files of a split hold."""
    images = np.random.default_rng(len(split)).integers(0, 256, (N, 2, 96, 96), dtype=np.uint8)
    return {"dat": images, **labels(split, N)}


@pytest.fixture(scope="module")
def published() -> dict[str, bytes]:
    """Six small files as a server would have them, by name."""
    arrays = {m.name: content(m.split)[m.part] for m in smallnorb.MATRICES}
    return {f"{name}.mat.gz": gzip.compress(mat(array), mtime=0) for name, array in arrays.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, published: dict[str, bytes]) -> tuple[Matrix, ...]:
    """The small files taken for the originals."""
    table = []
    for m in smallnorb.MATRICES:
        packed = published[f"{m.name}.mat.gz"]
        table.append(m._replace(shape=(N, *m.shape[1:]), md5_packed=md5(packed), md5=md5(gzip.decompress(packed))))
    monkeypatch.setattr(smallnorb, "MATRICES", tuple(table))
    return tuple(table)


def put(folder: Path, published: dict[str, bytes], *, packed: bool = False) -> None:
    for name, value in published.items():
        (folder / (name if packed else name.removesuffix(".gz"))).write_bytes(
            value if packed else gzip.decompress(value)
        )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_split_is_read(
    small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path, split: str, packed: bool
) -> None:
    put(tmp_path, published, packed=packed)
    pairs, expected = smallnorb.load(tmp_path, split), content(split)
    for array, part in zip(pairs, ["dat", "cat", "info"], strict=True):
        np.testing.assert_array_equal(array, expected[part])
    assert isinstance(pairs.images, np.memmap)
    assert [a.dtype for a in pairs] == [np.uint8, np.int64, np.int64]


def test_the_full_size_is_read(tmp_path: Path) -> None:
    """Images are a hole in the file: only the header is written."""
    dat, cat, info = (m for m in smallnorb.MATRICES if m.split == "test")
    values = labels("test", 24300)
    (tmp_path / f"{cat.name}.mat").write_bytes(mat(values["cat"]))
    (tmp_path / f"{info.name}.mat").write_bytes(mat(values["info"]))
    images = tmp_path / f"{dat.name}.mat"
    images.write_bytes(struct.pack("<6i", 0x1E3D4C55, 4, 24300, 2, 96, 96))
    os.truncate(images, 24 + 24300 * 2 * 96 * 96)
    assert smallnorb.load(tmp_path, "test").images.shape == (24300, 2, 96, 96)
    os.truncate(images, 24 + 24300 * 2 * 96 * 96 - 1)
    with pytest.raises(DataError, match=r"testing-dat\.mat is corrupt: it has 447,897,623 bytes, where 447,897,624"):
        smallnorb.load(tmp_path, "test")


def test_packed_files_are_unpacked_once_and_unpacked_ones_preferred(
    small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path
) -> None:
    put(tmp_path, published, packed=True)
    smallnorb.load(tmp_path, "test")
    unpacked = {f"{m.name}.mat" for m in small if m.split == "test"}
    assert names(tmp_path) == set(published) | unpacked
    for m in small:
        (tmp_path / f"{m.name}.mat.gz").write_bytes(b"no longer looked at")
    smallnorb.load(tmp_path, "test")
    assert {s.path.name for s in smallnorb.check(tmp_path) if s.path and s.ok} == unpacked


def test_unpacking_that_dies_leaves_nothing_to_be_taken_for_whole(
    small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, published, packed=True)
    target = tmp_path / f"{small[3].name}.mat"
    old, young = (target.with_name(f"{target.name}.{word}.tmp") for word in ("old", "young"))
    old.write_bytes(b"left by a killed run")
    os.utime(old, (0, 0))
    young.write_bytes(b"another process is at it")

    def die(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            smallnorb.load(tmp_path, "test")
    assert names(tmp_path) == set(published) | {young.name}
    np.testing.assert_array_equal(smallnorb.load(tmp_path, "test").images, content("test")["dat"])


def test_a_folder_that_cannot_be_written_is_unpacked_elsewhere(
    small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cache = tmp_path / "source", tmp_path / "cache"
    source.mkdir()
    put(source, published, packed=True)
    monkeypatch.setenv("CAPSROUTE_DATA", str(cache))
    monkeypatch.setattr(smallnorb.os, "access", lambda path, mode: Path(path) != source)  # root may write anywhere
    np.testing.assert_array_equal(smallnorb.load(source, "test").images, content("test")["dat"])
    assert names(source) == set(published)
    first = {path: path.stat().st_ino for path in cache.rglob("*.mat")}
    assert {path.name for path in first} == {f"{m.name}.mat" for m in small if m.split == "test"}

    smallnorb.load(source, "test")
    assert {path: path.stat().st_ino for path in cache.rglob("*.mat")} == first
    changed = content("test")["dat"][::-1]
    (source / f"{small[3].name}.mat.gz").write_bytes(gzip.compress(mat(changed)))
    np.testing.assert_array_equal(smallnorb.load(source, "test").images, changed)


def test_a_full_disk_is_named(
    small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, published, packed=True)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DataError, match=r"testing-dat\.mat cannot be written: the disk is full"):
        smallnorb.load(tmp_path, "test")
    assert names(tmp_path) == set(published)


def header(array: np.ndarray, *ints: int) -> bytes:
    whole = mat(array)
    return struct.pack(f"<{len(ints)}i", *ints) + whole[4 * len(ints) :]


def changed(array: np.ndarray, where: tuple[int, ...], value: int) -> np.ndarray:
    array = array.copy()
    array[where] = value
    return array


TEST = content("test")
DAMAGE = {
    "empty": ("dat", b"", "it has 0 bytes"),
    "within the header": ("cat", mat(TEST["cat"])[:19], "it has 19 bytes"),
    "cut": ("dat", mat(TEST["dat"])[:-1], "it has 368,663 bytes, where 368,664 are expected"),
    "longer": ("info", mat(TEST["info"]) + b"\0", "it has more than 340 bytes"),
    "other type": ("cat", header(TEST["cat"], 0x1E3D4C55), "it is no matrix of int32"),
    "big-endian": ("cat", header(TEST["cat"], 0x554C3D1E), "it is no matrix of int32"),
    "web page": ("dat", b"<!doctype html>" + bytes(100), "it is no matrix of uint8, but a web page"),
    "packed": ("dat", gzip.compress(mat(0 * TEST["dat"])), "still compressed"),
    "other rank": ("info", header(TEST["info"], 0x1E3D4C54, 1), "its header says 1 axes"),
    "more axes": ("dat", header(TEST["dat"], 0x1E3D4C55, 5), "its header says 5 axes"),
    "other sizes": ("dat", mat(TEST["dat"].reshape(N, 1, 96, 192)), r"of sizes \[20, 1, 96, 192\]"),
    "category": ("cat", mat(changed(TEST["cat"], (7,), 5)), "the category of pair 7 is 5"),
    "other split": ("info", mat(content("train")["info"]), "the instance of pair 0 is"),
    "unknown instance": ("info", mat(changed(TEST["info"], (3, 0), -1)), "the instance of pair 3 is -1"),
    "elevation": ("info", mat(changed(TEST["info"], (3, 1), 9)), "the elevation of pair 3 is 9"),
    "azimuth": ("info", mat(changed(TEST["info"], (19, 2), 7)), "the azimuth of pair 19 is 7"),
    "lighting": ("info", mat(changed(TEST["info"], (0, 3), -2)), "the lighting of pair 0 is -2"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_wrong_file_is_named_with_what_to_do(
    small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path, damage: str, packed: bool
) -> None:
    """The same words whether the content lies packed or not, and in both `load` and `check`."""
    part, value, words = DAMAGE[damage]
    put(tmp_path, published)
    path = tmp_path / f"smallnorb-5x01235x9x18x6x2x96x96-testing-{part}.mat"
    path.unlink()
    if packed:
        path = path.with_name(f"{path.name}.gz")
        value = gzip.compress(value)
        words = words.replace("it has more than", "it unpacks to more than the")
    path.write_bytes(value)
    with pytest.raises(DataError, match=f"{re.escape(str(path))} is corrupt: .*{words}") as raised:
        smallnorb.load(tmp_path, "test")
    assert "Delete it and run `capsroute data fetch smallnorb`" in str(raised.value)
    bad = [s for s in smallnorb.check(tmp_path) if not s.ok]
    assert [s.path for s in bad] == [path]
    assert re.match(f"corrupt: .*{words}".replace("unpacks to more than the", "has more than"), bad[0].state)
    assert len(names(tmp_path)) == 6


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda packed: packed[:-20], "it is cut short"),
        (lambda packed: packed[:5], "it is cut short"),
        (
            lambda packed: packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:],
            "it does not decompress .CRC check failed",
        ),
        (lambda packed: packed[:100] + bytes(9) + packed[109:], "it does not decompress"),
        (lambda packed: b"not gzip" + packed, "it does not decompress"),
    ],
    ids=["cut", "cut in its header", "checksum", "content", "other format"],
)
def test_a_broken_gz_is_named_with_what_to_do(
    small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path, spoil: Callable[[bytes], bytes], words: str
) -> None:
    put(tmp_path, published, packed=True)
    path = tmp_path / f"{small[3].name}.mat.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=f"{re.escape(str(path))} is corrupt: {words}.*Delete it and run"):
        smallnorb.load(tmp_path, "test")
    assert names(tmp_path) == set(published)
    assert smallnorb.check(tmp_path)[3].state.startswith(f"corrupt: {words[:10]}")


def test_a_wrong_file_beside_its_gz_is_unpacked_again(
    small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path
) -> None:
    put(tmp_path, published, packed=True)
    path = tmp_path / f"{small[3].name}.mat"
    path.write_bytes(b"half")
    with pytest.raises(DataError, match=r"dat\.mat is corrupt: .*Delete it: the next run unpacks it again from .*gz"):
        smallnorb.load(tmp_path, "test")
    path.unlink()
    assert len(smallnorb.load(tmp_path, "test").images) == N


def test_what_is_missing_is_named(small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*nowhere. Run `capsroute data fetch smallnorb`"):
        smallnorb.load(tmp_path / "nowhere", "test")
    put(tmp_path, published)
    (tmp_path / f"{small[5].name}.mat").rename(tmp_path / f"{small[5].name}.mat.gz.part")
    with pytest.raises(DataError, match=r"lacks smallnorb-5x01235x9x18x6x2x96x96-testing-info\.mat\.gz \(or") as raised:
        smallnorb.load(tmp_path, "test")
    assert "cat" not in str(raised.value).removeprefix(str(tmp_path)).split("(")[0]
    assert len(smallnorb.load(tmp_path, "train").images) == N
    with pytest.raises(ValueError, match=r"split: expected one of \['train', 'test'\], got 'dev'"):
        smallnorb.load(tmp_path, "dev")


def test_check_says_what_each_file_is(small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path) -> None:
    train_dat, train_cat, train_info, test_dat, test_cat, test_info = (tmp_path / f"{m.name}.mat" for m in small)
    put(tmp_path, published)
    train_dat.write_bytes(mat(255 - content("train")["dat"]))
    train_cat.unlink()
    Path(f"{train_cat}.gz").write_bytes(published[f"{train_cat.name}.gz"])
    train_info.unlink()
    Path(f"{train_info}.gz").write_bytes(gzip.compress(mat(content("train")["info"]), compresslevel=1, mtime=1))
    test_dat.unlink()
    Path(f"{test_dat}.gz.part").write_bytes(bytes(1_500_000))
    test_cat.unlink()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    states = smallnorb.check(tmp_path)
    assert [(s.path, s.state, s.ok) for s in states] == [
        (train_dat, READABLE, True),
        (Path(f"{train_cat}.gz"), ORIGINAL, True),
        (Path(f"{train_info}.gz"), ORIGINAL, True),
        (None, "missing, 1.5 MB downloaded so far", False),
        (None, "missing", False),
        (test_info, ORIGINAL, True),
    ]
    assert [s.name for s in states] == [m.name for m in small]
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_but_numpy_is_needed_to_read() -> None:
    script = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pooch", "requests", "rich", "tqdm"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from pathlib import Path
from capsroute.lab.data import smallnorb
assert not smallnorb.check(Path("nowhere"))[0].ok
for progress in (True, False):
    try:
        smallnorb.fetch(Path("nowhere"), progress=progress)
    except smallnorb.DataError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout.splitlines() == [
        "Downloading needs rich. Install it: pip install rich",
        "Downloading needs pooch. Install it: pip install pooch",
    ]
    assert not (ROOT / "nowhere").exists()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, small: tuple[Matrix, ...], published: dict[str, bytes]) -> Iterator[Server]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    with serving() as server:
        server.files = dict(published)
        yield server


def test_all_six_are_fetched(
    mirror: Server, published: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made" / "here"
    paths = smallnorb.fetch(folder, url=f"{mirror.url}/")
    assert {path.name: path.read_bytes() for path in paths} == published
    assert [s.state for s in smallnorb.check(folder)] == [ORIGINAL] * 6
    shown = capsys.readouterr()
    assert "test dat" in shown.err
    assert not shown.out
    assert len(smallnorb.load(folder, "train").images) == N


def test_only_what_is_missing_is_fetched(
    mirror: Server,
    small: tuple[Matrix, ...],
    published: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(tmp_path, published)
    for m in small[3:5]:
        (tmp_path / f"{m.name}.mat").unlink()
    packed = f"{small[3].name}.mat.gz"
    (tmp_path / f"{packed}.part").write_bytes(published[packed][:1000])
    paths = smallnorb.fetch(tmp_path, progress=False, url=mirror.url)
    assert mirror.ranges == [(packed, "bytes=1000-"), (f"{small[4].name}.mat.gz", None)]
    assert [path.suffix for path in paths] == [".mat"] * 3 + [".gz"] * 2 + [".mat"]
    assert smallnorb.fetch(tmp_path, progress=False, url=mirror.url) == paths
    assert len(mirror.ranges) == 2
    assert capsys.readouterr() == ("", "")


def test_what_is_not_the_original_is_not_fetched_over(
    mirror: Server, small: tuple[Matrix, ...], published: dict[str, bytes], tmp_path: Path
) -> None:
    """Neither a copy that reads well nor a broken file; nothing is downloaded first."""
    put(tmp_path, published)
    other = tmp_path / f"{small[3].name}.mat"
    other.write_bytes(mat(255 - content("test")["dat"]))
    broken = tmp_path / f"{small[4].name}.mat"
    broken.write_bytes(b"half")
    (tmp_path / f"{small[5].name}.mat").unlink()
    with pytest.raises(DataError) as raised:
        smallnorb.fetch(tmp_path, progress=False, url=mirror.url)
    assert f"{other} ({READABLE}); {broken} (corrupt: it has 4 bytes" in str(raised.value)
    assert "Move them away" in str(raised.value)
    assert not mirror.ranges


def test_a_wrong_checksum_ends_fetching(mirror: Server, small: tuple[Matrix, ...], tmp_path: Path) -> None:
    name = f"{small[1].name}.mat.gz"
    mirror.files[name] = gzip.compress(b"something else")
    with pytest.raises(DataError, match=f"{name} is not the published file: its MD5 is not {small[1].md5_packed}"):
        smallnorb.fetch(tmp_path, progress=False, url=mirror.url)
    assert names(tmp_path) == {f"{small[0].name}.mat.gz"}


@pytest.mark.data
def test_labels_from_the_real_data_are_the_originals(data: Path, tmp_path: Path) -> None:
    for m in smallnorb.MATRICES:
        if m.part != "dat":
            with np.load(data / "smallnorb" / f"{m.split}.npz") as pack:
                values = pack["category" if m.part == "cat" else "info"].astype(np.int32)
            (tmp_path / f"{m.name}.mat").write_bytes(mat(values))
    states = {s.name.split("x96x96-")[1]: s.state for s in smallnorb.check(tmp_path)}
    assert states == {
        "training-dat": "missing",
        "training-cat": ORIGINAL,
        "training-info": READABLE,  # its poses are not known
        "testing-dat": "missing",
        "testing-cat": ORIGINAL,
        "testing-info": ORIGINAL,
    }


@pytest.mark.data
@pytest.mark.slow
def test_files_made_from_the_jpeg_copy_are_read(data: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, data / "smallnorb" / "to_mat.py", tmp_path, "test"], check=True)
    pairs = smallnorb.load(tmp_path, "test")
    with np.load(data / "smallnorb" / "test.npz") as pack:
        np.testing.assert_array_equal(pairs.category, pack["category"])
        np.testing.assert_array_equal(pairs.info, pack["info"])
    assert np.ptp(pairs.images.reshape(24300, -1), axis=1).min() > 0  # no pair is blank
    assert [s.state for s in smallnorb.check(tmp_path)][3:] == [READABLE, ORIGINAL, ORIGINAL]
