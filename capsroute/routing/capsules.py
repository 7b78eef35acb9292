"""Results of a routing. Axes: `i` inputs, `j` outputs, `c` covector, `d` input and `h` output properties."""

from typing import NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree


class Capsules(NamedTuple):
    """Output capsules: how strongly each was detected, its pose, and how much the votes for it disagreed."""

    a: Tensor
    """Scores before the logistic function, `[..., j]`."""
    mu: Tensor
    """Capsules, `[..., j, c, h]`."""
    sig2: Tensor
    """Variances of the votes around `mu`, never below `eps`, `[..., j, c, h]`."""


class Step(NamedTuple):
    """One iteration of the routing loop, with everything it computed."""

    R: Tensor
    """Routing probabilities, rows sum to 1, `[..., i, j]`."""
    D_use: Tensor
    """Share of each input used by each output, `[..., i, j]`."""
    D_ign: Tensor
    """Share of each input ignored by each output, `[..., i, j]`."""
    a: Tensor
    """Output scores, `[..., j]`."""
    mu: Tensor
    """Output capsules, `[..., j, c, h]`."""
    sig2: Tensor
    """Output variances, `[..., j, c, h]`."""


for result in (Capsules, Step):  # torch.export.save needs a name for them
    pytree._register_namedtuple(result, serialized_type_name=f"capsroute.{result.__name__}")
