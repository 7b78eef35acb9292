"""Tuples of pointers and sizes that the kernels of the vote form take and pass on.

Axes: `b` samples, `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties, `v` c and h
together, `n` the inputs of all samples, `t` iterations. Inputs come as `k` kinds at `p` places, `i = kind * p + place`;
parameters have one row, or one for each kind. Distances `E` are votes less a mean; `D_E` and `D_EE` are sums over
inputs of D_use times distances and times their squares.
"""

from typing import Any, NamedTuple


class Tile(NamedTuple):
    """Constants that a kernel is compiled for."""

    C: int
    D: int
    H: int
    BLOCK_I: int
    BLOCK_J: int
    BLOCK_C: int
    BLOCK_H: int
    BLOCK_M: int  # outputs of a tile of models
    BLOCK_S: int  # slots summed at a time
    SPLIT_J: bool  # outputs take more than one tile
    ONE_PROGRAM: bool  # one tile holds a sample, and one program routes it
    FLOAT64_GRADS: bool  # few inputs, over which rounding errors of gradients do not average out
    PACKED: bool
    GAUSSIAN: bool
    EPS: float
    W_K: bool  # each kind has its own W, as in the names below
    W_J: bool  # each output has its own W
    B_K: bool
    USE_K: bool
    USE_J: bool
    IGN_K: bool
    IGN_J: bool
    BETAS_K: bool  # USE_K or IGN_K


class RouteArgs(NamedTuple):
    """Inputs and parameters of a routing."""

    a: Any  # [n]
    x: Any  # [n, c, d]
    offsets: Any  # [b + 1]
    W: Any  # [k|1, j|1, d, h]
    B: Any  # [k|1, j, c, h]
    use: Any  # [k|1, j|1]
    ign: Any  # [k|1, j|1]


class Args(NamedTuple):
    """Fields of `RouteArgs`, and lengths of axes; a packed sample has up to `i` inputs."""

    a: Any
    x: Any
    offsets: Any
    W: Any
    B: Any
    use: Any
    ign: Any
    n: Any
    b: Any
    i: Any
    j: Any
    k: Any
    n_iters: Any


class SumSplit(NamedTuple):
    """Division of work: inputs into `slots` where they are summed over, outputs into `slices` for normalisers."""

    i_tiles: Any
    j_tiles: Any
    slots: Any
    slices: Any


class GradSplit(NamedTuple):
    """Division of the last backward pass: samples into `groups`, inputs into `slots`, outputs into `slices`."""

    groups: Any
    slots: Any
    slices: Any
    w_slots: Any  # partial gradients of W


class Rows(NamedTuple):
    """The inputs `[I]` of a tile: offsets in the batch, mask, f(a_inp), and their rows in arrays of kinds."""

    o_n: Any
    m_i: Any
    f: Any
    kind: Any
    part: Any  # in partial gradients, which every kind has for each place


class Columns(NamedTuple):
    """The outputs `[J]` of a tile: the first, offsets from it, and mask."""

    start: Any
    o_j: Any
    m_j: Any


class Models(NamedTuple):
    """Models of every iteration, for the backward pass; distances are from their own means."""

    a: Any  # [t, b, j]
    mu: Any  # [t, b, j, v]
    p: Any  # precisions of the agreement, [t, b, j, v]
    log: Any  # log f(a) plus log-scales of the agreement, [t, b, j]
    log_lo: Any  # its rounding error in float32
    max_logit: Any  # if SPLIT_J, [t, n]; float64 with k-means
    sum_exp: Any  # if SPLIT_J, sum of exp(logit - max_logit), [t, n]
    D_use: Any  # [t, b, j], float64 as all below
    D_ign: Any  # [t, b, j]
    D_E: Any  # [t, b, j, v]
    D_EE: Any  # [t, b, j, v]


class Model(NamedTuple):
    """The models of a tile's outputs; `mu` and `p` `[V, J]`."""

    mu: Any
    p: Any
    log: Any
    log_lo: Any


class Sums(NamedTuple):
    """Partial sums of a slot in float64; distances are from the means of the iteration before."""

    f: Any  # [slots, b]
    D_use: Any  # [slots, b, j]
    a: Any  # if BETAS_K, [slots, b, j]
    D_E: Any  # [slots, b, j, v]
    D_EE: Any  # [slots, b, j, v]
    max_logit: Any  # if SPLIT_J, of a slice, [slices, n]; float32 with Gaussian agreement
    sum_exp: Any  # if SPLIT_J, of a slice, [slices, n]


class Outputs(NamedTuple):
    """Output capsules."""

    a: Any  # [b, j]
    mu: Any  # [b, j, v]
    sig2: Any  # [b, j, v]


class SumGrads(NamedTuple):
    """Gradients of every iteration's sums, distances from its own means."""

    a: Any  # [t, b, j]
    D: Any  # of D_use, scores included unless BETAS_K, [t, b, j]
    D_lo: Any  # its rounding error in float32
    D_E: Any  # [t, b, j, v]
    D_EE: Any  # [t, b, j, v]
    R_dD: Any  # if SPLIT_J, sum_j R dD_use, [t, n]
    use: Any  # of beta_use, unless USE_K, [t, b, j], float64 as all below
    ign: Any  # of beta_ign, unless IGN_K, [t, b, j]
    B: Any  # unless B_K, [t, b, j, v]


class LogitGradSums(NamedTuple):
    """Partial sums of a slot, in float64, of gradients of logits: alone, times distances, and times their squares."""

    log: Any  # [slots, b, j]
    E: Any  # [slots, b, j, v]
    EE: Any  # [slots, b, j, v]
    R_dD: Any  # if SPLIT_J, of a slice, [slices, n]


class PartialGrads(NamedTuple):
    """Partial gradients: each program writes its own if ONE_PROGRAM, else it adds to them; `i` kinds times places."""

    W: Any  # [w_slots, i|1, j|1, d, h]
    f: Any  # if SPLIT_J, [slices, n]
    x: Any  # if SPLIT_J, [slices, n, c, d]
    B: Any  # if B_K, [groups, i, j, v]
    use: Any  # if USE_K, [groups, i, j]
    ign: Any  # if IGN_K, [groups, i, j]


class Grads(NamedTuple):
    """Gradients of the outputs, to read, and of the arguments, to write."""

    a: Any  # [b, j]
    mu: Any  # [b, j, v]
    sig2: Any  # [b, j, v]
    a_inp: Any  # [n]
    x: Any  # [n, c, d]
    W: Any  # [k|1, j|1, d, h]
    B: Any  # [k|1, j, c, h]
    use: Any  # [k|1, j]
    ign: Any  # [k|1, j]
