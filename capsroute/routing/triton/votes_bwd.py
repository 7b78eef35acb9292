"""Backward kernel of the vote form: from the last iteration to the first, with votes and shares formed again.

Axes as in `votes_tile.py`; `docs/algorithm.md` derives the gradients. Iterations first hand sums over inputs to the one
before; when all have, a single pass takes every iteration's share of the votes' gradients, which no memory ever holds.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .grid import wait_for_all
from .votes_pull import find_dot, load_dot, lose, model_backward, pull_back
from .votes_tile import (
    LARGEST_X,
    add_to,
    bounded,
    columns,
    components,
    load_betas,
    load_model,
    load_precisions,
    load_w,
    load_x,
    model_row,
    products,
    rows,
    sigmoid,
    span,
    total,
    votes,
)


class Share(NamedTuple):
    """How the last pass is shared: by samples into `groups`, by inputs into `slots`, by outputs into `slices`."""

    groups: Any
    slots: Any
    slices: Any
    w_slots: Any  # partial gradients of W


class Parts(NamedTuple):
    """What programs add to, each in its own place; all zero at first."""

    f: Any  # [slices, n]
    x: Any  # [slices, n, c, d]
    W: Any  # [w_slots, i|1, j|1, h, d]
    B: Any  # where each input has its own, likewise below: [groups, i, j, v]
    use: Any  # [groups, i, j]
    ign: Any  # [groups, i, j]


@triton.jit
def push(inp, layer, parts, p_W, pid_g, pid_x, o_i, o_n, m_i, pid_j, pid_v, b_dV, T: tl.constexpr):
    """Adds what the gradients of a tile's votes give to those of x, W and, where each input has its own, B."""
    o_j, m_j = columns(inp, pid_j, T)
    o_c, o_h, m_v = components(pid_v, T)
    p_dx = parts.x + tl.cast(pid_x, tl.int64) * inp.n * (T.C * T.D)
    if T.B_I:
        o_B = ((tl.cast(pid_g, tl.int64) * inp.i + o_i)[:, None, None] * inp.j + o_j[None, :, None]) * (T.C * T.H)
        m_B = (m_i[:, None] & m_j[None, :])[:, :, None] & m_v[None, None, :]
        add_to(parts.B + o_B + (o_c * T.H + o_h)[None, None, :], b_dV, m_B)
    if T.DOT:
        c, o_jx, o_hx, m_jh = products(inp, pid_j, pid_v, T)
        b_d = tl.reshape(b_dV, [T.BLOCK_I, T.BLOCK_J * T.BLOCK_H])
        for k in range(0, T.D, T.BLOCK_D):
            o_d = k + tl.arange(0, T.BLOCK_D)
            m_d = (o_d < T.D)[None, :]
            row = (o_jx if T.W_J else o_jx * 0)[:, None]
            p_x = p_dx + (o_n[:, None] * T.C + c) * T.D + o_d[None, :]
            p_w = layer.W + (row * T.D + o_d[None, :]) * T.H + o_hx[:, None]
            b_W = tl.load(p_w, mask=m_jh[:, None] & m_d, other=0.0)
            b_x = load_x(inp, o_n, m_i, c, o_d, T)
            if T.WIDE or T.CHUNKS > 1:  # loaded before the product, not to wait after it
                b_dx = tl.load(p_x, mask=m_i[:, None] & m_d, other=0.0)
                b_dx += tl.dot(b_d, b_W, input_precision=T.PRECISION)
            else:
                b_dx = tl.dot(b_d, b_W, input_precision=T.PRECISION)
            tl.store(p_x, b_dx, mask=m_i[:, None] & m_d)
            b_dW = tl.dot(tl.trans(b_d), b_x, input_precision=T.PRECISION)
            if T.W_J:
                add_to(p_W + (row * T.H + o_hx[:, None]) * T.D + o_d[None, :], b_dW, m_jh[:, None] & m_d)
            else:
                b_dW = tl.sum(tl.reshape(b_dW, [T.BLOCK_J, T.BLOCK_H, T.BLOCK_D]), 0)
                add_to(p_W + o_h[:, None] * T.D + o_d[None, :], b_dW, m_v[:, None] & m_d)
    else:
        push_each(inp, layer, p_dx, p_W, o_i, o_n, m_i, pid_j, pid_v, b_dV, T)
    tl.debug_barrier()


