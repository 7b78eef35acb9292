"""From gradients of an iteration's models to those of its shares and of the models before. Axes as in `votes_types.py`.

`docs/algorithm.md` derives the gradients.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from .numerics import mul_without_fma
from .votes_halves import sigmoid
from .votes_tile import (
    add_to,
    assign,
    chunk,
    clear,
    columns_of,
    distances,
    in_two,
    load_all,
    load_betas,
    load_mu_p,
    load_one,
    model_of,
    model_row,
    rows_of,
    span,
    total,
    votes,
)


@triton.jit
def model_backward(inp, layer, cut, models, pulls, backs, grads, t, pid_b, pid_m, T: tl.constexpr):
    """From the gradients of some outputs' `a, mu, sig2` to those of their sums."""
    SIZE: tl.constexpr = T.C * T.H
    o_j = pid_m * T.BLOCK_M + tl.arange(0, T.BLOCK_M)
    m_j = o_j < inp.j
    here = model_row(inp, t, pid_b) + o_j
    last = t == inp.n_iters - 1
    m_last = o_j < tl.where(last, inp.j, 0)
    o_out = tl.cast(pid_b, tl.int64) * inp.j + o_j
    stride = tl.cast(inp.b, tl.int64) * inp.j
    n_slots = tl.where(last, 0, cut.slots)
    b_dlog = total(backs.log, n_slots, stride, o_out, m_j, T.BLOCK_S)
    b_a = tl.load(models.a + here, mask=m_j, other=0.0)
    b_da = tl.load(grads.a + o_out, mask=m_last, other=0.0) + b_dlog * sigmoid(-b_a)
    b_D = tl.load(models.D_use + here, mask=m_j, other=0.0)
    b_used = b_D + T.EPS
    b_dD = tl.full([T.BLOCK_M], 0.0, tl.float64)
    if not T.BETAS_I:
        b_use = tl.load(layer.use + (o_j if T.USE_J else o_j * 0), mask=m_j, other=0.0).to(tl.float64)
        b_dD += b_da * (b_use + tl.load(layer.ign + (o_j if T.IGN_J else o_j * 0), mask=m_j, other=0.0))
    for v in range(0, SIZE, T.BLOCK_V):
        o_v = v + tl.arange(0, T.BLOCK_V)
        m_v = m_j[:, None] & (o_v < SIZE)[None, :]
        o_mu = here[:, None] * SIZE + o_v[None, :]
        o_E = o_out[:, None] * SIZE + o_v[None, :]
        flat, m_flat = tl.reshape(o_E, [T.BLOCK_M * T.BLOCK_V]), tl.reshape(m_v, [T.BLOCK_M * T.BLOCK_V])
        b_dmu = tl.reshape(total(backs.E, n_slots, stride * SIZE, flat, m_flat, T.BLOCK_S), [T.BLOCK_M, T.BLOCK_V])
        b_dmu *= 2.0
        b_dsig2 = tl.load(grads.sig2 + o_E, mask=m_v & m_last[:, None], other=0.0).to(tl.float64)
        if T.GAUSSIAN:
            b_p = tl.load(models.p + o_mu, mask=m_v, other=0.5).to(tl.float64)
            b_EE = total(backs.EE, n_slots, stride * SIZE, flat, m_flat, T.BLOCK_S)
            b_EE = tl.reshape(b_EE, [T.BLOCK_M, T.BLOCK_V])
            b_dsig2 += (2.0 * b_p * b_EE - b_dlog[:, None]) * b_p
            b_dmu *= b_p
        b_out = tl.load(grads.mu + o_E, mask=m_v & m_last[:, None], other=0.0).to(tl.float64)
        b_dEE = (b_dsig2 / b_used[:, None]).to(tl.float32).to(tl.float64)  # with the rounding that inputs will see
        b_skew = 2.0 * tl.load(models.D_E + o_mu, mask=m_v, other=0.0) * b_dEE
        b_dE = (b_dmu + b_out - b_skew) / b_used[:, None]
        b_dD -= tl.sum(mul_without_fma(b_dEE, tl.load(models.D_EE + o_mu, mask=m_v, other=0.0)), 1) / b_used
        tl.store(pulls.D_E + o_mu, b_dE.to(tl.float32), mask=m_v)
        tl.store(pulls.D_EE + o_mu, b_dEE.to(tl.float32), mask=m_v)
        if not T.B_I:  # a shift of B shifts mu, but for eps: the sum of dV, without its cancellation
            b_dB = (b_out * b_D[:, None] - T.EPS * (b_dmu - b_skew)) / b_used[:, None]
            tl.store(pulls.B + o_mu, b_dB, mask=m_v)
    tl.store(pulls.a + here, b_da.to(tl.float32), mask=m_j)
    b_dD, b_rest = in_two(b_dD)
    tl.store(pulls.D + here, b_dD, mask=m_j)
    tl.store(pulls.D_rest + here, b_rest, mask=m_j)
    tl.store(pulls.use + here, b_da * b_D, mask=m_j)
    tl.store(pulls.ign + here, -b_da * tl.load(models.D_ign + here, mask=m_j, other=0.0), mask=m_j)


