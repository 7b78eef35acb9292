"""Heads that `benchmarks/heads.py` compares: from features `[b, n, d]` or `[b, k, n, d]` and a mask to class scores.

All find hidden features of places as `RoutingHead` does, by `Hidden`, and differ in what they make of them. The width
of each is chosen such that it has as many parameters as `RoutingHead` with its defaults, within a tenth.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from capsroute import Routing, RoutingHead

WIDTH, NARROW = 64, 40  # of hidden features; narrow where a place's transformation is most of a head


class Hidden(nn.Module):
    """Hidden features of all places `[b, n, width]`, those of several kinds on one axis, with a mask `[b, n]`."""

    def __init__(self, d: int, n_kinds: int | None, width: int = WIDTH):
        super().__init__()
        self.linear = nn.Linear(d, width)
        self.kind_emb = nn.Parameter(torch.zeros(n_kinds, 1, width)) if n_kinds else None
        self.rest = nn.Sequential(nn.SiLU(), nn.LayerNorm(width))

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.linear(x)
        if self.kind_emb is not None:
            n_kinds = len(self.kind_emb)
            hidden, mask = (hidden + self.kind_emb).flatten(1, 2), mask.repeat(1, n_kinds)
        return self.rest(hidden), mask


class Pooling(nn.Module):
    """The mean or the maximum over places of a layer of `width` features, and a linear readout."""

    def __init__(self, d: int, n_classes: int, n_kinds: int | None, width: int, how: str):
        super().__init__()
        self.hidden, self.how = Hidden(d, n_kinds), how
        self.features = nn.Sequential(nn.Linear(WIDTH, width), nn.SiLU())
        self.read = nn.Linear(width, n_classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden, mask = self.hidden(x, mask)
        features, there = self.features(hidden), mask[..., None]
        if self.how == "max":
            return self.read(features.masked_fill(~there, -1.0).amax(1))  # SiLU is never below -0.28
        return self.read((features * there).sum(1) / there.sum(1).clamp(min=1))


class AttentionPooling(nn.Module):
    """One softmax over places for each of `width` learned queries, two values of each place, a linear readout."""

    def __init__(self, d: int, n_classes: int, n_kinds: int | None, width: int):
        super().__init__()
        self.hidden = Hidden(d, n_kinds)
        self.attend = nn.Linear(WIDTH, width, bias=False)
        self.values = nn.Linear(WIDTH, 2 * width)
        self.read = nn.Linear(2 * width, n_classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden, mask = self.hidden(x, mask)
        weights = self.attend(hidden).masked_fill(~mask[..., None], -1e9).softmax(1)  # [b, n, p]
        values = self.values(hidden).unflatten(-1, (-1, 2))
        return self.read(torch.einsum("bnp,bnpv->bpv", weights, values).flatten(1))


class ClassToken(nn.Module):
    """A transformer block of PyTorch over places and a class token, from which a linear layer reads."""

    def __init__(self, d: int, n_classes: int, n_kinds: int | None, width: int):
        super().__init__()
        self.hidden = Hidden(d, n_kinds, NARROW)
        self.token = nn.Parameter(0.02 * torch.randn(NARROW))
        self.block = nn.TransformerEncoderLayer(
            NARROW, 4, width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.read = nn.Sequential(nn.LayerNorm(NARROW), nn.Linear(NARROW, n_classes))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden, mask = self.hidden(x, mask)
        tokens = torch.cat([self.token.expand(len(hidden), 1, -1), hidden], 1)
        mask = torch.cat([mask.new_ones(len(mask), 1), mask], 1)
        return self.read(self.block(tokens, src_key_padding_mask=~mask)[:, 0])


class SlotAttention(nn.Module):
    """Slot attention (Locatello et al., 2020) with eight learned initial slots, all of which a linear layer reads."""

    def __init__(self, d: int, n_classes: int, n_kinds: int | None, width: int, n_slots: int = 8, n_iters: int = 3):
        super().__init__()
        size = NARROW - 8
        self.hidden, self.n_iters = Hidden(d, n_kinds, size), n_iters
        self.slots = nn.Parameter(torch.randn(n_slots, size))
        self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.norm, self.gru = nn.LayerNorm(size), nn.GRUCell(size, size)
        self.mlp = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, size))
        self.read = nn.Linear(n_slots * size, n_classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden, mask = self.hidden(x, mask)
        key, value = self.key(hidden) * hidden.shape[-1] ** -0.5, self.value(hidden)
        slots = self.slots.expand(len(hidden), -1, -1)
        for _ in range(self.n_iters):
            shares = (key @ self.query(self.norm(slots)).mT).softmax(-1) * mask[..., None]  # [b, n, slots]
            weights = shares / (shares.sum(1, keepdim=True) + 1e-8)
            update = self.gru((weights.mT @ value).flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
            slots = update + self.mlp(update)
        return self.read(slots.flatten(1))


class PaperRouting(nn.Module):
    """Two layers of routing as in the paper's text network: all places to `width` capsules, and these to classes."""

    def __init__(self, d: int, n_classes: int, n_kinds: int | None, width: int):
        super().__init__()
        self.hidden, self.score = Hidden(d, n_kinds), nn.Linear(WIDTH, 1)
        self.first = Routing(1, WIDTH, 2, n_out=width)
        self.second = Routing(1, 2, 2, n_inp=width, n_out=n_classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden, mask = self.hidden(x, mask)
        found = self.first(self.score(hidden).squeeze(-1), hidden.unsqueeze(-2), mask=mask)
        return self.second(found.a, found.mu).a


class Routed(nn.Module):
    """`RoutingHead` with its defaults; `settings` are for variants of it."""

    def __init__(self, d: int, n_classes: int, n_kinds: int | None, width: int = 64, **settings):
        super().__init__()
        self.head = RoutingHead(d, n_classes, n_kinds=n_kinds, n_parts=width, **settings)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head.logits(x, mask=mask)


HEADS: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "mean": ("mean pooling", lambda *sizes: Pooling(*sizes, how="mean")),
    "max": ("max pooling", lambda *sizes: Pooling(*sizes, how="max")),
    "attention": ("attention pooling", AttentionPooling),
    "token": ("transformer block, class token", ClassToken),
    "slots": ("slot attention", SlotAttention),
    "paper": ("routing as in the paper", PaperRouting),
    "routing": ("`RoutingHead`", Routed),
}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def make_head(name: str, d: int, n_classes: int, n_kinds: int | None) -> nn.Module:
    """Return a head with as many parameters as `RoutingHead` has, as nearly as its width allows."""
    sizes, make = (d, n_classes, n_kinds), HEADS[name][1]
    target = count(Routed(*sizes))
    if name == "routing":
        return Routed(*sizes)
    low, high = (count(make(*sizes, width)) for width in (1, 2))
    head = make(*sizes, max(1, 1 + round((target - low) / (high - low))))  # counts are linear in the width
    if abs(count(head) / target - 1) > 0.1:
        raise ValueError(f"{name}: expected about {target} parameters, got {count(head)}")
    return head