@triton.jit
def push_each(inp, layer, p_dx, p_W, o_i, o_n, m_i, pid_j, pid_v, b_dV, T: tl.constexpr):
    """The same without matrix products."""
    o_j, m_j = columns(inp, pid_j, T)
    o_c, o_h, m_v = components(pid_v, T)
    N_H: tl.constexpr = (T.H + T.BLOCK_H - 1) // T.BLOCK_H
    o_cx = pid_v // N_H * T.BLOCK_C + tl.arange(0, T.BLOCK_C)
    o_hx = pid_v % N_H * T.BLOCK_H + tl.arange(0, T.BLOCK_H)
    m_h = o_hx < T.H
    for d in range(T.D):
        b_W = load_w(inp, layer, o_i, m_i, o_j, m_j, o_h, m_v, d, T)
        b_dx = tl.sum(tl.reshape(tl.sum(b_dV * b_W, 1), [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H]), 2)
        m_x = m_i[:, None] & (o_cx < T.C)[None, :]
        add_to(p_dx + (o_n[:, None] * T.C + o_cx[None, :]) * T.D + d, b_dx, m_x)
        p_x = inp.x + (o_n[:, None] * T.C + o_c[None, :]) * T.D + d
        b_x = bounded(tl.load(p_x, mask=m_i[:, None] & m_v[None, :], other=0.0))
        b_dW = b_dV * b_x[:, None, :]
        if T.W_I:
            if T.W_J:
                b_dW = tl.reshape(b_dW, [T.BLOCK_I * T.BLOCK_J, T.BLOCK_C, T.BLOCK_H])
                b_dW = tl.reshape(tl.sum(b_dW, 1), [T.BLOCK_I, T.BLOCK_J, T.BLOCK_H])
                row = (o_i.to(tl.int64) * inp.j)[:, None, None] + o_j[None, :, None]
                m_W = (m_i[:, None] & m_j[None, :])[:, :, None] & m_h[None, None, :]
                add_to(p_W + (row * T.H + o_hx[None, None, :]) * T.D + d, b_dW, m_W)
            else:
                b_dW = tl.sum(tl.reshape(tl.sum(b_dW, 1), [T.BLOCK_I, T.BLOCK_C, T.BLOCK_H]), 1)
                o_W = (o_i.to(tl.int64)[:, None] * T.H + o_hx[None, :]) * T.D + d
                add_to(p_W + o_W, b_dW, m_i[:, None] & m_h[None, :])
        else:
            b_dW = tl.sum(tl.reshape(tl.sum(b_dW, 0), [T.BLOCK_J, T.BLOCK_C, T.BLOCK_H]), 1)
            if T.W_J:
                add_to(p_W + (o_j[:, None] * T.H + o_hx[None, :]) * T.D + d, b_dW, m_j[:, None] & m_h[None, :])
            else:
                add_to(p_W + o_hx * T.D + d, tl.sum(b_dW, 0), m_h)


