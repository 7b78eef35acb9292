"""Texts encoded once: on disk, in the memory of a device, or not kept at all."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .cache import GB, VERSION, Cache
from .transformer import Encoder, mended

Kind = Literal["auto", "disk", "memory", "none"]
PIECE_TOKENS, PIECE_BYTES = 1 << 14, 1 << 28  # encoded between two saves; a killed run loses at most this much
BATCH_TOKENS = {"cpu": 1 << 11}  # encoded at once, padding included
BATCH_TOKENS_ELSEWHERE = 1 << 14


class Embeddings:
    """The hidden states of many texts, to be read in batches.

    The tokens of all texts lie one after the other, so that nothing is spent on padding. Without `flat` texts are
    encoded whenever they are asked for.

    Args:
        encoder: What encodes.
        ids: The tokens of each text.
        device: Where batches go.
        flat: `[total, depth, d_emb]`, on the device or, to be copied batch by batch, on the CPU.
    """

    def __init__(
        self, encoder: Encoder, ids: Sequence[Sequence[int]], device: torch.device, flat: Tensor | None
    ) -> None:
        self.device = device
        self.lengths = torch.tensor([len(row) for row in ids], dtype=torch.long)  # [n]
        self.longest = int(self.lengths.max()) if len(ids) else 0
        self.resident = flat is not None and flat.device.type == device.type
        self._encoder, self._ids = (encoder, ids) if flat is None else (None, [])
        self._shape = (encoder.depth, encoder.d_emb)
        self._flat = None if flat is None else flat.flatten(1)  # [total, depth * d_emb]
        at = torch.device("cpu") if flat is None else flat.device
        self._lengths = self.lengths.to(at)
        self._starts = (self.lengths.cumsum(0) - self.lengths).to(at)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Tensor, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Mask `[b, n]` and embeddings `[b, n, depth, d_emb]` of some texts, float32, on the device.

        With a given `n` and resident embeddings it never waits for the device, so a CUDA graph may hold it.

        Args:
            rows: Which texts `[b]`.
            n: Tokens to make room for, beyond which texts are cut; by default as many as the longest of them has.
        """
        rows = rows.to(self._starts.device)
        lengths = self._lengths[rows]  # [b]
        if n is None:
            n = int(lengths.max()) if len(rows) else 0
        if self._flat is None:
            return self._encoded(rows.tolist(), n)
        steps = torch.arange(n, device=lengths.device)
        mask = steps < lengths[:, None]  # [b, n]
        # padding reads the text's own first token: never outside, and at hand
        at = self._starts[rows][:, None] + torch.where(mask, steps, 0)
        embs = self._flat.index_select(0, at.flatten()).view(len(rows), n, *self._shape)
        mask, embs = mask.to(self.device), embs.to(self.device).float()
        return mask.float(), torch.where(mask[..., None, None], embs, 0.0)

    def _encoded(self, rows: list[int], n: int) -> tuple[Tensor, Tensor]:
        assert self._encoder is not None
        mask = torch.zeros(len(rows), n, device=self.device)
        embs = torch.zeros(len(rows), n, *self._shape, device=self.device)
        for some in _batches([len(self._ids[row]) for row in rows], _at_once(self._encoder)):
            m, e = self._encoder.encode([self._ids[rows[k]] for k in some])
            width = min(n, m.shape[1])
            at = torch.tensor(some, device=self.device)
            mask[at, :width] = m[:, :width].to(self.device)
            embs[at, :width] = e[:, :width].to(self.device).float()
        return mask, embs


def embed(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    folder: Path,
    cache_gb: float,
    device: torch.device,
    cache: Kind = "auto",
    progress: bool = True,
) -> Embeddings:
    """Encode texts, or find them encoded.

    Args:
        encoder: What encodes.
        texts: All of them; other texts are another cache.
        folder: Caches lie in its folder `embeddings`.
        cache_gb: How many gigabytes of disk all of them may take; the least recently used ones make room.
        device: Where batches go. Embeddings are kept there if they take at most half of what is free.
        cache: `"disk"`, `"memory"` (of the device), `"none"` (encoded whenever they are read) or `"auto"`: the first
            of these that has room.
        progress: Show a bar and say what was chosen.
    """
    if cache not in get_args(Kind):
        raise UserError(f"cache: expected one of {list(get_args(Kind))}, got {cache!r}")
    if not cache_gb >= 0:
        raise UserError(f"cache_gb: expected a number of gigabytes from 0 on, got {cache_gb}")
    device, ids = torch.device(device), encoder.tokenize(texts)
    maker = _Maker(encoder, ids)
    home = Path(folder) / "embeddings"
    stored = Cache(home, _key(encoder, texts), maker.sizes)
    kind, why = (cache, "as asked") if cache != "auto" else _choose(stored, maker.n_bytes, cache_gb, device)
    if kind == "disk" and maker.n_bytes > cache_gb * GB:
        raise UserError(
            f"cache: {maker.n_bytes / GB:.2f} GB of embeddings are more than the {cache_gb:g} GB of --cache-gb. "
            "Raise it, or use the cache memory or none."
        )
    where = {"disk": f"on disk, {stored.folder}", "memory": f"in the memory of {device}", "none": "not kept"}[kind]
    with _bar(progress, f"Embeddings, {maker.n_bytes / GB:.2f} GB, {where}: {why}", sum(map(len, ids))) as advance:
        if kind == "none":
            return Embeddings(encoder, ids, device, None)
        if kind == "memory":
            return Embeddings(encoder, ids, device, maker.on_device(device, advance))
        with stored.locked():
            stored.fill(maker.piece, int(cache_gb * GB), lambda k: advance(maker.tokens(k)))
            flat = maker.shaped(torch.from_numpy(stored.map()))
    return Embeddings(encoder, ids, device, flat.to(device) if _fits(flat.nbytes, device) else flat)


