"""What both forms of the kernels are told. Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules."""

import math
from typing import NamedTuple


class Plan(NamedTuple):
    """How to iterate."""

    n_iters: int
    gaussian: bool  # k-means otherwise
    eps: float


class Sizes(NamedTuple):
    """Of one routing; packed samples have up to `i` inputs, each from its offset to the next."""

    b: int
    i: int
    j: int
    c: int
    d: int
    h: int
    packed: bool


class Hard(NamedTuple):
    """Which samples the moment form routes in float64: products of halves are not exact enough for them."""

    far: float = 256.0  # what features of an input add to a logit of the second iteration, if that is more
    weight: float = 4.0  # of inputs for each output, if it is less
    apart: float = 0.5  # squares of outputs' means, over twice their variance, in the mean over inputs, if that is more


ALWAYS = Hard(weight=math.inf)
NEVER = Hard(math.inf, 0.0, math.inf)


def power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()
