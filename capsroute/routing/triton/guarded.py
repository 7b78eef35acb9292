"""The moment form where iterations are many: samples in which few inputs have weight go by votes.

There outputs shrink, iteration by iteration, onto single inputs. How close together their votes lie moments cannot
tell, for squares cancel. Which samples these are only the GPU knows, and nobody waits for it: both forms run, votes on
samples packed one after the other, in which all others have no inputs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..mapping import Tensors
from .sizes import Sizes

if TYPE_CHECKING:
    from . import Runner as AnyRunner


class Runner:
    """Runs a case by both forms.

    Args:
        moments: Runs it by moments.
        votes: Runs it by votes, packed.
        sizes: Of the case, not packed.
        weight: Of all inputs of a sample, from which moments are exact.
    """

    def __init__(self, moments: "AnyRunner", votes: "AnyRunner", sizes: Sizes, weight: float):
        self.moments, self.votes, self.sizes, self.weight = moments, votes, sizes, weight

    def fwd(self, given: Sequence[Tensor], in_graph: bool = False) -> tuple[Tensors, Tensors]:
        """The output capsules, and what the backward pass needs; as in `votes_host.py`, in a graph or not."""
        s = self.sizes
        outs, saved = self.moments.fwd(given, in_graph)
        thin = given[0].view(s.b, s.i).float().sigmoid().sum(1) < self.weight  # [b]
        order = thin.int().argsort(descending=True, stable=True)  # those first
        offsets = torch.nn.functional.pad((thin[order] * s.i).cumsum(0), (1, 0))
        by_votes, saved_votes = self.votes.fwd(self.packed(given, order, offsets), in_graph)
        back = order.argsort()
        outs = [chosen(thin, v[back], m) for v, m in zip(by_votes, outs, strict=True)]
        return tuple(outs), (*saved, *saved_votes, thin, order, offsets)

    def bwd(self, douts: Sequence[Tensor], given: Sequence[Tensor], saved: Tensors) -> Tensors:
        """Gradients of all arguments."""
        s, (by_moments, by_votes, thin, order, offsets) = self.sizes, saved
        shapes = (s.b, s.j), *[(s.b, s.j, s.c, s.h)] * 2
        douts = [d.view(shape) for d, shape in zip(douts, shapes, strict=True)]
        of_many = [chosen(thin, torch.zeros_like(d), d) for d in douts]
        of_few = [chosen(thin, d, torch.zeros_like(d))[order] for d in douts]
        da, dx, *dparams = self.moments.bwd(of_many, given, (by_moments,))
        da_few, dx_few, *dparams_few = self.votes.bwd(of_few, self.packed(given, order, offsets), (by_votes,))
        back = order.argsort()
        da = chosen(thin, da_few.view(s.b, s.i)[back], da)
        dx = chosen(thin, dx_few.view(s.b, s.i, s.c, s.d)[back], dx)
        return da, dx, *[one + other for one, other in zip(dparams, dparams_few, strict=True)]

    def packed(self, given: Sequence[Tensor], order: Tensor, offsets: Tensor) -> list[Tensor]:
        """What votes are given: samples in this order, one after the other."""
        s, (a_inp, x, _, *params) = self.sizes, given
        a_inp, x = a_inp.view(s.b, s.i)[order], x.view(s.b, s.i, s.c, s.d)[order]
        return [a_inp.flatten(), x.flatten(0, 1), offsets, *params]


def chosen(which: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Of samples `[b]` that are chosen one, of all others the other, in whose shape."""
    flat = other.view(len(which), -1)
    return torch.where(which[:, None], one.view(flat.shape), flat).view(other.shape)
