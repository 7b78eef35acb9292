"""What both forms of the kernels are told. Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules."""

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


def power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()
