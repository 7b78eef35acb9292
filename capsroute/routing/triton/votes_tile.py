"""Tiles of the vote form: votes exist a tile at a time, in registers, and again wherever they are needed.

Axes as in `votes_types.py`. A tile has some inputs, a chunk of components and some outputs, `[I, V, J]`: so ordered, a
thread that multiplies matrices holds all components of a vote, and their sums need no other thread.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false

import triton
import triton.language as tl

from .numerics import max_nan, min_nan, mul_without_fma
from .votes_halves import bounded, load_pair, multiply, sigmoid
from .votes_types import Columns, Model, Rows

FLOOR = tl.constexpr(-60.0)
"""Lowest exponent: far below rounding, far above subnormal numbers."""
LOWEST = tl.constexpr(-1.2e38)
LARGEST = tl.constexpr(1e38)
"""Of squared distances; sums of two, and of one and `LOWEST`, do not overflow."""


@triton.jit
def span(inp, pid_b, T: tl.constexpr):
    """Where a sample starts, and its number of inputs."""
    if T.PACKED:
        start = tl.load(inp.offsets + pid_b)
        return start, (tl.load(inp.offsets + pid_b + 1) - start).to(tl.int32)
    else:
        return tl.cast(pid_b, tl.int64) * inp.i, tl.cast(inp.i, tl.int32)


@triton.jit
def rows_of(inp, start, n_inp, pid_i, T: tl.constexpr):
    """Inputs that do not exist have f(a_inp) = 0."""
    o_i = pid_i * T.BLOCK_I + tl.arange(0, T.BLOCK_I)
    m_i = o_i < n_inp
    o_n = start + o_i
    if T.DOT:
        b_f = tl.load(inp.f + o_n, mask=m_i, other=0.0)
    else:
        b_f = sigmoid(tl.load(inp.a + o_n, mask=m_i, other=-float("inf"))).to(tl.float32)
    b_x = load_x(inp, o_n, m_i, 0, 0, T) if T.ONE_STEP else 0
    return Rows(o_i, o_n, m_i, b_f, b_x)


@triton.jit
def columns_of(inp, layer, pid_j, T: tl.constexpr):
    o_j = tl.arange(0, T.BLOCK_J)
    b_W = load_W(inp, layer, pid_j, 0, 0, T) if T.ONE_STEP else 0
    return Columns(tl.cast(pid_j, tl.int64) * T.BLOCK_J, o_j, o_j < inp.j - pid_j * T.BLOCK_J, b_W)


@triton.jit
def components(pid_v, T: tl.constexpr):
    """A chunk's places in the axes c and h, and which exist."""
    N_H: tl.constexpr = (T.H + T.BLOCK_H - 1) // T.BLOCK_H
    o_v = tl.arange(0, T.BLOCK_C * T.BLOCK_H)
    o_c = pid_v // N_H * T.BLOCK_C + o_v // T.BLOCK_H
    o_h = pid_v % N_H * T.BLOCK_H + o_v % T.BLOCK_H
    return o_c, o_h, (o_c < T.C) & (o_h < T.H)


@triton.jit
def in_one_c(pid_v, T: tl.constexpr):
    """Of a chunk whose votes are matrix products, the c it lies in and the first h."""
    N_H: tl.constexpr = (T.H + T.BLOCK_H - 1) // T.BLOCK_H
    return pid_v // N_H, pid_v % N_H * T.BLOCK_H


@triton.jit
def places(T: tl.constexpr):
    """The components and outputs `[V J]` of a tile's columns."""
    o_vj = tl.arange(0, T.BLOCK_H * T.BLOCK_J)
    return o_vj // T.BLOCK_J, o_vj % T.BLOCK_J


@triton.jit
def load_x(inp, o_n, m_i, c, k, T: tl.constexpr):
    """Halves of capsules `[I, D]`, of step k."""
    return load_pair(inp.pair, o_n * T.C + c, m_i, k, T.PAD_D, T.BLOCK_D)


