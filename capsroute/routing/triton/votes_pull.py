"""From gradients of an iteration's models to those of its shares and of the models before. Axes as in `votes_tile.py`.

`docs/algorithm.md` derives the gradients.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .votes_tile import (
    add_to,
    chunk,
    clear,
    columns,
    load_betas,
    load_lse,
    load_model,
    load_precisions,
    model_row,
    powers,
    rows,
    sigmoid,
    span,
    to_logits,
    total,
    votes,
)


class Pulls(NamedTuple):
    """Gradients of every iteration's sums, distances counted from its means."""

    a: Any  # [t, b, j]
    D: Any  # [t, b, j]
    D_E: Any  # [t, b, j, v]
    D_EE: Any  # [t, b, j, v]
    use: Any  # of beta_use, where inputs share it, [t, b, j], float64
    ign: Any  # of beta_ign
    B: Any  # of B, where inputs share it, [t, b, j, v], float64
    dot: Any  # sum_j R dD_use, where outputs take more than one tile, [t, slices, n], float64


class Backs(NamedTuple):
    """Sums over the inputs of a slot, in float64, that go back to the iteration before."""

    log: Any  # [slots, b, j]
    E: Any  # [slots, b, j, v]
    EE: Any  # [slots, b, j, v]


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


@triton.jit
def model_backward(inp, cut, models, pulls, backs, grads, t, pid_b, pid_m, T: tl.constexpr):
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
            b_p = 0.5 / tl.load(models.sig2 + o_mu, mask=m_v, other=1.0).to(tl.float64)
            b_EE = total(backs.EE, n_slots, stride * SIZE, flat, m_flat, T.BLOCK_S)
            b_EE = tl.reshape(b_EE, [T.BLOCK_M, T.BLOCK_V])
            b_dsig2 += (2.0 * b_p * b_EE - b_dlog[:, None]) * b_p
            b_dmu *= b_p
        b_out = tl.load(grads.mu + o_E, mask=m_v & m_last[:, None], other=0.0).to(tl.float64)
        b_dEE = b_dsig2 / b_used[:, None]
        b_skew = 2.0 * tl.load(models.D_E + o_mu, mask=m_v, other=0.0) * b_dEE
        b_dE = (b_dmu + b_out - b_skew) / b_used[:, None]
        b_dD -= tl.sum(b_dEE * tl.load(models.D_EE + o_mu, mask=m_v, other=0.0), 1) / b_used
        tl.store(pulls.D_E + o_mu, b_dE.to(tl.float32), mask=m_v)
        tl.store(pulls.D_EE + o_mu, b_dEE.to(tl.float32), mask=m_v)
        if not T.B_I:  # a shift of B shifts mu, but for eps: the sum of dV, without its cancellation
            b_dB = (b_out * b_D[:, None] - T.EPS * (b_dmu - b_skew)) / b_used[:, None]
            tl.store(pulls.B + o_mu, b_dB, mask=m_v)
    tl.store(pulls.a + here, b_da.to(tl.float32), mask=m_j)
    tl.store(pulls.D + here, b_dD.to(tl.float32), mask=m_j)
    tl.store(pulls.use + here, b_da * b_D, mask=m_j)
    tl.store(pulls.ign + here, -b_da * tl.load(models.D_ign + here, mask=m_j, other=0.0), mask=m_j)


@triton.jit
def pull_back(inp, layer, models, pulls, t, pid_b, o_i, o_n, m_i, pid_j, b_V, T: tl.constexpr):
    """R and the gradients of D_use, `[I, J]` each; takes the votes where one chunk holds them all."""
    o_j, m_j = columns(inp, pid_j, T)
    here, before = model_row(inp, t, pid_b), model_row(inp, t - 1, pid_b)
    m_before = o_j < tl.where(t > 0, inp.j, 0)
    far = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_da = tl.load(pulls.a + here + o_j, mask=m_j, other=0.0)
    b_use, b_ign = load_betas(inp, layer, o_i, m_i, o_j, m_j, T)
    b_dD = far + tl.load(pulls.D + here + o_j, mask=m_j, other=0.0)[None, :] + b_da[None, :] * (b_use + b_ign)
    for pid_v in range(T.CHUNKS):
        b_v = b_V if T.CHUNKS == 1 else votes(inp, layer, o_i, o_n, m_i, pid_j, pid_v, T)
        b_e = b_v - load_model(models.mu, before, o_j, m_before, pid_v, 0.0, T)[None, :, :]
        far += tl.sum(b_e * b_e * load_precisions(models, before, o_j, m_before, pid_v, T)[None, :, :], 2)
        b_e = b_v - load_model(models.mu, here, o_j, m_j, pid_v, 0.0, T)[None, :, :]
        b_dE = load_model(pulls.D_E, here, o_j, m_j, pid_v, 0.0, T)[None, :, :]
        b_dEE = load_model(pulls.D_EE, here, o_j, m_j, pid_v, 0.0, T)[None, :, :]
        b_dD += tl.sum((b_dE + b_dEE * b_e) * b_e, 2)
    b_lse = load_lse(inp, models, t, o_n, m_i & (o_i < tl.where(t > 0, inp.i, 0)), T)
    b_R = powers(to_logits(inp, models, before, far, o_j, m_before), b_lse, m_j)
    return tl.where(t > 0, b_R, tl.where(m_j[None, :], 1.0 / inp.j, 0.0)), b_dD


