"""Tiles of the vote form: votes exist a tile at a time, in registers, and are formed again wherever they are needed.

Axes as in `votes_types.py`. A tile has some inputs, all components and some outputs, `[I, V, J]`: in this order a
thread holds all components of a vote, and sums over them need no other thread.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false

import triton
import triton.language as tl

from .numerics import clamp_capsules, max_nan, min_nan, mul_without_fma
from .votes_types import Args, Columns, Model, Rows

MIN_EXPONENT = tl.constexpr(-60.0)
"""Far below rounding, far above subnormal numbers."""
MIN_LOGIT = tl.constexpr(-1.2e38)
MAX_DISTANCE = tl.constexpr(1e38)
"""Of squared distances: sums of two, and of one and `MIN_LOGIT`, do not overflow."""


@triton.jit
def make_args(r, n, b, i, j, k, n_iters):
    """Merge `RouteArgs` and sizes."""
    return Args(r.a, r.x, r.offsets, r.W, r.B, r.use, r.ign, n, b, i, j, k, n_iters)


@triton.jit
def sigmoid_float64(b_a):
    """Compute the sigmoid in float64, whose exponential overflows beyond 700."""
    return 1.0 / (1.0 + tl.exp(-max_nan(b_a.to(tl.float64), -700.0)))


@triton.jit
def load_input_tile(args, start, n_inp, pid_i, T: tl.constexpr):
    """Load a tile's inputs; f(a_inp) is zero past the end of the sample."""
    o_i = pid_i * T.BLOCK_I + tl.arange(0, T.BLOCK_I)
    m_i = o_i < n_inp
    o_n = start + o_i
    b_f = sigmoid_float64(tl.load(args.a + o_n, mask=m_i, other=-float("inf"))).to(tl.float32)
    n_places, max_places = tl.maximum(n_inp // tl.maximum(args.k, 1), 1), args.i // tl.maximum(args.k, 1)
    kind = o_i // n_places
    part = kind * max_places + (o_i - kind * n_places)
    return Rows(o_n, m_i, b_f, kind.to(tl.int64), part.to(tl.int64))


@triton.jit
def load_output_tile(args, pid_j, T: tl.constexpr):
    """Return a tile's outputs."""
    o_j = tl.arange(0, T.BLOCK_J)
    return Columns(tl.cast(pid_j, tl.int64) * T.BLOCK_J, o_j, o_j < args.j - pid_j * T.BLOCK_J)


@triton.jit
def offset_components(T: tl.constexpr):
    """Return offsets of the components `[V]` on axes c and h, and which exist."""
    o_v = tl.arange(0, T.BLOCK_C * T.BLOCK_H)
    o_c, o_h = o_v // T.BLOCK_H, o_v % T.BLOCK_H
    return o_c, o_h, (o_c < T.C) & (o_h < T.H)


@triton.jit
def offset_votes(cols, T: tl.constexpr):
    """Return offsets `[V, J]` in tensors `[..., j, v]` from the tile's first output, and which exist."""
    o_c, o_h, m_v = offset_components(T)
    return (o_c * T.H + o_h)[:, None] + cols.o_j[None, :] * (T.C * T.H), m_v[:, None] & cols.m_j[None, :]


@triton.jit
def load_transposed(p_x, o_x, mask):
    """Load a tile `[I, V, J]` as `[J, V, I]`, so that a thread gets many inputs and sums over them need few others.

    The compiler spreads a warp over the axis that is contiguous in memory first, then over the others in order.
    """
    b_x = tl.load(p_x + tl.permute(o_x, [2, 1, 0]), mask=tl.permute(mask, [2, 1, 0]), other=0.0)
    return tl.permute(b_x, [2, 1, 0])


@triton.jit
def store_transposed(p_x, o_x, b_x, mask):
    """Store a tile in the layout of `load_transposed`."""
    tl.store(p_x + tl.permute(o_x, [2, 1, 0]), tl.permute(b_x, [2, 1, 0]), mask=tl.permute(mask, [2, 1, 0]))


@triton.jit
def load_W_slice(args, rows, cols, d, T: tl.constexpr):
    """Load the weights `[I|1, V, J]` of one d."""
    _, o_h, m_v = offset_components(T)
    row = (cols.start + cols.o_j if T.W_J else cols.o_j * 0)[None, None, :]
    mask = (m_v[:, None] & cols.m_j[None, :])[None, :, :]
    if T.W_K:
        row += (rows.kind * (args.j if T.W_J else 1))[:, None, None]
        mask = mask & rows.m_i[:, None, None]
    o_W = (row * T.D + d) * T.H + o_h[None, :, None]
    if T.ONE_PROGRAM and T.W_K:
        return load_transposed(args.W, o_W, mask)
    else:
        return tl.load(args.W + o_W, mask=mask, other=0.0)


@triton.jit
def load_x_slice(args, rows, d, T: tl.constexpr):
    """Load capsules `[I, V]` of one d."""
    o_c, _, m_v = offset_components(T)
    p_x = args.x + (rows.o_n[:, None] * T.C + o_c[None, :]) * T.D + d
    return clamp_capsules(tl.load(p_x, mask=rows.m_i[:, None] & m_v[None, :], other=0.0))


@triton.jit
def compute_votes(args, rows, cols, T: tl.constexpr):
    """Compute a tile's votes `[I, V, J]`."""
    b_V = tl.full([T.BLOCK_I, T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    for d in range(T.D):
        b_V += load_x_slice(args, rows, d, T)[:, :, None] * load_W_slice(args, rows, cols, d, T)
    o_B, m_B = offset_votes(cols, T)
    p_B, o_B, m_B = args.B + cols.start * (T.C * T.H), o_B[None, :, :], m_B[None, :, :]
    if T.B_K:
        o_B += (rows.kind * args.j * (T.C * T.H))[:, None, None]
        m_B = m_B & rows.m_i[:, None, None]
    if T.ONE_PROGRAM and T.B_K:
        return b_V + load_transposed(p_B, o_B, m_B)
    else:
        return b_V + tl.load(p_B + o_B, mask=m_B, other=0.0)


@triton.jit
def load_beta(p_beta, rows, cols, n_out, OWN_K: tl.constexpr, OWN_J: tl.constexpr):
    """Load one beta `[I|1, J]`."""
    o = (cols.start + cols.o_j if OWN_J else cols.o_j * 0)[None, :]
    if OWN_K:
        mask = rows.m_i[:, None] & cols.m_j[None, :]
        return tl.load(p_beta + rows.kind[:, None] * (n_out if OWN_J else 1) + o, mask=mask, other=0.0)
    else:
        return tl.load(p_beta + o, mask=cols.m_j[None, :], other=0.0)


@triton.jit
def load_betas(args, rows, cols, T: tl.constexpr):
    """Load beta_use and beta_ign, `[I|1, J]` each."""
    b_use = load_beta(args.use, rows, cols, args.j, T.USE_K, T.USE_J)
    return b_use, load_beta(args.ign, rows, cols, args.j, T.IGN_K, T.IGN_J)


@triton.jit
def offset_model(args, t, pid_b):
    """Return where a sample's outputs start in tensors `[t, b, j]`."""
    return (tl.cast(t, tl.int64) * args.b + pid_b) * args.j


@triton.jit
def load_outputs(p_x, row, cols, other):
    """Load a tile's part `[J]` of a tensor `[t, b, j]`."""
    return tl.load(p_x + row + cols.start + cols.o_j, mask=cols.m_j, other=other)


@triton.jit
def load_components(p_x, row, cols, T: tl.constexpr):
    """Load a tile's part `[V, J]` of a tensor `[t, b, j, v]`."""
    o_x, m_x = offset_votes(cols, T)
    return tl.load(p_x + (row + cols.start) * (T.C * T.H) + o_x, mask=m_x, other=0.0)


@triton.jit
def load_model(models, row, cols, T: tl.constexpr):
    """Load the models of a tile's outputs; logits of those that do not exist are lowest."""
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
def compute_R(args, models, model, t, rows, b_V, T: tl.constexpr):
    """Compute the routing probabilities `[I, J]` of iteration t, the same in both passes.

    They are exactly one where an input belongs to a single output, so that gradients of logits are exactly zero:
    precisions, up to half of 1/eps, would multiply a rounding error.
    """
    b_dist = compute_distances(model, b_V)
    if T.SPLIT_J:
        o_t = tl.cast(t, tl.int64) * args.n + rows.o_n
        b_max = tl.load(models.max_logit + o_t, mask=rows.m_i, other=MAX_DISTANCE)
        b_sum = tl.load(models.sum_exp + o_t, mask=rows.m_i, other=1.0)
        b_exp = exp_logits(b_dist, model, b_max, T)
    else:
        b_exp = exp_logits(b_dist, model, tl.max(compute_logits(b_dist, model, T), 1), T)
        b_sum = tl.sum(b_exp, 1)
    return tl.where(b_exp == b_sum[:, None], 1.0, b_exp * (1.0 / b_sum)[:, None])


@triton.jit
def split_float64(b_x):
    """Split float64 numbers into a float32 number and its rounding error."""
    b_hi = b_x.to(tl.float32)
    return b_hi, (b_x - b_hi.to(tl.float64)).to(tl.float32)


@triton.jit
def sum_slots(p_x, n_slots, stride, o_x, m_x, BLOCK_S: tl.constexpr, n_steps=1, step=0):
    """Sum the numbers at offsets `o_x` over slots, in order and in float64; `n_steps` of a slot are `step` apart."""
    SIZE: tl.constexpr = o_x.numel
    b_sum = tl.zeros([SIZE], tl.float64)
    o_flat, m_flat = tl.reshape(o_x, [SIZE]), tl.reshape(m_x, [SIZE])
    for s in range(0, n_slots * n_steps, BLOCK_S):
        o_s = s + tl.arange(0, BLOCK_S)
        o_slot = (o_s // n_steps).to(tl.int64) * stride + (o_s % n_steps).to(tl.int64) * step
        m_s = (o_s < n_slots * n_steps)[:, None] & m_flat[None, :]
        b_s = tl.load(p_x + o_slot[:, None] + o_flat[None, :], mask=m_s, other=0.0)
        b_sum += tl.sum(b_s.to(tl.float64), 0)
    return tl.reshape(b_sum, o_x.shape)
