"""Downloads from servers that misbehave: what arrives is whole and right, or an error says what to do."""

import gzip
import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from capsroute.lab.data import downloads as files
from capsroute.lab.data.downloads import DataError
from conftest import ROOT
from http_server import Server, serving


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


PACKAGE = ROOT / "capsroute"
BODY = np.random.default_rng(1).bytes(500_000)
HASH = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setattr(files, "PAUSE", 0.0)
    with serving() as server:
        server.files["whole"] = BODY
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "whole"


def get(server: Server, target: Path, name: str = "whole") -> None:
    """Download, and expect the right file and nothing else in its folder."""
    assert files.download(f"{server.url}/{name}", target, HASH) == target
    assert target.read_bytes() == BODY
    assert names(target.parent) == {target.name}


def begun(target: Path, value: bytes) -> Path:
    """What an earlier run left."""
    target.parent.mkdir()
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(value)
    return part


def test_a_download_starts_from_nothing(server: Server, target: Path) -> None:
    get(server, target)
    get(server, target)
    assert server.ranges == [("whole", None)]


def test_a_download_goes_on_where_it_stopped(server: Server, target: Path) -> None:
    begun(target, BODY[:123_456])
    seen = []
    files.download(f"{server.url}/whole", target, HASH, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == BODY
    assert server.ranges == [("whole", "bytes=123456-")]
    assert seen[0] == (123_456, 500_000)
    assert seen[-1] == (500_000, 500_000)


def test_a_download_that_only_lacked_its_name_is_whole(server: Server, target: Path) -> None:
    begun(target, BODY)
    get(server, target)
    assert server.ranges == [("whole", "bytes=500000-")]


def test_servers_without_ranges_start_over(server: Server, target: Path) -> None:
    server.knows_ranges = False
    begun(target, b"x" * 123_456)
    get(server, target)
    assert len(server.ranges) == 1


@pytest.mark.parametrize("left", [BODY + b"more", b"x" * 123_456], ids=["longer", "other content"])
def test_a_part_of_something_else_is_given_up(server: Server, target: Path, left: bytes) -> None:
    begun(target, left)
    get(server, target)
    assert server.ranges == [("whole", f"bytes={len(left)}-"), ("whole", None)]


def test_an_answer_to_another_range_is_given_up(server: Server, target: Path) -> None:
    server.shift = 1
    begun(target, BODY[:1000])
    get(server, target)
    assert server.ranges == [("whole", "bytes=1000-"), ("whole", None)]


def test_a_server_that_sends_ranges_in_pieces_is_asked_for_each(server: Server, target: Path) -> None:
    server.most = 150_000
    begun(target, BODY[:100_000])
    get(server, target)
    assert [asked for _, asked in server.ranges] == ["bytes=100000-", "bytes=250000-", "bytes=400000-"]


def test_a_cut_connection_is_taken_up_again(server: Server, target: Path) -> None:
    """More often than the number of tries, as each brings something new."""
    server.cuts = [70_000] * 6
    get(server, target)
    starts = [0 if asked is None else int(asked[6:-1]) for _, asked in server.ranges]
    assert len(starts) == 7
    assert starts == sorted(set(starts))


def test_a_connection_that_is_always_cut_is_given_up(server: Server, target: Path) -> None:
    server.knows_ranges = False
    server.cuts = [70_000] * 100
    with pytest.raises(
        DataError, match=r"whole cannot be downloaded: 5 tries failed.* go on from 0\.1 MB; or download"
    ):
        files.download(f"{server.url}/whole", target, HASH)
    assert len(server.ranges) == 5
    assert names(target.parent) == {"whole.part"}


def test_a_busy_server_is_asked_again(server: Server, target: Path) -> None:
    server.statuses = [503, 429, 500, 502]
    get(server, target)
    assert len(server.ranges) == 5


def test_pauses_double(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []
    monkeypatch.setattr(files, "PAUSE", 0.5)
    monkeypatch.setattr(files.time, "sleep", pauses.append)
    server.statuses = [503] * 5
    with pytest.raises(DataError, match=r"the server answers 503 Service Unavailable. Run again later"):
        files.download(f"{server.url}/whole", target, HASH)
    assert pauses == [0.5, 1, 2, 4]
    assert not names(target.parent)


def test_an_unknown_file_is_named_at_once(server: Server, target: Path) -> None:
    with pytest.raises(DataError, match=rf"{server.url}/none cannot be downloaded: the server answers 404 Not Found"):
        files.download(f"{server.url}/none", target, HASH)
    assert len(server.ranges) == 1
    assert not target.exists()


def test_a_server_that_does_not_answer_is_named(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.hold = threading.Event()
    monkeypatch.setattr(files, "TIMEOUT", (1, 0.05))
    monkeypatch.setattr(files, "TRIES", 2)
    with pytest.raises(DataError, match=r"whole cannot be downloaded: 2 tries failed, the last with: .*timed out"):
        files.download(f"{server.url}/whole", target, HASH)


def test_a_network_out_of_reach_is_named(server: Server, target: Path) -> None:
    with pytest.raises(DataError) as raised:
        files.download("http://127.0.0.1:1/whole", target, HASH)
    assert str(raised.value).startswith("http://127.0.0.1:1/whole cannot be downloaded: 5 tries failed")
    assert "Connection refused" in str(raised.value)
    assert f"by other means and put it into {target.parent}" in str(raised.value)
    with pytest.raises(DataError, match="nothing is no address to download from"):
        files.download("nothing", target, HASH)


@pytest.mark.parametrize("resumed", [False, True])
def test_corrupt_bytes_are_removed(server: Server, target: Path, resumed: bool) -> None:
    server.files["whole"] = BODY[:-1] + bytes([BODY[-1] ^ 1])
    if resumed:
        begun(target, BODY[:1000])
    with pytest.raises(DataError, match=rf"What came from {server.url}/whole is not the published file: its SHA256"):
        files.download(f"{server.url}/whole", target, HASH)
    assert len(server.ranges) == 1 + resumed
    assert not names(target.parent)


def test_an_empty_answer_is_not_the_file(server: Server, target: Path) -> None:
    server.files["whole"] = b""
    with pytest.raises(DataError, match=rf"What came from {server.url}/whole is not the published file"):
        files.download(f"{server.url}/whole", target, HASH)
    assert not names(target.parent)


def test_bytes_are_kept_as_sent(server: Server, target: Path) -> None:
    """A .gz that the server calls gzip-encoded is not unpacked on the way."""
    packed = gzip.compress(BODY)
    server.files["whole"], server.headers = packed, {"Content-Encoding": "x-gzip"}
    files.download(f"{server.url}/whole", target, f"md5:{hashlib.md5(packed).hexdigest()}")
    assert target.read_bytes() == packed


def test_a_file_that_is_there_is_never_replaced(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"whole is not the published file: its SHA256 differs. Delete it"):
        files.download(f"{server.url}/whole", target, HASH)
    assert target.read_bytes() == b"mine"
    assert not server.ranges


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_ends_a_download(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.with_name("whole.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"whole cannot be written: the disk is full. Free some space"):
        files.download(f"{server.url}/whole", target, HASH)
    assert not target.exists()


def test_a_folder_that_cannot_be_made_is_named(server: Server, target: Path) -> None:
    target.parent.write_text("a file")
    with pytest.raises(DataError, match=r"whole cannot be written: .*Name a folder that you may write to"):
        files.download(f"{server.url}/whole", target, HASH)


def killable(server: Server, target: Path) -> subprocess.Popen:
    """A download in a process of its own, halfway and held there; without torch, which takes seconds to import."""
    script = f"""
import pathlib, sys, types
for name, folder in (("capsroute", {str(PACKAGE)!r}), ("capsroute.lab.data", {str(PACKAGE / "data")!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from capsroute.lab.data import files
files.download({f"{server.url}/whole"!r}, pathlib.Path({str(target)!r}), {HASH!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    part, end = target.with_name("whole.part"), time.monotonic() + 20
    while not (part.exists() and part.stat().st_size > 0):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_a_killed_download_goes_on_where_it_stopped(server: Server, target: Path) -> None:
    server.hold = hold = threading.Event()
    process = killable(server, target)
    try:
        with pytest.raises(DataError, match=r"whole.part belongs to a download in another process. Wait"):
            files.download(f"{server.url}/whole", target, HASH)
    finally:
        process.kill()
        process.wait()
    assert names(target.parent) == {"whole.part"}
    kept = target.with_name("whole.part").stat().st_size
    hold.set()
    get(server, target)
    assert server.ranges == [("whole", None), ("whole", f"bytes={kept}-")]