@triton.jit
def finish(
    inp, layer, models, pulls, parts, p_W, pid_g, pid_x, pid_b, pid_i, pid_j, start, n_inp, T: tl.constexpr
):  # fmt: skip
    """Adds a tile's share, in all iterations, to the gradients of everything that votes and shares depend on."""
    o_i, o_n, m_i, b_f = rows(inp, start, n_inp, pid_i, T)
    o_j, m_j = columns(inp, pid_j, T)
    b_df = tl.full([T.BLOCK_I], 0.0, tl.float32)
    b_V = votes(inp, layer, o_i, o_n, m_i, pid_j, 0, T) if T.CHUNKS == 1 else 0
    b_dV = tl.full([T.BLOCK_I, T.BLOCK_J, T.BLOCK_C * T.BLOCK_H], 0.0, tl.float32)
    for back in range(inp.n_iters):
        t = inp.n_iters - 1 - back
        here, before = model_row(inp, t, pid_b), model_row(inp, t - 1, pid_b)
        m_before = o_j < tl.where(t > 0, inp.j, 0)
        b_R, b_dD = pull_back(inp, layer, models, pulls, t, pid_b, o_i, o_n, m_i, pid_j, b_V, T)
        b_da = tl.load(pulls.a + here + o_j, mask=m_j, other=0.0)[None, :]
        b_ign = load_betas(inp, layer, o_i, m_i, o_j, m_j, T)[1]
        b_df += tl.sum(b_R * b_dD - b_da * b_ign, 1)
        m_dot = m_i & (o_i < tl.where(t > 0, inp.i, 0))
        b_dot = load_dot(inp, pulls, t, o_n, m_dot, T) if T.WIDE else tl.sum(b_R * b_dD, 1)
        b_D = b_f[:, None] * b_R
        b_dl = tl.where(t > 0, b_D * (b_dD - b_dot[:, None]), 0.0)
        o_beta = (tl.cast(pid_g, tl.int64) * inp.i + o_i)[:, None] * inp.j + o_j[None, :]
        m_beta = m_i[:, None] & m_j[None, :]
        if T.USE_I:
            add_to(parts.use + o_beta, b_da * b_D, m_beta)
        if T.IGN_I:
            add_to(parts.ign + o_beta, b_da * (b_D - b_f[:, None]), m_beta)
        for pid_v in range(T.CHUNKS):
            b_v = b_V if T.CHUNKS == 1 else votes(inp, layer, o_i, o_n, m_i, pid_j, pid_v, T)
            b_dE = load_model(pulls.D_E, here, o_j, m_j, pid_v, 0.0, T)[None, :, :]
            b_dEE = load_model(pulls.D_EE, here, o_j, m_j, pid_v, 0.0, T)[None, :, :]
            b_e = b_v - load_model(models.mu, here, o_j, m_j, pid_v, 0.0, T)[None, :, :]
            b_force = b_D[:, :, None] * (b_dE + 2.0 * b_dEE * b_e)
            b_e = b_v - load_model(models.mu, before, o_j, m_before, pid_v, 0.0, T)[None, :, :]
            b_p = load_precisions(models, before, o_j, m_before, pid_v, T)[None, :, :]
            b_force -= 2.0 * b_p * b_e * b_dl[:, :, None]
            if T.CHUNKS == 1:
                b_dV += b_force
            else:
                push(inp, layer, parts, p_W, pid_g, pid_x, o_i, o_n, m_i, pid_j, pid_v, b_force, T)
    if T.CHUNKS == 1:
        push(inp, layer, parts, p_W, pid_g, pid_x, o_i, o_n, m_i, pid_j, 0, b_dV, T)
    add_to(parts.f + tl.cast(pid_x, tl.int64) * inp.n + o_n, b_df, m_i)


@triton.jit
def finish_all(inp, layer, cut, share, models, pulls, parts, unit, T: tl.constexpr):
    """One unit of the last pass over votes: a group of samples, a slot of inputs and a slice of outputs."""
    pid_x = unit % share.slices
    pid_s = unit // share.slices % share.slots
    pid_g = unit // share.slices // share.slots
    pid_w = pid_g if T.W_I else pid_g * share.slots + pid_s
    pid_w = pid_w if T.W_J else pid_w * share.slices + pid_x
    size = tl.cast(inp.i if T.W_I else 1, tl.int64) * (inp.j if T.W_J else 1) * (T.D * T.H)
    for pid_j in range(pid_x, cut.j_tiles, share.slices):
        for pid_b in range(pid_g, inp.b, share.groups):
            start, n_inp = span(inp, pid_b, T)
            for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), share.slots):
                p_W = parts.W + pid_w * size
                finish(inp, layer, models, pulls, parts, p_W, pid_g, pid_x, pid_b, pid_i, pid_j, start, n_inp, T)


@triton.jit
def reduce_inputs(inp, share, parts, grads, pid, n_pids, T: tl.constexpr):
    """The gradients of x and a_inp, from all slices of outputs."""
    BLOCK: tl.constexpr = 256 if T.WIDE else 1024
    SLOTS: tl.constexpr = 8 if T.WIDE else 1
    n_x = tl.cast(inp.n, tl.int64) * (T.C * T.D)
    for unit in range(pid, tl.cdiv(n_x, BLOCK), n_pids):
        o_x = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        m_x = o_x < n_x
        b_x = tl.load(inp.x + o_x, mask=m_x, other=0.0).to(tl.float32)
        b_dx = tl.where(tl.abs(b_x) <= LARGEST_X, total(parts.x, share.slices, n_x, o_x, m_x, SLOTS), 0.0)
        tl.store(grads.x + o_x, b_dx.to(tl.float32).to(grads.x.dtype.element_ty), mask=m_x)
    for unit in range(pid, tl.cdiv(inp.n, BLOCK), n_pids):
        o_n = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        m_n = o_n < inp.n
        b_f = sigmoid(tl.load(inp.a + o_n, mask=m_n, other=0.0))
        b_df = total(parts.f, share.slices, inp.n, o_n, m_n, SLOTS) * b_f * (1.0 - b_f)
        tl.store(grads.a_inp + o_n, b_df.to(tl.float32).to(grads.a_inp.dtype.element_ty), mask=m_n)


