"""Samples of different sizes, packed one after the other, sorted into groups of similar size that need little padding.

Axes: `g` samples of a group, `i` inputs of its largest sample.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .checks import check_tensor


class Group(NamedTuple):
    """Samples of similar size and their inputs."""

    samples: Tensor  # [g] indices of the samples
    inputs: Tensor  # [g, i] indices of their inputs; those of padding repeat the first
    mask: Tensor  # [g, i] false for padding


def group_samples(lengths: Tensor, n_kinds: int, device: torch.device) -> list[Group]:
    """Return groups in which every sample has more than half the inputs of the largest; empty ones have their own.

    Args:
        lengths: Number of inputs of each sample, `[b]` on the CPU.
        n_kinds: Number of kinds of inputs; a sample holds its places of each kind, one kind after the other.
        device: Device of the inputs, where the groups are put.
    """
    starts, places = lengths.cumsum(0) - lengths, lengths // max(1, n_kinds)
    kinds = torch.arange(n_kinds)[:, None]
    sizes = torch.frexp(places.double()).exponent  # doubles from group to group
    groups = []
    for size in sizes.unique().tolist() or [0]:  # no samples are one group
        samples = (sizes == size).nonzero()[:, 0]
        ends = places[samples, None, None]
        position = torch.arange(int(ends.max()) if len(ends) else 0)
        mask = (position < ends).expand(-1, n_kinds, -1)
        inputs = starts[samples, None, None] + torch.where(mask, kinds * ends + position, 0)  # [g, k, p]
        groups.append(Group(*(t.to(device) for t in (samples, inputs.flatten(1), mask.flatten(1)))))
    return groups


def check_offsets(offsets: Tensor, total: int, n_kinds: int) -> Tensor:
    """Return the number of inputs of each sample, `[b]` on the CPU; each must hold as many of every kind."""
    check_tensor("offsets", offsets)
    if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
        raise TypeError(f"offsets: expected a tensor of integers, got {offsets.dtype}")
    if offsets.ndim != 1 or not len(offsets) or offsets.is_meta:
        got = "one on meta" if offsets.is_meta else f"shape {list(offsets.shape)}"
        raise ValueError(f"offsets: expected [samples + 1], with values, got {got}")
    ends = offsets.cpu().long()
    if ends[0] != 0 or ends[-1] != total:
        raise ValueError(f"offsets: expected 0 to {total}, the number of inputs, got {int(ends[0])} to {int(ends[-1])}")
    if (ends.diff() < 0).any():
        raise ValueError(f"offsets: expected them in ascending order, got a step of {int(ends.diff().min())}")
    lengths = ends.diff()
    if n_kinds and (bad := lengths[lengths % n_kinds != 0]).numel():
        raise ValueError(f"offsets: expected multiples of {n_kinds} kinds of inputs, got a sample of {int(bad[0])}")
    return lengths
