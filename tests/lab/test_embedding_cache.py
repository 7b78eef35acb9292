"""Embeddings: read in batches from wherever they lie, and a cache that survives being killed, cut and crowded out."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capsroute.lab.encoders import cache as cache_module
from capsroute.lab.encoders import embed
from capsroute.lab.encoders import embeddings as module
from capsroute.lab.encoders.embeddings import Embeddings
from capsroute.lab.errors import UserError
from conftest import ROOT

CPU = torch.device("cpu")
DEPTH, WIDTH = 3, 4
TEXTS = [" ".join(f"w{k * 7 % 11 + j}" for j in range(1 + k * 5 % 9)) for k in range(60)]


class Words:
    """In place of an encoder: a token is a word, its embedding follows from its number and its place alone."""

    depth, d_emb, max_tokens, name, device = DEPTH, WIDTH, 16, "words", CPU

    def __init__(self, precision: str = "fp32", pause: float = 0.0) -> None:
        self.precision, self.pause = precision, pause
        self.dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
        self.batches: list[list[list[int]]] = []

    def key(self) -> str:
        return f"words-{self.precision}"

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [[int(word[1:]) for word in text.split()] or [0] for text in texts]

    def encode(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        time.sleep(self.pause)
        self.batches.append([list(row) for row in ids])
        n = max(map(len, ids))
        mask = torch.tensor([[1.0] * len(row) + [0.0] * (n - len(row)) for row in ids])
        embs = torch.zeros(len(ids), n, DEPTH, WIDTH)
        for k, row in enumerate(ids):
            embs[k, : len(row)] = expected(row)
        return mask, embs.to(self.dtype)


def expected(row: Sequence[int]) -> Tensor:
    """`[n, DEPTH, WIDTH]`, every number another."""
    number = torch.tensor(row)[:, None, None] + 20 * torch.arange(len(row))[:, None, None]
    return (number + torch.arange(DEPTH * WIDTH).view(DEPTH, WIDTH) / 16 + 0.5).float()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces and batches of few tokens."""
    monkeypatch.setattr(module, "PIECE_TOKENS", 40)
    monkeypatch.setattr(module, "BATCH_TOKENS", {"cpu": 20})


def made(folder: Path, texts: Sequence[str] = TEXTS, encoder: Words | None = None, **options) -> Embeddings:
    settings = {"cache_gb": 1.0, "device": CPU, "progress": False, "cache": "disk", **options}
    return embed(encoder or Words(), texts, folder=folder, **settings)


def files(folder: Path, name: str = "flat.bin") -> list[Path]:
    return sorted(folder.rglob(name))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", ["disk", "memory", "none"])
def test_batches(tmp_path: Path, kind: str, precision: str) -> None:
    encoder = Words(precision)
    found = made(tmp_path, encoder=encoder, cache=kind)
    ids = encoder.tokenize(TEXTS)
    assert len(found) == len(TEXTS)
    assert found.lengths.tolist() == [len(row) for row in ids]
    assert found.longest == max(map(len, ids))
    assert found.resident is (kind != "none")
    rows = torch.tensor([7, 59, 0, 7, 31])
    for n in (None, found.longest, 16, 2):
        mask, embs = found.batch(rows, n)
        width = n or max(len(ids[row]) for row in rows)
        assert mask.shape == (5, width)
        assert embs.shape == (5, width, DEPTH, WIDTH)
        assert mask.dtype == embs.dtype == torch.float32
        for row, m, e in zip(rows.tolist(), mask, embs, strict=True):
            size = min(len(ids[row]), width)
            assert m.tolist() == [1.0] * size + [0.0] * (width - size)
            assert torch.equal(e[:size], expected(ids[row])[:size].to(encoder.dtype).float())
            assert not e[size:].any()
    assert found.batch(torch.tensor([], dtype=torch.long))[1].shape == (0, 0, DEPTH, WIDTH)


@pytest.mark.parametrize("lies", [[torch.nan, 1, torch.nan], [1, torch.nan, 1]])
def test_padding_is_zero_whatever_lies_around(lies: list[float]) -> None:
    flat = torch.tensor(lies)[:, None, None].expand(3, DEPTH, WIDTH)
    mask, embs = Embeddings(Words(), [[1], [1], [1]], CPU, flat).batch(torch.tensor([1]), 4)
    assert mask.tolist() == [[1, 0, 0, 0]]
    assert torch.equal(embs[0, :, 0, 0].nan_to_num(7), torch.tensor(lies[1:2] + [0.0] * 3).nan_to_num(7))


