"""Tiles of the vote form: votes exist a tile at a time, in registers, and again wherever they are needed.

Axes: `b` samples, `i` inputs, `j` outputs, `c`, `d`, `h` of capsules; `v` is `c` and `h` together, `n` all inputs of
all samples one after the other. A tile has some inputs, some outputs and a chunk of components: `[I, J, V]`.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

FLOOR = tl.constexpr(-60.0)
"""Lowest exponent: far below rounding, far above subnormal numbers."""
LOWEST = tl.constexpr(-3.3e38)
LARGEST = tl.constexpr(3e38)
LARGEST_X = tl.constexpr(float.fromhex("0x1.fffffep127") ** 0.25)
"""Capsules are bounded by it, so that no square of a vote overflows."""


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
    DOT: bool  # votes are matrix products
    PRECISION: str  # of these
    WIDE: bool  # outputs take more than one tile
    SLICES: int  # of outputs, each with its part of the softmax's sum
    CHUNKS: int  # of components; with one, a tile's votes are formed once
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
    BLOCK_M: int  # outputs of a tile without inputs
    BLOCK_V: int  # their components
    BLOCK_S: int  # slots read together


class Inputs(NamedTuple):
    """Tensors and sizes."""

    a: Any  # [n]
    x: Any  # [n, c, d]
    offsets: Any  # [b + 1]
    n: Any
    b: Any
    i: Any
    j: Any
    n_iters: Any


class Layer(NamedTuple):
    """Parameters."""

    W: Any  # [i|1, j|1, d, h]
    B: Any  # [i|1, j, c, h]
    use: Any  # [i|1, j|1]
    ign: Any  # [i|1, j|1]


class Cut(NamedTuple):
    """How work is shared: by inputs into `slots`, by outputs into `slices`, in passes that sum over inputs."""

    i_tiles: Any
    j_tiles: Any
    slots: Any
    slices: Any


class Models(NamedTuple):
    """Every iteration's, as the backward pass needs them; distances `E` are counted from their own means."""

    a: Any  # [t, b, j]
    mu: Any  # [t, b, j, v]
    sig2: Any  # [t, b, j, v]
    log: Any  # log f(a) plus the agreement's log-scales, [t, b, j], float64 as all that follow
    D_use: Any  # [t, b, j]
    D_ign: Any  # [t, b, j]
    D_E: Any  # [t, b, j, v]
    D_EE: Any  # [t, b, j, v]
    lse: Any  # the softmax's normaliser, [t, slices, n]


@triton.jit
def span(inp, pid_b, T: tl.constexpr):
    """Where a sample starts, and its number of inputs."""
    if T.PACKED:
        start = tl.load(inp.offsets + pid_b)
        return start, (tl.load(inp.offsets + pid_b + 1) - start).to(tl.int32)
    else:
        return tl.cast(pid_b, tl.int64) * inp.i, tl.cast(inp.i, tl.int32)


@triton.jit
def sigmoid(b_a):
    """In float64, which overflows beyond 700."""
    return 1.0 / (1.0 + tl.exp(-tl.maximum(b_a.to(tl.float64), -700.0)))


@triton.jit
def rows(inp, start, n_inp, pid_i, T: tl.constexpr):
    """A tile's inputs: their numbers in the sample and among all, which exist, and f(a_inp), 0 where none does."""
    o_i = pid_i * T.BLOCK_I + tl.arange(0, T.BLOCK_I)
    m_i = o_i < n_inp
    o_n = start + o_i
    b_f = sigmoid(tl.load(inp.a + o_n, mask=m_i, other=-float("inf"))).to(tl.float32)
    return o_i, o_n, m_i, b_f


@triton.jit
def columns(inp, pid_j, T: tl.constexpr):
    """A tile's outputs, and which exist."""
    o_j = pid_j * T.BLOCK_J + tl.arange(0, T.BLOCK_J)
    return o_j, o_j < inp.j


@triton.jit
def components(pid_v, T: tl.constexpr):
    """A chunk's places in the axes c and h, and which exist."""
    N_H: tl.constexpr = (T.H + T.BLOCK_H - 1) // T.BLOCK_H
    o_v = tl.arange(0, T.BLOCK_C * T.BLOCK_H)
    o_c = pid_v // N_H * T.BLOCK_C + o_v // T.BLOCK_H
    o_h = pid_v % N_H * T.BLOCK_H + o_v % T.BLOCK_H
    return o_c, o_h, (o_c < T.C) & (o_h < T.H)


