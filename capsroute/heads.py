"""A routing head: class capsules from the features of any backbone.

Axes: `k` kinds of features, such as the depths of a transformer's hidden states; `m` parts found in each; `n` places;
`v` numbers that describe a part; `i = (k, m)` inputs of routing; `j` classes; `c`, `d`, `h` as in routing; `...` batch.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .credit import Credit, credit
from .layers import Routing, check_mask
from .routing import Capsules
from .routing.checks import check_integer
from .routing.packing import check_offsets

Features = Tensor | Sequence[Tensor]

SHARPNESS = 3.0
"""Factor of the parts' scores: around zero the logistic function tells them hardly apart."""
BETA_SCALE = 4.0
"""Factor of benefits and costs: one over the slope of the logistic function, through which they get their inputs."""
EPS = 0.1
"""Least variance of a part and of a class: agreement counts for more as the network learns larger votes."""


class RoutingHead(nn.Module):
    """Routes the features of any number of places to class capsules, in place of pooling and a linear layer.

    Each place votes for the score and the capsule of each of `n_parts` parts, and belongs to those whose learned query
    it fits and with whose votes it agrees, or to none. Parts are inputs of routing with parameters of their own;
    classes are found by agreement between parts.

    Args:
        d_inp: Size of the features at a place.
        n_classes: Number of classes.
        n_kinds: Number of feature vectors at each place, such as hidden states of a transformer, if they are given.
        n_parts: Number of parts looked for in the features of each kind.
        d_cov: Size of the covector axis of all capsules.
        d_part: Size of the other axis of a part's capsule.
        d_out: Size of the other axis of a class capsule.
        d_hidden: Width of the layer in which parts are looked for.
        layers: 1, or 2 to route through `n_capsules` capsules in between.
        n_capsules: Number of capsules between two layers.
        coordinates: Append its row and column to each location of a feature map, from -1 to 1.
        n_iters: Iterations of the loops that find parts and classes.
        noise: In training, each feature of a sample is multiplied by a random factor of mean 1 and this standard
            deviation, the same at all places, so that the head relies on no few of them. 0.3 helps one that overfits.
        impl: Implementation of routing, see [`route`][capsroute.route].
    """

    def __init__(
        self,
        d_inp: int,
        n_classes: int,
        *,
        n_kinds: int | None = None,
        n_parts: int = 64,
        d_cov: int = 1,
        d_part: int = 4,
        d_out: int = 2,
        d_hidden: int = 64,
        layers: int = 1,
        n_capsules: int = 16,
        coordinates: bool = False,
        n_iters: int = 2,
        noise: float = 0.0,
        impl: str = "auto",
    ):
        super().__init__()
        sizes = {"d_inp": d_inp, "n_classes": n_classes, "n_parts": n_parts, "d_hidden": d_hidden}
        d_inp, n_classes, n_parts, d_hidden = (check_integer(*size) for size in sizes.items())
        n_kinds = n_kinds if n_kinds is None else check_integer("n_kinds", n_kinds)
        if layers not in (1, 2):
            raise ValueError(f"layers: expected 1 or 2, got {layers}")
        if not 0 <= noise < math.inf:
            raise ValueError(f"noise: expected a number of at least 0, got {noise}")
        if coordinates and n_kinds is not None:
            raise ValueError("coordinates: expected only for feature maps, which have no n_kinds")
        self.d_inp, self.n_classes, self.n_kinds, self.coordinates = d_inp, n_classes, n_kinds, coordinates
        self.n_parts, self.capsule, self.n_iters = n_parts, (d_cov, d_part), check_integer("n_iters", n_iters)
        self.noise = noise
        self.embed = nn.Sequential(nn.Linear(d_inp + 2 * coordinates, d_hidden), nn.SiLU(), nn.LayerNorm(d_hidden))
        self.kind_emb = None if n_kinds is None else nn.Parameter(torch.empty(n_kinds, 1, d_hidden))
        self.attend = nn.Linear(d_hidden, n_parts, bias=False)
        self.describe = nn.Linear(d_hidden, n_parts * (1 + d_cov * d_part))  # scores of parts, and capsules
        widths = [n_parts * (n_kinds or 1), *([n_capsules] if layers == 2 else []), n_classes]
        self.routings = nn.ModuleList()
        for k, (n_inp, n_out) in enumerate(pairwise(widths)):
            settings = {"n_iters": n_iters, "eps": EPS, "init": "random", "beta_scale": BETA_SCALE, "impl": impl}
            self.routings.append(Routing(d_cov, d_out if k else d_part, d_out, n_inp, n_out, **settings))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise linear layers as PyTorch does, routing with small random benefits and costs, kinds alike."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm | Routing):
                module.reset_parameters()
        if self.kind_emb is not None:
            nn.init.zeros_(self.kind_emb)

    def forward(
        self,
        x: Features,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        batch: Tensor | None = None,
        n_samples: int | None = None,
    ) -> Capsules:
        """Return the class capsules: scores `a [..., j]`, which `cross_entropy` takes, `mu` and `sig2 [..., j, c, h]`.

        Args:
            x: Tokens, points or nodes `[..., n, d]`; a feature map `[b, d, rows, columns]`; or, where the head has
                kinds, hidden states `[..., k, n, d]` or a list of them, `[..., n, d]` each.
            mask: 1 or true for places that count, 0 or false for padding, `[..., n]` or `[b, rows, columns]`.
            offsets: Start of each sample and the end of the last one, `[samples + 1]`, where samples of different
                sizes lie one after the other: `x` is `[n, d]`, `[k, n, d]` or a list of `[n, d]`.
            batch: The sample of each place instead, `[n]` in ascending order, as PyTorch Geometric has it.
            n_samples: Number of samples in `batch`, if the last ones may have no places.
        """
        a, mu, _ = self.parts(x, mask=mask, offsets=offsets, batch=batch, n_samples=n_samples)
        for routing in self.routings:
            a, mu, sig2 = routing(a, mu)
        return Capsules(a, mu, sig2)

    def logits(
        self,
        x: Features,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        batch: Tensor | None = None,
        n_samples: int | None = None,
    ) -> Tensor:
        """Return the class scores alone, `[..., j]`."""
        return self(x, mask=mask, offsets=offsets, batch=batch, n_samples=n_samples).a

    def credit(
        self,
        x: Features,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        batch: Tensor | None = None,
        n_samples: int | None = None,
    ) -> Credit:
        """Return how much each class used of each part at each place; `net` sums to the scores.

        A place has its share of the part's credit. Axes are `[..., m, n, j]`, with kinds
        `[..., k, m, n, j]`, for a feature map `[b, m, rows, columns, j]`. Samples that lie one after the other are
        padded, `[samples, m, n, j]`, and padding has no credit.
        """
        a, mu, of_places = self.parts(x, mask=mask, offsets=offsets, batch=batch, n_samples=n_samples)
        *shares, scores = credit(self.routings, (a, mu))
        kinds = (self.n_parts,) if self.n_kinds is None else (self.n_kinds, self.n_parts)
        places = tuple(x.shape[2:]) if isinstance(x, Tensor) and self._is_map(x) else (of_places.shape[-1],)
        shares = [t.unsqueeze(-2) * of_places.unsqueeze(-1) for t in shares]  # [..., i, n, j]
        return Credit(*(t.unflatten(-2, places).unflatten(scores.ndim - 1, kinds) for t in shares), scores=scores)

    def parts(
        self,
        x: Features,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        batch: Tensor | None = None,
        n_samples: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs of routing, `a [..., i]` and `mu [..., i, c, d]`, and where they are, `[..., i, n]`."""
        places, mask = self._find_places(x, mask)
        if batch is not None:
            if offsets is not None or mask is not None:
                raise ValueError("mask, offsets, batch: expected one of them, got more")
            offsets = find_offsets(batch, places.shape[-2], n_samples)
        elif n_samples is not None:
            raise ValueError("n_samples: expected only with batch")
        if offsets is not None:
            places, mask = pad_samples(places, mask, offsets)
        elif mask is None and places.shape[-2] == 0:
            mask = places.new_zeros((*places.shape[:-3], 0), dtype=torch.bool)  # [..., n]
        if mask is not None:
            mask = check_mask(mask, places[..., 0, :, 0])[..., None, :, None]  # [..., 1, n, 1]
            places = places.masked_fill(~mask, 0.0)  # padding may hold anything, even NaN
        if self.noise and self.training:
            places = places * (1 + self.noise * torch.randn_like(places[..., :1, :]))
        linear, activate, normalise = self.embed
        hidden = linear(places) if self.kind_emb is None else linear(places) + self.kind_emb
        hidden = normalise(activate(hidden))  # [..., k, n, hidden]
        fit = self.attend(hidden)
        votes = self.describe(hidden).unflatten(-1, (-1, self.n_parts))  # [..., k, n, v, m]
        found, shares = (t.to(hidden.dtype) for t in find_parts(fit, votes, mask, self.n_iters))
        a, mu = SHARPNESS * found[..., 0, :], found[..., 1:, :].mT.unflatten(-1, self.capsule)
        if mask is not None:
            there = mask.any(-2)  # [..., 1, 1]; a sample without places has no parts
            a, shares = a.masked_fill(~there, -torch.inf), shares * mask
        return a.flatten(-2), mu.flatten(-4, -3), shares.mT.flatten(-3, -2)

    def extra_repr(self) -> str:
        d_cov, d_part = self.capsule
        sizes = f"{self.d_inp}, {self.n_classes}, n_kinds={self.n_kinds}, n_parts={self.n_parts}"
        noise = f", noise={self.noise:g}" if self.noise else ""
        return f"{sizes}, d_cov={d_cov}, d_part={d_part}, coordinates={self.coordinates}{noise}"

    def _is_map(self, x: Tensor) -> bool:
        return self.n_kinds is None and x.ndim == 4

    def _find_places(self, x: Features, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return features as `[..., k, n, d]`, with one kind where the head has none, and the mask as `[..., n]`."""
        if not isinstance(x, Tensor):
            if self.n_kinds is None:
                raise TypeError(f"x: expected a tensor, for the head has no n_kinds, got {type(x).__name__}")
            if len(x) != self.n_kinds or len({t.shape for t in x}) > 1:
                got = [list(t.shape) for t in x]
                raise ValueError(f"x: expected {self.n_kinds} hidden states of one shape, got shapes {got}")
            x = torch.stack(list(x), -3)
        shape, d_inp, n_kinds = list(x.shape), self.d_inp, self.n_kinds
        is_map = self._is_map(x)
        if self.coordinates and not is_map:
            raise ValueError(f"x: expected a feature map [b, {d_inp}, rows, columns], got shape {shape}")
        if is_map:
            expected, fits = f"[b, {d_inp}, rows, columns]", x.shape[1] == d_inp
        elif n_kinds is None:
            expected, fits = f"[..., n, {d_inp}]", x.ndim > 1 and x.shape[-1] == d_inp
        else:
            fits = x.ndim > 2 and (x.shape[-3], x.shape[-1]) == (n_kinds, d_inp)
            expected = f"[..., {n_kinds}, n, {d_inp}]"
        if not fits:
            raise ValueError(f"x: expected {expected}, got shape {shape}")
        if is_map:
            x = stack_coordinates(x) if self.coordinates else x
            x, mask = x.flatten(2).movedim(1, 2), None if mask is None else mask.flatten(-2)
        return x.unsqueeze(-3) if n_kinds is None else x, mask


def find_parts(fit: Tensor, votes: Tensor, mask: Tensor | None, n_iters: int) -> tuple[Tensor, Tensor]:
    """Return what places say of each part together, `[..., v, m]`, and each place's share in it, `[..., n, m]`.

    The first shares are attention. Then places are divided between parts as in the E-step of routing, by their fit and
    by how likely their votes are, and may belong to none. A part of which there is little is scaled down, one of which
    there is much up to twice.

    Args:
        fit: How well each place fits the query of each part, `[..., n, m]`.
        votes: What each place says of each part, `[..., n, v, m]`.
        mask: True for places that count, `[..., n, 1]`.
        n_iters: Number of times that shares are found.
    """
    dtype = torch.promote_types(votes.dtype, torch.float32)
    fit, votes = fit.to(dtype), votes.to(dtype)
    (shares, mean), scale = average_votes(fit, votes, mask), votes.new_ones(())
    for _ in range(n_iters - 1):
        squares = (votes - mean.unsqueeze(-3)).square()
        sig2 = (shares.unsqueeze(-2) * squares).sum(-3) + EPS  # [..., v, m]
        log_P = -(squares * (0.5 / sig2).unsqueeze(-3)).sum(-2) - 0.5 * sig2.log().sum(-2, keepdim=True)
        none = math.log(fit.shape[-1])  # as if in all parts, at means of votes of variance 1: log_P has no constant
        log_R = F.pad(fit + log_P, (0, 1), value=none).log_softmax(-1)[..., :-1]  # [..., n, m]
        shares, mean = average_votes(log_R, votes, mask)
        there = torch.ones_like(log_R[..., :1]) if mask is None else mask.to(dtype)
        used = (log_R.exp() * there).sum(-2, keepdim=True)  # [..., 1, m]
        scale = 2 * used / (used + there.sum(-2, keepdim=True).clamp(min=1) / fit.shape[-1])
    return scale * mean, shares


def average_votes(log_R: Tensor, votes: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each place's share in each part, `[..., n, m]`, and the mean of the votes so weighted, `[..., v, m]`."""
    if mask is not None:
        log_R = log_R.masked_fill(~mask, torch.finfo(log_R.dtype).min)
    shares = log_R.softmax(-2)
    return shares, (shares.unsqueeze(-2) * votes).sum(-3)  # einsum would copy votes to another layout


def stack_coordinates(x: Tensor) -> Tensor:
    """Append two channels with the row and the column of each location, from -1 to 1: `[b, d + 2, rows, columns]`."""
    rows, columns = (torch.linspace(-1, 1, size, dtype=x.dtype, device=x.device) for size in x.shape[2:])
    shape = (x.shape[0], 1, *x.shape[2:])
    return torch.cat([x, rows[:, None].expand(shape), columns.expand(shape)], 1)


def find_offsets(batch: Tensor, n: int, n_samples: int | None) -> Tensor:
    """Return where samples start and the last one ends, `[samples + 1]`, from the sample of each of `n` places."""
    if batch.is_floating_point() or batch.dtype == torch.bool:
        raise TypeError(f"batch: expected a tensor of integers, got {batch.dtype}")
    if batch.shape != (n,) or (batch.diff() < 0).any():
        raise ValueError(f"batch: expected [{n}] in ascending order, got shape {list(batch.shape)}")
    if n and batch[0] < 0:
        raise ValueError(f"batch: expected samples from 0 on, got {int(batch[0])}")
    sizes = batch.bincount(minlength=n_samples or 0)
    if n_samples is not None and len(sizes) > n_samples:
        raise ValueError(f"n_samples: expected at least {len(sizes)}, got {n_samples}")
    return F.pad(sizes.cumsum(0), (1, 0))


def pad_samples(x: Tensor, mask: Tensor | None, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return samples that lie one after the other in `x [k, n, d]` as `[samples, k, n, d]`, and their mask."""
    if mask is not None:
        raise ValueError("mask, offsets, batch: expected one of them, got more")
    if x.ndim != 3:
        raise ValueError(f"x: expected the places of all samples on one axis, got shape {list(x.shape)}")
    lengths = check_offsets(offsets, x.shape[1], 1).to(x.device)
    starts = lengths.cumsum(0) - lengths
    places = torch.arange(int(lengths.max()) if len(lengths) else 0, device=x.device)
    mask = places < lengths[:, None]  # [samples, n]
    return x[:, torch.where(mask, starts[:, None] + places, 0)].movedim(0, 1), mask
