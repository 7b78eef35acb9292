"""Backward kernels of the stored form. Axes and names as in `stored.py`."""

# pyright: reportAttributeAccessIssue=false

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

from . import stored
from .grid import wait_for_all
from .numerics import mul_without_fma
from .stored import RUNTIME_COUNTS, Counts


class Grads(NamedTuple):
    """Gradients that the passes hand on."""

    vectors: Any  # of D_use, the coefficients of distances E to mu and of E^2, then gradients of B, [t, 3, b, j, v]
    scalars: Any  # of D_use, the constant, then gradients of scores and of both betas, [t, 4, b, j]
    logits: Any  # from the second iteration on, [t, n, j]
    f: Any  # of f(a_inp), in the end of a_inp, [n]


Slope = namedtuple("Slope", "mu dE dEE constant da")
"""Gradients of D_use as a function of E, constants `[j]` and coefficients `[j, v]`, and of scores `[j]`."""


@triton.jit
def load_slope(args, grads, size, o_j, b, t, T: tl.constexpr):
    """Load a tile's gradients of D_use in iteration t."""
    m_j, row = o_j < size.j, t * 3 * size.b + b
    b_mu = stored.load_vector(args.vectors, t * 4 * size.b + b, o_j, m_j, size.j, T)
    b_dE = stored.load_vector(grads.vectors, row, o_j, m_j, size.j, T)
    b_dEE = stored.load_vector(grads.vectors, row + size.b, o_j, m_j, size.j, T)
    p_row = grads.scalars + (t * 4 * size.b + b) * size.j + o_j
    b_da = tl.load(p_row + tl.cast(size.b, tl.int64) * size.j, mask=m_j, other=0.0)
    return Slope(b_mu, b_dE, b_dEE, tl.load(p_row, mask=m_j, other=0.0), b_da)


@triton.jit
def D_use_bwd(args, size, slope, b_E, rows, o_j, T: tl.constexpr):
    """Compute gradients of D_use `[i, j]`, and the cost of ignoring an input times the score's."""
    b_zero = tl.full([b_E.shape[0], b_E.shape[1]], 0.0, tl.float32)
    b_cost = slope.da[None, :] * stored.load_beta(args.ign, rows, o_j, size.j, T) + b_zero
    b_dD = slope.constant[None, :] + b_cost + slope.da[None, :] * stored.load_beta(args.use, rows, o_j, size.j, T)
    return b_dD + tl.sum(mul_without_fma(slope.dE[None, :, :] + slope.dEE[None, :, :] * b_E, b_E), 2), b_cost


@triton.jit
def logits_bwd(b_R, b_dD, b_f):
    """Compute gradients of logits `[i, j]` over all outputs, and the sums over these of R times those of D_use."""
    b_dot = tl.sum(mul_without_fma(b_R, b_dD), 1)
    # once more: the rounding of what all outputs share would add up over inputs
    b_rest = tl.sum(mul_without_fma(b_R, b_dD - b_dot[:, None]), 1)
    return b_f[:, None] * b_R * (b_dD - b_dot[:, None] - b_rest[:, None]), b_dot


@triton.jit
def add_f_grad(grads, size, rows, t, b_df):
    """Add to gradients of f(a_inp), which the last iteration starts."""
    b_before = tl.load(grads.f + rows.o_i, mask=rows.m & (t < size.n_iters - 1), other=0.0)
    tl.store(grads.f + rows.o_i, b_before + b_df, mask=rows.m)