@triton.jit
def products(inp, pid_j, pid_v, T: tl.constexpr):
    """The same for matrix products, whose chunks lie in one c: that c, the columns' outputs and h, and which exist."""
    N_H: tl.constexpr = (T.H + T.BLOCK_H - 1) // T.BLOCK_H
    o_jh = tl.arange(0, T.BLOCK_J * T.BLOCK_H)
    o_j = pid_j * T.BLOCK_J + o_jh // T.BLOCK_H
    o_h = pid_v % N_H * T.BLOCK_H + o_jh % T.BLOCK_H
    return pid_v // N_H, o_j, o_h, (o_j < inp.j) & (o_h < T.H)


@triton.jit
def bounded(b_x):
    return tl.minimum(tl.maximum(b_x.to(tl.float32), -LARGEST_X), LARGEST_X)


@triton.jit
def load_x(inp, o_n, m_i, c, o_d, T: tl.constexpr):
    """Capsules `[I, D]`."""
    p_x = inp.x + (o_n[:, None] * T.C + c) * T.D + o_d[None, :]
    return bounded(tl.load(p_x, mask=m_i[:, None] & (o_d < T.D)[None, :], other=0.0))


@triton.jit
def load_w(inp, layer, o_i, m_i, o_j, m_j, o_h, m_v, d, T: tl.constexpr):
    """Weights of one d, `[I|1, J, V]`."""
    row = (o_j if T.W_J else o_j * 0)[None, :, None]
    mask = (m_j[:, None] & m_v[None, :])[None, :, :]
    if T.W_I:
        row += (o_i.to(tl.int64) * (inp.j if T.W_J else 1))[:, None, None]
        mask = mask & m_i[:, None, None]
    return tl.load(layer.W + (row * T.D + d) * T.H + o_h[None, None, :], mask=mask, other=0.0)


@triton.jit
def votes(inp, layer, o_i, o_n, m_i, pid_j, pid_v, T: tl.constexpr):
    """A tile's votes, `[I, J, V]`."""
    o_j, m_j = columns(inp, pid_j, T)
    o_c, o_h, m_v = components(pid_v, T)
    if T.DOT:
        c, o_jx, o_hx, m_jh = products(inp, pid_j, pid_v, T)
        b_Wx = tl.full([T.BLOCK_I, T.BLOCK_J * T.BLOCK_H], 0.0, tl.float32)
        for k in tl.range(0, T.D, T.BLOCK_D, num_stages=3):
            o_d = k + tl.arange(0, T.BLOCK_D)
            row = (o_jx if T.W_J else o_jx * 0)[None, :]
            p_W = layer.W + (row * T.D + o_d[:, None]) * T.H + o_hx[None, :]
            b_W = tl.load(p_W, mask=(o_d < T.D)[:, None] & m_jh[None, :], other=0.0)
            b_Wx = tl.dot(load_x(inp, o_n, m_i, c, o_d, T), b_W, b_Wx, input_precision=T.PRECISION)
        b_V = tl.reshape(b_Wx, [T.BLOCK_I, T.BLOCK_J, T.BLOCK_H])
    else:
        b_V = tl.full([T.BLOCK_I, T.BLOCK_J, T.BLOCK_C * T.BLOCK_H], 0.0, tl.float32)
        p_x = inp.x + (o_n[:, None] * T.C + o_c[None, :]) * T.D
        m_x = m_i[:, None] & m_v[None, :]
        for d in range(T.D):
            b_x = bounded(tl.load(p_x + d, mask=m_x, other=0.0))
            b_V += b_x[:, None, :] * load_w(inp, layer, o_i, m_i, o_j, m_j, o_h, m_v, d, T)
    o_B, m_B = chunk(o_j, m_j, pid_v, T)
    o_B, m_B = o_B[None, :, :], m_B[None, :, :]
    if T.B_I:
        o_B += (o_i.to(tl.int64) * inp.j * (T.C * T.H))[:, None, None]
        m_B = m_B & m_i[:, None, None]
    return b_V + tl.load(layer.B + o_B, mask=m_B, other=0.0)