@triton.jit
def load_W(inp, layer, pid_j, pid_v, k, T: tl.constexpr):
    """Halves of weights `[V J, D]`, of step k."""
    o_h, o_j = places(T)
    o_h += in_one_c(pid_v, T)[1]
    m_vj = (o_h < T.H) & (o_j < inp.j - pid_j * T.BLOCK_J)
    row = o_h.to(tl.int64) * inp.j + tl.cast(pid_j, tl.int64) * T.BLOCK_J + o_j if T.W_J else o_h.to(tl.int64)
    return load_pair(layer.pair, row, m_vj, k, T.PAD_D, T.BLOCK_D)


@triton.jit
def load_units(inp, layer, rows, cols, pid_v, T: tl.constexpr):
    """What the pairs of capsules `[I]` and of weights `[V, J]` are counted in."""
    c, h = in_one_c(pid_v, T)
    o_h = h + tl.arange(0, T.BLOCK_H)
    o_W = o_h[:, None] * inp.j + cols.o_j[None, :] if T.W_J else o_h[:, None] + cols.o_j[None, :] * 0
    p_W = layer.unit + (cols.start if T.W_J else cols.start * 0)
    b_W = tl.load(p_W + o_W, mask=(o_h < T.H)[:, None] & cols.m_j[None, :], other=0.0)
    return tl.load(inp.unit + rows.o_n * T.C + c, mask=rows.m_i, other=0.0), b_W


@triton.jit
def load_turned(p_x, o_x, mask):
    """A tile `[I, V, J]`, loaded as `[J, V, I]`: a thread then has many inputs, and sums over them need few others.

    The compiler gives a warp's threads the axis that lies together in memory, and then the others as they come.
    """
    b_x = tl.load(p_x + tl.permute(o_x, [2, 1, 0]), mask=tl.permute(mask, [2, 1, 0]), other=0.0)
    return tl.permute(b_x, [2, 1, 0])


@triton.jit
def store_turned(p_x, o_x, b_x, mask):
    """The same to memory."""
    tl.store(p_x + tl.permute(o_x, [2, 1, 0]), tl.permute(b_x, [2, 1, 0]), mask=tl.permute(mask, [2, 1, 0]))


@triton.jit
def load_w(inp, layer, rows, cols, o_h, m_v, d, T: tl.constexpr):
    """Weights of one d, `[I|1, V, J]`."""
    row = (cols.start + cols.o_j if T.W_J else cols.o_j * 0)[None, None, :]
    mask = (m_v[:, None] & cols.m_j[None, :])[None, :, :]
    if T.W_I:
        row += (rows.o_i.to(tl.int64) * (inp.j if T.W_J else 1))[:, None, None]
        mask = mask & rows.m_i[:, None, None]
    o_W = (row * T.D + d) * T.H + o_h[None, :, None]
    if T.ONE_PROGRAM and T.W_I:
        return load_turned(layer.W, o_W, mask)
    else:
        return tl.load(layer.W + o_W, mask=mask, other=0.0)


@triton.jit
def load_x_of(inp, rows, o_c, m_v, d, T: tl.constexpr):
    """One d of capsules, `[I, V]`."""
    p_x = inp.x + (rows.o_n[:, None] * T.C + o_c[None, :]) * T.D + d
    return bounded(tl.load(p_x, mask=rows.m_i[:, None] & m_v[None, :], other=0.0))


