"""Forward kernel of the vote form where one program has a whole sample, and so waits for no other.

Axes as in `votes_types.py`. One tile holds all inputs and outputs of a sample: votes are formed once, and models of all
iterations stay in registers; memory gets them only for the backward pass.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false

import triton
import triton.language as tl

from .limits import at_least
from .votes import LOG_2_PI, assign, log_sigmoid
from .votes_tile import (
    LOWEST,
    chunk,
    columns_of,
    components,
    distances,
    in_two,
    load_betas,
    model_row,
    rows_of,
    span,
    votes,
)
from .votes_types import Inputs, Layer, Model


@triton.jit
def alone_score(inp, layer, rows, cols, b_D, b_use, b_ign, share, T: tl.constexpr):
    """Benefit from what outputs use, less cost of what they ignore."""
    b_gain, b_cost = load_betas(inp, layer, rows, cols, T)
    b_gain, b_cost = b_gain.to(tl.float64), b_cost.to(tl.float64)
    if T.OWN:
        b_used = b_D.to(tl.float64) * share
        return tl.sum(b_gain * b_used - b_cost * (rows.f.to(tl.float64)[:, None] - b_used), 0)
    else:
        return tl.sum(b_gain * b_use[None, :] - b_cost * b_ign[None, :], 0)  # over an axis of one


@triton.jit
def alone_step(inp, layer, models, outs, rows, cols, b_V, b_D, model, t, pid_b, T: tl.constexpr):
    """The next model, from shares `[I, J]`; at first inputs belong to all alike, and the shares are f(a_inp)."""
    _, _, m_v = components(0, T)
    share = tl.where(t == 0, 1.0 / tl.cast(inp.j, tl.float64), 1.0)
    b_E = b_V - model.mu[None, :, :]
    b_DxE = b_D[:, None, :] * b_E
    b_use = tl.sum(b_D.to(tl.float64), 0) * share
    b_DE = tl.sum(b_DxE.to(tl.float64), 0) * share
    b_DEE = tl.sum((b_DxE * b_E).to(tl.float64), 0) * share
    b_ign = tl.sum(rows.f.to(tl.float64), 0) - b_use
    b_a = alone_score(inp, layer, rows, cols, b_D, b_use, b_ign, share, T)
    b_used = b_use + T.EPS
    b_old = model.mu.to(tl.float64)
    b_mu = ((b_DE + b_old * b_use[None, :]) / b_used[None, :]).to(tl.float32)
    b_move = b_mu.to(tl.float64) - b_old
    b_DEE = at_least(b_DEE - 2.0 * b_move * b_DE + b_move * b_move * b_use[None, :], 0.0)
    b_sig2 = b_DEE / b_used[None, :] + T.EPS
    b_log = log_sigmoid(b_a)
    b_p = model.p
    here, last = model_row(inp, t, pid_b), tl.where(t == inp.n_iters - 1, inp.j, 0)
    o_E, m_E = chunk(cols, 0, T)
    o_mu = here * (T.C * T.H) + o_E
    if T.GAUSSIAN:
        b_p = (0.5 / b_sig2).to(tl.float32)
        b_log -= 0.5 * tl.sum(tl.where(m_v[:, None], tl.log(b_sig2) + LOG_2_PI, 0.0), 0)
        tl.store(models.p + o_mu, b_p, mask=m_E)
    b_log, b_rest = in_two(b_log)
    tl.store(models.D_use + here + cols.o_j, b_use, mask=cols.m_j)
    tl.store(models.D_ign + here + cols.o_j, b_ign, mask=cols.m_j)
    tl.store(models.a + here + cols.o_j, b_a.to(tl.float32), mask=cols.m_j)
    tl.store(models.log + here + cols.o_j, b_log, mask=cols.m_j)
    tl.store(models.log_rest + here + cols.o_j, b_rest, mask=cols.m_j)
    tl.store(models.mu + o_mu, b_mu, mask=m_E)
    tl.store(models.D_E + o_mu, b_DE - b_move * b_use[None, :], mask=m_E)
    tl.store(models.D_EE + o_mu, b_DEE, mask=m_E)
    o_out, m_last = tl.cast(pid_b, tl.int64) * inp.j, (cols.o_j < last)[None, :] & m_E
    tl.store(outs.a + o_out + cols.o_j, b_a.to(tl.float32), mask=cols.o_j < last)
    tl.store(outs.mu + o_out * (T.C * T.H) + o_E, b_mu, mask=m_last)
    tl.store(outs.sig2 + o_out * (T.C * T.H) + o_E, b_sig2.to(tl.float32), mask=m_last)
    return b_mu, b_p, tl.where(cols.m_j, b_log, LOWEST), b_rest


@triton.jit(do_not_specialize=("n", "b", "i", "j", "n_iters"))
def alone_fwd_kernel(n, b, i, j, n_iters, given, models, outs, T: tl.constexpr):
    """All iterations of one sample."""
    inp = Inputs(given.a, given.x, given.offsets, 0, 0, 0, n, b, i, j, n_iters)
    layer = Layer(given.W, given.B, given.use, given.ign, 0, 0)
    pid_b = tl.program_id(0)
    start, n_inp = span(inp, pid_b, T)
    rows, cols = rows_of(inp, start, n_inp, 0, T), columns_of(inp, layer, 0, T)
    b_V = votes(inp, layer, rows, cols, 0, 0, T)
    b_mu = tl.full([T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    b_p = tl.full([T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 1.0, tl.float32)
    b_log = tl.full([T.BLOCK_J], 0.0, tl.float32)
    b_rest = tl.full([T.BLOCK_J], 0.0, tl.float32)
    for t in range(n_iters):
        model = Model(b_mu, b_p, b_log, b_rest)
        b_D = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32) + rows.f[:, None]
        if t > 0:
            far = distances(inp, layer, models, model, 0, rows, cols, 0, b_V, T)
            b_D *= assign(inp, models, model, t, rows, far, T)
        b_mu, b_p, b_log, b_rest = alone_step(
            inp, layer, models, outs, rows, cols, b_V, b_D, model, t, pid_b, T
        )  # fmt: skip
