"""Hidden states of frozen encoders for `benchmarks/texts.py`: encoded once, kept on disk, read in batches.

Axes: b texts, k depths, n tokens, d the encoder's width.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from capsroute.lab.encoders import Encoder, batch_by_length

MAX_TOKENS, BATCH_TOKENS = 96, 2048
N_SAMPLE = 600  # training texts whose states standardise all


class States(NamedTuple):
    """Standardised states of texts, one after the other without padding."""

    flat: Tensor  # [k, tokens, d], bfloat16
    starts: Tensor  # of each text, and the end, [texts + 1]
    depths: list[int]  # the k that are stored

    def batch(self, rows: Tensor, depths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return states `[b, k, n, d]`, or `[b, n, d]` of one depth, and the mask `[b, n]` of some texts."""
        starts, lengths = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        places = torch.arange(int(lengths.max()))
        mask = places < lengths[:, None]
        at = starts[:, None] + torch.where(mask, places, 0)
        found = [self.flat[self.depths.index(depth)][at] for depth in depths]
        return found[0] if len(depths) == 1 else torch.stack(found, 1), mask

    def means(self, rows: Tensor) -> Tensor:
        """Return the mean over tokens of some texts at each depth, `[rows, k, d]` in float32."""
        found = torch.empty(len(rows), len(self.flat), self.flat.shape[2])
        for places in self.starts.diff()[rows].argsort().split(64):
            x, mask = self.batch(rows[places], self.depths)
            weights = mask / mask.sum(1, keepdim=True)  # [b, n]
            found[places] = torch.einsum("bknd,bn->bkd", x.float(), weights)
        return found


def load_states(
    encoder: Path, texts: Sequence[str], n_training: int, path: Path, depths: Sequence[int] | None = None
) -> States:
    """Return the states of texts, the first of which, for training, standardise all; encoded on first use.

    By default all depths are stored.
    """
    table = path.with_suffix(".npz")
    if not table.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_states(Encoder(encoder, max_tokens=MAX_TOKENS), texts, n_training, path, depths)
    with np.load(table) as file:
        stored, ends = file["depths"].tolist(), file["ends"].tolist()
    flat = torch.from_numpy(np.memmap(path, np.int16, "c").reshape(len(stored), ends[-1], -1))
    return States(flat.view(torch.bfloat16), torch.tensor([0, *ends]), stored)


@torch.no_grad()
def write_states(
    encoder: Encoder, texts: Sequence[str], n_training: int, path: Path, depths: Sequence[int] | None
) -> None:
    """Write states `[k, tokens, d]`, and then a table: the depths, and where each text ends."""
    ids, depths = encoder.tokenize(texts), list(depths or range(encoder.depth))
    ends = np.cumsum([len(row) for row in ids])
    file = np.memmap(path, np.int16, "w+", shape=(len(depths), int(ends[-1]), encoder.d_emb))
    flat = torch.from_numpy(file).view(torch.bfloat16)
    sample = range(0, n_training, max(1, n_training // N_SAMPLE))
    known = torch.cat([states[:, depths] for _, states in encode(encoder, [ids[k] for k in sample])])
    mean, std = known.mean(0), known.std(0).clamp(min=1e-3)  # [k, d]; a feature may be constant
    for k, states in encode(encoder, ids):
        flat[:, ends[k] - len(states) : ends[k]] = ((states[:, depths] - mean) / std).movedim(1, 0).bfloat16()
    file.flush()
    np.savez(path.with_suffix(".npz"), depths=depths, ends=ends)


def encode(encoder: Encoder, ids: Sequence[Sequence[int]]) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of each text and its states `[n, k, d]`, of texts of about the same length together."""
    for rows in batch_by_length([len(row) for row in ids], BATCH_TOKENS):
        with torch.autocast("cpu", torch.bfloat16):
            mask, states = encoder.encode([ids[k] for k in rows])
        yield from zip(rows, (own[there] for own, there in zip(states.float(), mask.bool(), strict=True)), strict=True)