@triton.jit
def sum_logits(args, grads, sums, size, unit, t, T: tl.constexpr):
    """Sum gradients of logits of iteration t, times distances to the means before and times squares, over a slot.

    With all outputs in a tile, compute them too.
    """
    n_tiles = tl.cdiv(size.j, T.SUM_J)
    o_j = unit % n_tiles * T.SUM_J + tl.arange(0, T.SUM_J)
    m_j, slot, local = o_j < size.j, unit // n_tiles % size.slots, unit // n_tiles // size.slots
    sample = stored.locate_sample(args, size, local, T)
    b_mu = stored.load_vector(args.vectors, (t - 1) * 4 * size.b + sample.b, o_j, m_j, size.j, T)
    slope = load_slope(args, grads, size, o_j, sample.b, t, T)
    b_L = tl.full([T.SUM_I, T.SUM_J], 0.0, tl.float32)
    b_LE = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    b_LEE = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    for pid_i in range(slot, tl.cdiv(sample.n, T.SUM_I), size.slots):
        rows = stored.load_inputs(args, sample, pid_i, T.SUM_I)
        m, p_dl = stored.mask_pairs(rows, o_j, size.j), stored.locate_pairs(grads.logits, size, rows, o_j, t)
        b_V = stored.load_votes(args, size, rows, o_j, T)
        if T.ONE_J:
            b_dD, b_cost = D_use_bwd(args, size, slope, b_V - slope.mu[None, :, :], rows, o_j, T)
            b_dl, b_dot = logits_bwd(stored.load_R(args, size, rows, o_j, t), tl.where(m, b_dD, 0.0), rows.f)
            tl.store(p_dl, b_dl, mask=m)
            add_f_grad(grads, size, rows, t, b_dot - tl.sum(tl.where(m, b_cost, 0.0), 1))
        else:
            b_dl = tl.load(p_dl, mask=m, other=0.0)
        b_E = b_V - b_mu[None, :, :]
        b_LxE = b_dl[:, :, None] * b_E
        b_L += b_dl
        b_LE += b_LxE
        b_LEE += b_LxE * b_E
    stored.store_sums(sums, size, slot, local, o_j, b_LE, b_LEE, b_L, T)


@triton.jit
def models_bwd(args, grads, sums, douts, size, eps, unit, t, T: tl.constexpr):
    """Compute gradients of a tile of models of iteration t, from the outputs' or the next iteration's logits'."""
    n_tiles, last = tl.cdiv(size.j, T.BLOCK_M), t == size.n_iters - 1
    o_j, local = unit % n_tiles * T.BLOCK_M + tl.arange(0, T.BLOCK_M), unit // n_tiles
    m_j, b, n_slots = o_j < size.j, tl.cast(size.first_b + local, tl.int64), tl.where(last, 0, size.slots)
    here, stride = t * 4 * size.b + b, tl.cast(size.b, tl.int64) * size.j
    b_dlog = stored.sum_scalars(sums, size, n_slots, local, o_j, 0)
    b_LE = stored.sum_vectors(sums, size, n_slots, local, o_j, 0, T)
    b_LEE = stored.sum_vectors(sums, size, n_slots, local, o_j, 1, T)
    p_row = args.scalars + (t * 5 * size.b + b) * size.j + o_j
    b_score = tl.load(p_row, mask=m_j, other=0.0).to(tl.float64)
    b_D = tl.load(p_row + stride, mask=m_j, other=0.0).to(tl.float64)
    b_D_ign = tl.load(p_row + 2 * stride, mask=m_j, other=0.0).to(tl.float64)
    b_da = tl.load(douts.a + b * size.j + o_j, mask=m_j & last, other=0.0) + b_dlog / (1.0 + tl.exp(b_score))
    b_p = stored.load_vector(args.vectors, here + size.b, o_j, m_j, size.j, T)
    b_dmu = 2.0 * b_p * b_LE  # from logits
    b_dsig2 = stored.load_vector(douts.sig2, b, o_j, m_j & last, size.j, T).to(tl.float64)
    if T.GAUSSIAN:  # p = 1 / (2 sig2), and log f(a) is less half of log sig2
        b_dsig2 += b_p * (2.0 * b_p * b_LEE - b_dlog[:, None])
    b_dmu_out = stored.load_vector(douts.mu, b, o_j, m_j & last, size.j, T).to(tl.float64)
    b_DE = stored.load_vector(args.vectors, here + 2 * size.b, o_j, m_j, size.j, T)
    b_DEE = stored.load_vector(args.vectors, here + 3 * size.b, o_j, m_j, size.j, T)
    inverse = 1.0 / (b_D + eps)
    b_dEE = b_dsig2 * inverse[:, None]
    b_skew = 2.0 * b_DE * b_dEE
    b_dE = (b_dmu + b_dmu_out - b_skew) * inverse[:, None]
    # B shifts mu, but for eps: this is the sum of the votes' gradients without its cancellation
    b_dB = (b_dmu_out * b_D[:, None] - eps * (b_dmu - b_skew)) * inverse[:, None]
    b_constant = -tl.sum(mul_without_fma(b_dEE, b_DEE.to(tl.float64)), 1) * inverse
    row = t * 3 * size.b + b
    stored.store_vector(grads.vectors, row, o_j, m_j, size.j, b_dE.to(tl.float32), T)
    stored.store_vector(grads.vectors, row + size.b, o_j, m_j, size.j, b_dEE.to(tl.float32), T)
    stored.store_vector(grads.vectors, row + 2 * size.b, o_j, m_j, size.j, b_dB.to(tl.float32), T)
    p_row = grads.scalars + here * size.j + o_j
    tl.store(p_row, b_constant.to(tl.float32), mask=m_j)
    tl.store(p_row + stride, b_da.to(tl.float32), mask=m_j)
    tl.store(p_row + 2 * stride, (b_da * b_D).to(tl.float32), mask=m_j)
    tl.store(p_row + 3 * stride, (-b_da * b_D_ign).to(tl.float32), mask=m_j)


