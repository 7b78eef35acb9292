"""smallNORB's files: reading, checking, error messages and fetching."""

import errno
import gzip
import hashlib
import io
import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsroute.lab.data import smallnorb
from capsroute.lab.data.published import ORIGINAL, READABLE, DataError
from capsroute.lab.data.smallnorb import Matrix
from capsroute.lab.training.config import change_settings
from capsroute.lab.training.experiments import make_config
from capsroute.lab.training.vision import Vision
from http_server import Server, serve

N = 20  # pairs in the small copies
Table = tuple[Matrix, ...]  # a row for each file
Files = dict[str, bytes]  # content by name


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def mat(array: np.ndarray) -> bytes:
    """Return a file of a binary matrix, written without the package."""
    sizes = [*array.shape, 1, 1][: max(array.ndim, 3)]
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    return struct.pack(f"<{2 + len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


def labels(split: str, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    instances = [4, 6, 7, 8, 9] if split == "train" else [0, 1, 2, 3, 5]
    poses = [rng.choice(instances, n), rng.integers(-1, 9, n), 2 * rng.integers(0, 18, n), rng.integers(-1, 6, n)]
    return {"cat": rng.integers(0, 5, n).astype(np.int32), "info": np.stack(poses, axis=1).astype(np.int32)}


def content(split: str) -> dict[str, np.ndarray]:
    """Return the content of the small files of a split."""
    images = np.random.default_rng(len(split)).integers(0, 256, (N, 2, 96, 96), dtype=np.uint8)
    return {"dat": images, **labels(split, N)}


@pytest.fixture(scope="module")
def published() -> Files:
    """Return six small files as a server would have them, by name."""
    arrays = {m.name: content(m.split)[m.part] for m in smallnorb.MATRICES}
    return {f"{name}.mat.gz": gzip.compress(mat(array), mtime=0) for name, array in arrays.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, published: Files) -> Table:
    """Make the small files the originals."""
    table = []
    for m in smallnorb.MATRICES:
        packed = published[f"{m.name}.mat.gz"]
        table.append(m._replace(shape=(N, *m.shape[1:]), md5_packed=md5(packed), md5=md5(gzip.decompress(packed))))
    monkeypatch.setattr(smallnorb, "MATRICES", tuple(table))
    return tuple(table)


def put(folder: Path, published: Files, *, packed: bool = False) -> None:
    for name, value in published.items():
        file = folder / (name if packed else name.removesuffix(".gz"))
        file.write_bytes(value if packed else gzip.decompress(value))


@pytest.fixture
def folder(small: Table, published: Files, tmp_path: Path) -> Path:
    put(tmp_path, published)
    return tmp_path


@pytest.fixture
def packed_folder(small: Table, published: Files, tmp_path: Path) -> Path:
    put(tmp_path, published, packed=True)
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("packed", [False, True])
def test_load_returns_images_and_labels(
    small: Table, published: Files, tmp_path: Path, split: str, packed: bool
) -> None:
    put(tmp_path, published, packed=packed)
    pairs, expected = smallnorb.load(tmp_path, split), content(split)
    for array, part in zip(pairs, ["dat", "cat", "info"], strict=True):
        np.testing.assert_array_equal(array, expected[part])
    assert isinstance(pairs.images, np.memmap)
    assert [a.dtype for a in pairs] == [np.uint8, np.int64, np.int64]


def test_load_maps_full_size(tmp_path: Path) -> None:
    """Of the images only the header is written, the rest is a hole in the file."""
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


def test_packed_files_are_unpacked_once(small: Table, published: Files, packed_folder: Path) -> None:
    smallnorb.load(packed_folder, "test")
    unpacked = {f"{m.name}.mat" for m in small if m.split == "test"}
    assert names(packed_folder) == set(published) | unpacked
    for m in small:
        (packed_folder / f"{m.name}.mat.gz").write_bytes(b"not read any more")
    smallnorb.load(packed_folder, "test")
    assert {s.path.name for s in smallnorb.check(packed_folder) if s.path and s.ok} == unpacked


def test_full_disk_is_reported(published: Files, packed_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"testing-dat\.mat cannot be written: the disk is full"):
        smallnorb.load(packed_folder, "test")
    assert names(packed_folder) == set(published)


def header(array: np.ndarray, *ints: int) -> bytes:
    return struct.pack(f"<{len(ints)}i", *ints) + mat(array)[4 * len(ints) :]


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
def test_corrupt_file_is_reported(small: Table, published: Files, tmp_path: Path, damage: str, packed: bool) -> None:
    part, value, words = DAMAGE[damage]
    put(tmp_path, published)
    path = tmp_path / f"smallnorb-5x01235x9x18x6x2x96x96-testing-{part}.mat"
    path.unlink()
    if packed:
        path = path.with_name(f"{path.name}.gz")
        value = gzip.compress(value)
    path.write_bytes(value)
    with pytest.raises(DataError, match=f"{re.escape(str(path))} is corrupt: .*{words}") as raised:
        smallnorb.load(tmp_path, "test")
    assert "Delete it and run `capsroute data fetch smallnorb`" in str(raised.value)
    bad = [s for s in smallnorb.check(tmp_path) if not s.ok]
    assert [s.path for s in bad] == [path]
    assert re.match(f"corrupt: .*{words}", bad[0].state)
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
def test_corrupt_gz_is_reported(
    small: Table, published: Files, packed_folder: Path, spoil: Callable[[bytes], bytes], words: str
) -> None:
    path = packed_folder / f"{small[3].name}.mat.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=f"{re.escape(str(path))} is corrupt: {words}.*Delete it and run"):
        smallnorb.load(packed_folder, "test")
    assert names(packed_folder) == set(published)
    assert smallnorb.check(packed_folder)[3].state.startswith(f"corrupt: {words[:10]}")


def test_corrupt_file_beside_gz_is_reported(small: Table, packed_folder: Path) -> None:
    path = packed_folder / f"{small[3].name}.mat"
    path.write_bytes(b"half")
    with pytest.raises(DataError, match=r"dat\.mat is corrupt: .*Delete it: the next run unpacks it again from .*gz"):
        smallnorb.load(packed_folder, "test")
    path.unlink()
    assert len(smallnorb.load(packed_folder, "test").images) == N


def test_missing_files_are_reported(small: Table, published: Files, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*nowhere. Run `capsroute data fetch smallnorb`"):
        smallnorb.load(tmp_path / "nowhere", "test")
    put(tmp_path, published)
    (tmp_path / f"{small[5].name}.mat").unlink()
    with pytest.raises(DataError, match=r"lacks smallnorb-5x01235x9x18x6x2x96x96-testing-info\.mat\.gz \(or") as raised:
        smallnorb.load(tmp_path, "test")
    assert "cat" not in str(raised.value).removeprefix(str(tmp_path)).split("(")[0]
    assert len(smallnorb.load(tmp_path, "train").images) == N


def test_check_returns_states(small: Table, published: Files, folder: Path) -> None:
    train_dat, train_cat, train_info, test_dat, test_cat, test_info = (folder / f"{m.name}.mat" for m in small)
    train_dat.write_bytes(mat(255 - content("train")["dat"]))
    train_cat.unlink()
    Path(f"{train_cat}.gz").write_bytes(published[f"{train_cat.name}.gz"])
    train_info.unlink()
    Path(f"{train_info}.gz").write_bytes(gzip.compress(mat(content("train")["info"]), compresslevel=1, mtime=1))
    test_dat.unlink()
    test_cat.unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    states = smallnorb.check(folder)
    assert [(s.path, s.state, s.ok) for s in states] == [
        (train_dat, READABLE, True),
        (Path(f"{train_cat}.gz"), ORIGINAL, True),
        (Path(f"{train_info}.gz"), ORIGINAL, True),
        (None, "missing", False),
        (None, "missing", False),
        (test_info, ORIGINAL, True),
    ]
    assert [s.name for s in states] == [m.name for m in small]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, small: Table, published: Files) -> Iterator[Server]:
    with serve(monkeypatch, published) as server:
        yield server


def test_fetch_downloads_only_missing_files(
    mirror: Server, published: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made" / "here"
    paths = smallnorb.fetch(folder, url=f"{mirror.url}/")
    assert {path.name: path.read_bytes() for path in paths} == published
    assert [s.state for s in smallnorb.check(folder)] == [ORIGINAL] * 6
    assert len(smallnorb.load(folder, "train").images) == N  # unpacks three
    for path in paths[3:5]:
        path.unlink()
    mirror.requests.clear()
    again = smallnorb.fetch(folder, url=mirror.url)
    assert [path.suffix for path in again] == [".mat"] * 3 + [".gz"] * 3
    assert mirror.requests == [path.name for path in paths[3:5]]
    assert smallnorb.fetch(folder, url=mirror.url) == again
    assert len(mirror.requests) == 2
    assert capsys.readouterr() == ("", "")


def test_fetch_refuses_other_files(mirror: Server, small: Table, folder: Path) -> None:
    other = folder / f"{small[3].name}.mat"
    other.write_bytes(mat(255 - content("test")["dat"]))
    broken = folder / f"{small[4].name}.mat"
    broken.write_bytes(b"half")
    (folder / f"{small[5].name}.mat").unlink()
    with pytest.raises(DataError) as raised:
        smallnorb.fetch(folder, url=mirror.url)
    assert f"{other} ({READABLE}); {broken} (corrupt: it has 4 bytes" in str(raised.value)
    assert "Move them away" in str(raised.value)
    assert not mirror.requests


def test_fetch_stops_at_wrong_checksum(
    mirror: Server, small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # pooch waits before it tries again
    name = f"{small[1].name}.mat.gz"
    mirror.files[name] = gzip.compress(b"something else")
    with pytest.raises(DataError, match=f"{name} is not the published file: its MD5 is not {small[1].md5_packed}"):
        smallnorb.fetch(tmp_path, url=mirror.url)
    assert names(tmp_path) == {f"{small[0].name}.mat.gz"}


@pytest.mark.data
def test_real_labels_are_original(data: Path, tmp_path: Path) -> None:
    for m in smallnorb.MATRICES:
        if m.part != "dat":
            with np.load(data / "smallnorb" / f"{m.split}.npz") as pack:
                values = pack["category" if m.part == "cat" else "info"].astype(np.int32)
            (tmp_path / f"{m.name}.mat").write_bytes(mat(values))
    states = {s.name.split("x96x96-")[1]: s.state for s in smallnorb.check(tmp_path)}
    assert states == {
        "training-dat": "missing",
        "training-cat": ORIGINAL,
        "training-info": READABLE,  # its poses are unknown
        "testing-dat": "missing",
        "testing-cat": ORIGINAL,
        "testing-info": ORIGINAL,
    }


@pytest.mark.data
def test_real_jpeg_copy_is_readable(data: Path, tmp_path: Path) -> None:
    """A few decoded pairs in a file of full size, the rest of it a hole."""
    rows = np.arange(0, 24_300, 1_000)
    dat, cat, info = (tmp_path / f"{m.name}.mat" for m in smallnorb.MATRICES if m.split == "test")
    with np.load(data / "smallnorb" / "test.npz") as pack:
        category, poses, jpeg, offsets = pack["category"], pack["info"], pack["jpeg"], pack["offsets"]
    files = [io.BytesIO(jpeg[offsets[k] : offsets[k + 1]].tobytes()) for row in rows for k in (2 * row, 2 * row + 1)]
    images = np.stack([np.asarray(Image.open(file)) for file in files]).reshape(-1, 2, 96, 96)
    cat.write_bytes(mat(category.astype(np.int32)))
    info.write_bytes(mat(poses.astype(np.int32)))
    with dat.open("wb") as file:
        file.write(struct.pack("<6i", 0x1E3D4C55, 4, 24300, 2, 96, 96))
        for row, image in zip(rows, images, strict=True):
            file.seek(24 + int(row) * image.nbytes)
            file.write(image.tobytes())
        file.truncate(24 + 24300 * images[0].nbytes)
    pairs = smallnorb.load(tmp_path, "test")
    np.testing.assert_array_equal(pairs.images[rows], images)
    np.testing.assert_array_equal(pairs.category, category)
    np.testing.assert_array_equal(pairs.info, poses)
    assert np.ptp(images.reshape(len(rows), -1), axis=1).min() > 0  # no pair is blank
    assert [s.state for s in smallnorb.check(tmp_path)][3:] == [READABLE, ORIGINAL, ORIGINAL]


def test_folds_hold_out_each_training_instance_once(folder: Path) -> None:
    held_out = []
    for fold in range(5):
        config = change_settings(make_config("smallnorb"), [f"folder={folder}", f"fold={fold}"])
        train, validation = (set(Vision(config).pairs(split).instance) for split in ("train", "validation"))
        assert len(validation) == 1
        assert train == {4, 6, 7, 8, 9} - validation
        held_out += validation
    assert held_out == [9, 8, 7, 6, 4]  # the last ones first, as before there were folds