@triton.jit
def load_dot(inp, pulls, t, o_n, m_i, T: tl.constexpr):
    b_dot = tl.full([T.BLOCK_I], 0.0, tl.float64)
    for k in range(T.SLICES):
        p_dot = pulls.dot + (tl.cast(t, tl.int64) * T.SLICES + k) * inp.n + o_n
        b_dot += tl.load(p_dot, mask=m_i, other=0.0)
    return b_dot.to(tl.float32)


@triton.jit
def find_dot(inp, layer, models, pulls, t, pid_b, pid_i, pid_s, n_tiles, T: tl.constexpr):
    """A slice's part of `sum_j R dD_use` of a tile's inputs, over tiles of outputs."""
    start, n_inp = span(inp, pid_b, T)
    o_i, o_n, m_i, _f = rows(inp, start, n_inp, pid_i, T)
    b_dot = tl.full([T.BLOCK_I], 0.0, tl.float64)
    for pid_j in range(pid_s, tl.where(pid_i * T.BLOCK_I < n_inp, n_tiles, 0), T.SLICES):
        b_V = votes(inp, layer, o_i, o_n, m_i, pid_j, 0, T) if T.CHUNKS == 1 else 0
        b_R, b_dD = pull_back(inp, layer, models, pulls, t, pid_b, o_i, o_n, m_i, pid_j, b_V, T)
        b_dot += tl.sum(b_R * b_dD, 1).to(tl.float64)
    tl.store(pulls.dot + (tl.cast(t, tl.int64) * T.SLICES + pid_s) * inp.n + o_n, b_dot, mask=m_i)


@triton.jit
def lose(inp, layer, models, pulls, backs, t, pid_b, pid_s, n_slots, pid_j, T: tl.constexpr):
    """E-step backwards: a tile of outputs' sums over the inputs of a slot."""
    start, n_inp = span(inp, pid_b, T)
    o_j, m_j = columns(inp, pid_j, T)
    before = model_row(inp, t - 1, pid_b)
    o_sum = model_row(inp, pid_s, pid_b) + o_j
    b_log = tl.full([T.BLOCK_J], 0.0, tl.float64)
    b_E = tl.full([T.BLOCK_J, T.BLOCK_C * T.BLOCK_H], 0.0, tl.float64)
    b_EE = tl.full([T.BLOCK_J, T.BLOCK_C * T.BLOCK_H], 0.0, tl.float64)
    if T.CHUNKS > 1:
        clear(backs.E, o_sum, m_j, T)
        clear(backs.EE, o_sum, m_j, T)
    for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), n_slots):
        o_i, o_n, m_i, b_f = rows(inp, start, n_inp, pid_i, T)
        b_V = votes(inp, layer, o_i, o_n, m_i, pid_j, 0, T) if T.CHUNKS == 1 else 0
        b_R, b_dD = pull_back(inp, layer, models, pulls, t, pid_b, o_i, o_n, m_i, pid_j, b_V, T)
        b_dot = load_dot(inp, pulls, t, o_n, m_i, T) if T.WIDE else tl.sum(b_R * b_dD, 1)
        b_dl = (b_f[:, None] * b_R * (b_dD - b_dot[:, None])).to(tl.float64)
        b_log += tl.sum(b_dl, 0)
        for pid_v in range(T.CHUNKS):
            b_e = b_V if T.CHUNKS == 1 else votes(inp, layer, o_i, o_n, m_i, pid_j, pid_v, T)
            b_e -= load_model(models.mu, before, o_j, m_j, pid_v, 0.0, T)[None, :, :]
            b_le = b_dl[:, :, None] * b_e
            if T.CHUNKS == 1:
                b_E += tl.sum(b_le, 0)
                b_EE += tl.sum(b_le * b_e, 0)
            else:
                o_E, m_E = chunk(o_sum, m_j, pid_v, T)
                add_to(backs.E + o_E, tl.sum(b_le, 0), m_E)
                add_to(backs.EE + o_E, tl.sum(b_le * b_e, 0), m_E)
    tl.store(backs.log + o_sum, b_log, mask=m_j)
    if T.CHUNKS == 1:
        o_E, m_E = chunk(o_sum, m_j, 0, T)
        tl.store(backs.E + o_E, b_E, mask=m_E)
        tl.store(backs.EE + o_E, b_EE, mask=m_E)
