"""Forward kernel of the vote form where one program has a whole sample, and so waits for no other.

Axes as in `votes_types.py`. One tile holds all inputs and outputs of a sample, and its votes are formed once. Sums and
models go through memory, which gives each the threads that suit it; a barrier shows a program what it wrote itself.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false

import triton
import triton.language as tl

from .numerics import mul_without_fma
from .votes import centre, from_base, m_step, worth
from .votes_tile import assign, chunk, columns_of, distances, model_of, model_row, rows_of, span, votes
from .votes_types import InputPtrs, LayerPtrs, SumSplit


@triton.jit
def alone_gain(inp, layer, models, sums, t, pid_b, rows, cols, b_V, FIRST: tl.constexpr, T: tl.constexpr):
    """All outputs' sums over inputs; at first these belong to all alike, and shares wait."""
    share = 1.0 / tl.cast(inp.j if FIRST else 1, tl.float64)
    b_D = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32) + rows.f[:, None]
    b_base = tl.full([T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    if not FIRST:
        before = model_row(inp, t - 1, pid_b)
        model = model_of(models, before, cols, T)
        far = distances(inp, layer, models, model, before, rows, cols, 0, b_V, T)
        b_D = mul_without_fma(b_D, assign(inp, models, model, t, rows, far, T))
        b_base += model.mu
    b_centre, _ = centre(b_D, b_V, b_base, 0.0)
    b_E = b_V - b_centre[None, :, :]
    b_DxE = b_D[:, None, :] * b_E
    b_used = tl.sum(b_D.to(tl.float64), 0)
    b_DE, b_DEE = tl.sum(b_DxE.to(tl.float64), 0), tl.sum((b_DxE * b_E).to(tl.float64), 0)
    b_DE, b_DEE = from_base(b_used, b_DE, b_DEE, b_centre, b_base)
    row = tl.cast(pid_b, tl.int64) * inp.j
    o_E, m_E = chunk(cols, 0, T)
    o_E += row * (T.C * T.H)
    tl.store(sums.f + pid_b, tl.sum(rows.f.to(tl.float64), 0))
    tl.store(sums.D_use + row + cols.o_j, b_used * share, mask=cols.m_j)
    tl.store(sums.D_E + o_E, b_DE * share, mask=m_E)
    tl.store(sums.D_EE + o_E, b_DEE * share, mask=m_E)
    if T.BETAS_I:
        b_a = worth(inp, layer, rows, cols, b_D, share, T)
        tl.store(sums.a + row + cols.o_j, tl.sum(b_a, 0), mask=cols.m_j)


@triton.jit(do_not_specialize=("n", "b", "i", "j", "n_iters"))
def small_fwd_kernel(n, b, i, j, n_iters, given, pairs, sums, models, outs, T: tl.constexpr):
    """All iterations of one sample: sums over inputs, then models."""
    inp = InputPtrs(given.a, given.x, given.offsets, pairs.f, pairs.x, pairs.x_unit, n, b, i, j, n_iters)
    layer, cut = LayerPtrs(given.W, given.B, given.use, given.ign, pairs.W, pairs.W_unit), SumSplit(1, 1, 1, 1)
    pid_b = tl.program_id(0)
    start, n_inp = span(inp, pid_b, T)
    rows, cols = rows_of(inp, start, n_inp, 0, T), columns_of(inp, layer, 0, T)
    b_V = votes(inp, layer, rows, cols, 0, 0, T)
    alone_gain(inp, layer, models, sums, 0, pid_b, rows, cols, b_V, True, T)
    tl.debug_barrier()
    m_step(inp, layer, cut, sums, models, outs, 0, pid_b, 0, T)
    for t in range(1, n_iters):
        tl.debug_barrier()
        alone_gain(inp, layer, models, sums, t, pid_b, rows, cols, b_V, False, T)
        tl.debug_barrier()
        m_step(inp, layer, cut, sums, models, outs, t, pid_b, 0, T)
