"""Downloads from servers with faults: the file is complete and verified, or an error says what to do."""

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

from capsroute.lab.data.published import DataError, download
from capsroute.lab.errors import UserError
from conftest import ROOT
from http_server import Server, serve

BODY = np.random.default_rng(1).bytes(500_000)
HASH = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serve(monkeypatch, {"file": BODY}) as server:
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def check_download(server: Server, target: Path, **options) -> None:
    """Download, and expect the right file and nothing else in its folder."""
    assert download(f"{server.url}/file", target, HASH, len(BODY), **options) == target
    assert target.read_bytes() == BODY
    assert names(target.parent) == {target.name}


def test_download_happens_once(server: Server, target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check_download(server, target)
    check_download(server, target)
    assert server.requests == ["file"]
    assert capfd.readouterr() == ("", "")  # no bar outside a terminal, nothing from pooch's log


def test_cut_connection_and_busy_server_are_retried(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # pooch waits before it tries again
    server.statuses, server.cuts = [503], [70_000]
    check_download(server, target)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"statuses": [503] * 9}, "503 Server Error: Service Unavailable"),
        ({"cuts": [70_000] * 9}, "70000 bytes read, 430000 more expected"),
        ({"hold": threading.Event()}, "timed out"),
    ],
    ids=["busy", "cut", "silent"],
)
def test_failing_server_is_reported(server: Server, target: Path, fault: dict, words: str) -> None:
    vars(server).update(fault)
    with pytest.raises(DataError) as raised:
        download(f"{server.url}/file", target, HASH, len(BODY), retries=0, timeout=(1, 0.1))
    assert str(raised.value).startswith(f"{server.url}/file cannot be downloaded: ")
    assert words in str(raised.value)
    assert f"Run again later, or download {server.url}/file by other means and put it into {target.parent}" in str(
        raised.value
    )
    assert len(server.requests) == 1
    assert not names(target.parent)


def test_missing_file_is_reported_without_retry(server: Server, target: Path) -> None:
    with pytest.raises(DataError, match=rf"{server.url}/none cannot be downloaded: the server answers 404 Not Found"):
        download(f"{server.url}/none", target, HASH, len(BODY))
    assert len(server.requests) == 1
    assert not target.exists()


def test_unreachable_server_is_reported(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(DataError, match=r"http://127.0.0.1:1/file cannot be downloaded: .*Connection refused"):
        download("http://127.0.0.1:1/file", target, HASH, len(BODY), retries=0)
    with pytest.raises(DataError, match="nothing cannot be downloaded: Invalid URL 'nothing'"):
        download("nothing", target, HASH, len(BODY), retries=0)


@pytest.mark.parametrize("body", [BODY[:-1] + bytes([BODY[-1] ^ 1]), b""], ids=["corrupt", "empty"])
def test_wrong_checksum_leaves_no_file(server: Server, target: Path, body: bytes) -> None:
    server.files["file"] = body
    with pytest.raises(DataError, match=rf"What came from {server.url}/file is not the published file: its SHA256"):
        download(f"{server.url}/file", target, HASH, len(BODY), retries=0)
    assert not names(target.parent)


@pytest.mark.parametrize("length", ["500001", ""], ids=["told", "not told"])
def test_download_stops_at_the_known_size(server: Server, target: Path, length: str) -> None:
    server.files["file"], server.headers = BODY + b"x" * 10_000_000, {"Content-Length": length}
    with pytest.raises(
        DataError, match=r"is not the published file: it has more than 500,000 bytes\. The download was"
    ):
        download(f"{server.url}/file", target, HASH, len(BODY))
    assert len(server.requests) == 1
    assert not names(target.parent)


def test_gzip_encoding_is_not_decoded(server: Server, target: Path) -> None:
    packed = gzip.compress(BODY)
    server.files["file"], server.headers = packed, {"Content-Encoding": "x-gzip"}
    download(f"{server.url}/file", target, f"md5:{hashlib.md5(packed).hexdigest()}", len(packed))
    assert target.read_bytes() == packed


def test_existing_file_is_never_replaced(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"file is not the published file: its SHA256 differs. Delete it"):
        download(f"{server.url}/file", target, HASH, len(BODY))
    assert target.read_bytes() == b"mine"
    assert not server.requests


def test_unwritable_folder_is_reported(server: Server, target: Path) -> None:
    target.parent.write_text("a file")
    with pytest.raises(DataError, match=r"file cannot be written: .*Name a folder that you may write to"):
        download(f"{server.url}/file", target, HASH, len(BODY))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_is_reported(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary file of pooch is a link to a full device."""
    full = target.parent / "temporary"
    target.parent.mkdir()
    full.symlink_to("/dev/full")
    monkeypatch.setattr("tempfile.NamedTemporaryFile", lambda **_: full.open("wb"))
    with pytest.raises(DataError, match=r"file cannot be written: the disk is full. Free some space"):
        download(f"{server.url}/file", target, HASH, len(BODY))
    assert not target.exists()


def test_killed_download_leaves_no_file(server: Server, target: Path) -> None:
    server.hold = threading.Event()
    script = "import sys, pathlib; from capsroute.lab.data.published import download\n"
    script += "download(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))"
    command = [sys.executable, "-c", script, f"{server.url}/file", str(target), HASH, str(len(BODY))]
    process = subprocess.Popen(command, cwd=ROOT)
    end = time.monotonic() + 60
    while not (target.parent.exists() and any(path.stat().st_size for path in target.parent.iterdir())):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not target.exists()
    server.hold.set()
    assert download(f"{server.url}/file", target, HASH, len(BODY)).read_bytes() == BODY


def test_missing_pooch_names_extra(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UserError, match=r"pooch is not installed: pip install 'capsroute\[train\]'"):
        download(f"{server.url}/file", target, HASH, len(BODY))
    assert not target.parent.exists()
