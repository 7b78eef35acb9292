"""Credit: how much each class used of each input capsule, through all routing layers, and what that did to its score.

Axes: `i` input capsules, `j` capsules in between, `k` classes, the outputs of the last layer; `c`, `d`, `h` as in
routing; `...` batch. `docs/credit.md` derives these numbers and their sums.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from .layers import Routing
from .routing import Agreement, Step, resolve_agreement
from .routing.reference import e_step, expand_kinds, votes

FIRST_CENTRE, STRIDE = 14, 8  # pixels: centre of the first location's receptive field, and distance between locations
SLICE_VOTES = 1 << 20  # numbers in the votes of a slice of inputs


class RoutedParts(Protocol):
    """A network of stacked routing layers, such as the paper's."""

    routings: nn.ModuleList

    @property
    def parts(self) -> Callable[..., tuple[Tensor, Tensor]]: ...  # scores and capsules that the first layer gets


class Credit(NamedTuple):
    """Credit of every input, for every class: `use + ign` is the input's data, `net` sums to the score.

    The axis of the inputs `i` stands for parts, rows and columns in `image_credit`, and for tokens and hidden states in
    `text_credit`, where padding has no credit.
    """

    use: Tensor
    """Share of the input's data that the class used, `[..., i, k]`."""
    ign: Tensor
    """Share that it did not use, `[..., i, k]`."""
    benefit: Tensor
    """Benefit of the data used (`beta_use`) for the class's score, `[..., i, k]`."""
    cost: Tensor
    """Cost of the data ignored (`beta_ign`), `[..., i, k]`."""
    scores: Tensor
    """Class scores before the softmax, `[..., k]`."""

    @property
    def net(self) -> Tensor:
        """Contribution of the input to the class's score, `[..., i, k]`."""
        return self.benefit - self.cost


def credit(
    layers: Sequence[Routing] | nn.ModuleList,
    inputs: tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor],
    *,
    slice_votes: int = SLICE_VOTES,
) -> Credit:
    """Return the credit of the inputs of stacked routing layers, for the outputs of the last one.

    Data is passed on from the inputs to the classes, and scores are passed back from the classes to the inputs.

    Args:
        layers: Routing layers, each of which gets the scores and the capsules of the one before.
        inputs: Inputs of the first: `a_inp [..., i]`, `mu_inp [..., i, c, d]`, and optionally a mask `[..., i]`.
        slice_votes: Numbers in the votes formed at once, which bounds memory.
    """
    *before, top = passes = _run_layers(layers, inputs)
    use = passes[0].last.D_use  # [..., i, j]
    data = use.sum(-1, keepdim=True)  # [..., i, 1], f(a_inp)
    for layer in passes[1:]:
        use = use @ layer.last.D_use
    if before:
        benefit, cost = _pass_back(before[-1], top, slice_votes)
    else:
        benefit, cost = top.beta_use * top.last.D_use, top.beta_ign * top.last.D_ign
    for layer in reversed(before[:-1]):
        shares = _input_shares(layer.last.D_use)
        benefit, cost = shares @ benefit, shares @ cost
    return Credit(use, data - use, benefit, cost, top.last.a)