def test_batches_can_be_trained_on(tmp_path: Path) -> None:
    for kind in ("disk", "none"):
        _, embs = made(tmp_path, cache=kind).batch(torch.arange(4))
        weight = torch.ones(WIDTH, requires_grad=True)
        (embs * weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.isfinite().all()
        embs.zero_()  # the file stays as it is
    assert made(tmp_path).batch(torch.arange(4))[1].any()


def test_texts_of_one_length_are_encoded_together(tmp_path: Path) -> None:
    encoder = Words()
    made(tmp_path, encoder=encoder)
    padded = sum(len(batch) * max(map(len, batch)) for batch in encoder.batches)
    used = sum(len(row) for batch in encoder.batches for row in batch)
    assert used == sum(map(len, encoder.tokenize(TEXTS)))
    assert padded < 1.2 * used
    assert max(len(batch) * max(map(len, batch)) for batch in encoder.batches) <= 20


def test_a_cache_is_read_not_encoded(tmp_path: Path) -> None:
    made(tmp_path)
    again = Words()
    assert torch.equal(
        made(tmp_path, encoder=again).batch(torch.arange(60))[1], made(tmp_path).batch(torch.arange(60))[1]
    )
    assert not again.batches
    for texts, encoder in ((TEXTS[:-1], Words()), ([*TEXTS[:-1], "w1 w1"], Words()), (TEXTS, Words("fp16"))):
        made(tmp_path, texts, encoder)
        assert encoder.batches
    assert len(files(tmp_path)) == 4


def test_texts_are_not_confused_by_where_they_end(tmp_path: Path) -> None:
    made(tmp_path, ["w1 ", "w2"])
    made(tmp_path, ["w1", " w2"])
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("texts", [[], [""], ["", "  ", "w1"]])
def test_few_and_empty_texts(tmp_path: Path, texts: list[str]) -> None:
    for kind in ("disk", "memory", "none"):
        found = made(tmp_path, texts, cache=kind)
        mask, embs = found.batch(torch.arange(len(texts)))
        assert mask.sum() == len(texts)
        assert embs.shape[0] == len(texts)


SCRIPT = """
import sys
from pathlib import Path
import torch
import test_embedding_cache as t
t.module.PIECE_TOKENS, t.module.BATCH_TOKENS = 40, {"cpu": 20}
t.made(Path(sys.argv[1]), encoder=t.Words(pause=0.05))
"""


def test_a_killed_run_is_taken_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    killed = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(killed)], env=environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if files(killed, "state.json") and len(json.loads(files(killed, "state.json")[0].read_text())["sums"]) >= 2:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    state = json.loads(files(killed, "state.json")[0].read_text())
    n_done, n_all = len(state["sums"]), len(state["sizes"])
    assert 2 <= n_done < n_all
    with files(killed)[0].open("ab") as file:  # as if it had died while writing
        file.write(b"half a piece")
    fresh, rest = Words(), Words()
    made(tmp_path / "fresh", encoder=fresh)
    made(killed, encoder=rest)
    assert 0 < len(rest.batches) < len(fresh.batches)
    assert rest.batches == fresh.batches[-len(rest.batches) :]
    assert files(killed)[0].read_bytes() == files(tmp_path / "fresh")[0].read_bytes()
    assert made(killed, encoder=(last := Words())) is not None
    assert not last.batches


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def _foreign(path: Path) -> None:
    path.write_bytes(b"something else")


@pytest.mark.parametrize("name", ["flat.bin", "state.json"])
@pytest.mark.parametrize("damage", [_cut, _flip, _foreign, Path.unlink, lambda path: path.write_bytes(b"")])
def test_damaged_files_are_made_again(tmp_path: Path, name: str, damage) -> None:
    made(tmp_path)
    (path,) = files(tmp_path, name)
    whole = files(tmp_path)[0].read_bytes()
    damage(path)
    found = made(tmp_path)
    assert files(tmp_path)[0].read_bytes() == whole
    assert torch.equal(found.batch(torch.tensor([59]))[1][0], expected(Words().tokenize(TEXTS)[59]))


def test_a_damaged_piece_spares_those_before_it(tmp_path: Path) -> None:
    fresh, again = Words(), Words()
    made(tmp_path, encoder=fresh)
    _cut(files(tmp_path)[0])
    made(tmp_path, encoder=again)
    assert 0 < len(again.batches) < 0.7 * len(fresh.batches)


def test_a_copied_cache_is_verified_once(tmp_path: Path) -> None:
    made(tmp_path)
    os.utime(files(tmp_path)[0], (1, 1))
    made(tmp_path, encoder=(again := Words()))
    assert not again.batches
    assert json.loads(files(tmp_path, "state.json")[0].read_text())["changed"] == 10**9


