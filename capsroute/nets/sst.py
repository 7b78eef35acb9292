"""The paper's network for sentences: every hidden state of a frozen transformer is a capsule, two routing layers judge.

Axes: b sentences, n tokens, l layers of the transformer, m its width.
"""

from os import PathLike
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from ..layers import Routing
from ..routing import Capsules
from ..routing.mapping import is_transforming
from .hub import Hub, fill, read_weights

D_PART = 64


class Worth(NamedTuple):
    """The least padding from which packing texts makes up for what it costs."""

    share: float  # of all places for tokens
    numbers: int  # in the hidden states left out


WORTH_PACKING = {"cpu": Worth(0.4, 2**21), "cuda": Worth(0.5, 2**26)}
"""By device; on others texts are never packed. `benchmarks/packing.py` measures it."""


class SST(nn.Module, Hub, license="mit", pipeline_tag="text-classification"):
    """Classifies texts by all hidden states of their tokens.

    Args:
        depth: Hidden states of each token: the transformer's layers and the embeddings below them.
        d_emb: The transformer's width.
        n_classes: Number of classes.
        n_parts: Number of capsules between the two routing layers.
        encoder: The transformer it was trained with, by name, for the record.
        impl: Implementation of routing, see [`route`][capsroute.route].
    """

    def __init__(
        self,
        depth: int = 37,
        d_emb: int = 1280,
        n_classes: int = 5,
        n_parts: int = 64,
        encoder: str = "",
        impl: str = "auto",
    ):
        super().__init__()
        self.encoder = encoder
        self.depth_emb = nn.Parameter(torch.zeros(depth, d_emb))
        self.detect_parts = nn.Sequential(nn.Linear(d_emb, D_PART), nn.SiLU(), nn.LayerNorm(D_PART))
        self.routings = nn.ModuleList(
            [
                Routing(d_cov=1, d_inp=D_PART, d_out=2, n_out=n_parts, impl=impl),
                Routing(d_cov=1, d_inp=2, d_out=2, n_inp=n_parts, n_out=n_classes, impl=impl),
            ]
        )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, mask: Tensor, embs: Tensor) -> Capsules:
        """Class capsules of texts; a softmax over `a` gives probabilities.

        Args:
            mask: `[b, n]`, 1 for tokens and 0 for padding; in between where both are mixed.
            embs: `[b, n, l, m]` hidden states.
        """
        check_texts(mask, embs, *self.depth_emb.shape)
        first, second = self.routings
        there = worth_packing(mask, embs)
        a, mu, _ = first(*self.parts(mask, embs)) if there is None else self.packed(mask, embs, there)
        return second(a, mu)

    def packed(self, mask: Tensor, embs: Tensor, there: Tensor) -> Capsules:
        """What the first routing layer makes of tokens alone: but for rounding, the same as with padding.

        Where tokens are, `there [b, n]`, lies on the CPU: a GPU is waited for once, when it says so, and not here.
        """
        tokens = there.flatten().nonzero()[:, 0].to(embs.device)
        mu = self.detect_parts(embs.flatten(0, 1)[tokens] + self.depth_emb)  # [tokens, l, 64]
        a = torch.logit(mask.flatten()[tokens])[:, None].expand(mu.shape[:2])
        ends = (there.sum(1) * mu.shape[1]).cumsum(0)
        offsets = nn.functional.pad(ends, (1, 0))
        return self.routings[0].forward_packed(a.flatten(), mu.flatten(0, 1).unsqueeze(-2), offsets)  # pyright: ignore

    def parts(self, mask: Tensor, embs: Tensor) -> tuple[Tensor, Tensor]:
        """A score and a vector for every hidden state: what the first routing layer gets."""
        check_texts(mask, embs, *self.depth_emb.shape)
        mu = detected(self.detect_parts, mask, embs + self.depth_emb)  # [b, n, l, 64]
        a = torch.logit(mask)[:, :, None].expand(mu.shape[:3])  # infinite for tokens, minus infinity for padding
        return a.flatten(1), mu.flatten(1, 2).unsqueeze(-2)  # [b, n * l], [b, n * l, 1, 64]

    @classmethod
    def from_official(cls, path: str | PathLike[str]) -> Self:
        """The author's published network, five classes or two, from its file of weights."""
        weights = read_weights(path, cls)
        scores = weights.get("routings.1.beta_use")
        n_classes = scores.shape[-1] if scores is not None and scores.ndim == 2 else 5
        network = cls(n_classes=n_classes, encoder="openai-community/gpt2-large")
        fill(network, weights, path)
        return network


def worth_packing(mask: Tensor, embs: Tensor) -> Tensor | None:
    """Where tokens are, `[b, n]` on the CPU, if so much is padding that routing them alone is faster; else nothing.

    Not in a graph, which serves any mask, nor where `torch.func` hides what the mask holds.
    """
    least = WORTH_PACKING.get(mask.device.type)
    if least is None or torch.compiler.is_compiling() or is_transforming() or embs.numel() < least.numbers:
        return None
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    there = (mask != 0).cpu()
    padding = there.numel() - int(there.sum())
    enough = padding >= least.share * mask.numel() and padding * embs.shape[2:].numel() >= least.numbers
    return there if enough else None


def detected(layers: nn.Sequential, mask: Tensor, x: Tensor) -> Tensor:
    """What the layers make of hidden states; padding becomes zeros early, lest something huge there overflow."""
    linear, activate, normalise = layers
    return normalise(activate(linear(x).masked_fill((mask == 0)[:, :, None, None], 0.0)))


def check_texts(mask: Tensor, embs: Tensor, depth: int, d_emb: int) -> None:
    """Refuse what is not a batch of texts of this encoder."""
    if embs.ndim != 4 or embs.shape[2:] != (depth, d_emb):
        raise ValueError(f"embs: expected [b, n, {depth}, {d_emb}], got shape {list(embs.shape)}")
    if mask.shape != embs.shape[:2]:
        raise ValueError(f"mask: expected {list(embs.shape[:2])}, as embs has, got shape {list(mask.shape)}")
    for name, t in (("mask", mask), ("embs", embs)):
        if not t.is_floating_point():
            raise TypeError(f"{name}: expected floating point, got {t.dtype}")
