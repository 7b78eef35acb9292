"""Hidden states of many texts, encoded once: on disk, in a device's memory, or not stored at all."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..atomic_files import cached_array
from ..errors import UserError
from ..progress import print_once, progress_bar
from .encoder import Encoder, hash_texts

Storage = Literal["auto", "disk", "memory", "none"]
VERSION = 2  # of the files: raise it when their format changes
GB = 1e9
PIECE_TOKENS, PIECE_BYTES = 1 << 14, 1 << 28  # encoded between two writes


class Embeddings:
    """The hidden states of many texts, read in batches.

    Args:
        encoder: Encodes the texts, on every read if there is no `flat`.
        ids: Token ids of each text.
        device: Where batches go.
        flat: The states of all tokens `[total, depth, d_emb]`, without padding, on the device or on the CPU.
    """

    def __init__(
        self, encoder: Encoder, ids: Sequence[Sequence[int]], device: torch.device, flat: Tensor | None
    ) -> None:
        self.device = device
        self.lengths = torch.tensor([len(row) for row in ids], dtype=torch.long)  # [n]
        self.longest = max(map(len, ids), default=0)
        self.resident = flat is not None and flat.device.type == device.type
        self._encoder, self._ids, self._flat = encoder, ids, flat
        self._lengths = self.lengths.to("cpu" if flat is None else flat.device)
        self._starts = self._lengths.cumsum(0) - self._lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Tensor, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the mask `[b, n]` and the embeddings `[b, n, depth, d_emb]` of some texts, float32, on the device.

        With an `n`, and if the embeddings are resident, there is no host sync, so a CUDA graph can capture it.

        Args:
            rows: Indices of the texts `[b]`.
            n: Tokens to pad or truncate to; the longest text's by default.
        """
        rows = rows.to(self._lengths.device)
        lengths = self._lengths[rows]  # [b]
        flat, starts = self._flat, self._starts[rows]
        if flat is None:
            flat = _encode_piece(self._encoder, [self._ids[k] for k in rows.tolist()])
            starts = lengths.cumsum(0) - lengths
        if n is None:
            n = int(lengths.max()) if len(rows) else 0
        mask = torch.arange(n, device=lengths.device) < lengths[:, None]  # [b, n]
        # padding reads the text's own first token, which is never out of bounds
        at = starts[:, None] + torch.where(mask, torch.arange(n, device=lengths.device), 0)
        embs = flat.flatten(1).index_select(0, at.flatten().to(flat.device))  # [b * n, depth * d_emb]
        embs = embs.view(*at.shape, self._encoder.depth, self._encoder.d_emb)
        mask, embs = mask.to(self.device), embs.to(self.device).float()
        return mask.float(), torch.where(mask[..., None, None], embs, 0.0)


def embed(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    folder: Path,
    cache_gb: float,
    device: torch.device,
    cache: Storage = "auto",
) -> Embeddings:
    """Encode texts, or find them encoded.

    Args:
        encoder: Encodes the texts.
        texts: All of them; other texts have another file.
        folder: Files lie in its folder `embeddings`, one for each encoder and list of texts.
        cache_gb: Gigabytes that the file may take.
        device: Where batches go. Embeddings are stored there too if they take at most half of its free memory.
        cache: `"disk"`, `"memory"` (of the device), `"none"` (encoded on every read) or `"auto"`: the first of these
            with enough space.
    """
    device, ids = torch.device(device), encoder.tokenize(texts)
    n_bytes = sum(map(len, ids)) * _bytes_per_token(encoder)
    key = hash_texts(texts, f"{VERSION}:{encoder.key()}:{len(texts)}")
    path = Path(folder) / "embeddings" / f"{key}.npy"
    storage, why = (cache, "as asked") if cache != "auto" else _choose_storage(path, n_bytes, cache_gb, device)
    if storage == "disk" and n_bytes > cache_gb * GB:
        sizes = f"{n_bytes / GB:.2f} GB of embeddings are more than the {cache_gb:g} GB of cache_gb"
        raise UserError(f"cache: {sizes}. Raise it, or use the cache memory or none.")
    print_once(f"Embeddings, {n_bytes / GB:.2f} GB, cache {storage}: {why}")
    if storage == "none":
        flat = None
    elif storage == "memory" or not n_bytes:
        flat = _encode_to_device(encoder, ids, device)
    else:
        flat = _encode_to_disk(encoder, ids, path)
        flat = flat.to(device) if _fits_device(n_bytes, device) else flat
    return Embeddings(encoder, ids, device, flat)


