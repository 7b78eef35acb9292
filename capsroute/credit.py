"""Credit: what each class used of each input capsule, through all routing layers, and what that brought it.

Axes: `i` input capsules, `j` capsules in between, `k` classes, the outputs of the last layer; `c`, `d`, `h` as in
routing; `...` batch. `docs/credit.md` derives these numbers and says what they sum to.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .layers import Routing
from .routing import Step
from .routing.agreement import AGREEMENTS, Agreement
from .routing.reference import e_step, votes

if TYPE_CHECKING:
    from .nets import SST, SmallNORB

FIRST, APART = 14, 8  # pixels: the middle of what SmallNORB's first location sees, and from one location to the next
AT_ONCE = 1 << 20  # numbers in the votes of a slice of inputs


class Credit(NamedTuple):
    """Of every input capsule, for every class. `use + ign` is the input's data; `net` sums to the class's score."""

    use: Tensor
    """Share of the input's data that the class used, `[..., i, k]`."""
    ign: Tensor
    """Share that it did not use, `[..., i, k]`."""
    benefit: Tensor
    """What using data (`beta_use`) brought to the class's score, `[..., i, k]`."""
    cost: Tensor
    """What ignoring data (`beta_ign`) took from it, `[..., i, k]`."""

    @property
    def net(self) -> Tensor:
        """What the class's score owes to the input, `[..., i, k]`."""
        return self.benefit - self.cost


class ImageCredit(NamedTuple):
    """Credit of the parts that SmallNORB detects at each location of its grid."""

    maps: Tensor
    """Shares used, `[b, parts, rows, columns, k]`."""
    ign: Tensor
    """Shares not used, as `maps`."""
    benefit: Tensor
    """As `maps`."""
    cost: Tensor
    """As `maps`."""
    scores: Tensor
    """Class scores before the softmax, `[b, k]`."""

    @property
    def net(self) -> Tensor:
        return self.benefit - self.cost


class TextCredit(NamedTuple):
    """Credit of every token's hidden states; all zero for padding."""

    use: Tensor
    """Shares used, `[b, n, depth, k]`."""
    ign: Tensor
    """Shares not used, as `use`."""
    benefit: Tensor
    """As `use`."""
    cost: Tensor
    """As `use`."""
    scores: Tensor
    """Class scores before the softmax, `[b, k]`."""

    @property
    def net(self) -> Tensor:
        return self.benefit - self.cost


def credit(layers: Sequence[Routing], inputs: tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]) -> Credit:
    """Credit of the inputs of stacked routing layers, for the outputs of the last one.

    Args:
        layers: Routing layers, each of which gets the scores and the capsules of the one before.
        inputs: What the first one gets: `a_inp [..., i]`, `mu_inp [..., i, c, d]`, and a mask `[..., i]` if there is
            one, true for the inputs that count.
    """
    return _credit(_passes(layers, inputs))


