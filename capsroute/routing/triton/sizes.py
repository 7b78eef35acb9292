"""Types that the kernels' three forms share. Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules."""

import math
from collections import namedtuple
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class LoopSettings(NamedTuple):
    """Settings of the routing loop."""

    n_iters: int
    gaussian: bool  # k-means otherwise
    eps: float


class Sizes(NamedTuple):
    """Sizes of one routing call; a packed sample has up to `i` inputs, from its offset to the next."""

    b: int
    i: int
    j: int
    c: int
    d: int
    h: int
    packed: bool


class Call(NamedTuple):
    """What kernels are planned for."""

    loop: LoopSettings
    sizes: Sizes
    n: int  # inputs of all samples
    shapes: tuple[Shape, ...]  # of W, B, beta_use and beta_ign
    cores: int  # multiprocessors of the GPU, 0 under the interpreter


class Outputs(NamedTuple):
    """Output capsules, or their gradients."""

    a: Any  # [b, j]
    mu: Any  # [b, j, c, h]
    sig2: Any  # [b, j, c, h]


Model = namedtuple("Model", "mu p log log_lo")
"""The output capsules of a tile in an iteration: means, precisions, what they add to logits and its low part."""


class Grads(NamedTuple):
    """Gradients of the arguments; parameters have one for every output."""

    a: Any  # [n]
    x: Any  # [n, c, d]
    W: Any  # [j, d, h]
    B: Any  # [j, c, h]
    use: Any  # [j]
    ign: Any  # [j]


class Float64Rule(NamedTuple):
    """When the moment kernels route a sample in float64, because products of float16 pairs are too coarse for it."""

    logit_range: float = 256.0  # if one input's features add more than this to a logit of the second iteration
    min_weight: float = 4.0  # if the inputs' weight for each output is less
    separation: float = 0.5  # if squared output means over twice their variance, averaged over inputs, exceed this


ALWAYS = Float64Rule(min_weight=math.inf)
NEVER = Float64Rule(math.inf, 0.0, math.inf)


def ceil_pow2(n: int) -> int:
    """Round up to a power of two, at least 1."""
    return 1 << max(0, n - 1).bit_length()


def ceil_div(n: int, size: int) -> int:
    """Count the blocks of a size that cover n, at least one."""
    return max(1, -(-n // size))


MIN_PRODUCT_INPUTS, MAX_PRODUCT_H, PRODUCT_D = 64, 8, range(16, 65)
"""Sizes for which products of halves on chip beat votes in memory, and rounding errors average out in sums."""


def products_fit(sizes: Sizes, shapes: tuple[Shape, ...]) -> bool:
    """Tell whether the product kernels serve a call, whose parameters have these shapes."""
    small = sizes.c == 1 and sizes.h <= MAX_PRODUCT_H and sizes.d in PRODUCT_D and sizes.i >= MIN_PRODUCT_INPUTS
    return small and all(shape[0] == 1 for shape in shapes)
