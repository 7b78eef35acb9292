"""From gradients of a tile's votes to those of what they were formed from. Axes as in `votes_types.py`."""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

import triton
import triton.language as tl

from .numerics import mul_without_fma
from .votes_halves import LARGEST_X, in_halves, multiply, sigmoid, units
from .votes_tile import (
    add_to,
    chunk,
    components,
    in_one_c,
    load_units,
    load_W,
    load_w,
    load_x,
    load_x_of,
    places,
    store_turned,
)


@triton.jit
def clear_all(p_first, n_lines, pid, n_pids):
    """Zero lines of memory, of 32 numbers each."""
    for unit in range(pid, tl.cdiv(n_lines, 64), n_pids):
        o = tl.arange(0, 64 * 32)
        m = o < tl.minimum(n_lines - unit * 64, 64) * 32
        tl.store(p_first + tl.cast(unit, tl.int64) * (64 * 32) + o, tl.full([64 * 32], 0.0, tl.float32), mask=m)


@triton.jit
def put(p_x, b_x, mask, T: tl.constexpr):
    """Add to a program's own places; where it has a sample alone, they are written once, whatever was there."""
    if T.ONE_PROGRAM:
        tl.store(p_x, b_x, mask=mask)
    else:
        add_to(p_x, b_x, mask)


@triton.jit
def put_tile(p_x, o_x, b_x, mask, T: tl.constexpr):
    """The same of `[I, V, J]`."""
    if T.ONE_PROGRAM:
        store_turned(p_x, o_x, b_x, mask)
    else:
        add_to(p_x + o_x, b_x, mask)


@triton.jit
def place_W(row, o_h, d, T: tl.constexpr):
    """Where parts have a weight's gradient."""
    return (row * T.D + d) * T.H + o_h if T.ONE_PROGRAM else (row * T.H + o_h) * T.D + d


@triton.jit
def put_x(inp, p_dx, o_x, b_dx, mask, T: tl.constexpr):
    """The same for gradients of x."""
    store_x(p_dx, o_x, load_old(inp, p_dx, o_x, mask, T), b_dx, mask, T)