@torch.no_grad()
def image_credit(net: "SmallNORB", images: Tensor) -> ImageCredit:
    """Credit of the parts of stereo pairs `[b, 2, m, n]` in 0..1."""
    a, mu = net.parts(images)
    grid = [(size - 2 * FIRST - 1) // APART + 1 for size in images.shape[2:]]
    found = []
    for one in zip(a, mu, strict=True):  # the votes of a batch would take much memory
        passes = _passes(_routings(net), one)
        found.append((*_credit(passes), passes[-1].last.a))
    *shares, scores = map(torch.stack, zip(*found, strict=True))
    return ImageCredit._make([*(t.unflatten(1, (-1, *grid)) for t in shares), scores])


@torch.no_grad()
def text_credit(net: "SST", mask: Tensor, embs: Tensor) -> TextCredit:
    """Credit of hidden states, with mask `[b, n]` and embs `[b, n, depth, d_emb]` as the network takes them."""
    passes = _passes(_routings(net), net.parts(mask, embs))
    shares = (t.unflatten(1, embs.shape[1:3]) for t in _credit(passes))
    return TextCredit._make([*shares, passes[-1].last.a])


def for_class(net: Tensor, scores: Tensor, which: Tensor | None = None) -> Tensor:
    """What each input did for one class against the others: its part in the logarithm of that class's odds.

    The odds of a class are its probability, by the softmax, against that of all others together. To first order their
    logarithm follows the class's score less the mean of the other scores, each weighted by its chance among them.

    Args:
        net: What scores owe to inputs, `[..., i, k]`.
        scores: Class scores, `[..., k]`.
        which: The classes `[...]`, by default those with the highest scores.

    Returns:
        `[..., i]`.
    """
    which = scores.argmax(-1) if which is None else which
    this = torch.zeros_like(scores).scatter(-1, which[..., None], 1.0)
    others = scores.masked_fill(this > 0, -torch.inf).softmax(-1).nan_to_num()  # where there is one class alone
    return torch.einsum("...ik,...k->...i", net, this - others)


def heat_maps(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Credit of all parts together over the pixels of an image, linear between the middles of what locations see.

    Args:
        maps: Any credit of parts and locations, `[b, parts, rows, columns, k]`.
        size: Rows and columns of the image.

    Returns:
        `[b, k, m, n]`.
    """
    rows, columns = (_between(n, grid).to(maps) for n, grid in zip(size, maps.shape[2:4], strict=True))
    return torch.einsum("bprsk,mr,ns->bkmn", maps, rows, columns)


class _Pass(NamedTuple):
    """One layer's part: its parameters, what it got, and every iteration."""

    mu_inp: Tensor
    W: Tensor
    B: Tensor
    beta_use: Tensor
    beta_ign: Tensor
    agreement: Agreement
    steps: Sequence[Step]

    @property
    def last(self) -> Step:
        return self.steps[-1]


def _passes(layers: Sequence[Routing], inputs: Sequence[Tensor]) -> list[_Pass]:
    if not len(layers):
        raise ValueError("layers: expected at least one, got none")
    if len(inputs) not in (2, 3):
        raise ValueError(f"inputs: expected a_inp, mu_inp and perhaps a mask, got {len(inputs)} tensors")
    a, mu, mask = inputs if len(inputs) == 3 else (*inputs, None)
    passes = []
    for layer in layers:
        agreement = AGREEMENTS[layer.agreement] if isinstance(layer.agreement, str) else layer.agreement
        _, masked, W, B, beta_use, beta_ign = layer._arguments(a, mu, mask, None)
        passes.append(_Pass(masked, W, B, beta_use, beta_ign, agreement, layer.trace(a, mu, mask=mask)))
        a, mu, mask = passes[-1].last.a, passes[-1].last.mu, None
    return passes


def _credit(passes: Sequence[_Pass]) -> Credit:
    """Data is handed on, from the inputs to the classes; the score is handed back, from the classes to the inputs."""
    *before, top = passes
    use = passes[0].last.D_use  # [..., i, j]
    data = use.sum(-1, keepdim=True)  # [..., i, 1], f(a_inp)
    for one in passes[1:]:
        use = use @ one.last.D_use
    if before:
        benefit, cost = _handed_back(before[-1], top)
    else:
        benefit, cost = top.beta_use * top.last.D_use, top.beta_ign * top.last.D_ign
    for one in reversed(before[:-1]):
        shares = _shares(one.last.D_use)
        benefit, cost = shares @ benefit, shares @ cost
    return Credit(use, data - use, benefit, cost)


def _handed_back(lower: _Pass, upper: _Pass) -> tuple[Tensor, Tensor]:
    """What the outputs of `upper` owe to the inputs of `lower`: benefit and cost, `[..., i, k]` each.

    Each input gets its share of what the capsule j brought, and more or less of it as its own vote, sent on by way of
    j, fits the class better or worse than those of the others in j.
    """
    R, data = upper.last.R, upper.last.D_use.sum(-1, keepdim=True)  # [..., j, k], [..., j, 1]
    gain, loss = data * upper.beta_use, data * upper.beta_ign  # [..., j, k], of using or ignoring all of j
    shares = _shares(lower.last.D_use)  # [..., i, j]
    mean = torch.zeros_like(R)  # of the inputs of j
    used, ignored = [], []
    for place, own in _own(lower, upper):
        some = shares[..., place, :]
        mean = mean + torch.einsum("...ij,...ijk->...jk", some, own)
        used.append(torch.einsum("...ij,...jk,...ijk->...ik", some, gain, own))
        ignored.append(torch.einsum("...ij,...jk,...ijk->...ik", some, loss, 1 - own))
    rest = R - mean  # j was routed by the mean of the votes, not to the mean of their classes
    return torch.cat(used, -2) + shares @ (gain * rest), torch.cat(ignored, -2) - shares @ (loss * rest)


def _own(lower: _Pass, upper: _Pass) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the inputs, and for each the E-step of `upper` for their own votes by way of each j, `[..., i, j, k]`.

    The vote of capsule j is linear in its pose, the mean of its inputs' votes: so it is the mean of these.
    """
    n, R = lower.mu_inp.shape[-3], upper.last.R
    each = R.numel() * upper.W.shape[-1] * lower.mu_inp.shape[-2]  # numbers in the votes of one input
    step = max(1, AT_ONCE // each)
    for place in (slice(k, k + step) for k in range(0, n, step)):
        if len(upper.steps) == 1:  # there was no E-step
            yield place, R.unsqueeze(-3).expand(*R.shape[:-2], len(range(n)[place]), *R.shape[-2:])
            continue
        W, B = (t[place] if len(t) > 1 else t for t in (lower.W, lower.B))
        V = votes(votes(lower.mu_inp[..., place, :, :], W, B), upper.W, upper.B)  # [..., i, j, k, c, h]
        a, mu, sig2 = upper.steps[-2][3:]
        yield place, e_step(V, a.unsqueeze(-2), mu.unsqueeze(-4), sig2.unsqueeze(-4), upper.agreement)


def _shares(D_use: Tensor) -> Tensor:
    """Of what each output used, the share of each input; they sum to 1 over inputs, even where nothing was used."""
    data = D_use.sum(-1, keepdim=True)  # [..., i, 1]
    anyone = torch.ones_like(data) / data.shape[-2]
    return _parts(D_use, _parts(data, anyone))


def _parts(t: Tensor, otherwise: Tensor) -> Tensor:
    total = t.sum(-2, keepdim=True)
    return torch.where(total > 0, t / total.where(total > 0, 1), otherwise)


def _between(n_pixels: int, n_locations: int) -> Tensor:
    """The weight of each location in each pixel, `[pixels, locations]`; beyond the outermost middles, theirs alone."""
    place = ((torch.arange(n_pixels) - FIRST) / APART).clamp(0, n_locations - 1)  # [pixels]
    return (1 - (place[:, None] - torch.arange(n_locations)).abs()).clamp(min=0)


def _routings(net: "SmallNORB | SST") -> list[Routing]:
    return [layer for layer in net.routings if isinstance(layer, Routing)]