@triton.jit
def share_backward(inp, layer, models, pulls, here, rows, cols, pid_j, b_V, T: tl.constexpr):
    """The gradients of D_use, `[I, J]`; takes the votes where one chunk holds them all."""
    # what all inputs share comes last and in two parts, lest all are off by the same: sums over inputs cancel
    b_dD = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32) + load_one(pulls.D_rest, here, cols, 0.0)[None, :]
    if T.BETAS_I:
        b_use, b_ign = load_betas(inp, layer, rows, cols, T)
        b_dD += load_one(pulls.a, here, cols, 0.0)[None, :] * (b_use + b_ign)
    for pid_v in range(T.CHUNKS):
        b_E = b_V if T.CHUNKS == 1 else votes(inp, layer, rows, cols, pid_j, pid_v, T)
        b_E -= load_all(models.mu, here, cols, pid_v, T)[None, :, :]
        b_dE = load_all(pulls.D_E, here, cols, pid_v, T)[None, :, :]
        b_dEE = load_all(pulls.D_EE, here, cols, pid_v, T)[None, :, :]
        b_dD += tl.sum(mul_without_fma(b_dE + b_dEE * b_E, b_E), 1)
    return b_dD + load_one(pulls.D, here, cols, 0.0)[None, :]


@triton.jit
def assigned(inp, layer, models, model, t, before, rows, cols, pid_j, b_V, T: tl.constexpr):
    """R as it was, `[I, J]`."""
    far = distances(inp, layer, models, model, before, rows, cols, pid_j, b_V, T)
    return assign(inp, models, model, t, rows, far, T)


@triton.jit
def logit_backward(inp, pulls, t, rows, b_R, b_dD, T: tl.constexpr):
    """The gradients of logits, `[I, J]`."""
    if T.SPLIT_J:
        b_dot = tl.load(pulls.dot + tl.cast(t, tl.int64) * inp.n + rows.o_n, mask=rows.m_i, other=0.0)
        b_dD -= b_dot[:, None]
    else:
        if (
            T.FLOAT64_GRADS
        ):  # where outputs have the same votes, gradients of capsules are but what sums over outputs leave
            b_R, b_dD = b_R.to(tl.float64), b_dD.to(tl.float64)
        # once more with what is left: roundings of what all outputs have alike, alike in many inputs, would add up
        for _ in tl.static_range(2):
            b_dD -= tl.sum(mul_without_fma(b_R, b_dD), 1)[:, None]
    return rows.f[:, None] * b_R * b_dD


@triton.jit
def find_dot(inp, layer, cut, models, pulls, backs, t, pid_b, pid_i, pid_s, T: tl.constexpr):
    """A slice's part of `sum_j R dD_use` of a tile's inputs, over tiles of outputs."""
    start, n_inp = span(inp, pid_b, T)
    rows = rows_of(inp, start, n_inp, pid_i, T)
    here, before = model_row(inp, t, pid_b), model_row(inp, t - 1, pid_b)
    b_dot = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for pid_j in range(pid_s, tl.where(pid_i * T.BLOCK_I < n_inp, cut.j_tiles, 0), cut.slices):
        cols = columns_of(inp, layer, pid_j, T)
        model = model_of(models, before, cols, T)
        b_V = votes(inp, layer, rows, cols, pid_j, 0, T) if T.CHUNKS == 1 else 0
        b_dD = share_backward(inp, layer, models, pulls, here, rows, cols, pid_j, b_V, T)
        b_dot += assigned(inp, layer, models, model, t, before, rows, cols, pid_j, b_V, T) * b_dD
    b_dot = tl.sum(b_dot.to(tl.float64), 1)
    tl.store(backs.dot + tl.cast(pid_s, tl.int64) * inp.n + rows.o_n, b_dot, mask=rows.m_i)


