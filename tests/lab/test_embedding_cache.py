"""Embeddings: read in batches from disk, memory or the encoder, and cached in a file that is never half written."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from capsroute.lab.atomic_files import map_array, write_array
from capsroute.lab.encoders import Embeddings, embed
from capsroute.lab.errors import UserError
from conftest import ROOT

CPU = torch.device("cpu")
DEPTH, WIDTH = 3, 4
TEXTS = [" ".join(f"w{k * 7 % 11 + j}" for j in range(1 + k * 5 % 9)) for k in range(60)]
N_BYTES = sum(len(text.split()) for text in TEXTS) * DEPTH * WIDTH * 4


class Words:
    """Stands for an encoder: a token is a word, its embedding follows from its number and position alone."""

    depth, d_emb, max_tokens, name, device = DEPTH, WIDTH, 16, "words", CPU
    batch_tokens = 5  # pieces of 40 tokens

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


class WideWords(Words):
    batch_tokens = 20


def expected(row: Sequence[int]) -> Tensor:
    """Return distinct numbers `[n, DEPTH, WIDTH]`."""
    number = torch.tensor(row)[:, None, None] + 20 * torch.arange(len(row))[:, None, None]
    return (number + torch.arange(DEPTH * WIDTH).view(DEPTH, WIDTH) / 16 + 0.5).float()


def make(folder: Path, texts: Sequence[str] = TEXTS, encoder: Words | None = None, **options) -> Embeddings:
    settings = {"cache_gb": 1.0, "device": CPU, "cache": "disk", **options}
    return embed(encoder or Words(), texts, folder=folder, **settings)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("storage", ["disk", "memory", "none"])
def test_batches_hold_embeddings(tmp_path: Path, storage: str, precision: str) -> None:
    encoder = Words(precision)
    found = make(tmp_path, encoder=encoder, cache=storage)
    ids = encoder.tokenize(TEXTS)
    assert len(found) == len(TEXTS)
    assert found.lengths.tolist() == [len(row) for row in ids]
    assert found.longest == max(map(len, ids))
    assert found.resident is (storage != "none")
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


@pytest.mark.parametrize("values", [[torch.nan, 1, torch.nan], [1, torch.nan, 1]])
def test_padding_is_zero_beside_nan(values: list[float]) -> None:
    flat = torch.tensor(values)[:, None, None].expand(3, DEPTH, WIDTH)
    mask, embs = Embeddings(Words(), [[1], [1], [1]], CPU, flat).batch(torch.tensor([1]), 4)
    assert mask.tolist() == [[1, 0, 0, 0]]
    assert torch.equal(embs[0, :, 0, 0].nan_to_num(7), torch.tensor(values[1:2] + [0.0] * 3).nan_to_num(7))


def test_batches_are_writable_and_differentiable(tmp_path: Path) -> None:
    for storage in ("disk", "none"):
        _, embs = make(tmp_path, cache=storage).batch(torch.arange(4))
        weight = torch.ones(WIDTH, requires_grad=True)
        (embs * weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.isfinite().all()
        embs.zero_()
    assert make(tmp_path).batch(torch.arange(4))[1].any()  # the file has not changed


def test_texts_are_batched_by_length(tmp_path: Path) -> None:
    encoder = WideWords()
    make(tmp_path, encoder=encoder)
    padded = sum(len(batch) * max(map(len, batch)) for batch in encoder.batches)
    used = sum(len(row) for batch in encoder.batches for row in batch)
    assert used == sum(map(len, encoder.tokenize(TEXTS)))
    assert padded < 1.2 * used
    assert max(len(batch) * max(map(len, batch)) for batch in encoder.batches) <= 20


def test_cache_is_not_encoded_again(tmp_path: Path) -> None:
    rows, again = torch.arange(60), Words()
    first = make(tmp_path).batch(rows)[1]
    assert torch.equal(make(tmp_path, encoder=again).batch(rows)[1], first)
    assert not again.batches
    for texts, encoder in ((TEXTS[:-1], Words()), ([*TEXTS[:-1], "w1 w1"], Words()), (TEXTS, Words("fp16"))):
        make(tmp_path, texts, encoder)
        assert encoder.batches
    assert len(files(tmp_path)) == 4


def test_text_boundaries_change_key(tmp_path: Path) -> None:
    make(tmp_path, ["w1 ", "w2"])
    make(tmp_path, ["w1", " w2"])
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("texts", [[], [""], ["", "  ", "w1"]])
def test_few_and_empty_texts(tmp_path: Path, texts: list[str]) -> None:
    for storage in ("disk", "memory", "none"):
        mask, embs = make(tmp_path, texts, cache=storage).batch(torch.arange(len(texts)))
        assert mask.sum() == len(texts)
        assert embs.shape[0] == len(texts)


SCRIPT = """
import sys
from pathlib import Path
import test_embedding_cache as t
t.make(Path(sys.argv[1]), encoder=t.Words(pause=0.5))
"""


def test_killed_process_leaves_no_file(tmp_path: Path) -> None:
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "lab")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment)
    end = time.monotonic() + 60
    while not list(tmp_path.rglob("*.tmp")):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not list(tmp_path.rglob("*.npy"))
    make(tmp_path, encoder=(again := Words()))
    assert again.batches
    assert len(list(tmp_path.rglob("*.npy"))) == 1


def test_one_builds_and_others_wait(tmp_path: Path) -> None:
    encoders = [Words(pause=0.01) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda encoder: make(tmp_path, encoder=encoder), encoders))
    assert sum(bool(encoder.batches) for encoder in encoders) == 1
    for embeddings in found:
        assert torch.equal(embeddings.batch(torch.arange(60))[1], found[0].batch(torch.arange(60))[1])


def test_damaged_file_is_built_again(tmp_path: Path) -> None:
    make(tmp_path)
    (path,) = files(tmp_path)
    content = path.read_bytes()
    flipped = content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
    for damage in (content[: len(content) // 2], flipped, b"something else", b"", content + b"x", None):
        path.unlink() if damage is None else path.write_bytes(damage)
        found = make(tmp_path, encoder=(again := Words()))
        assert again.batches
        assert path.read_bytes() == content
        assert torch.equal(found.batch(torch.tensor([59]))[1][0], expected(Words().tokenize(TEXTS)[59]))
    os.utime(path, (1, 1))
    make(tmp_path, encoder=(again := Words()))
    assert not again.batches  # as after a copy


def test_array_of_other_shape_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    data = torch.arange(24, dtype=torch.uint8).view(4, 6).numpy()
    write_array(path, (4, 6), [data[:1], data[1:]])
    found = map_array(path, (4, 6))
    assert found is not None
    assert found.tolist() == data.tolist()
    assert map_array(path, (6, 4)) is None
    with pytest.raises(ValueError, match="pieces: expected 24 bytes, got 6"):
        write_array(path, (4, 6), [data[:1]])
    assert map_array(path, (4, 6)) is not None  # the old file is still there


def test_removed_file_stays_readable(tmp_path: Path) -> None:
    found = make(tmp_path)
    files(tmp_path)[0].unlink()
    assert torch.equal(found.batch(torch.tensor([3]))[1][0], expected(Words().tokenize(TEXTS)[3]))


def test_auto_prints_its_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path, cache="auto", cache_gb=N_BYTES / 1e9).resident
    assert "cache disk: within" in capsys.readouterr().err
    assert not make(tmp_path, cache="auto", cache_gb=(N_BYTES - 1) / 1e9).resident
    assert "cache none: more than the" in capsys.readouterr().err


def test_auto_avoids_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=N_BYTES - 1))
    assert not make(tmp_path, cache="auto").resident
    assert not files(tmp_path)


def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(UserError, match=r"cannot be written \(.*No space left on device\); .* a smaller cache_gb"):
            make(tmp_path)
    assert not files(tmp_path)
    assert torch.equal(make(tmp_path).batch(torch.tensor([1]))[1][0], expected(Words().tokenize(TEXTS)[1]))


def test_overflow_is_refused(tmp_path: Path) -> None:
    class Overflowing(Words):
        def encode(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
            mask, embs = super().encode(ids)
            return mask, (embs * 1e6).to(self.dtype)

    with pytest.raises(UserError, match=r"precision: words gives numbers in fp16 that are not finite. Use another"):
        make(tmp_path, encoder=Overflowing("fp16"))
    assert not files(tmp_path)
    with pytest.raises(UserError, match="that are not finite"):
        make(tmp_path, encoder=Overflowing("fp16"), cache="none").batch(torch.arange(3))


def test_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"GB of embeddings are more than the 0 GB of cache_gb. Raise it"):
        make(tmp_path, cache_gb=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_graph_captures_batch(tmp_path: Path) -> None:
    device = torch.device("cuda")
    found = make(tmp_path, device=device)
    assert found.resident
    rows = torch.zeros(5, dtype=torch.long, device=device)
    found.batch(rows, found.longest)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask, embs = found.batch(rows, found.longest)
    rows.copy_(torch.tensor([7, 59, 0, 7, 31]))
    graph.replay()
    expected_mask, expected_embs = make(tmp_path).batch(rows.cpu(), found.longest)
    assert torch.equal(mask.cpu(), expected_mask)
    assert torch.equal(embs.cpu(), expected_embs)
