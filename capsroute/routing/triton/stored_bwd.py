"""Backward kernels of the stored form. Axes and names as in `stored.py`."""

# pyright: reportAttributeAccessIssue=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from . import stored
from .grid import wait_for_all
from .numerics import mul_without_fma
from .stored import RUNTIME_COUNTS, Counts


class Grads(NamedTuple):
    """Gradients that the passes hand on."""

    vectors: Any  # of D_use, the coefficients of E and of E^2, E being a vote's distance to mu, [t, 2, b, j, v]
    scalars: Any  # of D_use, the constant, then gradients of scores and of both betas, [t, 4, b, j]
    logits: Any  # from the second iteration on, [t, n, j]
    f: Any  # of f(a_inp), in the end of a_inp, [n]


@triton.jit
def models_bwd(args, grads, douts, size, eps, unit, t, T: tl.constexpr):
    """Compute gradients of a tile of models of iteration t, from the outputs' or the next iteration's logits'."""
    n_tiles = tl.cdiv(size.j, T.SUM_J)
    o_j = unit % n_tiles * T.SUM_J + tl.arange(0, T.SUM_J)
    m_j, m_v = o_j < size.j, (tl.arange(0, T.BLOCK_V) < T.C * T.H)[None, :]
    sample = stored.locate_sample(args, size, unit // n_tiles, T)
    b, here, step = sample.b, t * 4 * size.b + sample.b, tl.cast(size.b, tl.int64) * size.j
    is_last = t == size.n_iters - 1
    b_mu = stored.load_vector(args.vectors, here, o_j, size.j, T)
    b_p = stored.load_vector(args.vectors, here + size.b, o_j, size.j, T)
    b_L = tl.full([T.SUM_I, T.SUM_J], 0.0, tl.float32)
    b_LE = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    b_LEE = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    for pid_i in range(0, tl.where(is_last, 0, tl.cdiv(sample.n, T.SUM_I))):
        rows = stored.load_inputs(args, sample, pid_i, T.SUM_I)
        p_dl = grads.logits + stored.offset_pairs(size, rows, o_j, t + 1)
        b_dl = tl.load(p_dl, mask=stored.mask_pairs(rows, o_j, size.j), other=0.0)
        b_E = stored.load_votes(args, size, rows, o_j, T) - b_mu[None, :, :]
        b_LxE = b_dl[:, :, None] * b_E
        b_L += b_dl
        b_LE += b_LxE
        b_LEE += b_LxE * b_E
    p_row = args.scalars + here * size.j + o_j
    b_score = tl.load(p_row, mask=m_j, other=0.0).to(tl.float64)
    b_D = tl.load(p_row + step, mask=m_j, other=0.0).to(tl.float64)
    b_D_ign = tl.load(p_row + 2 * step, mask=m_j, other=0.0).to(tl.float64)
    b_dlog = tl.sum(b_L.to(tl.float64), 0)
    b_da = tl.load(douts.a + b * size.j + o_j, mask=m_j & is_last, other=0.0) + b_dlog / (1.0 + tl.exp(b_score))
    b_dmu = 2.0 * b_p * tl.sum(b_LE.to(tl.float64), 0)
    b_dsig2 = tl.full([T.SUM_J, T.BLOCK_V], 0.0, tl.float64)
    if T.GAUSSIAN:  # p = 1 / (2 sig2), and log f(a) is less half of log sig2
        b_dsig2 = b_p * (2.0 * b_p * tl.sum(b_LEE.to(tl.float64), 0) - b_dlog[:, None])
    o_out = (b * size.j + o_j[:, None]) * (T.C * T.H) + tl.arange(0, T.BLOCK_V)[None, :]
    m_out = (m_j & is_last)[:, None] & m_v
    b_dmu += tl.load(douts.mu + o_out, mask=m_out, other=0.0)
    b_dsig2 += tl.load(douts.sig2 + o_out, mask=m_out, other=0.0)
    b_DE = stored.load_vector(args.vectors, here + 2 * size.b, o_j, size.j, T)
    b_DEE = stored.load_vector(args.vectors, here + 3 * size.b, o_j, size.j, T)
    inverse = 1.0 / (b_D + eps)
    b_dEE = b_dsig2 * inverse[:, None]
    b_dE = (b_dmu - 2.0 * b_DE * b_dEE) * inverse[:, None]
    b_constant = -tl.sum(mul_without_fma(tl.where(m_v, b_dEE, 0.0), b_DEE.to(tl.float64)), 1) * inverse
    stored.store_vector(grads.vectors, t * 2 * size.b + b, o_j, m_j, size.j, b_dE.to(tl.float32), T)
    stored.store_vector(grads.vectors, t * 2 * size.b + size.b + b, o_j, m_j, size.j, b_dEE.to(tl.float32), T)
    p_row = grads.scalars + here * size.j + o_j
    tl.store(p_row, b_constant.to(tl.float32), mask=m_j)
    tl.store(p_row + step, b_da.to(tl.float32), mask=m_j)
    tl.store(p_row + 2 * step, (b_da * b_D).to(tl.float32), mask=m_j)
    tl.store(p_row + 3 * step, (-b_da * b_D_ign).to(tl.float32), mask=m_j)


@triton.jit
def load_slope(args, grads, size, b_V, o_j, b, t, T: tl.constexpr):
    """Return distances to mu `[i, j, v]`, and the coefficients of these and of their squares `[1, j, v]`."""
    b_E = b_V - stored.load_vector(args.vectors, t * 4 * size.b + b, o_j, size.j, T)[None, :, :]
    b_dE = stored.load_vector(grads.vectors, t * 2 * size.b + b, o_j, size.j, T)[None, :, :]
    b_dEE = stored.load_vector(grads.vectors, t * 2 * size.b + size.b + b, o_j, size.j, T)[None, :, :]
    return b_E, b_dE, b_dEE


@triton.jit
def D_use_bwd(args, grads, size, slope, rows, o_j, b, t, T: tl.constexpr):
    """Compute gradients of D_use `[i, j]` of an iteration, and the cost of ignoring an input times the score's."""
    b_E, b_dE, b_dEE = slope
    p_row = grads.scalars + (t * 4 * size.b + b) * size.j + o_j
    b_da = tl.load(p_row + tl.cast(size.b, tl.int64) * size.j, mask=o_j < size.j, other=0.0)[None, :]
    b_zero = tl.full([b_E.shape[0], b_E.shape[1]], 0.0, tl.float32)
    b_cost = b_da * stored.load_beta(args.ign, rows, o_j, size.j, T) + b_zero
    b_dD = tl.load(p_row, mask=o_j < size.j, other=0.0)[None, :] + b_cost
    b_dD += b_da * stored.load_beta(args.use, rows, o_j, size.j, T)
    return b_dD + tl.sum(mul_without_fma(b_dE + b_dEE * b_E, b_E), 2), b_cost


@triton.jit
def load_R_dD(args, grads, size, rows, first_j, t, T: tl.constexpr):
    """Load R and the gradients of D_use `[i, j]` of a tile."""
    o_j = first_j + tl.arange(0, T.BLOCK_J)
    m, o_R = stored.mask_pairs(rows, o_j, size.j), stored.offset_pairs(size, rows, o_j, t)
    return tl.load(args.R + o_R, mask=m, other=0.0), tl.load(grads.logits + o_R, mask=m, other=0.0)


@triton.jit
def assign_bwd(args, grads, size, unit, t, T: tl.constexpr):
    """Compute gradients of a tile of inputs' logits in iteration t, and add to those of f(a_inp)."""
    n_tiles = tl.cdiv(size.i, T.BLOCK_I)
    sample = stored.locate_sample(args, size, unit // n_tiles, T)
    rows = stored.load_inputs(args, sample, unit % n_tiles, T.BLOCK_I)
    b_cost_sum = tl.full([T.BLOCK_I], 0.0, tl.float32)
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        slope = load_slope(args, grads, size, stored.load_votes(args, size, rows, o_j, T), o_j, sample.b, t, T)
        b_dD, b_cost = D_use_bwd(args, grads, size, slope, rows, o_j, sample.b, t, T)
        tl.store(
            grads.logits + stored.offset_pairs(size, rows, o_j, t), b_dD, mask=stored.mask_pairs(rows, o_j, size.j)
        )
        b_cost_sum += tl.sum(b_cost, 1)
    tl.debug_barrier()
    b_dot, b_rest = tl.full([T.BLOCK_I], 0.0, tl.float32), tl.full([T.BLOCK_I], 0.0, tl.float32)
    for first_j in range(0, size.j, T.BLOCK_J):
        b_R, b_dD = load_R_dD(args, grads, size, rows, first_j, t, T)
        b_dot += tl.sum(mul_without_fma(b_R, b_dD), 1)
    # once more: the rounding of what all outputs share would add up over inputs
    for first_j in range(0, size.j, T.BLOCK_J):
        b_R, b_dD = load_R_dD(args, grads, size, rows, first_j, t, T)
        b_rest += tl.sum(mul_without_fma(b_R, b_dD - b_dot[:, None]), 1)
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        b_R, b_dD = load_R_dD(args, grads, size, rows, first_j, t, T)
        b_dl = rows.f[:, None] * b_R * (b_dD - b_dot[:, None] - b_rest[:, None])
        tl.store(
            grads.logits + stored.offset_pairs(size, rows, o_j, t), b_dl, mask=stored.mask_pairs(rows, o_j, size.j)
        )
    b_df = tl.load(grads.f + rows.o_i, mask=rows.m & (t < size.n_iters - 1), other=0.0)
    tl.store(grads.f + rows.o_i, b_df + b_dot - b_cost_sum, mask=rows.m)


@triton.jit(do_not_specialize=RUNTIME_COUNTS)
def stored_bwd_kernel(
    p_count, first, last, b, first_b, n_local, i, n_places, n_rows, n_iters, j, eps, args, grads, douts,
    T: tl.constexpr,
):  # fmt: skip
    """Run phases `first` to `last`: from the last iteration back, gradients of models and of the logits before."""
    size = Counts(b, first_b, n_local, i, n_places, n_rows, n_iters, j)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        t = n_iters - 1 - phase // 2
        if phase % 2 == 0:
            for unit in range(pid, n_local * tl.cdiv(j, T.SUM_J), n_pids):
                models_bwd(args, grads, douts, size, eps, unit, t, T)
        else:
            for unit in range(pid, n_local * tl.cdiv(i, T.BLOCK_I), n_pids):
                assign_bwd(args, grads, size, unit, t, T)


@triton.jit(do_not_specialize=RUNTIME_COUNTS)
def votes_bwd_kernel(b, first_b, n_local, i, n_places, n_rows, n_iters, j, args, grads, p_dV, p_daD, T: tl.constexpr):
    """Compute gradients of votes, over all iterations, and of a_inp; `p_dV [n, c, j, h]` may be the votes.

    With betas that differ between kinds, each input's `sum_t da D_use` is stored too, `p_daD [n, j]`.
    """
    size = Counts(b, first_b, n_local, i, n_places, n_rows, n_iters, j)
    n_tiles = tl.cdiv(i, T.BLOCK_I)
    sample = stored.locate_sample(args, size, tl.program_id(0) // n_tiles, T)
    rows = stored.load_inputs(args, sample, tl.program_id(0) % n_tiles, T.BLOCK_I)
    b_df = tl.load(grads.f + rows.o_i, mask=rows.m & (n_iters > 1), other=0.0)
    for first_j in range(0, j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        m = stored.mask_pairs(rows, o_j, j)
        b_V = stored.load_votes(args, size, rows, o_j, T)
        slope = load_slope(args, grads, size, b_V, o_j, sample.b, 0, T)
        b_dD, b_cost = D_use_bwd(args, grads, size, slope, rows, o_j, sample.b, 0, T)
        b_df += tl.sum(tl.where(m, b_dD / j - b_cost, 0.0), 1)
        b_dV = tl.full([T.BLOCK_I, T.BLOCK_J, T.BLOCK_V], 0.0, tl.float32)
        b_daD = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
        for t in range(0, n_iters):
            b_E, b_dE, b_dEE = load_slope(args, grads, size, b_V, o_j, sample.b, t, T)
            b_D = stored.load_D_use(args, size, rows, o_j, t)
            b_dV += b_D[:, :, None] * (b_dE + 2.0 * b_dEE * b_E)
            p_da = grads.scalars + (t * 4 * size.b + size.b + sample.b) * j + o_j
            b_daD += b_D * tl.load(p_da, mask=o_j < j, other=0.0)[None, :]
            if t > 0:
                before = (t - 1) * 4 * size.b + sample.b
                b_dl = tl.load(grads.logits + stored.offset_pairs(size, rows, o_j, t), mask=m, other=0.0)
                b_pE = b_V - stored.load_vector(args.vectors, before, o_j, j, T)[None, :, :]
                b_pE *= stored.load_vector(args.vectors, before + size.b, o_j, j, T)[None, :, :]
                b_dV -= 2.0 * b_dl[:, :, None] * b_pE
        o_jv, m_jv = stored.offset_votes(o_j, j, T)
        p_rows = p_dV + rows.n[:, None, None] * (T.C * j * T.H)
        tl.store(p_rows + o_jv[None, :, :], b_dV, mask=rows.m[:, None, None] & m_jv[None, :, :])
        if T.BETA_K:
            tl.store(p_daD + rows.n[:, None] * j + o_j[None, :], b_daD, mask=m)
    tl.store(grads.f + rows.o_i, b_df * rows.f * (1.0 - rows.f), mask=rows.m)
