"""From the gradients of a tile's votes to those of inputs and parameters. Axes as in `votes_types.py`."""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

import triton
import triton.language as tl

from . import votes_tile as tile
from .numerics import MAX_CAPSULE, mul_without_fma


@triton.jit
def put(p_x, o_x, b_x, mask, T: tl.constexpr):
    """Add to a program's partial gradients; it writes them where it routes a sample alone. No atomics."""
    if not T.ONE_PROGRAM:
        tl.store(p_x + o_x, b_x + tl.load(p_x + o_x, mask=mask, other=0.0), mask=mask)
    elif len(b_x.shape) == 3:
        tile.store_transposed(p_x, o_x, b_x, mask)
    else:
        tl.store(p_x + o_x, b_x, mask=mask)


@triton.jit
def put_betas(args, parts, pid_g, rows, cols, b_duse, b_dign, T: tl.constexpr):
    """Add to the gradients of betas `[I, J]` that each kind has of its own."""
    o_beta = (tl.cast(pid_g, tl.int64) * args.i + rows.part)[:, None] * args.j + (cols.start + cols.o_j)[None, :]
    m_beta = rows.m_i[:, None] & cols.m_j[None, :]
    if T.USE_K:
        put(parts.use, o_beta, b_duse, m_beta, T)
    if T.IGN_K:
        put(parts.ign, o_beta, b_dign, m_beta, T)


@triton.jit
def f_bwd(p_a, o_n, m_n, b_df):
    """Compute the gradients of scores from those of f(a_inp)."""
    b_f = tile.sigmoid_float64(tl.load(p_a + o_n, mask=m_n, other=0.0))
    return (b_df.to(tl.float64) * b_f * (1.0 - b_f)).to(tl.float32)


@triton.jit
def put_f(args, grads, parts, pid_x, rows, b_df, T: tl.constexpr):
    """Store gradients of scores `[I]`, or add to those of f(a_inp) if other tiles have other outputs."""
    if T.SPLIT_J:
        put(parts.f, tl.cast(pid_x, tl.int64) * args.n + rows.o_n, b_df, rows.m_i, T)
    else:
        b_da = f_bwd(args.a, rows.o_n, rows.m_i, b_df)
        tl.store(grads.a_inp + rows.o_n, b_da.to(grads.a_inp.dtype.element_ty), mask=rows.m_i)


@triton.jit
def x_bwd(p_x, o_x, mask, b_dx):
    """Compute the gradients of capsules before they are clamped."""
    b_x = tl.load(p_x + o_x, mask=mask, other=0.0).to(tl.float32)
    return tl.where(tl.abs(b_x) <= MAX_CAPSULE, b_dx, 0.0)


@triton.jit
def put_x(args, grads, parts, pid_x, rows, d, b_dx, T: tl.constexpr):
    """Store gradients of capsules `[I, C]` of one d, or add to them if other tiles have other outputs."""
    o_c = tl.arange(0, T.BLOCK_C)
    o_x = (rows.o_n[:, None] * T.C + o_c[None, :]) * T.D + d
    m_x = rows.m_i[:, None] & (o_c < T.C)[None, :]
    if T.SPLIT_J:
        put(parts.x, tl.cast(pid_x, tl.int64) * args.n * (T.C * T.D) + o_x, b_dx, m_x, T)
    else:
        b_dx = x_bwd(args.x, o_x, m_x, b_dx)
        tl.store(grads.x + o_x, b_dx.to(grads.x.dtype.element_ty), mask=m_x)


@triton.jit
def put_W(args, p_W, rows, cols, d, b_dW, T: tl.constexpr):
    """Add to the gradients of weights of one d what votes `[I, V, J]` give to them."""
    o_h, o_j = tl.arange(0, T.BLOCK_H), cols.start + cols.o_j
    m_h, m_j = o_h < T.H, cols.m_j
    if T.W_K:
        if T.W_J:
            b_dW = tl.sum(tl.reshape(b_dW, [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H * T.BLOCK_J]), 1)
            b_dW = tl.reshape(b_dW, [T.BLOCK_I, T.BLOCK_H, T.BLOCK_J])
            row = (rows.part * args.j)[:, None, None] + o_j[None, None, :]
            m_W = (rows.m_i[:, None] & m_h[None, :])[:, :, None] & m_j[None, None, :]
            put(p_W, (row * T.D + d) * T.H + o_h[None, :, None], b_dW, m_W, T)
        else:
            b_dW = tl.sum(tl.reshape(tl.sum(b_dW, 2), [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H]), 1)
            o_W = (rows.part[:, None] * T.D + d) * T.H + o_h[None, :]
            put(p_W, o_W, b_dW, rows.m_i[:, None] & m_h[None, :], T)
    else:
        b_dW = tl.sum(tl.reshape(tl.sum(b_dW, 0), [T.BLOCK_C, T.BLOCK_H, T.BLOCK_J]), 0)
        if T.W_J:
            put(p_W, (o_j[None, :] * T.D + d) * T.H + o_h[:, None], b_dW, m_h[:, None] & m_j[None, :], T)
        else:
            put(p_W, d * T.H + o_h, tl.sum(b_dW, 1), m_h, T)