def test_the_least_recently_used_cache_makes_room(tmp_path: Path) -> None:
    groups = [[f"w{k} w{j}" for j in range(50)] for k in range(4)]
    n_bytes = 100 * DEPTH * WIDTH * 4
    paths = []
    for k, group in enumerate(groups[:3]):
        made(tmp_path, group)
        (new,) = {path.parent for path in files(tmp_path)} - set(paths)
        paths.append(new)
        os.utime(new / "state.json", (1000 + k, 1000 + k))
    made(tmp_path, groups[0])  # now used after the others
    made(tmp_path, groups[3], cache_gb=3 * n_bytes / 1e9)
    assert [path.exists() for path in paths] == [True, False, True]
    left = {path.name.removesuffix(".lock") for path in (tmp_path / "embeddings").iterdir()}
    assert left == {path.parent.name for path in files(tmp_path)}
    made(tmp_path, groups[3], cache_gb=n_bytes / 1e9)  # it is there already: nothing need go
    assert len(files(tmp_path)) == 3


def test_a_cache_that_is_read_may_go(tmp_path: Path) -> None:
    found = made(tmp_path)
    n_bytes = files(tmp_path)[0].stat().st_size
    made(tmp_path, TEXTS[::-1], cache_gb=n_bytes / 1e9)
    assert len(files(tmp_path)) == 1
    assert torch.equal(found.batch(torch.tensor([3]))[1][0], expected(Words().tokenize(TEXTS)[3]))


def test_a_cache_that_another_fills_does_not_go(tmp_path: Path) -> None:
    made(tmp_path)
    first = files(tmp_path)[0].parent
    filling = cache_module.Cache(first.parent, first.name, [])
    with filling.locked():
        made(tmp_path, TEXTS[::-1], cache_gb=first.joinpath("flat.bin").stat().st_size / 1e9)
    assert len(files(tmp_path)) == 2


def test_auto_says_what_it_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n_bytes = sum(map(len, Words().tokenize(TEXTS))) * DEPTH * WIDTH * 4
    assert made(tmp_path, cache="auto", cache_gb=n_bytes / 1e9, progress=True).resident
    assert f"on disk, {files(tmp_path)[0].parent}: within" in capsys.readouterr().err
    assert not made(tmp_path, cache="auto", cache_gb=(n_bytes - 1) / 1e9, progress=True).resident
    assert "not kept: more than the" in capsys.readouterr().err
    made(tmp_path, cache="auto", cache_gb=0)
    assert capsys.readouterr() == ("", "")


def test_auto_looks_at_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_free", lambda folder: 10)
    assert not made(tmp_path, cache="auto").resident
    assert not files(tmp_path)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.fsync
    calls = []

    def failing(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 3:  # while the second piece is written
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UserError, match=r"The disk is full: .* needs .* GB in all. Make room and run again"):
        made(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(module, "PIECE_TOKENS", 40)
    monkeypatch.setattr(module, "BATCH_TOKENS", {"cpu": 20})
    made(tmp_path, encoder=(rest := Words()))
    assert torch.equal(made(tmp_path).batch(torch.tensor([1]))[1][0], expected(rest.tokenize(TEXTS)[1]))


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    class Overflowing(Words):
        def encode(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
            mask, embs = super().encode(ids)
            return mask, (embs * 1e6).to(self.dtype)

    with pytest.raises(UserError, match=r"precision: words gives numbers in fp16 that are not finite. Use another"):
        made(tmp_path, encoder=Overflowing("fp16"))
    assert not files(tmp_path, "state.json")


def test_a_batch_too_large_for_the_device_is_halved(tmp_path: Path) -> None:
    class Cramped(Words):
        def encode(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
            if len(ids) > 1:
                raise torch.OutOfMemoryError("out of memory")
            return super().encode(ids)

    rows = torch.arange(len(TEXTS))
    assert torch.equal(made(tmp_path, encoder=Cramped(), cache="memory").batch(rows)[1], made(tmp_path).batch(rows)[1])


def test_refuses(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cache: expected one of \['auto', .*\], got 'tape'"):
        made(tmp_path, cache="tape")
    with pytest.raises(UserError, match="cache_gb: expected a number of gigabytes from 0 on, got -1"):
        made(tmp_path, cache_gb=-1)
    with pytest.raises(UserError, match=r"GB of embeddings are more than the 0 GB of --cache-gb. Raise it"):
        made(tmp_path, cache_gb=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_cuda_graph_holds_a_batch(tmp_path: Path) -> None:
    device = torch.device("cuda")
    found = made(tmp_path, device=device)
    assert found.resident
    rows = torch.zeros(5, dtype=torch.long, device=device)
    found.batch(rows, found.longest)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask, embs = found.batch(rows, found.longest)
    rows.copy_(torch.tensor([7, 59, 0, 7, 31]))
    graph.replay()
    expected_mask, expected_embs = made(tmp_path).batch(rows.cpu(), found.longest)
    assert torch.equal(mask.cpu(), expected_mask)
    assert torch.equal(embs.cpu(), expected_embs)
