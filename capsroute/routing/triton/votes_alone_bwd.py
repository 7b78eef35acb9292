"""Backward kernel of the vote form where one program has a whole sample: see `votes_alone.py`.

Axes as in `votes_types.py`. From the last iteration to the first, votes and their gradients in registers; then programs
wait for each other, once, and add up the gradients that samples have of the same parameters.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .grid import wait_for_all
from .votes_bwd import Share, reduce_params
from .votes_pairs import sigmoid
from .votes_pull import assigned
from .votes_push import Parts, push
from .votes_tile import (
    chunk,
    columns_of,
    load_all,
    load_betas,
    load_one,
    load_p,
    model_of,
    model_row,
    rows_of,
    span,
    votes,
)
from .votes_types import Inputs, Layer


class Pull(NamedTuple):
    """Gradients of an iteration's sums, distances counted from its means: `[J]`, `[J]`, `[V, J]`, `[V, J]`."""

    a: Any
    D: Any
    D_E: Any
    D_EE: Any


@triton.jit
def alone_model_backward(inp, layer, models, pulls, grads, cols, b_dlog, b_lE, b_lEE, t, pid_b, T: tl.constexpr):
    """From the gradients of a sample's `a, mu, sig2` to those of their sums; takes what the iteration after hands on."""
    here, o_out = model_row(inp, t, pid_b), tl.cast(pid_b, tl.int64) * inp.j
    last = tl.where(t == inp.n_iters - 1, inp.j, 0)
    o_E, m_E = chunk(cols, 0, T)
    o_mu, m_last = here * (T.C * T.H) + o_E, (cols.o_j < last)[None, :] & m_E
    o_out_E = o_out * (T.C * T.H) + o_E
    b_out = tl.load(grads.mu + o_out_E, mask=m_last, other=0.0).to(tl.float64)
    b_dsig2 = tl.load(grads.sig2 + o_out_E, mask=m_last, other=0.0).to(tl.float64)
    b_DE, b_DEE = load_all(models.D_E, here, cols, 0, T), load_all(models.D_EE, here, cols, 0, T)
    b_p, b_D = load_p(models, here, cols, 0, T).to(tl.float64), load_one(models.D_use, here, cols, 0.0)
    b_da = tl.load(grads.a + o_out + cols.o_j, mask=cols.o_j < last, other=0.0)
    b_da = b_da + b_dlog * sigmoid(-load_one(models.a, here, cols, 0.0))
    b_used = b_D + T.EPS
    b_dmu = 2.0 * b_lE
    if T.GAUSSIAN:
        b_dsig2 += (2.0 * b_p * b_lEE - b_dlog[None, :]) * b_p
        b_dmu *= b_p
    b_dEE = b_dsig2 / b_used[None, :]
    b_skew = 2.0 * b_DE * b_dEE
    b_dE = (b_dmu + b_out - b_skew) / b_used[None, :]
    b_dD = -tl.sum(b_dEE * b_DEE, 0) / b_used
    if not T.OWN:
        b_use = tl.load(layer.use + (cols.o_j if T.USE_J else cols.o_j * 0), mask=cols.m_j, other=0.0).to(tl.float64)
        b_ign = tl.load(layer.ign + (cols.o_j if T.IGN_J else cols.o_j * 0), mask=cols.m_j, other=0.0)
        b_dD += b_da * (b_use + b_ign)
    if not T.B_I:  # a shift of B shifts mu, but for eps: the sum of dV, without its cancellation
        b_dB = (b_out * b_D[None, :] - T.EPS * (b_dmu - b_skew)) / b_used[None, :]
        tl.store(pulls.B + o_mu, b_dB, mask=m_E)
    if not T.USE_I:
        tl.store(pulls.use + here + cols.o_j, b_da * b_D, mask=cols.m_j)
    if not T.IGN_I:
        b_ign = load_one(models.D_ign, here, cols, 0.0)
        tl.store(pulls.ign + here + cols.o_j, -b_da * b_ign, mask=cols.m_j)
    return Pull(b_da.to(tl.float32), b_dD.to(tl.float32), b_dE.to(tl.float32), b_dEE.to(tl.float32))


