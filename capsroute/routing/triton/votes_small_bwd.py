"""Backward kernel of the vote form where one program has a whole sample: see `votes_small.py`.

Axes as in `votes_types.py`. From the last iteration to the first, with votes and their gradients in registers. Then
programs wait for each other, once, and add up the gradients that samples have of the same parameters.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false

import triton
import triton.language as tl

from .grid import wait_for_all
from .votes_bwd import reduce_params
from .votes_model_bwd import assigned, logit_backward, model_backward, share_backward
from .votes_param_bwd import push, put_f
from .votes_tile import chunk, columns_of, load_all, load_beta, load_one, model_of, model_row, rows_of, span, votes
from .votes_types import GradSplit, InputPtrs, LayerPtrs, SumSplit


@triton.jit
def alone_lose(inp, layer, models, pulls, backs, t, pid_b, rows, cols, b_V, b_dD, b_dV, T: tl.constexpr):
    """E-step backwards: R as it was, votes' gradients with this iteration's part, and sums for the one before."""
    before = model_row(inp, t - 1, pid_b)
    model = model_of(models, before, cols, T)
    b_R = assigned(inp, layer, models, model, t, before, rows, cols, 0, b_V, T)
    b_dl = logit_backward(inp, pulls, t, rows, b_R, b_dD, T)
    b_E = b_V - model.mu[None, :, :]
    b_lxE = b_dl[:, None, :] * b_E
    row = tl.cast(pid_b, tl.int64) * inp.j
    o_E, m_E = chunk(cols, 0, T)
    o_E += row * (T.C * T.H)
    tl.store(backs.log + row + cols.o_j, tl.sum(b_dl.to(tl.float64), 0), mask=cols.m_j)
    tl.store(backs.E + o_E, tl.sum(b_lxE.to(tl.float64), 0), mask=m_E)
    tl.store(backs.EE + o_E, tl.sum((b_lxE * b_E).to(tl.float64), 0), mask=m_E)
    return b_R, b_dV - b_lxE * (2.0 * model.p)[None, :, :]


@triton.jit
def alone_back(inp, layer, models, pulls, backs, parts, grads, pid_b, T: tl.constexpr):
    """All gradients of one sample."""
    cut = SumSplit(1, 1, 1, 1)
    start, n_inp = span(inp, pid_b, T)
    rows, cols = rows_of(inp, start, n_inp, 0, T), columns_of(inp, layer, 0, T)
    b_V = votes(inp, layer, rows, cols, 0, 0, T)
    b_cost = load_beta(layer.ign, rows, cols, inp.j, T.IGN_I, T.IGN_J)
    b_dV = tl.full([T.BLOCK_I, T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    b_df = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_duse = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_dign = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for step in range(inp.n_iters):
        t = inp.n_iters - 1 - step
        model_backward(inp, layer, cut, models, pulls, backs, grads, t, pid_b, 0, T)
        tl.debug_barrier()
        here = model_row(inp, t, pid_b)
        b_dD = share_backward(inp, layer, models, pulls, here, rows, cols, 0, b_V, T)
        b_R = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32) + tl.where(cols.m_j, 1.0 / inp.j, 0.0)[None, :]
        if t > 0:
            b_R, b_dV = alone_lose(inp, layer, models, pulls, backs, t, pid_b, rows, cols, b_V, b_dD, b_dV, T)
        b_D = rows.f[:, None] * b_R
        b_E = b_V - load_all(models.mu, here, cols, 0, T)[None, :, :]
        b_dE, b_dEE = load_all(pulls.D_E, here, cols, 0, T), load_all(pulls.D_EE, here, cols, 0, T)
        b_dV += b_D[:, None, :] * (b_dE[None, :, :] + 2.0 * b_dEE[None, :, :] * b_E)
        b_da = load_one(pulls.a, here, cols, 0.0)[None, :]
        b_df += b_R * b_dD - b_da * b_cost
        b_duse += b_da * b_D
        b_dign += b_da * (b_D - rows.f[:, None])
        tl.debug_barrier()
    o_beta = (tl.cast(pid_b, tl.int64) * inp.i + rows.o_i)[:, None] * inp.j + cols.o_j[None, :]
    m_beta = rows.m_i[:, None] & cols.m_j[None, :]
    if T.USE_I:
        tl.store(parts.use + o_beta, b_duse, mask=m_beta)
    if T.IGN_I:
        tl.store(parts.ign + o_beta, b_dign, mask=m_beta)
    put_f(inp, grads, parts, 0, rows, tl.sum(b_df, 1), T)
    p_W = parts.W + tl.cast(pid_b, tl.int64) * (inp.i if T.W_I else 1) * (inp.j if T.W_J else 1) * (T.D * T.H)
    push(inp, layer, parts, grads, p_W, pid_b, 0, rows, cols, 0, 0, b_dV, 0, T)


@triton.jit(do_not_specialize=("first", "last", "n", "b", "i", "j", "n_iters"))
def small_bwd_kernel(
    p_count, first, last, n, b, i, j, n_iters, given, models, pairs, pulls, backs, parts, grads, T: tl.constexpr
):  # fmt: skip
    """First samples, each for itself, then parameters."""
    inp = InputPtrs(given.a, given.x, given.offsets, pairs.f, pairs.x, pairs.x_unit, n, b, i, j, n_iters)
    layer = LayerPtrs(given.W, given.B, given.use, given.ign, pairs.W, pairs.W_unit)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        if phase == 0:
            for pid_b in range(pid, b, n_pids):
                alone_back(inp, layer, models, pulls, backs, parts, grads, pid_b, T)
        if phase == 1:
            reduce_params(inp, GradSplit(b, 1, 1, b), pulls, parts, grads, pid, n_pids, T)