@triton.jit
def load_R_dD(args, grads, size, rows, first_j, t, T: tl.constexpr):
    """Load R and the gradients of D_use `[i, j]` of a tile."""
    o_j = first_j + tl.arange(0, T.BLOCK_J)
    m, p_dD = stored.mask_pairs(rows, o_j, size.j), stored.locate_pairs(grads.logits, size, rows, o_j, t)
    return tl.load(stored.locate_pairs(args.R, size, rows, o_j, t), mask=m, other=0.0), tl.load(p_dD, mask=m, other=0.0)


@triton.jit
def assign_bwd(args, grads, size, unit, t, T: tl.constexpr):
    """Compute gradients of a tile of inputs' logits in iteration t, over several tiles of outputs."""
    n_tiles = tl.cdiv(size.i, T.BLOCK_I)
    sample = stored.locate_sample(args, size, unit // n_tiles, T)
    rows = stored.load_inputs(args, sample, unit % n_tiles, T.BLOCK_I)
    b_cost_sum = tl.full([T.BLOCK_I], 0.0, tl.float32)
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        m, slope = stored.mask_pairs(rows, o_j, size.j), load_slope(args, grads, size, o_j, sample.b, t, T)
        b_E = stored.load_votes(args, size, rows, o_j, T) - slope.mu[None, :, :]
        b_dD, b_cost = D_use_bwd(args, size, slope, b_E, rows, o_j, T)
        tl.store(stored.locate_pairs(grads.logits, size, rows, o_j, t), b_dD, mask=m)
        b_cost_sum += tl.sum(tl.where(m, b_cost, 0.0), 1)
    tl.debug_barrier()
    b_dot, b_rest = tl.full([T.BLOCK_I], 0.0, tl.float32), tl.full([T.BLOCK_I], 0.0, tl.float32)
    for first_j in range(0, size.j, T.BLOCK_J):
        b_R, b_dD = load_R_dD(args, grads, size, rows, first_j, t, T)
        b_dot += tl.sum(mul_without_fma(b_R, b_dD), 1)
    for first_j in range(0, size.j, T.BLOCK_J):  # as in `logits_bwd`
        b_R, b_dD = load_R_dD(args, grads, size, rows, first_j, t, T)
        b_rest += tl.sum(mul_without_fma(b_R, b_dD - b_dot[:, None]), 1)
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        b_R, b_dD = load_R_dD(args, grads, size, rows, first_j, t, T)
        b_dl = rows.f[:, None] * b_R * (b_dD - b_dot[:, None] - b_rest[:, None])
        p_dl = stored.locate_pairs(grads.logits, size, rows, o_j, t)
        tl.store(p_dl, b_dl, mask=stored.mask_pairs(rows, o_j, size.j))
    add_f_grad(grads, size, rows, t, b_dot - b_cost_sum)


@triton.jit(do_not_specialize=RUNTIME_COUNTS)
def stored_bwd_kernel(
    p_count, first, last, b, first_b, n_local, i, n_places, n_rows, n_iters, slots, j, eps, args, grads, sums, douts,
    T: tl.constexpr,
):  # fmt: skip
    """Run phases `first` to `last`: gradients of the last models; then of logits, their sums, and of models before."""
    size = Counts(b, first_b, n_local, i, n_places, n_rows, n_iters, slots, j)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    PARTS: tl.constexpr = 2 if T.ONE_J else 3  # pyright: ignore[reportAssignmentType]
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        t = n_iters - (phase + PARTS - 1) // PARTS
        part = tl.where(phase == 0, 2, 3 - PARTS + (phase + PARTS - 1) % PARTS)
        if not T.ONE_J:  # noqa: SIM102 - known when compiled
            if part == 0:
                for unit in range(pid, n_local * tl.cdiv(i, T.BLOCK_I), n_pids):
                    assign_bwd(args, grads, size, unit, t, T)
        if part == 1:
            for unit in range(pid, n_local * slots * tl.cdiv(j, T.SUM_J), n_pids):
                sum_logits(args, grads, sums, size, unit, t, T)
        if part == 2:
            for unit in range(pid, n_local * tl.cdiv(j, T.BLOCK_M), n_pids):
                models_bwd(args, grads, sums, douts, size, eps, unit, t - 1, T)


@triton.jit(do_not_specialize=RUNTIME_COUNTS)
def votes_bwd_kernel(
    b, first_b, n_local, i, n_places, n_rows, n_iters, slots, j, args, grads, p_dV, p_daD, T: tl.constexpr
):
    """Compute gradients of votes, over all iterations, and of a_inp; `p_dV` is laid out as the votes, and may be these.

    With betas that differ between kinds, each input's sums of `da D_use` and `-da D_ign` are stored, `p_daD [2, n, j]`.
    """
    size = Counts(b, first_b, n_local, i, n_places, n_rows, n_iters, slots, j)
    n_tiles = tl.cdiv(i, T.BLOCK_I)
    sample = stored.locate_sample(args, size, tl.program_id(0) // n_tiles, T)
    rows = stored.load_inputs(args, sample, tl.program_id(0) % n_tiles, T.BLOCK_I)
    b_df = tl.load(grads.f + rows.o_i, mask=rows.m & (n_iters > 1), other=0.0)
    for first_j in range(0, j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        m = stored.mask_pairs(rows, o_j, j)
        b_V = stored.load_votes(args, size, rows, o_j, T)
        b_dV = tl.full([T.BLOCK_I, T.BLOCK_J, T.BLOCK_V], 0.0, tl.float32)
        b_daD = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
        b_daD_ign = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
        for t in range(0, n_iters):
            slope = load_slope(args, grads, size, o_j, sample.b, t, T)
            b_E = b_V - slope.mu[None, :, :]
            b_D = rows.f[:, None] * stored.load_R(args, size, rows, o_j, t)
            b_dV += b_D[:, :, None] * (slope.dE[None, :, :] + 2.0 * slope.dEE[None, :, :] * b_E)
            b_daD += b_D * slope.da[None, :]
            b_daD_ign += (b_D - rows.f[:, None]) * slope.da[None, :]
            if t == 0:
                b_dD, b_cost = D_use_bwd(args, size, slope, b_E, rows, o_j, T)
                b_df += tl.sum(tl.where(m, b_dD / j - b_cost, 0.0), 1)
            if t < n_iters - 1:  # through the logits of the next iteration
                b_dl = tl.load(stored.locate_pairs(grads.logits, size, rows, o_j, t + 1), mask=m, other=0.0)
                b_p = stored.load_vector(args.vectors, (t * 4 + 1) * size.b + sample.b, o_j, o_j < j, j, T)
                b_dV -= 2.0 * b_dl[:, :, None] * (b_E * b_p[None, :, :])
        p_own, m_own = stored.locate_votes(p_dV, rows, o_j, j, T)
        tl.store(p_own, b_dV, mask=m_own)
        if T.BETA_K:
            tl.store(stored.locate_pairs(p_daD, size, rows, o_j, 1), b_daD, mask=m)
            tl.store(stored.locate_pairs(p_daD, size, rows, o_j, 2), b_daD_ign, mask=m)
    tl.store(grads.f + rows.o_i, b_df * rows.f * (1.0 - rows.f), mask=rows.m)