@triton.jit
def put_votes(args, grads, parts, p_W, pid_g, pid_x, rows, cols, b_dV, T: tl.constexpr):
    """Add what the gradients of a tile's votes give to those of x, W and, where each kind has its own, B."""
    if T.B_K:
        o_B, m_B = tile.offset_votes(cols, T)
        o_i = (tl.cast(pid_g, tl.int64) * args.i + rows.part) * args.j + cols.start
        o_B = o_i[:, None, None] * (T.C * T.H) + o_B[None, :, :]
        put(parts.B, o_B, b_dV, rows.m_i[:, None, None] & m_B[None, :, :], T)
    for d in range(T.D):
        b_dx = mul_without_fma(b_dV, tile.load_W_slice(args, rows, cols, d, T).to(b_dV.dtype))
        if T.ONE_PROGRAM:  # a thread has components of one output
            b_dx = tl.sum(tl.sum(tl.reshape(b_dx, [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H, T.BLOCK_J]), 2), 2)
        else:
            b_dx = tl.sum(tl.reshape(tl.sum(b_dx, 2), [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H]), 2)
        put_x(args, grads, parts, pid_x, rows, d, b_dx, T)
        b_dW = mul_without_fma(b_dV, tile.load_x_slice(args, rows, d, T)[:, :, None].to(b_dV.dtype))
        put_W(args, p_W, rows, cols, d, b_dW, T)
    tl.debug_barrier()  # another thread may have a place next


@triton.jit
def reduce_inputs(args, share, parts, grads, pid, n_pids, T: tl.constexpr):
    """Sum the gradients of capsules and scores over all slices of outputs."""
    BLOCK: tl.constexpr = 256
    n_x = tl.cast(args.n, tl.int64) * (T.C * T.D)
    for unit in range(pid, tl.cdiv(n_x, BLOCK), n_pids):
        o_x = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        b_dx = tile.sum_slots(parts.x, share.slices, n_x, o_x, o_x < n_x, 8).to(tl.float32)
        b_dx = x_bwd(args.x, o_x, o_x < n_x, b_dx)
        tl.store(grads.x + o_x, b_dx.to(grads.x.dtype.element_ty), mask=o_x < n_x)
    for unit in range(pid, tl.cdiv(args.n, BLOCK), n_pids):
        o_n = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        b_df = tile.sum_slots(parts.f, share.slices, args.n, o_n, o_n < args.n, 8)
        b_da = f_bwd(args.a, o_n, o_n < args.n, b_df)
        tl.store(grads.a_inp + o_n, b_da.to(grads.a_inp.dtype.element_ty), mask=o_n < args.n)


@triton.jit
def reduce_param(
    args, p_param, p_own, n_own, p_all, n_all, size, pid, n_pids, OWN_K: tl.constexpr, T: tl.constexpr
):  # fmt: skip
    """Sum partial gradients of a parameter with `size` numbers a row: a kind's over its places, one row's over all."""
    BLOCK: tl.constexpr = 256 if T.SPLIT_J else 64
    SLOTS: tl.constexpr = 8 if T.SPLIT_J else 32
    n = tl.cast(args.k if OWN_K else 1, tl.int64) * size
    for unit in range(pid % n_pids, tl.cdiv(n, BLOCK), n_pids):
        o = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        if OWN_K:
            n_places = args.i // args.k
            o_part = o // size * (n_places * size) + o % size
            b_sum = tile.sum_slots(p_own, n_own, n * n_places, o_part, o < n, SLOTS, n_places, size)
        else:
            b_sum = tile.sum_slots(p_all, n_all, n, o, o < n, SLOTS)
        tl.store(p_param + o, b_sum.to(tl.float32), mask=o < n)


@triton.jit
def reduce_params(args, share, dsums, parts, grads, pid, n_pids, T: tl.constexpr):
    """Sum the gradients of parameters, from partial ones or, where inputs share them, from those of the models."""
    n_models, groups, n_out = args.n_iters * args.b, share.groups, tl.cast(args.j, tl.int64)
    W_size, step = (n_out if T.W_J else 1) * (T.D * T.H), n_pids // 4
    reduce_param(args, grads.W, parts.W, share.w_slots, parts.W, share.w_slots, W_size, pid, n_pids, T.W_K, T)
    pid += step
    reduce_param(args, grads.B, parts.B, groups, dsums.B, n_models, n_out * (T.C * T.H), pid, n_pids, T.B_K, T)
    pid += step
    reduce_param(args, grads.use, parts.use, groups, dsums.use, n_models, n_out, pid, n_pids, T.USE_K, T)
    pid += step
    reduce_param(args, grads.ign, parts.ign, groups, dsums.ign, n_models, n_out, pid, n_pids, T.IGN_K, T)
