"""What kernels of the vote form are given, and hand to each other.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules; `v` is `c` and `h` together, `n` all inputs of
all samples one after the other, `t` iterations.
"""

from typing import Any, NamedTuple


class Tile(NamedTuple):
    """What a kernel is compiled for."""

    C: int
    D: int
    H: int
    BLOCK_I: int
    BLOCK_J: int
    BLOCK_C: int
    BLOCK_H: int
    BLOCK_D: int  # of matrix products, else 1
    PAD: int  # numbers of a capsule in memory, for these: whole steps
    DOT: bool  # votes are matrix products
    WHOLE: bool  # of one step: a tile's factors are loaded once
    WIDE: bool  # outputs take more than one tile
    ALONE: bool  # one tile has a whole sample
    ONCE: bool  # one tile has all that an input's gradients come from
    CHUNKS: int  # of components; with one, a tile's votes are formed once
    LOOKS: int  # tiles with weight among which programs look for a centre to count distances from
    FEW: bool  # inputs, in several chunks: roundings do not even out, so gradients of logits and votes are float64
    PACKED: bool
    GAUSSIAN: bool
    EPS: float
    W_I: bool  # each input has its own, likewise below
    W_J: bool  # each output has its own
    B_I: bool
    USE_I: bool
    USE_J: bool
    IGN_I: bool
    IGN_J: bool
    OWN: bool  # either beta is each input's own
    BLOCK_M: int  # outputs of a tile without inputs
    BLOCK_V: int  # their components
    BLOCK_S: int  # slots read together


class Given(NamedTuple):
    """Tensors that are routed, and the layer's parameters."""

    a: Any  # [n]
    x: Any  # [n, c, d]
    offsets: Any  # [b + 1]
    W: Any  # [i|1, j|1, d, h]
    B: Any  # [i|1, j, c, h]
    use: Any  # [i|1, j|1]
    ign: Any  # [i|1, j|1]


class Pairs(NamedTuple):
    """What is made of these, where votes are matrix products."""

    f: Any  # f(a), [n]
    x: Any  # as pairs of half precision, [n, c, 2, PAD]
    x_unit: Any  # what these are counted in, [n, c]
    W: Any  # [h, j|1, 2, PAD]
    W_unit: Any  # [h, j|1]


class Inputs(NamedTuple):
    """What is routed, its pairs, and sizes."""

    a: Any
    x: Any
    offsets: Any
    f: Any
    pair: Any
    unit: Any
    n: Any
    b: Any
    i: Any
    j: Any
    n_iters: Any


class Layer(NamedTuple):
    """Parameters, and the pairs of W."""

    W: Any
    B: Any
    use: Any
    ign: Any
    pair: Any
    unit: Any


class Cut(NamedTuple):
    """How work is shared: by inputs into `slots` in passes that sum over them, by outputs into `slices` in others."""

    i_tiles: Any
    j_tiles: Any
    slots: Any
    slices: Any


class Models(NamedTuple):
    """Every iteration's, as the backward pass needs them; distances `E` are counted from their own means."""

    a: Any  # [t, b, j]
    mu: Any  # [t, b, j, v]
    p: Any  # the agreement's precisions, [t, b, j, v]
    log: Any  # log f(a) plus the agreement's log-scales, [t, b, j]
    log_rest: Any  # what float32 loses of it
    top: Any  # the largest logit, where outputs take more than one tile, [t, n]; by k-means float64
    all: Any  # and the sum of exponentials of logits less that
    D_use: Any  # [t, b, j], float64 as all that follow
    D_ign: Any  # [t, b, j]
    D_E: Any  # [t, b, j, v]
    D_EE: Any  # [t, b, j, v]


class Rows(NamedTuple):
    """A tile's inputs `[I]`: their numbers in the sample and among all, which exist, f(a_inp), and their pairs."""

    o_i: Any
    o_n: Any
    m_i: Any
    f: Any
    x: Any


class Columns(NamedTuple):
    """A tile's outputs: the first one's number, the others' from there, which exist `[J]`, and their weights' pairs."""

    start: Any
    o_j: Any
    m_j: Any
    W: Any


class Model(NamedTuple):
    """Of a tile's outputs; `mu` and `p` only where one chunk holds them, `[V, J]`."""

    mu: Any
    p: Any
    log: Any
    rest: Any
