"""What routing is compared with: networks that see the same hidden states and pool them.

Axes: b sentences, n tokens, l layers of the transformer, m its width, p heads, v the numbers of a head.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..nets.hub import Hub
from ..nets.sst import D_PART, check_texts, detect_masked


class Scores(NamedTuple):
    """What these networks put out, named as in `Capsules`."""

    a: Tensor  # [b, classes]


class LinearProbe(Hub):
    """A linear readout of the mean over tokens of every layer, each feature standardised."""

    task, example_inputs = "text-classification", "mask, hidden_states"

    def __init__(self, depth: int, d_emb: int, n_classes: int = 5, encoder: str = ""):
        super().__init__(depth=depth, d_emb=d_emb, n_classes=n_classes, encoder=encoder)
        self.shape, self.encoder = (depth, d_emb), encoder
        self.standardise = nn.BatchNorm1d(depth * d_emb, affine=False)
        self.read = nn.Linear(depth * d_emb, n_classes)

    def forward(self, mask: Tensor, embs: Tensor) -> Scores:
        mask = check_texts(mask, embs, *self.shape)
        total = mask.sum(1).clamp(min=torch.finfo(mask.dtype).tiny)[:, None]  # [b, 1]
        mean = torch.einsum("bn,bnlm->blm", mask, embs).flatten(1) / total
        return Scores(self.read(self.standardise(mean)))


class AttentionPooling(Hub):
    """The network's own detection of parts, then one attention for each of its 64 composite parts of two numbers."""

    task, example_inputs = "text-classification", "mask, hidden_states"

    def __init__(self, depth: int, d_emb: int, n_classes: int = 5, n_parts: int = 64, encoder: str = ""):
        super().__init__(depth=depth, d_emb=d_emb, n_classes=n_classes, n_parts=n_parts, encoder=encoder)
        self.encoder = encoder
        self.depth_emb = nn.Parameter(torch.zeros(depth, d_emb))
        self.detect_parts = nn.Sequential(nn.Linear(d_emb, D_PART), nn.SiLU(), nn.LayerNorm(D_PART))
        self.attend = nn.Linear(D_PART, n_parts, bias=False)
        self.values = nn.Linear(D_PART, 2 * n_parts)
        self.read = nn.Linear(2 * n_parts, n_classes)

    def forward(self, mask: Tensor, embs: Tensor) -> Scores:
        mask = check_texts(mask, embs, *self.depth_emb.shape)
        x = detect_masked(self.detect_parts, mask, embs + self.depth_emb).flatten(1, 2)  # [b, nl, 64]
        there = mask.clamp(min=torch.finfo(mask.dtype).tiny).log()  # padding gets next to nothing, and no gradient NaN
        weights = (self.attend(x) + there.repeat_interleave(embs.shape[2], 1)[:, :, None]).softmax(1)  # [b, nl, p]
        pooled = torch.einsum("bip,bipv->bpv", weights, self.values(x).unflatten(-1, (-1, 2)))
        return Scores(self.read(pooled.flatten(1)))