@torch.no_grad()
def image_credit(net: RoutedParts, images: Tensor) -> Credit:
    """Return the credit of the parts of stereo pairs `[b, 2, m, n]` in 0..1, as `[b, parts, rows, columns, k]`."""
    grid = [(size - 2 * FIRST_CENTRE - 1) // STRIDE + 1 for size in images.shape[2:]]
    samples = zip(*net.parts(images), strict=True)  # one by one, for the votes of a batch would take much memory
    found = [credit(net.routings, sample) for sample in samples]
    *shares, scores = map(torch.stack, zip(*found, strict=True))
    return Credit(*(t.unflatten(1, (-1, *grid)) for t in shares), scores=scores)


@torch.no_grad()
def text_credit(net: RoutedParts, mask: Tensor, embs: Tensor) -> Credit:
    """Return the credit of hidden states, with mask `[b, n]` and embs `[b, n, depth, d_emb]`, as `[b, n, depth, k]`."""
    *shares, scores = credit(net.routings, net.parts(mask, embs))
    return Credit(*(t.unflatten(1, embs.shape[1:3]) for t in shares), scores=scores)


def for_class(net: Tensor, scores: Tensor, which: Tensor | None = None) -> Tensor:
    """Return the contribution of each input to the log-odds of one class, to first order.

    The odds of a class are its softmax probability against that of all others together. To first order their logarithm
    is the class's score less the mean of the other scores, each weighted by its probability among them.

    Args:
        net: Contributions of inputs to scores, `[..., i, k]`.
        scores: Class scores, `[..., k]`.
        which: The classes `[...]`, by default those with the highest scores.

    Returns:
        `[..., i]`.
    """
    which = scores.argmax(-1) if which is None else which
    this = torch.zeros_like(scores).scatter(-1, which[..., None], 1.0)
    others = scores.masked_fill(this > 0, -torch.inf).softmax(-1).nan_to_num()  # a single class has no others
    return torch.einsum("...ik,...k->...i", net, this - others)


def heat_maps(maps: Tensor, size: tuple[int, int], *, first: float = FIRST_CENTRE, stride: float = STRIDE) -> Tensor:
    """Return the credit of all parts together over the pixels of an image, interpolated between locations.

    Args:
        maps: Any credit of parts and locations, `[b, parts, rows, columns, k]`.
        size: Rows and columns of the image.
        first: The pixel in the middle of the first location; by default as in `SmallNORB`.
        stride: Pixels from one location to the next.

    Returns:
        `[b, k, m, n]`.
    """
    rows, columns = (
        _interpolation(n, grid, first, stride).to(maps) for n, grid in zip(size, maps.shape[2:4], strict=True)
    )
    return torch.einsum("bprsk,mr,ns->bkmn", maps, rows, columns)


class _Pass(NamedTuple):
    """Arguments and iterations of one layer."""

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


def _run_layers(layers: Sequence[Routing] | nn.ModuleList, inputs: Sequence[Tensor]) -> list[_Pass]:
    if not len(layers):
        raise ValueError("layers: expected at least one, got none")
    if len(inputs) not in (2, 3):
        raise ValueError(f"inputs: expected a_inp, mu_inp and perhaps a mask, got {len(inputs)} tensors")
    a, mu, mask = inputs if len(inputs) == 3 else (*inputs, None)
    passes = []
    for layer in cast(Sequence[Routing], layers):
        arguments = layer.route_arguments(a, mu, mask=mask)
        del arguments["a_inp"]
        mu_inp, n_inp = arguments.pop("mu_inp"), mu.shape[-3]
        params = {name: expand_kinds(p, n_inp) for name, p in arguments.items()}
        steps = layer.trace(a, mu, mask=mask)
        passes.append(_Pass(mu_inp, **params, agreement=resolve_agreement(layer.agreement), steps=steps))
        a, mu, mask = steps[-1].a, steps[-1].mu, None
    return passes


def _pass_back(lower: _Pass, upper: _Pass, slice_votes: int) -> tuple[Tensor, Tensor]:
    """Return the benefit and the cost that the inputs of `lower` had for the outputs of `upper`, `[..., i, k]` each.

    Each input gets its share of the contribution of capsule j, and more or less of it as its own vote, sent on through
    j, fits the class better or worse than those of the other inputs of j.
    """
    R, data = upper.last.R, upper.last.D_use.sum(-1, keepdim=True)  # [..., j, k], [..., j, 1]
    all_used, all_ignored = data * upper.beta_use, data * upper.beta_ign  # [..., j, k]
    shares = _input_shares(lower.last.D_use)  # [..., i, j]
    mean = torch.zeros_like(R)  # over the inputs of j
    used, ignored = [], []
    for part, own in _route_own_votes(lower, upper, slice_votes):
        share = shares[..., part, :]
        mean = mean + torch.einsum("...ij,...ijk->...jk", share, own)
        used.append(torch.einsum("...ij,...jk,...ijk->...ik", share, all_used, own))
        ignored.append(torch.einsum("...ij,...jk,...ijk->...ik", share, all_ignored, 1 - own))
    rest = R - mean  # j was routed by the mean of the votes, not to the mean of their classes
    return torch.cat(used, -2) + shares @ (all_used * rest), torch.cat(ignored, -2) - shares @ (all_ignored * rest)


def _route_own_votes(lower: _Pass, upper: _Pass, slice_votes: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the inputs, with the E-step of `upper` for their own votes through each j, `[..., i, j, k]`.

    The vote of capsule j is linear in its pose, which is the mean of its inputs' votes; so it is the mean of these.
    """
    n, R = lower.mu_inp.shape[-3], upper.last.R
    votes_per_input = R.numel() * upper.W.shape[-1] * lower.mu_inp.shape[-2]
    step = max(1, slice_votes // votes_per_input)
    for part in (slice(k, k + step) for k in range(0, n, step)):
        if len(upper.steps) == 1:  # there was no E-step
            yield part, R.unsqueeze(-3).expand(*R.shape[:-2], len(range(n)[part]), *R.shape[-2:])
            continue
        W, B = (t[part] if len(t) > 1 else t for t in (lower.W, lower.B))
        V = votes(votes(lower.mu_inp[..., part, :, :], W, B), upper.W, upper.B)  # [..., i, j, k, c, h]
        a, mu, sig2 = upper.steps[-2][3:]
        yield part, e_step(V, a.unsqueeze(-2), mu.unsqueeze(-4), sig2.unsqueeze(-4), upper.agreement)


def _input_shares(D_use: Tensor) -> Tensor:
    """Return each input's share of the data that an output used; sums to 1 over inputs, even where none was used."""
    data = D_use.sum(-1, keepdim=True)  # [..., i, 1]
    uniform = torch.ones_like(data) / data.shape[-2]
    return _normalise(D_use, _normalise(data, uniform))


def _normalise(t: Tensor, default: Tensor) -> Tensor:
    total = t.sum(-2, keepdim=True)
    return torch.where(total > 0, t / total.where(total > 0, 1), default)


def _interpolation(n_pixels: int, n_locations: int, first: float, stride: float) -> Tensor:
    """Return the weight of each location in each pixel, `[pixels, locations]`; constant beyond the outermost."""
    position = ((torch.arange(n_pixels) - first) / stride).clamp(0, n_locations - 1)  # [pixels]
    return (1 - (position[:, None] - torch.arange(n_locations)).abs()).clamp(min=0)
