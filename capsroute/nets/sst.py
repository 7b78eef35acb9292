"""The paper's network for sentences: every hidden state of a frozen transformer is a capsule, two routing layers judge.

Axes: b sentences, n tokens, l layers of the transformer, m its width.
"""

from os import PathLike
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from ..layers import Routing, check_values
from ..routing import Capsules
from ..routing.mapping import is_transforming
from .hub import Hub, load_official, read_weights

D_PART = 64


class PackingThreshold(NamedTuple):
    """The least padding from which packing texts saves more time than it costs."""

    share: float  # of all token positions
    numbers: int  # in the hidden states left out


PACKING_THRESHOLDS = {"cpu": PackingThreshold(0.4, 2**21), "cuda": PackingThreshold(0.5, 2**26)}
"""By device, as measured on texts of many lengths; on others texts are never packed."""


class SST(Hub):
    """Classifies texts by all hidden states of their tokens.

    Args:
        depth: Hidden states of each token: the transformer's layers and the embeddings below them.
        d_emb: The transformer's width.
        n_classes: Number of classes.
        n_parts: Number of capsules between the two routing layers.
        encoder: Name of the transformer it was trained with.
        impl: Implementation of routing, see [`route`][capsroute.route].
    """

    task, example_inputs = "text-classification", "mask, hidden_states"

    def __init__(
        self,
        depth: int = 37,
        d_emb: int = 1280,
        n_classes: int = 5,
        n_parts: int = 64,
        encoder: str = "",
        impl: str = "auto",
    ):
        config = {"depth": depth, "d_emb": d_emb, "n_classes": n_classes, "n_parts": n_parts}
        super().__init__(**config, encoder=encoder, impl=impl)
        self.encoder = encoder
        self.depth_emb = nn.Parameter(torch.zeros(depth, d_emb))
        self.detect_parts = nn.Sequential(nn.Linear(d_emb, D_PART), nn.SiLU(), nn.LayerNorm(D_PART))
        first = Routing(d_cov=1, d_inp=D_PART, d_out=2, n_out=n_parts, impl=impl)
        second = Routing(d_cov=1, d_inp=2, d_out=2, n_inp=n_parts, n_out=n_classes, impl=impl)
        self.routings = nn.ModuleList([first, second])
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, mask: Tensor, embs: Tensor) -> Capsules:
        """Return the class capsules of texts; a softmax over `a` gives probabilities.

        Args:
            mask: `[b, n]` of any dtype, 1 for tokens and 0 for padding; floats in between count as a part of a token.
            embs: `[b, n, l, m]` hidden states.
        """
        mask = check_texts(mask, embs, *self.depth_emb.shape)
        first, second = self.routings
        tokens = find_tokens_to_pack(mask, embs)
        a, mu, _ = first(*self.parts(mask, embs)) if tokens is None else self._route_packed(mask, embs, tokens)
        return second(a, mu)

    def _route_packed(self, mask: Tensor, embs: Tensor, is_token: Tensor) -> Capsules:
        """Route tokens alone through the first layer: up to rounding, the same as with padding.

        `is_token [b, n]` is on the CPU, so that lengths are known here without another synchronisation.
        """
        tokens = is_token.flatten().nonzero()[:, 0].to(embs.device)
        mu = self.detect_parts(embs.flatten(0, 1)[tokens] + self.depth_emb)  # [tokens, l, 64]
        a = torch.logit(mask.flatten()[tokens])[:, None].expand(mu.shape[:2])
        ends = (is_token.sum(1) * mu.shape[1]).cumsum(0)
        offsets = nn.functional.pad(ends, (1, 0))
        return self.routings[0].forward_packed(a.flatten(), mu.flatten(0, 1).unsqueeze(-2), offsets)  # pyright: ignore

    def parts(self, mask: Tensor, embs: Tensor) -> tuple[Tensor, Tensor]:
        """Return a score and a vector for every hidden state: the inputs of the first routing layer."""
        mask = check_texts(mask, embs, *self.depth_emb.shape)
        mu = detect_masked(self.detect_parts, mask, embs + self.depth_emb)  # [b, n, l, 64]
        a = torch.logit(mask)[:, :, None].expand(mu.shape[:3])  # infinite for tokens, minus infinity for padding
        return a.flatten(1), mu.flatten(1, 2).unsqueeze(-2)  # [b, n * l], [b, n * l, 1, 64]

    @classmethod
    def from_official(cls, path: str | PathLike[str]) -> Self:
        """Load the author's published network, five classes or two, from its file of weights."""
        weights = read_weights(path, cls)
        scores = weights.get("routings.1.beta_use")
        n_classes = 2 if scores is not None and scores.shape[-1:] == (2,) else 5  # no others were published
        network = cls(n_classes=n_classes, encoder="openai-community/gpt2-large")
        load_official(network, weights, path)
        return network


def find_tokens_to_pack(mask: Tensor, embs: Tensor) -> Tensor | None:
    """Return the positions of tokens, `[b, n]` on the CPU, if packing them pays; None otherwise.

    In a graph, which serves any mask, and under `torch.func`, which hides its values, nothing is packed.
    """
    threshold = PACKING_THRESHOLDS.get(mask.device.type)
    if threshold is None or torch.compiler.is_compiling() or is_transforming() or embs.numel() < threshold.numbers:
        return None
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    is_token = (mask != 0).cpu()
    padding = is_token.numel() - int(is_token.sum())
    pays = padding >= threshold.share * mask.numel() and padding * embs.shape[2:].numel() >= threshold.numbers
    return is_token if pays else None


def detect_masked(layers: nn.Sequential, mask: Tensor, x: Tensor) -> Tensor:
    """Apply the layers to hidden states, with padding set to zero early so that large values cannot overflow."""
    linear, activate, normalise = layers
    return normalise(activate(linear(x).masked_fill((mask == 0)[:, :, None, None], 0.0)))


def check_texts(mask: Tensor, embs: Tensor, depth: int, d_emb: int) -> Tensor:
    """Refuse anything but a batch of texts of this encoder, and return the mask in floating point."""
    if embs.ndim != 4 or embs.shape[2:] != (depth, d_emb):
        raise ValueError(f"embs: expected [b, n, {depth}, {d_emb}], got shape {list(embs.shape)}")
    if mask.shape != embs.shape[:2]:
        raise ValueError(f"mask: expected {list(embs.shape[:2])}, as embs has, got shape {list(mask.shape)}")
    if not embs.is_floating_point():
        raise TypeError(f"embs: expected floating point, got {embs.dtype}")
    if mask.is_floating_point():
        check_values(mask, (mask >= 0) & (mask <= 1), "numbers from 0 to 1")
        return mask
    check_values(mask, (mask == 0) | (mask == 1), "0 and 1")
    return mask.to(embs.dtype)