@triton.jit
def alone_back(inp, layer, models, pulls, parts, grads, pid_b, T: tl.constexpr):
    """All gradients of one sample."""
    V: tl.constexpr = T.BLOCK_C * T.BLOCK_H
    start, n_inp = span(inp, pid_b, T)
    rows, cols = rows_of(inp, start, n_inp, 0, T), columns_of(inp, layer, 0, T)
    b_V = votes(inp, layer, rows, cols, 0, 0, T)
    b_gain, b_cost = load_betas(inp, layer, rows, cols, T)
    b_dV = tl.full([T.BLOCK_I, V, T.BLOCK_J], 0.0, tl.float32)
    b_df = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_duse = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_dign = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_dlog = tl.full([T.BLOCK_J], 0.0, tl.float64)
    b_lE = tl.full([V, T.BLOCK_J], 0.0, tl.float64)
    b_lEE = tl.full([V, T.BLOCK_J], 0.0, tl.float64)
    for step in range(inp.n_iters):
        t = inp.n_iters - 1 - step
        pull = alone_model_backward(inp, layer, models, pulls, grads, cols, b_dlog, b_lE, b_lEE, t, pid_b, T)
        b_E = b_V - load_all(models.mu, model_row(inp, t, pid_b), cols, 0, T)[None, :, :]
        b_dD = pull.D[None, :] + tl.sum((pull.D_E[None, :, :] + pull.D_EE[None, :, :] * b_E) * b_E, 1)
        if T.OWN:
            b_dD += pull.a[None, :] * (b_gain + b_cost)
        b_R = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32) + tl.where(cols.m_j, 1.0 / inp.j, 0.0)[None, :]
        if t > 0:
            before = model_row(inp, t - 1, pid_b)
            model = model_of(models, before, cols, T)
            b_R = assigned(inp, layer, models, model, t, before, rows, cols, 0, b_V, T)
            b_dl = rows.f[:, None] * b_R * (b_dD - tl.sum(b_R * b_dD, 1)[:, None])
            b_away = b_V - model.mu[None, :, :]
            b_lxE = b_dl[:, None, :] * b_away
            b_dV -= b_lxE * (2.0 * model.p)[None, :, :]
            b_dlog = tl.sum(b_dl.to(tl.float64), 0)
            b_lE = tl.sum(b_lxE.to(tl.float64), 0)
            b_lEE = tl.sum((b_lxE * b_away).to(tl.float64), 0)
        b_D = rows.f[:, None] * b_R
        b_dV += b_D[:, None, :] * (pull.D_E[None, :, :] + 2.0 * pull.D_EE[None, :, :] * b_E)
        b_df += b_R * b_dD - pull.a[None, :] * b_cost
        if T.USE_I:
            b_duse += pull.a[None, :] * b_D
        if T.IGN_I:
            b_dign += pull.a[None, :] * (b_D - rows.f[:, None])
    o_beta = (tl.cast(pid_b, tl.int64) * inp.i + rows.o_i)[:, None] * inp.j + cols.o_j[None, :]
    m_beta = rows.m_i[:, None] & cols.m_j[None, :]
    if T.USE_I:
        tl.store(parts.use + o_beta, b_duse, mask=m_beta)
    if T.IGN_I:
        tl.store(parts.ign + o_beta, b_dign, mask=m_beta)
    b_f = sigmoid(tl.load(inp.a + rows.o_n, mask=rows.m_i, other=0.0))
    b_df_inp = tl.sum(b_df, 1).to(tl.float64) * b_f * (1.0 - b_f)
    tl.store(parts.f + rows.o_n, b_df_inp.to(tl.float32).to(parts.f.dtype.element_ty), mask=rows.m_i)
    p_W = parts.W + tl.cast(pid_b, tl.int64) * (inp.i if T.W_I else 1) * (inp.j if T.W_J else 1) * (T.D * T.H)
    push(inp, layer, parts, p_W, pid_b, 0, rows, cols, 0, 0, b_dV, 0, T)


@triton.jit(do_not_specialize=("first", "last", "n", "b", "i", "j", "n_iters"))
def alone_bwd_kernel(
    p_count, first, last, n, b, i, j, n_iters, given, models, pulls, parts, grads, T: tl.constexpr
):  # fmt: skip
    """First samples, each for itself, then parameters."""
    inp = Inputs(given.a, given.x, given.offsets, 0, 0, 0, n, b, i, j, n_iters)
    layer = Layer(given.W, given.B, given.use, given.ign, 0, 0)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    # what is written once needs no place to add to
    own = Parts(parts.W, grads.a_inp, grads.x, parts.B, parts.use, parts.ign)
    if first == 0:
        for pid_b in range(pid, b, n_pids):
            alone_back(inp, layer, models, pulls, own, grads, pid_b, T)
    if last == 2:
        if first == 0:
            wait_for_all(p_count)
        reduce_params(inp, Share(b, 1, 1, b), pulls, parts, grads, pid, n_pids, T)
