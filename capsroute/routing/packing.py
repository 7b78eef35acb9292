"""Samples of different sizes, one after the other, brought into groups of like size: little is padded.

Axes: `g` samples of a group, `i` inputs of its largest sample.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Group(NamedTuple):
    """Samples of like size and their inputs."""

    samples: Tensor  # [g] which
    inputs: Tensor  # [g, i] where they lie; past a sample's end, that of its first
    mask: Tensor  # [g, i] whether there is one


def grouped(lengths: Tensor, device: torch.device) -> list[Group]:
    """Groups, on a device, in which no sample but an empty one has half the inputs of the largest, or fewer.

    Args:
        lengths: Number of inputs of each sample, `[b]` on the CPU.
        device: Where the inputs are.
    """
    starts = lengths.cumsum(0) - lengths
    sizes = torch.frexp(lengths.double()).exponent  # doubling from group to group
    groups = []
    for size in sizes.unique().tolist() or [0]:  # no samples are one group
        samples = (sizes == size).nonzero()[:, 0]
        ends = lengths[samples, None]
        place = torch.arange(int(ends.max()) if len(ends) else 0)
        mask = place < ends
        inputs = starts[samples, None] + torch.where(mask, place, 0)
        groups.append(Group(*(t.to(device) for t in (samples, inputs, mask))))
    return groups


def checked_lengths(offsets: Tensor, total: int) -> Tensor:
    """Number of inputs of each sample, `[b]` on the CPU."""
    if not isinstance(offsets, Tensor) or offsets.is_floating_point() or offsets.dtype == torch.bool:
        came = offsets.dtype if isinstance(offsets, Tensor) else type(offsets).__name__
        raise TypeError(f"offsets: expected a tensor of integers, got {came}")
    if offsets.ndim != 1 or not len(offsets):
        raise ValueError(f"offsets: expected [samples + 1], got shape {list(offsets.shape)}")
    ends = offsets.cpu().long()
    if ends[0] != 0 or ends[-1] != total:
        raise ValueError(f"offsets: expected 0 to {total}, the number of inputs, got {int(ends[0])} to {int(ends[-1])}")
    if (ends.diff() < 0).any():
        raise ValueError("offsets: expected them in ascending order")
    return ends.diff()