@triton.jit
def reduce_params(inp, share, pulls, parts, grads, pid, n_pids, T: tl.constexpr):
    """The gradients of the parameters, from all parts or, where inputs share them, from those of the models."""
    BLOCK: tl.constexpr = 256 if T.WIDE else 32
    SLOTS: tl.constexpr = 8 if T.WIDE else 32
    n_W = tl.cast(inp.i if T.W_I else 1, tl.int64) * (inp.j if T.W_J else 1) * (T.D * T.H)
    for unit in range(pid, tl.cdiv(n_W, BLOCK), n_pids):
        o_W = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        o_hd = o_W // (T.D * T.H) * (T.D * T.H) + o_W % T.H * T.D + o_W // T.H % T.D
        b_dW = total(parts.W, share.w_slots, n_W, o_hd, o_W < n_W, SLOTS)
        tl.store(grads.W + o_W, b_dW.to(tl.float32), mask=o_W < n_W)
    n_B = tl.cast(inp.i if T.B_I else 1, tl.int64) * inp.j * (T.C * T.H)
    for unit in range((pid + n_pids // 4) % n_pids, tl.cdiv(n_B, BLOCK), n_pids):
        o_B = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        m_B = o_B < n_B
        if T.B_I:
            b_dB = total(parts.B, share.groups, n_B, o_B, m_B, SLOTS)
        else:
            b_dB = total(pulls.B, inp.n_iters * inp.b, n_B, o_B, m_B, SLOTS)
        tl.store(grads.B + o_B, b_dB.to(tl.float32), mask=m_B)
    pid_use, pid_ign = (pid + n_pids // 2) % n_pids, (pid + n_pids * 3 // 4) % n_pids
    reduce_beta(inp, share, pulls.use, parts.use, grads.use, pid_use, n_pids, T.USE_I, BLOCK, SLOTS)
    reduce_beta(inp, share, pulls.ign, parts.ign, grads.ign, pid_ign, n_pids, T.IGN_I, BLOCK, SLOTS)


@triton.jit
def reduce_beta(
    inp, share, p_all, p_own, p_beta, pid, n_pids, OWN: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    n = tl.cast(inp.i if OWN else 1, tl.int64) * inp.j
    for unit in range(pid, tl.cdiv(n, BLOCK), n_pids):
        o = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        if OWN:
            b_d = total(p_own, share.groups, n, o, o < n, SLOTS)
        else:
            b_d = total(p_all, inp.n_iters * inp.b, n, o, o < n, SLOTS)
        tl.store(p_beta + o, b_d.to(tl.float32), mask=o < n)


@triton.jit
def votes_bwd_kernel(
    p_count, first, last, inp, layer, cut, share, models, pulls, backs, parts, grads, T: tl.constexpr
):  # fmt: skip
    """Each iteration but the first: gradients of the models' sums, then sums over inputs; at the end all gradients."""
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    STEPS: tl.constexpr = 3 if T.WIDE else 2
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count, phase - first)
        end = phase - STEPS * (inp.n_iters - 1)
        t = tl.maximum(inp.n_iters - 1 - phase // STEPS, 0)
        step = phase % STEPS
        if (step == 0) & (end <= 0):
            n_blocks = tl.cdiv(inp.j, T.BLOCK_M)
            for unit in range(pid, inp.b * n_blocks, n_pids):
                model_backward(inp, cut, models, pulls, backs, grads, t, unit // n_blocks, unit % n_blocks, T)
        if T.WIDE:  # noqa: SIM102 (known when compiling)
            if (step == 1) & (end < 0):
                for unit in range(pid, inp.b * cut.i_tiles * T.SLICES, n_pids):
                    pid_b, pid_i = unit // T.SLICES // cut.i_tiles, unit // T.SLICES % cut.i_tiles
                    find_dot(inp, layer, models, pulls, t, pid_b, pid_i, unit % T.SLICES, cut.j_tiles, T)
        if (step == STEPS - 1) & (end < 0):
            for unit in range(pid, inp.b * cut.slots * cut.slices, n_pids):
                pid_s, pid_b = unit // cut.slices % cut.slots, unit // cut.slices // cut.slots
                for pid_j in range(unit % cut.slices, cut.j_tiles, cut.slices):
                    lose(inp, layer, models, pulls, backs, t, pid_b, pid_s, cut.slots, pid_j, T)
        if end == 1:
            for unit in range(pid, share.groups * share.slots * share.slices, n_pids):
                finish_all(inp, layer, cut, share, models, pulls, parts, unit, T)
        if end == 2:
            reduce_inputs(inp, share, parts, grads, pid, n_pids, T)
            reduce_params(inp, share, pulls, parts, grads, pid, n_pids, T)