@triton.jit
def load_betas(inp, layer, o_i, m_i, o_j, m_j, T: tl.constexpr):
    """Both betas, `[I|1, J]` each."""
    i = o_i.to(tl.int64)[:, None]
    b_use = load_beta(layer.use, i, m_i, o_j, m_j, inp.j, T.USE_I, T.USE_J)
    return b_use, load_beta(layer.ign, i, m_i, o_j, m_j, inp.j, T.IGN_I, T.IGN_J)


@triton.jit
def load_beta(p_beta, i, m_i, o_j, m_j, n_out, OWN_I: tl.constexpr, OWN_J: tl.constexpr):
    o = (o_j if OWN_J else o_j * 0)[None, :]
    if OWN_I:
        return tl.load(p_beta + i * (n_out if OWN_J else 1) + o, mask=m_i[:, None] & m_j[None, :], other=0.0)
    else:
        return tl.load(p_beta + o, mask=m_j[None, :], other=0.0)


@triton.jit
def model_row(inp, t, pid_b):
    """Where a sample's outputs start in tensors `[t, b, j]`."""
    return (tl.cast(t, tl.int64) * inp.b + pid_b) * inp.j


@triton.jit
def chunk(o_j, m_j, pid_v, T: tl.constexpr):
    """Places of a chunk `[J, V]` in tensors `[..., j, v]`, and which exist."""
    o_c, o_h, m_v = components(pid_v, T)
    return o_j[:, None] * (T.C * T.H) + (o_c * T.H + o_h)[None, :], m_j[:, None] & m_v[None, :]


@triton.jit
def clear(p_x, o_j, m_j, T: tl.constexpr):
    """Zero all chunks."""
    for pid_v in range(T.CHUNKS):
        o_x, m_x = chunk(o_j, m_j, pid_v, T)
        tl.store(p_x + o_x, tl.full([T.BLOCK_J, T.BLOCK_C * T.BLOCK_H], 0.0, tl.float64), mask=m_x)
    tl.debug_barrier()


@triton.jit
def load_model(p_model, row, o_j, m_j, pid_v, other, T: tl.constexpr):
    """A chunk of a tensor `[t, b, j, v]`, as `[J, V]`."""
    o_x, m_x = chunk(row + o_j, m_j, pid_v, T)
    return tl.load(p_model + o_x, mask=m_x, other=other)


@triton.jit
def load_precisions(models, row, o_j, m_j, pid_v, T: tl.constexpr):
    """The agreement's, `[J, V]`."""
    if T.GAUSSIAN:
        return 0.5 / load_model(models.sig2, row, o_j, m_j, pid_v, 1.0, T)
    else:
        return tl.full([T.BLOCK_J, T.BLOCK_C * T.BLOCK_H], 1.0, tl.float32)


@triton.jit
def to_logits(inp, models, row, far, o_j, m_j):
    """From the weighted squared distances, in float64, for it is their differences that count."""
    b_log = tl.load(models.log + row + o_j, mask=m_j, other=0.0)
    return tl.where(m_j[None, :], b_log[None, :] - tl.minimum(far, LARGEST).to(tl.float64), LOWEST)


@triton.jit
def powers(logits, zero, m_j):
    """The exponential of float64 logits less `zero [I]`, in float32."""
    return tl.where(m_j[None, :], tl.exp(tl.maximum((logits - zero[:, None]).to(tl.float32), FLOOR)), 0.0)


@triton.jit
def load_lse(inp, models, t, o_n, m_i, T: tl.constexpr):
    """The normalisers of a tile's inputs, from its parts."""
    p_lse = models.lse + tl.cast(t, tl.int64) * T.SLICES * inp.n + o_n
    b_top = tl.load(p_lse, mask=m_i, other=0.0)
    if T.SLICES == 1:
        return b_top
    else:
        for k in range(1, T.SLICES):
            b_top = tl.maximum(b_top, tl.load(p_lse + tl.cast(k, tl.int64) * inp.n, mask=m_i, other=0.0))
        b_sum = tl.full([T.BLOCK_I], 0.0, tl.float64)
        for k in range(T.SLICES):
            b_sum += tl.exp(tl.load(p_lse + tl.cast(k, tl.int64) * inp.n, mask=m_i, other=0.0) - b_top)
        return b_top + tl.log(b_sum)


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