@triton.jit
def join_dot(inp, cut, pulls, backs, t, pid, n_pids):
    """The same of all slices."""
    for unit in range(pid, tl.cdiv(inp.n, 128), n_pids):
        o_n = tl.cast(unit, tl.int64) * 128 + tl.arange(0, 128)
        b_dot = total(backs.dot, cut.slices, inp.n, o_n, o_n < inp.n, 1)
        tl.store(pulls.dot + tl.cast(t, tl.int64) * inp.n + o_n, b_dot.to(tl.float32), mask=o_n < inp.n)


@triton.jit
def lose(inp, layer, cut, models, pulls, backs, t, pid_b, pid_s, pid_j, T: tl.constexpr):
    """E-step backwards: a tile of outputs' sums over the inputs of a slot."""
    V: tl.constexpr = T.BLOCK_C * T.BLOCK_H
    start, n_inp = span(inp, pid_b, T)
    cols = columns_of(inp, layer, pid_j, T)
    here, before = model_row(inp, t, pid_b), model_row(inp, t - 1, pid_b)
    model = model_of(models, before, cols, T)
    o_sum = model_row(inp, pid_s, pid_b) + cols.start
    b_log = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float64 if T.FLOAT64_GRADS else tl.float32)
    b_lE = tl.full([T.BLOCK_I, V, T.BLOCK_J], 0.0, tl.float32)
    b_lEE = tl.full([T.BLOCK_I, V, T.BLOCK_J], 0.0, tl.float32)
    if T.CHUNKS > 1:
        clear(backs.E, o_sum, cols, T)
        clear(backs.EE, o_sum, cols, T)
    for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), cut.slots):
        rows = rows_of(inp, start, n_inp, pid_i, T)
        b_V = votes(inp, layer, rows, cols, pid_j, 0, T) if T.CHUNKS == 1 else 0
        b_dD = share_backward(inp, layer, models, pulls, here, rows, cols, pid_j, b_V, T)
        b_R = assigned(inp, layer, models, model, t, before, rows, cols, pid_j, b_V, T)
        b_dl = logit_backward(inp, pulls, t, rows, b_R, b_dD, T)
        b_log += b_dl
        for pid_v in range(T.CHUNKS):
            b_E = b_V if T.CHUNKS == 1 else votes(inp, layer, rows, cols, pid_j, pid_v, T)
            b_E -= load_mu_p(models, model, before, cols, pid_v, T)[0][None, :, :]
            if T.CHUNKS == 1:
                b_lxE = b_dl[:, None, :] * b_E
                b_lE += b_lxE
                b_lEE += b_lxE * b_E
            else:
                o_E, m_E = chunk(cols, pid_v, T)
                o_E += o_sum * (T.C * T.H)
                b_E = b_E.to(b_dl.dtype)
                b_lxE = mul_without_fma(b_dl[:, None, :], b_E)
                add_to(backs.E + o_E, tl.sum(b_lxE.to(tl.float64), 0), m_E)
                add_to(backs.EE + o_E, tl.sum(mul_without_fma(b_lxE, b_E).to(tl.float64), 0), m_E)
    tl.store(backs.log + o_sum + cols.o_j, tl.sum(b_log.to(tl.float64), 0), mask=cols.m_j)
    if T.CHUNKS == 1:
        o_E, m_E = chunk(cols, 0, T)
        o_E += o_sum * (T.C * T.H)
        tl.store(backs.E + o_E, tl.sum(b_lE.to(tl.float64), 0), mask=m_E)
        tl.store(backs.EE + o_E, tl.sum(b_lEE.to(tl.float64), 0), mask=m_E)
