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
    PAD_D: int  # numbers of a capsule in memory, for these: whole steps
    DOT: bool  # votes are matrix products
    ONE_STEP: bool  # of one step: a tile's factors are loaded once
    SPLIT_J: bool  # outputs take more than one tile
    ONE_PROGRAM: bool  # one tile has a whole sample
    ONE_TILE: bool  # one tile has all that an input's gradients come from
    CHUNKS: int  # of components; with one, a tile's votes are formed once
    CENTRE_TILES: int  # tiles with weight among which programs look for a centre to count distances from
    FLOAT64_GRADS: bool  # inputs, in several chunks: roundings do not even out, so gradients are float64
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
    BETAS_I: bool  # either beta is each input's own
    BLOCK_M: int  # outputs of a tile without inputs
    BLOCK_V: int  # their components
    BLOCK_S: int  # slots read together


class RouteArgs(NamedTuple):
    """Tensors that are routed, and the layer's parameters."""

    a: Any  # [n]
    x: Any  # [n, c, d]
    offsets: Any  # [b + 1]
    W: Any  # [i|1, j|1, d, h]
    B: Any  # [i|1, j, c, h]
    use: Any  # [i|1, j|1]
    ign: Any  # [i|1, j|1]


class Halves(NamedTuple):
    """What is made of these, where votes are matrix products."""

    f: Any  # f(a), [n]
    x: Any  # as pairs of half precision, [n, c, 2, PAD]
    x_unit: Any  # what these are counted in, [n, c]
    W: Any  # [h, j|1, 2, PAD]
    W_unit: Any  # [h, j|1]


class InputPtrs(NamedTuple):
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


class LayerPtrs(NamedTuple):
    """Parameters, and the pairs of W."""

    W: Any
    B: Any
    use: Any
    ign: Any
    pair: Any
    unit: Any


class SumSplit(NamedTuple):
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


class Sums(NamedTuple):
    """Over the inputs of a slot, in float64; distances `E` are counted from the means of the iteration before.

    The largest logits are in float32 where agreement is Gaussian.
    """

    f: Any  # [slots, b]
    D_use: Any  # [slots, b, j]
    a: Any  # where betas are each input's own, [slots, b, j]
    D_E: Any  # [slots, b, j, v]
    D_EE: Any  # [slots, b, j, v]
    top: Any  # where outputs take more than one tile, likewise below: the largest logit of a slice, [slices, n]
    all: Any  # sum of exponentials of a slice's logits less that, [slices, n]


class Outputs(NamedTuple):
    """The last iteration's model."""

    a: Any  # [b, j]
    mu: Any  # [b, j, v]
    sig2: Any  # [b, j, v]


class SumGrads(NamedTuple):
    """Gradients of every iteration's sums, distances counted from its means."""

    a: Any  # [t, b, j]
    D: Any  # with those of the scores, where inputs share both betas, [t, b, j]
    D_rest: Any  # what float32 loses of it
    D_E: Any  # [t, b, j, v]
    D_EE: Any  # [t, b, j, v]
    dot: Any  # sum_j R dD_use, where outputs take more than one tile, [t, n]
    use: Any  # of beta_use, where inputs share it, [t, b, j], float64 as all that follow
    ign: Any  # of beta_ign
    B: Any  # of B, where inputs share it, [t, b, j, v]


class LogitGradSums(NamedTuple):
    """Sums over the inputs of a slot, in float64, that go back to the iteration before."""

    log: Any  # [slots, b, j]
    E: Any  # [slots, b, j, v]
    EE: Any  # [slots, b, j, v]
    dot: Any  # of the outputs of a slice, [slices, n]


class PartialGrads(NamedTuple):
    """What programs add to, each in its own place, or write where one tile has it all.

    Side by side. What is added to begins with `W`, or with `f` where that is written, and its first is empty only if
    all are.
    """

    W: Any  # [w_slots, i|1, j|1, h, d], where a program has a sample alone [b, i|1, j|1, d, h]
    f: Any  # unless they come from one tile, [slices, n]
    x: Any  # likewise, [slices, n, c, d]
    B: Any  # where each input has its own, likewise below: [groups, i, j, v]
    use: Any  # [groups, i, j]
    ign: Any  # [groups, i, j]


class Grads(NamedTuple):
    """Of the outputs, given, and of the arguments, asked for; betas have all their outputs."""

    a: Any  # [b, j]
    mu: Any  # [b, j, v]
    sig2: Any  # [b, j, v]
    a_inp: Any  # [n]
    x: Any  # [n, c, d]
    W: Any
    B: Any
    use: Any  # [i|1, j]
    ign: Any  # [i|1, j]


class GradSplit(NamedTuple):
    """How the last pass is shared: by samples into `groups`, by inputs into `slots`, by outputs into `slices`."""

    groups: Any
    slots: Any
    slices: Any
    w_slots: Any  # partial gradients of W