@triton.jit
def load_old(inp, p_dx, o_x, mask, T: tl.constexpr):
    """For `store_x`: gradients of x so far; where they come from one tile, x, beyond whose bounds there are none."""
    return tl.load((inp.x if T.ONE_TILE else p_dx) + o_x, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_x(p_dx, o_x, b_old, b_dx, mask, T: tl.constexpr):
    """Gradients of x, final where they come from one tile, else added to those so far."""
    b_dx = tl.where(tl.abs(b_old) <= LARGEST_X, b_dx, 0.0) if T.ONE_TILE else b_old + b_dx
    tl.store(p_dx + o_x, b_dx.to(p_dx.dtype.element_ty), mask=mask)


@triton.jit
def put_f(inp, grads, parts, pid_x, rows, b_df, T: tl.constexpr):
    """The same for gradients of f(a_inp), `[I]`, or of the scores themselves."""
    if T.ONE_TILE:
        b_f = sigmoid(tl.load(inp.a + rows.o_n, mask=rows.m_i, other=0.0))
        b_da = b_df.to(tl.float64) * b_f * (1.0 - b_f)
        tl.store(grads.a_inp + rows.o_n, b_da.to(tl.float32).to(grads.a_inp.dtype.element_ty), mask=rows.m_i)
    else:
        add_to(parts.f + tl.cast(pid_x, tl.int64) * inp.n + rows.o_n, b_df, rows.m_i)


@triton.jit
def push(inp, layer, parts, grads, p_W, pid_g, pid_x, rows, cols, pid_j, pid_v, b_dV, b_dW, T: tl.constexpr):
    """Adds what the gradients of a tile's votes give to those of x, W and, where each input has its own, B.

    Those of W, `[V J, D]`, are added to what is given and returned, where one tile holds them.
    """
    p_dx = grads.x if T.ONE_TILE else parts.x + tl.cast(pid_x, tl.int64) * inp.n * (T.C * T.D)
    if T.B_I:
        o_B, m_B = chunk(cols, pid_v, T)
        o_i = (tl.cast(pid_g, tl.int64) * inp.i + rows.o_i) * inp.j + cols.start
        o_B = o_i[:, None, None] * (T.C * T.H) + o_B[None, :, :]
        put_tile(parts.B, o_B, b_dV, rows.m_i[:, None, None] & m_B[None, :, :], T)
    if T.DOT:
        b_unit_x, b_unit_W = load_units(inp, layer, rows, cols, pid_v, T)
        push_x(inp, layer, p_dx, rows, cols, pid_j, pid_v, b_dV * b_unit_W[None, :, :], T)
        b_dW = push_W(inp, p_W, rows, cols, pid_v, b_dV * b_unit_x[:, None, None], b_dW, T)
    else:
        push_each(inp, layer, p_dx, p_W, rows, cols, pid_v, b_dV, T)
    if not T.ONE_STEP:
        tl.debug_barrier()  # other calls may give a place to another thread
    return b_dW


@triton.jit
def push_x(inp, layer, p_dx, rows, cols, pid_j, pid_v, b_dV, T: tl.constexpr):
    """To those of x, by matrix products, from gradients of votes in units of the weights."""
    b_unit, b_inverse = units(tl.max(tl.max(tl.abs(b_dV), 1), 1))
    b_d, b_d_rest = in_halves(tl.reshape(b_dV * b_inverse[:, None, None], [T.BLOCK_I, T.BLOCK_H * T.BLOCK_J]))
    for k in range(0, T.PAD_D, T.BLOCK_D):
        o_d = k + tl.arange(0, T.BLOCK_D)
        o_x = (rows.o_n[:, None] * T.C + in_one_c(pid_v, T)[0]) * T.D + o_d[None, :]
        m_x = rows.m_i[:, None] & (o_d < T.D)[None, :]
        b_old = load_old(inp, p_dx, o_x, m_x, T)  # before the product, not to wait after it
        b_W, b_W_rest = cols.W if T.ONE_STEP else load_W(inp, layer, pid_j, pid_v, k, T)
        b_new = multiply(b_d, b_d_rest, b_W, b_W_rest, tl.full([T.BLOCK_I, T.BLOCK_D], 0.0, tl.float32))
        store_x(p_dx, o_x, b_old, b_new * b_unit[:, None], m_x, T)


@triton.jit
def push_W(inp, p_W, rows, cols, pid_v, b_dV, b_dW, T: tl.constexpr):
    """To those of W, by matrix products, from gradients of votes in units of the capsules; see `push`."""
    VJ: tl.constexpr = T.BLOCK_H * T.BLOCK_J
    b_unit, b_inverse = units(tl.max(tl.abs(b_dV), 0))
    b_d, b_d_rest = in_halves(tl.reshape(b_dV * b_inverse[None, :, :], [T.BLOCK_I, VJ]))
    b_unit = tl.reshape(b_unit, [VJ, 1])
    if T.ONE_STEP:
        b_new = tl.full([VJ, T.BLOCK_D], 0.0, tl.float32)
        b_new = multiply(tl.trans(b_d), tl.trans(b_d_rest), rows.x[0], rows.x[1], b_new)
        return b_dW + b_new * b_unit
    else:
        for k in range(0, T.PAD_D, T.BLOCK_D):
            b_x, b_x_rest = load_x(inp, rows.o_n, rows.m_i, in_one_c(pid_v, T)[0], k, T)
            b_new = tl.full([VJ, T.BLOCK_D], 0.0, tl.float32)
            b_new = multiply(tl.trans(b_d), tl.trans(b_d_rest), b_x, b_x_rest, b_new)
            add_W(inp, p_W, cols, pid_v, k, mul_without_fma(b_new, b_unit), T)
        return b_dW


@triton.jit
def add_W(inp, p_W, cols, pid_v, k, b_dW, T: tl.constexpr):
    """Gradients of weights `[V J, D]` to those in memory, which are none yet where one tile holds them."""
    o_d = k + tl.arange(0, T.BLOCK_D)
    if T.W_J:
        o_h, o_j = places(T)
        o_h += in_one_c(pid_v, T)[1]
        row = (cols.start + o_j) * T.H + o_h
        m_W = (o_h < T.H) & (cols.start + o_j < inp.j)
        p_dW, m_dW = p_W + row[:, None] * T.D + o_d[None, :], m_W[:, None] & (o_d < T.D)[None, :]
        if T.ONE_STEP:
            tl.store(p_dW, b_dW, mask=m_dW)
        else:
            add_to(p_dW, b_dW, m_dW)
    else:
        o_h = in_one_c(pid_v, T)[1] + tl.arange(0, T.BLOCK_H)
        m_W = (o_h < T.H)[:, None] & (o_d < T.D)[None, :]
        b_dW = tl.sum(tl.reshape(b_dW, [T.BLOCK_H, T.BLOCK_J, T.BLOCK_D]), 1)
        add_to(p_W + o_h[:, None] * T.D + o_d[None, :], b_dW, m_W)


@triton.jit
def push_each(inp, layer, p_dx, p_W, rows, cols, pid_v, b_dV, T: tl.constexpr):
    """The same without matrix products."""
    o_c, o_h, m_v = components(pid_v, T)
    N_H: tl.constexpr = (T.H + T.BLOCK_H - 1) // T.BLOCK_H
    o_cx = pid_v // N_H * T.BLOCK_C + tl.arange(0, T.BLOCK_C)
    o_hx = pid_v % N_H * T.BLOCK_H + tl.arange(0, T.BLOCK_H)
    m_h = o_hx < T.H
    o_j = cols.start + cols.o_j
    for d in range(T.D):
        b_w = load_w(inp, layer, rows, cols, o_h, m_v, d, T).to(b_dV.dtype)
        b_dx = mul_without_fma(b_dV, b_w)
        if T.ONE_PROGRAM:  # a thread has components of one output
            b_dx = tl.sum(tl.sum(tl.reshape(b_dx, [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H, T.BLOCK_J]), 2), 2)
        else:
            b_dx = tl.sum(tl.reshape(tl.sum(b_dx, 2), [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H]), 2)
        m_x = rows.m_i[:, None] & (o_cx < T.C)[None, :]
        put_x(inp, p_dx, (rows.o_n[:, None] * T.C + o_cx[None, :]) * T.D + d, b_dx, m_x, T)
        b_x = load_x_of(inp, rows, o_c, m_v, d, T)[:, :, None].to(b_dV.dtype)
        b_dW = mul_without_fma(b_dV, b_x)
        if T.W_I:
            i = rows.o_i.to(tl.int64)
            if T.W_J:
                b_dW = tl.reshape(b_dW, [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H * T.BLOCK_J])
                b_dW = tl.reshape(tl.sum(b_dW, 1), [T.BLOCK_I, T.BLOCK_H, T.BLOCK_J])
                row = (i * inp.j)[:, None, None] + o_j[None, None, :]
                m_W = (rows.m_i[:, None] & m_h[None, :])[:, :, None] & cols.m_j[None, None, :]
                put_tile(p_W, place_W(row, o_hx[None, :, None], d, T), b_dW, m_W, T)
            else:
                b_dW = tl.sum(tl.reshape(tl.sum(b_dW, 2), [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H]), 1)
                put(p_W + place_W(i[:, None], o_hx[None, :], d, T), b_dW, rows.m_i[:, None] & m_h[None, :], T)
        else:
            b_dW = tl.sum(tl.reshape(tl.sum(b_dW, 0), [T.BLOCK_C, T.BLOCK_H, T.BLOCK_J]), 0)
            if T.W_J:
                m_W = m_h[:, None] & cols.m_j[None, :]
                put(p_W + place_W(o_j[None, :], o_hx[:, None], d, T), b_dW, m_W, T)
            else:
                put(p_W + place_W(0, o_hx, d, T), tl.sum(b_dW, 1), m_h, T)