@triton.jit
def votes(inp, layer, rows, cols, pid_j, pid_v, T: tl.constexpr):
    """A tile's votes, `[I, V, J]`."""
    o_c, o_h, m_v = components(pid_v, T)
    if T.DOT:
        b_Wx = tl.full([T.BLOCK_I, T.BLOCK_H * T.BLOCK_J], 0.0, tl.float32)
        if T.ONE_STEP:
            b_Wx = multiply(rows.x[0], rows.x[1], tl.trans(cols.W[0]), tl.trans(cols.W[1]), b_Wx)
        else:
            for k in range(0, T.PAD_D, T.BLOCK_D):
                b_x, b_x_rest = load_x(inp, rows.o_n, rows.m_i, in_one_c(pid_v, T)[0], k, T)
                b_W, b_W_rest = load_W(inp, layer, pid_j, pid_v, k, T)
                b_Wx = multiply(b_x, b_x_rest, tl.trans(b_W), tl.trans(b_W_rest), b_Wx)
        b_x_unit, b_W_unit = load_units(inp, layer, rows, cols, pid_v, T)
        b_V = tl.reshape(b_Wx, [T.BLOCK_I, T.BLOCK_H, T.BLOCK_J]) * b_x_unit[:, None, None] * b_W_unit[None, :, :]
    else:
        b_V = tl.full([T.BLOCK_I, T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
        for d in range(T.D):
            b_x = load_x_of(inp, rows, o_c, m_v, d, T)
            b_V += b_x[:, :, None] * load_w(inp, layer, rows, cols, o_h, m_v, d, T)
    o_B, m_B = chunk(cols, pid_v, T)
    p_B, o_B, m_B = layer.B + cols.start * (T.C * T.H), o_B[None, :, :], m_B[None, :, :]
    if T.B_I:
        o_B += (rows.o_i.to(tl.int64) * inp.j * (T.C * T.H))[:, None, None]
        m_B = m_B & rows.m_i[:, None, None]
    if T.ONE_PROGRAM and T.B_I:
        return b_V + load_turned(p_B, o_B, m_B)
    else:
        return b_V + tl.load(p_B + o_B, mask=m_B, other=0.0)


@triton.jit
def load_betas(inp, layer, rows, cols, T: tl.constexpr):
    """Both betas, `[I|1, J]` each."""
    b_use = load_beta(layer.use, rows, cols, inp.j, T.USE_I, T.USE_J)
    return b_use, load_beta(layer.ign, rows, cols, inp.j, T.IGN_I, T.IGN_J)


@triton.jit
def load_beta(p_beta, rows, cols, n_out, OWN_I: tl.constexpr, OWN_J: tl.constexpr):
    o = (cols.start + cols.o_j if OWN_J else cols.o_j * 0)[None, :]
    if OWN_I:
        i = rows.o_i.to(tl.int64)[:, None]
        mask = rows.m_i[:, None] & cols.m_j[None, :]
        return tl.load(p_beta + i * (n_out if OWN_J else 1) + o, mask=mask, other=0.0)
    else:
        return tl.load(p_beta + o, mask=cols.m_j[None, :], other=0.0)


@triton.jit
def model_row(inp, t, pid_b):
    """Where a sample's outputs start in tensors `[t, b, j]`."""
    return (tl.cast(t, tl.int64) * inp.b + pid_b) * inp.j


@triton.jit
def chunk(cols, pid_v, T: tl.constexpr):
    """Places of a chunk `[V, J]` in tensors `[..., j, v]`, counted from the first output's, and which exist."""
    o_c, o_h, m_v = components(pid_v, T)
    return (o_c * T.H + o_h)[:, None] + cols.o_j[None, :] * (T.C * T.H), m_v[:, None] & cols.m_j[None, :]


@triton.jit
def clear(p_x, row, cols, T: tl.constexpr):
    """Zero all chunks."""
    for pid_v in range(T.CHUNKS):
        o_x, m_x = chunk(cols, pid_v, T)
        b_zero = tl.full([T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 0.0, tl.float64)
        tl.store(p_x + row * (T.C * T.H) + o_x, b_zero, mask=m_x)
    tl.debug_barrier()


@triton.jit
def load_one(p_x, row, cols, other):
    """A tile's part of a tensor `[t, b, j]`."""
    return tl.load(p_x + row + cols.start + cols.o_j, mask=cols.m_j, other=other)


@triton.jit
def load_all(p_x, row, cols, pid_v, T: tl.constexpr):
    """A tile's part of a tensor `[t, b, j, v]`, as `[V, J]`."""
    o_x, m_x = chunk(cols, pid_v, T)
    return tl.load(p_x + (row + cols.start) * (T.C * T.H) + o_x, mask=m_x, other=0.0)


@triton.jit
def load_p(models, row, cols, pid_v, T: tl.constexpr):
    """The agreement's precisions, `[V, J]`."""
    if T.GAUSSIAN:
        return load_all(models.p, row, cols, pid_v, T)
    else:
        return tl.full([T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 1.0, tl.float32)


@triton.jit
def model_of(models, row, cols, T: tl.constexpr):
    """Outputs that do not exist are as far from everything as can be."""
    b_mu = load_all(models.mu, row, cols, 0, T) if T.CHUNKS == 1 else 0
    b_p = load_p(models, row, cols, 0, T) if T.CHUNKS == 1 else 0
    return Model(b_mu, b_p, load_one(models.log, row, cols, LOWEST), load_one(models.log_rest, row, cols, 0.0))


@triton.jit
def load_mu_p(models, model, row, cols, pid_v, T: tl.constexpr):
    """Means and precisions of a chunk, `[V, J]`."""
    if T.CHUNKS == 1:
        return model.mu, model.p
    else:
        return load_all(models.mu, row, cols, pid_v, T), load_p(models, row, cols, pid_v, T)


@triton.jit
def distances(inp, layer, models, model, row, rows, cols, pid_j, b_V, T: tl.constexpr):
    """The E-step's squared distances `[I, J]`; takes the votes where one chunk holds them all."""
    far = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for pid_v in range(T.CHUNKS):
        b_mu, b_p = load_mu_p(models, model, row, cols, pid_v, T)
        b_E = (b_V if T.CHUNKS == 1 else votes(inp, layer, rows, cols, pid_j, pid_v, T)) - b_mu[None, :, :]
        far += tl.sum(mul_without_fma(b_E, b_E * b_p[None, :, :]), 1)
    return min_nan(far, LARGEST)


@triton.jit
def logits(far, model, T: tl.constexpr):
    """`[I, J]`; by k-means in float64: distances may be large, and yet so alike that it is the scores that count."""
    if T.GAUSSIAN:
        return model.log[None, :] - far
    else:
        return (model.log.to(tl.float64) + model.rest.to(tl.float64))[None, :] - far.to(tl.float64)


@triton.jit
def powers(far, model, b_top, T: tl.constexpr):
    """The exponential of logits less a number of each input, from large parts first, for these cancel."""
    if T.GAUSSIAN:
        b_less = (model.log[None, :] - b_top[:, None]) - far + model.rest[None, :]
    else:
        b_less = (logits(far, model, T) - b_top[:, None]).to(tl.float32)
    return tl.exp(max_nan(b_less, FLOOR))


@triton.jit
def assign(inp, models, model, t, rows, far, T: tl.constexpr):
    """R, `[I, J]`, the same in both passes.

    It has to be exactly one where an input belongs to a single output, for then gradients of logits are exactly zero:
    precisions, up to half of 1/eps, would make much of a rounding.
    """
    if T.SPLIT_J:
        o_t = tl.cast(t, tl.int64) * inp.n + rows.o_n
        b_top = tl.load(models.top + o_t, mask=rows.m_i, other=LARGEST)
        b_sum = tl.load(models.all + o_t, mask=rows.m_i, other=1.0)
        b_R = powers(far, model, b_top, T)
    else:
        b_R = powers(far, model, tl.max(logits(far, model, T), 1), T)
        b_sum = tl.sum(b_R, 1)
    return tl.where(b_R == b_sum[:, None], 1.0, b_R * (1.0 / b_sum)[:, None])


@triton.jit
def in_two(b_x):
    """A float64 number as the sum of two of float32."""
    b_first = b_x.to(tl.float32)
    return b_first, (b_x - b_first.to(tl.float64)).to(tl.float32)


@triton.jit
def add_to(p_x, b_x, mask):
    """Add to what is there: every place belongs to one program, and in it always to the same thread."""
    tl.store(p_x, b_x + tl.load(p_x, mask=mask, other=0.0), mask=mask)


@triton.jit
def total(p_x, n_slots, stride, o_x, m_x, BLOCK_S: tl.constexpr):
    """Sum over slots, in order and in float64, of what each has at the places `o_x`."""
    b_sum = tl.zeros(o_x.shape, tl.float64)
    for s in range(0, n_slots, BLOCK_S):
        o_s = s + tl.arange(0, BLOCK_S)
        p_s = p_x + o_s.to(tl.int64)[:, None] * stride + o_x[None, :]
        b_s = tl.load(p_s, mask=(o_s < n_slots)[:, None] & m_x[None, :], other=0.0)
        b_sum += tl.sum(b_s.to(tl.float64), 0)
    return b_sum
