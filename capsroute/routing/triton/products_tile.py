"""Tiles of the product form: votes are tensor-core products of float16 halves, formed again wherever they are needed.

Axes: `b` samples, `i` inputs, `j` outputs, `d`, `h` of capsules, whose axis `c` has size 1; `n` all inputs of all
samples, `t` iterations. A tile of votes is `[I, H, J]`: in this order a thread holds all components of a vote, and sums
over them need no other thread.
"""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numerics import MAX_DISTANCE, clamp_capsules, dot_halves, max_nan, min_nan, mul_without_fma, split_halves
from .sizes import Model

MIN_EXPONENT = tl.constexpr(-60.0)
"""Far below rounding, far above subnormal numbers."""
MIN_LOGIT = tl.constexpr(-1.2e38)
MIN_SCALED = tl.constexpr(2.0**-112)
"""Smallest number whose scale is not subnormal."""
SPLIT_ROWS = tl.constexpr(64)
"""Rows that a program splits into halves at a time."""


class Tile(NamedTuple):
    """Constants that a kernel is compiled for."""

    D: int
    H: int
    BLOCK_I: int
    BLOCK_J: int
    BLOCK_D: int
    BLOCK_H: int
    BLOCK_M: int  # outputs of a tile of models
    BLOCK_S: int  # slots summed at a time
    SPLIT_J: bool  # outputs take more than one tile
    PACKED: bool
    GAUSSIAN: bool
    EPS: float
    W_J: int  # rows of W from one output to the next, 0 if outputs share one; likewise of both betas
    USE_J: int
    IGN_J: int


Counts = namedtuple("Counts", "n b i j n_iters i_tiles j_tiles slots slices groups grad_slots grad_slices")
"""Lengths of axes, where a packed sample has up to `i` inputs, and the division of work.

Passes over inputs split these into `slots` where they are summed, and outputs into `slices` for normalisers. The
last backward pass splits samples into `groups`, inputs into `grad_slots`, and outputs into `grad_slices`.
"""


class Args(NamedTuple):
    """Arguments of a routing, then f(a_inp) and float16 halves, high then low, of rows divided by a power of two."""

    a: Any  # [n]
    x: Any  # [n, d]
    offsets: Any  # [b + 1]
    W: Any  # [j|1, d, h]
    B: Any  # [j, h]
    use: Any  # [j|1]
    ign: Any  # [j|1]
    f: Any = "float32 n"
    x_halves: Any = "float16 n 2 BLOCK_D"
    x_scale: Any = "float32 n"
    W_halves: Any = "float16 h j 2 BLOCK_D"
    W_scale: Any = "float32 h j"


Rows = namedtuple("Rows", "o_n m_i f scale x")
"""The inputs `[I]` of a tile: offsets in the batch, mask, f(a_inp), scales, and halves `[I, D]` of capsules."""


Columns = namedtuple("Columns", "start o_j m_j scale W")
"""The outputs `[J]` of a tile: the first, offsets from it, mask, and scales `[H, J]` and halves `[H J, D]` of W."""


class Models(NamedTuple):
    """Models of every iteration, for the backward pass; distances are from their own means."""

    a: Any = "float32 t b j"
    mu: Any = "float32 t b j h"
    p: Any = "float32 t b j h"  # precisions of the agreement
    log: Any = "float32 t b j"  # log f(a) plus log-scales of the agreement
    log_lo: Any = "float32 t b j"  # its rounding error in float32
    max_logit: Any = "logit split_t split_n"  # if SPLIT_J; float64 with k-means
    sum_exp: Any = "float32 split_t split_n"  # if SPLIT_J, sum of exp(logit - max_logit)
    D_use: Any = "float64 t b j"
    D_ign: Any = "float64 t b j"
    D_E: Any = "float64 t b j h"
    D_EE: Any = "float64 t b j h"


class Sums(NamedTuple):
    """Partial sums of a slot; distances are from the means of the iteration before."""

    f: Any = "float64 slots b"
    D_use: Any = "float64 slots b j"
    D_E: Any = "float64 slots b j h"
    D_EE: Any = "float64 slots b j h"
    max_logit: Any = "logit slices split_n"  # if SPLIT_J, of a slice; float32 with Gaussian agreement
    sum_exp: Any = "float64 slices split_n"  # if SPLIT_J, of a slice