class _Maker:
    """Encodes texts in pieces of several batches, of texts that follow each other."""

    def __init__(self, encoder: Encoder, ids: Sequence[Sequence[int]]) -> None:
        self.encoder, self.ids = encoder, ids
        self.row = encoder.depth * encoder.d_emb * encoder.dtype.itemsize  # bytes of a token
        most = max(1, min(PIECE_TOKENS, PIECE_BYTES // self.row))
        self.pieces: list[range] = []
        first = size = 0
        for k, row in enumerate(ids):
            if size and size + len(row) > most:
                self.pieces.append(range(first, k))
                first, size = k, 0
            size += len(row)
        if ids:
            self.pieces.append(range(first, len(ids)))
        self.sizes = [self.row * self.tokens(k) for k in range(len(self.pieces))]
        self.n_bytes = sum(self.sizes)

    def tokens(self, k: int) -> int:
        return sum(len(self.ids[text]) for text in self.pieces[k])

    def shaped(self, flat: Tensor) -> Tensor:
        """Bytes as `[total, depth, d_emb]`."""
        shape = (self.n_bytes // self.row, self.encoder.depth, self.encoder.d_emb)
        return flat.view(self.encoder.dtype).view(shape) if len(flat) else torch.empty(shape, dtype=self.encoder.dtype)

    def piece(self, k: int) -> np.ndarray:
        """The bytes of a piece."""
        return self.encoded(k).flatten().cpu().view(torch.uint8).numpy()

    def on_device(self, device: torch.device, advance: Callable[[int], None]) -> Tensor:
        try:
            flat = torch.empty(
                self.n_bytes // self.row,
                self.encoder.depth,
                self.encoder.d_emb,
                dtype=self.encoder.dtype,
                device=device,
            )
        except (torch.OutOfMemoryError, RuntimeError) as error:
            raise UserError(
                f"cache: {self.n_bytes / GB:.2f} GB of embeddings do not fit in the memory of {device}. "
                "Use the cache disk or none."
            ) from error
        start = 0
        for k in range(len(self.pieces)):
            flat[start : start + self.tokens(k)] = self.encoded(k).to(device)
            start += self.tokens(k)
            advance(self.tokens(k))
        return flat

    def encoded(self, k: int) -> Tensor:
        """`[tokens, depth, d_emb]` of a piece, encoded in batches of texts of about the same length."""
        encoder, chosen = self.encoder, [self.ids[text] for text in self.pieces[k]]
        lengths = [len(row) for row in chosen]
        starts = np.cumsum([0, *lengths])
        flat = torch.empty(starts[-1], encoder.depth, encoder.d_emb, dtype=encoder.dtype, device=encoder.device)
        for some in _batches(lengths, _at_once(encoder)):
            for texts, mask, embs in _halving(encoder, chosen, some):
                at = [torch.arange(starts[text], starts[text + 1]) for text in texts]
                flat[torch.cat(at).to(encoder.device)] = embs[mask.bool()]
        if not flat.isfinite().all():
            raise UserError(
                f"precision: {encoder.name} gives numbers in {encoder.precision} that are not finite. "
                "Use another precision, bf16 or fp32."
            )
        return flat


def _halving(
    encoder: Encoder, ids: Sequence[Sequence[int]], some: list[int]
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """A batch, or its halves where the device's memory is too small for it."""
    try:
        yield some, *encoder.encode([ids[k] for k in some])
        return
    except torch.OutOfMemoryError:
        if len(some) == 1:
            raise
    for half in (some[: len(some) // 2], some[len(some) // 2 :]):
        yield from _halving(encoder, ids, half)


def _at_once(encoder: Encoder) -> int:
    """Tokens of a batch: on a CPU few enough for its caches."""
    return BATCH_TOKENS.get(encoder.device.type, BATCH_TOKENS_ELSEWHERE)


def _batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Places of texts, the longest first, in batches that have at most so many tokens with their padding."""
    batches: list[list[int]] = []
    for k in sorted(range(len(lengths)), key=lambda k: (-lengths[k], k)):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > most:
            batches.append([])
        batches[-1].append(k)
    return batches


def _key(encoder: Encoder, texts: Sequence[str]) -> str:
    total = hashlib.blake2b(f"{VERSION}:{encoder.key()}:{len(texts)}".encode(), digest_size=10)
    for text in texts:
        content = mended(text).encode()
        total.update(len(content).to_bytes(8, "little") + content)
    return total.hexdigest()


def _choose(stored: Cache, n_bytes: int, cache_gb: float, device: torch.device) -> tuple[str, str]:
    """Where embeddings go, and why."""
    if n_bytes > cache_gb * GB:
        why = f"more than the {cache_gb:g} GB of --cache-gb"
    elif stored.missing() > stored.spare():
        why = "too little room on the disk"
    else:
        return "disk", f"within the {cache_gb:g} GB of --cache-gb"
    if device.type == "cuda" and _fits(n_bytes, device):
        return "memory", why
    return "none", f"{why}, and more than half of what is free on {device}" if device.type == "cuda" else why


def _fits(n_bytes: int, device: torch.device) -> bool:
    """Whether so much may stay on the device: at most half of what is free there."""
    return device.type != "cuda" or n_bytes <= torch.cuda.mem_get_info(device)[0] / 2


@contextmanager
def _bar(show: bool, line: str, total: int) -> Iterator[Callable[[int], None]]:
    """Says a line and counts tokens; gives what to call with each count."""
    if not show:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Encoding", total=total)
        yield lambda count: bar.advance(task, count)