def _encode_to_disk(encoder: Encoder, ids: Sequence[Sequence[int]], path: Path) -> Tensor:
    """Return a file's embeddings `[total, depth, d_emb]`, memory-mapped; the first of several processes writes it."""
    shape = (sum(map(len, ids)), _bytes_per_token(encoder))
    pieces = (piece.flatten().cpu().view(torch.uint8).numpy() for piece in _encode_pieces(encoder, ids))
    try:
        flat = cached_array(path, shape, lambda: pieces, "c")  # copy-on-write: writing to a batch changes no file
    except OSError as error:
        advice = "choose another folder, a smaller cache_gb, or the cache none"
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); {advice}") from error
    return torch.from_numpy(flat).view(encoder.dtype).view(-1, encoder.depth, encoder.d_emb)


def _encode_to_device(encoder: Encoder, ids: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    shape = (sum(map(len, ids)), encoder.depth, encoder.d_emb)
    try:
        flat = torch.empty(shape, dtype=encoder.dtype, device=device)
    except RuntimeError as error:
        size = f"{shape[0] * _bytes_per_token(encoder) / GB:.2f} GB of embeddings"
        raise UserError(f"cache: {size} do not fit in the memory of {device}. Use the cache disk or none.") from error
    start = 0
    for piece in _encode_pieces(encoder, ids):
        flat[start : start + len(piece)] = piece
        start += len(piece)
    return flat


def _encode_pieces(encoder: Encoder, ids: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Yield the embeddings `[tokens, depth, d_emb]` of consecutive texts, in pieces of several batches."""
    most = min(PIECE_TOKENS, 8 * encoder.batch_tokens, PIECE_BYTES // _bytes_per_token(encoder))
    with progress_bar("Encoding", sum(map(len, ids))) as advance:
        first = size = 0
        for k, row in enumerate([*ids, []]):
            if k > first and (k == len(ids) or size + len(row) > most):
                yield _encode_piece(encoder, ids[first:k])
                advance(size)
                first, size = k, 0
            size += len(row)


def _encode_piece(encoder: Encoder, ids: Sequence[Sequence[int]]) -> Tensor:
    """Return `[tokens, depth, d_emb]` of some texts, encoded in batches of texts of about the same length."""
    starts = np.cumsum([0, *map(len, ids)])
    flat = torch.empty(int(starts[-1]), encoder.depth, encoder.d_emb, dtype=encoder.dtype, device=encoder.device)
    for batch in batch_by_length([len(row) for row in ids], encoder.batch_tokens):
        mask, embs = encoder.encode([ids[k] for k in batch])
        at = torch.cat([torch.arange(starts[k], starts[k + 1]) for k in batch])
        flat[at.to(encoder.device)] = embs[mask.bool()]
    if not flat.isfinite().all():
        problem = f"{encoder.name} gives numbers in {encoder.precision} that are not finite"
        raise UserError(f"precision: {problem}. Use another precision, bf16 or fp32.")
    return flat


def batch_by_length(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Return indices of texts, the longest first, in batches of at most `most` tokens with padding."""
    batches: list[list[int]] = []
    for k in sorted(range(len(lengths)), key=lambda k: (-lengths[k], k)):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > most:
            batches.append([])
        batches[-1].append(k)
    return batches


def _choose_storage(path: Path, n_bytes: int, cache_gb: float, device: torch.device) -> tuple[str, str]:
    """Return where embeddings go, and why."""
    existing = next(folder for folder in path.parents if folder.exists())
    why = f"more than the {cache_gb:g} GB of cache_gb"
    if n_bytes <= cache_gb * GB:
        if path.exists() or n_bytes <= shutil.disk_usage(existing).free:
            return "disk", f"within the {cache_gb:g} GB of cache_gb"
        why = "too little space on the disk"
    return "memory" if device.type == "cuda" and _fits_device(n_bytes, device) else "none", why


def _bytes_per_token(encoder: Encoder) -> int:
    return encoder.depth * encoder.d_emb * encoder.dtype.itemsize


def _fits_device(n_bytes: int, device: torch.device) -> bool:
    """Say whether so much may stay on the device: at most half of its free memory."""
    return device.type != "cuda" or n_bytes <= torch.cuda.mem_get_info(device)[0] / 2