class BwdWorkspace(NamedTuple):
    """What phases of the backward pass hand on."""

    da: Any = "float32 t b j"  # gradients of every iteration's models and sums, distances from its own means
    dD: Any = "float32 t b j"  # of D_use, scores included
    dD_lo: Any = "float32 t b j"  # its rounding error in float32
    dD_E: Any = "float32 t b j h"
    dD_EE: Any = "float32 t b j h"
    R_dD: Any = "float32 split_t split_n"  # if SPLIT_J, sum_j R dD_use
    duse: Any = "float64 t b j"  # of beta_use
    dign: Any = "float64 t b j"  # of beta_ign
    dB: Any = "float64 t b j h"
    dlog: Any = "float64 slots b j"  # sums of a slot: of gradients of logits
    dlog_E: Any = "float64 slots b j h"  # of these times distances
    dlog_EE: Any = "float64 slots b j h"  # of these times squares of distances
    slice_R_dD: Any = "float64 slices split_n"  # if SPLIT_J, R_dD of a slice
    dW: Any = "float32 groups grad_slots h j d"  # partial gradients
    df: Any = "float32 grad_slices split_n"  # if SPLIT_J
    dx: Any = "float32 grad_slices split_n d"  # if SPLIT_J


@triton.jit
def sigmoid_float64(b_a):
    """Compute the sigmoid in float64, whose exponential overflows beyond 700."""
    return 1.0 / (1.0 + tl.exp(-max_nan(b_a.to(tl.float64), -700.0)))


@triton.jit
def compute_scale(b_max):
    """Return the power of two by which to divide numbers up to these, so that they end up below 2^15, and its inverse.

    So large, low halves are seldom subnormal, and all products add up in one accumulator.
    """
    bits = tl.maximum(b_max, MIN_SCALED).to(tl.int32, bitcast=True) & 0x7F800000
    bits -= 14 << 23
    return bits.to(tl.float32, bitcast=True), (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def offset_halves(row, T: tl.constexpr):
    """Return offsets `[R, D]` of the high halves of rows; low ones follow `BLOCK_D` later."""
    return row.to(tl.int64)[:, None] * (2 * T.BLOCK_D) + tl.arange(0, T.BLOCK_D)[None, :]


@triton.jit
def load_halves(p_halves, row, m_row, T: tl.constexpr):
    """Load the halves `[R, D]` of rows."""
    p = p_halves + offset_halves(row, T)
    return tl.load(p, mask=m_row[:, None], other=0.0), tl.load(p + T.BLOCK_D, mask=m_row[:, None], other=0.0)


@triton.jit
def store_halves(p_halves, p_scale, row, m_row, b_x, T: tl.constexpr):
    """Split rows `[R, D]` into halves."""
    b_scale, b_inverse = compute_scale(tl.max(tl.abs(b_x), 1))
    b_hi, b_lo = split_halves(b_x * b_inverse[:, None])
    p = p_halves + offset_halves(row, T)
    tl.store(p, b_hi, mask=m_row[:, None])
    tl.store(p + T.BLOCK_D, b_lo, mask=m_row[:, None])
    tl.store(p_scale + row, b_scale, mask=m_row)


@triton.jit
def prepare(args, size, pid, n_pids, T: tl.constexpr):
    """Compute f(a_inp), and split capsules and weights into halves."""
    o_r, o_d = tl.arange(0, SPLIT_ROWS), tl.arange(0, T.BLOCK_D)
    for unit in range(pid, tl.cdiv(size.n, SPLIT_ROWS), n_pids):
        row = o_r + tl.cast(unit, tl.int64) * SPLIT_ROWS
        mask = (row < size.n)[:, None] & (o_d < T.D)[None, :]
        b_x = clamp_capsules(tl.load(args.x + row[:, None] * T.D + o_d[None, :], mask=mask, other=0.0))
        store_halves(args.x_halves, args.x_scale, row, row < size.n, b_x, T)
        b_a = tl.load(args.a + row, mask=row < size.n, other=0.0)
        tl.store(args.f + row, sigmoid_float64(b_a).to(tl.float32), mask=row < size.n)
    for unit in range(pid, tl.cdiv(size.j, SPLIT_ROWS) * T.H, n_pids):
        o_j, h = o_r + unit // T.H * SPLIT_ROWS, unit % T.H
        o_W = (o_j * T.W_J).to(tl.int64)[:, None] * (T.D * T.H) + o_d[None, :] * T.H + h
        b_W = tl.load(args.W + o_W, mask=(o_j < size.j)[:, None] & (o_d < T.D)[None, :], other=0.0)
        store_halves(args.W_halves, args.W_scale, o_j + tl.cast(h, tl.int64) * size.j, o_j < size.j, b_W, T)


@triton.jit
def load_input_tile(args, start, n_inp, pid_i, T: tl.constexpr):
    """Load a tile's inputs; f(a_inp) is zero past the end of the sample."""
    o_i = pid_i * T.BLOCK_I + tl.arange(0, T.BLOCK_I)
    o_n, m_i = start + o_i, o_i < n_inp
    b_f = tl.load(args.f + o_n, mask=m_i, other=0.0)
    b_scale = tl.load(args.x_scale + o_n, mask=m_i, other=0.0)
    return Rows(o_n, m_i, b_f, b_scale, load_halves(args.x_halves, o_n, m_i, T))


@triton.jit
def offset_weights(size, pid_j, T: tl.constexpr):
    """Return the rows `[H J]` of a tile's weights in arrays `[h, j, ...]`, and which exist."""
    o_hj = tl.arange(0, T.BLOCK_H * T.BLOCK_J)
    o_h, o_j = o_hj // T.BLOCK_J, o_hj % T.BLOCK_J
    m_hj = (o_h < T.H) & (o_j < size.j - pid_j * T.BLOCK_J)
    return o_h.to(tl.int64) * size.j + tl.cast(pid_j, tl.int64) * T.BLOCK_J + o_j, m_hj


@triton.jit
def load_output_tile(args, size, pid_j, T: tl.constexpr):
    """Load a tile's outputs."""
    start, o_j = tl.cast(pid_j, tl.int64) * T.BLOCK_J, tl.arange(0, T.BLOCK_J)
    m_j, o_h = o_j < size.j - pid_j * T.BLOCK_J, tl.arange(0, T.BLOCK_H)[:, None]
    row, m_row = offset_weights(size, pid_j, T)
    b_scale = tl.load(args.W_scale + start + o_h * size.j + o_j[None, :], mask=(o_h < T.H) & m_j[None, :], other=0.0)
    return Columns(start, o_j, m_j, b_scale, load_halves(args.W_halves, row, m_row, T))


@triton.jit
def compute_votes(args, rows, cols, T: tl.constexpr):
    """Compute a tile's votes `[I, H, J]`."""
    b_Wx = tl.full([T.BLOCK_I, T.BLOCK_H * T.BLOCK_J], 0.0, tl.float32)
    b_Wx = dot_halves(rows.x[0], rows.x[1], tl.trans(cols.W[0]), tl.trans(cols.W[1]), b_Wx)
    b_V = tl.reshape(b_Wx, [T.BLOCK_I, T.BLOCK_H, T.BLOCK_J]) * rows.scale[:, None, None] * cols.scale[None, :, :]
    return b_V + load_components(args.B, 0, cols, T)[None, :, :]


@triton.jit
def offset_model(size, t, pid_b):
    """Return where a sample's outputs start in tensors `[t, b, j]`."""
    return (tl.cast(t, tl.int64) * size.b + pid_b) * size.j


@triton.jit
def locate_models(size, t, pid_b, pid_m, T: tl.constexpr):
    """Return a tile of outputs `[M]`, mask, offsets in `[t, b, j]` and `[b, j]`; mask and offsets `[M, H]` with h."""
    o_j, o_h = pid_m * T.BLOCK_M + tl.arange(0, T.BLOCK_M), tl.arange(0, T.BLOCK_H)
    m_j = o_j < size.j
    here, o_out = offset_model(size, t, pid_b) + o_j, offset_model(size, 0, pid_b) + o_j
    o_mu, o_E = here[:, None] * T.H + o_h[None, :], o_out[:, None] * T.H + o_h[None, :]
    return o_j, m_j, here, o_out, m_j[:, None] & (o_h < T.H)[None, :], o_mu, o_E


@triton.jit
def offset_components(cols, T: tl.constexpr):
    """Return offsets `[H, J]` in tensors `[..., j, h]` from the tile's first output, and which exist."""
    o_h = tl.arange(0, T.BLOCK_H)
    return o_h[:, None] + cols.o_j[None, :] * T.H, (o_h < T.H)[:, None] & cols.m_j[None, :]


@triton.jit
def load_outputs(p_x, row, cols, other):
    """Load a tile's part `[J]` of a tensor `[t, b, j]`."""
    return tl.load(p_x + row + cols.start + cols.o_j, mask=cols.m_j, other=other)


@triton.jit
def load_components(p_x, row, cols, T: tl.constexpr):
    """Load a tile's part `[H, J]` of a tensor `[t, b, j, h]`."""
    o_x, m_x = offset_components(cols, T)
    return tl.load(p_x + (row + cols.start) * T.H + o_x, mask=m_x, other=0.0)


@triton.jit
def load_model(models, row, cols, T: tl.constexpr):
    """Load the models of a tile's outputs, `mu` and `p` `[H, J]`; logits of those that do not exist are lowest."""
    b_mu = load_components(models.mu, row, cols, T)
    b_p = load_components(models.p, row, cols, T) if T.GAUSSIAN else tl.full(b_mu.shape, 1.0, tl.float32)
    b_log = load_outputs(models.log, row, cols, MIN_LOGIT)
    return Model(b_mu, b_p, b_log, load_outputs(models.log_lo, row, cols, 0.0))


@triton.jit
def compute_distances(model, b_V):
    """Compute the E-step's squared distances `[I, J]`."""
    b_E = b_V - model.mu[None, :, :]
    return min_nan(tl.sum(mul_without_fma(b_E, b_E * model.p[None, :, :]), 1), MAX_DISTANCE)


@triton.jit
def compute_logits(b_dist, model, T: tl.constexpr):
    """Compute logits `[I, J]`, with k-means in float64: distances may be so large and alike that scores decide."""
    if T.GAUSSIAN:
        return model.log[None, :] - b_dist
    else:
        return (model.log.to(tl.float64) + model.log_lo.to(tl.float64))[None, :] - b_dist.to(tl.float64)


@triton.jit
def exp_logits(b_dist, model, b_max, T: tl.constexpr):
    """Compute `exp(logits - max)` `[I, J]`; large terms are subtracted first, for they cancel."""
    if T.GAUSSIAN:
        b_diff = (model.log[None, :] - b_max[:, None]) - b_dist + model.log_lo[None, :]
    else:
        b_diff = (compute_logits(b_dist, model, T) - b_max[:, None]).to(tl.float32)
    return tl.exp(max_nan(b_diff, MIN_EXPONENT))


@triton.jit
def compute_R(size, models, model, t, rows, b_V, T: tl.constexpr):
    """Compute the routing probabilities `[I, J]` of iteration t, the same in both passes.

    They are exactly one where an input belongs to a single output, so that gradients of logits are exactly zero:
    precisions, up to half of 1/eps, would multiply a rounding error.
    """
    b_dist = compute_distances(model, b_V)
    if T.SPLIT_J:
        o_t = tl.cast(t, tl.int64) * size.n + rows.o_n
        b_max = tl.load(models.max_logit + o_t, mask=rows.m_i, other=MAX_DISTANCE)
        b_sum = tl.load(models.sum_exp + o_t, mask=rows.m_i, other=1.0)
        b_exp = exp_logits(b_dist, model, b_max, T)
    else:
        b_exp = exp_logits(b_dist, model, tl.max(compute_logits(b_dist, model, T), 1), T)
        b_sum = tl.sum(b_exp, 1)
    return tl.where(b_exp == b_sum[:, None], 1.0, b_exp * (1.0 / b_sum)[:, None])


@triton.jit
def add_distances(b_weight, b_E, b_sum, b_sum_squares):
    """Add a tile's weighted distances `[I, H, J]`, and their squares, to sums."""
    b_wxE = b_weight[:, None, :] * b_E
    return b_sum + b_wxE, b_sum_squares + b_wxE * b_E


@triton.jit
def split_float64(b_x):
    """Split float64 numbers into a float32 number and its rounding error."""
    b_hi = b_x.to(tl.float32)
    return b_hi, (b_x - b_hi.to(tl.float64)).to(tl.float32)
