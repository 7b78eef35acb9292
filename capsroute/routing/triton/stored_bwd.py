"""Backward kernels of the stored form. Axes and names as in `stored.py`.

`dvectors [t, 2, b, j, v]` hold the coefficients of E and of E^2 in the gradients of D_use, E being a vote's distance to
mu; `dscalars [t, 4, b, j]` the constant of these, the gradients of scores, and those of both betas. `dlogits [t, n, j]`
are the gradients of logits.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false

import triton
import triton.language as tl

from .grid import wait_for_all
from .numerics import mul_without_fma
from .stored import (
    RUNTIME_SIZES,
    load_beta,
    load_D_use,
    load_inputs,
    load_vector,
    load_votes,
    locate_inputs,
    store_vector,
)


@triton.jit
def models_bwd(
    p_a, p_offsets, p_V, p_B, p_dlogits, p_vectors, p_scalars, p_dvectors, p_dscalars, p_da, p_dmu, p_dsig2, unit, t,
    n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, eps, C: tl.constexpr, H: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_V: tl.constexpr, B_K: tl.constexpr, PACKED: tl.constexpr,
    GAUSSIAN: tl.constexpr,
):  # fmt: skip
    """Compute gradients of a tile of models of iteration t, from the outputs' or the next iteration's logits'."""
    n_tiles = tl.cdiv(J, BLOCK_J)
    local = unit // n_tiles
    b = tl.cast(first_b + local, tl.int64)
    o_j = unit % n_tiles * BLOCK_J + tl.arange(0, BLOCK_J)
    m_j = o_j < J
    m_v = (tl.arange(0, BLOCK_V) < C * H)[None, :]
    at = locate_inputs(p_offsets, b, local, n_local, n_inp, n_places, PACKED)
    row = t * 4 * n_b + b
    b_mu = load_vector(p_vectors, row, o_j, J, C, H, BLOCK_V)
    b_p = load_vector(p_vectors, row + n_b, o_j, J, C, H, BLOCK_V)
    b_L = tl.zeros([BLOCK_I, BLOCK_J], tl.float32)
    b_LE = tl.zeros([BLOCK_I, BLOCK_J, BLOCK_V], tl.float32)
    b_LEE = tl.zeros([BLOCK_I, BLOCK_J, BLOCK_V], tl.float32)
    is_last = t == n_iters - 1
    for pid_i in range(0, tl.cdiv(at[1], BLOCK_I)):
        rows, kinds, m_i, _ = load_inputs(p_a, at, pid_i, BLOCK_I)
        m = m_i[:, None] & m_j[None, :]
        if is_last == 0:
            p_dl = p_dlogits + (t * tl.cast(n_rows, tl.int64) + rows[:, None]) * J + o_j[None, :]
            b_dl = tl.load(p_dl, mask=m, other=0.0)
            b_E = load_votes(p_V, p_B, rows, kinds, m_i, o_j, J, C, H, BLOCK_V, B_K) - b_mu[None, :, :]
            b_LxE = b_dl[:, :, None] * b_E
            b_L += b_dl
            b_LE += b_LxE
            b_LEE += b_LxE * b_E
    b_score = tl.load(p_scalars + row * J + o_j, mask=m_j, other=0.0).to(tl.float64)
    b_D = tl.load(p_scalars + (row + n_b) * J + o_j, mask=m_j, other=0.0).to(tl.float64)
    b_D_ign = tl.load(p_scalars + (row + 2 * n_b) * J + o_j, mask=m_j, other=0.0).to(tl.float64)
    b_dlog = tl.sum(b_L.to(tl.float64), 0)
    b_da = tl.load(p_da + b * J + o_j, mask=m_j & is_last, other=0.0) + b_dlog / (1.0 + tl.exp(b_score))
    b_dmu = 2.0 * b_p * tl.sum(b_LE.to(tl.float64), 0)
    b_dsig2 = tl.zeros([BLOCK_J, BLOCK_V], tl.float64)
    if GAUSSIAN:  # p = 1 / (2 sig2), and log f(a) is less half of log sig2
        b_dsig2 = b_p * (2.0 * b_p * tl.sum(b_LEE.to(tl.float64), 0) - b_dlog[:, None])
    m_last = m_j & is_last
    o_out = b * J * (C * H) + o_j[:, None] * (C * H) + tl.arange(0, BLOCK_V)[None, :]
    b_dmu += tl.load(p_dmu + o_out, mask=m_last[:, None] & m_v, other=0.0)
    b_dsig2 += tl.load(p_dsig2 + o_out, mask=m_last[:, None] & m_v, other=0.0)
    b_DE = load_vector(p_vectors, row + 2 * n_b, o_j, J, C, H, BLOCK_V)
    b_DEE = load_vector(p_vectors, row + 3 * n_b, o_j, J, C, H, BLOCK_V)
    inverse = 1.0 / (b_D + eps)
    b_dEE = b_dsig2 * inverse[:, None]
    b_dE = (b_dmu - 2.0 * b_DE * b_dEE) * inverse[:, None]
    b_constant = -tl.sum(mul_without_fma(tl.where(m_v, b_dEE, 0.0), b_DEE.to(tl.float64)), 1) * inverse
    store_vector(p_dvectors, t * 2 * n_b + b, o_j, m_j, b_dE.to(tl.float32), J, C, H)
    store_vector(p_dvectors, t * 2 * n_b + n_b + b, o_j, m_j, b_dEE.to(tl.float32), J, C, H)
    p_row, step = p_dscalars + (t * 4 * n_b + b) * J + o_j, tl.cast(n_b, tl.int64) * J
    tl.store(p_row, b_constant.to(tl.float32), mask=m_j)
    tl.store(p_row + step, b_da.to(tl.float32), mask=m_j)
    tl.store(p_row + 2 * step, (b_da * b_D).to(tl.float32), mask=m_j)
    tl.store(p_row + 3 * step, (-b_da * b_D_ign).to(tl.float32), mask=m_j)


@triton.jit
def D_use_bwd(
    b_V, p_use, p_ign, p_vectors, p_dvectors, p_dscalars, kinds, m_i, o_j, n_b, b, t, J,
    C: tl.constexpr, H: tl.constexpr, BLOCK_V: tl.constexpr, BETA_K: tl.constexpr,
):  # fmt: skip
    """Compute gradients of D_use `[i, j]` of an iteration, and the cost of ignoring an input times its gradient."""
    row, here = t * 2 * n_b + b, t * 4 * n_b + b
    b_E = b_V - load_vector(p_vectors, t * 4 * n_b + b, o_j, J, C, H, BLOCK_V)[None, :, :]
    b_dE = load_vector(p_dvectors, row, o_j, J, C, H, BLOCK_V)[None, :, :]
    b_dEE = load_vector(p_dvectors, row + n_b, o_j, J, C, H, BLOCK_V)[None, :, :]
    b_constant = tl.load(p_dscalars + here * J + o_j, mask=o_j < J, other=0.0)[None, :]
    b_da = tl.load(p_dscalars + (here + n_b) * J + o_j, mask=o_j < J, other=0.0)[None, :]
    b_cost = b_da * load_beta(p_ign, kinds, m_i, o_j, J, BETA_K)
    b_benefit = b_da * load_beta(p_use, kinds, m_i, o_j, J, BETA_K)
    return b_constant + b_benefit + b_cost + tl.sum(mul_without_fma(b_dE + b_dEE * b_E, b_E), 2), b_cost, b_da, b_E, b_dE, b_dEE


@triton.jit
def assign_bwd(
    p_a, p_offsets, p_V, p_B, p_use, p_ign, p_R, p_vectors, p_dvectors, p_dscalars, p_dlogits, p_df, unit, t,
    n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, C: tl.constexpr, H: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_V: tl.constexpr, B_K: tl.constexpr, BETA_K: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Compute gradients of a tile of inputs' logits in iteration t, and add to those of f(a_inp)."""
    n_tiles = tl.cdiv(n_inp, BLOCK_I)
    local, pid_i = unit // n_tiles, unit % n_tiles
    b = tl.cast(first_b + local, tl.int64)
    at = locate_inputs(p_offsets, b, local, n_local, n_inp, n_places, PACKED)
    rows, kinds, m_i, b_f = load_inputs(p_a, at, pid_i, BLOCK_I)
    o_R = ((t - 1) * tl.cast(n_rows, tl.int64) + rows[:, None]) * J
    b_dot, b_cost_sum = tl.zeros([BLOCK_I], tl.float32), tl.zeros([BLOCK_I], tl.float32)
    for first_j in range(0, J, BLOCK_J):
        o_j = first_j + tl.arange(0, BLOCK_J)
        m = m_i[:, None] & (o_j < J)[None, :]
        b_V = load_votes(p_V, p_B, rows, kinds, m_i, o_j, J, C, H, BLOCK_V, B_K)
        b_dD, b_cost, _, _, _, _ = D_use_bwd(
            b_V, p_use, p_ign, p_vectors, p_dvectors, p_dscalars, kinds, m_i, o_j, n_b, b, t, J, C, H, BLOCK_V, BETA_K
        )
        tl.store(p_dlogits + o_R + o_j[None, :], b_dD, mask=m)
        b_dot += tl.sum(mul_without_fma(tl.load(p_R + o_R + o_j[None, :], mask=m, other=0.0), b_dD), 1)
        b_cost_sum += tl.sum(b_cost + tl.zeros_like(b_dD), 1)
    tl.debug_barrier()
    # twice: the rounding of what all outputs share would add up over inputs
    b_rest = tl.zeros([BLOCK_I], tl.float32)
    for first_j in range(0, J, BLOCK_J):
        o_j = first_j + tl.arange(0, BLOCK_J)
        m = m_i[:, None] & (o_j < J)[None, :]
        b_dD = tl.load(p_dlogits + o_R + o_j[None, :], mask=m, other=0.0) - b_dot[:, None]
        b_rest += tl.sum(mul_without_fma(tl.load(p_R + o_R + o_j[None, :], mask=m, other=0.0), b_dD), 1)
    for first_j in range(0, J, BLOCK_J):
        o_j = first_j + tl.arange(0, BLOCK_J)
        m = m_i[:, None] & (o_j < J)[None, :]
        b_dD = tl.load(p_dlogits + o_R + o_j[None, :], mask=m, other=0.0) - b_dot[:, None] - b_rest[:, None]
        b_D = b_f[:, None] * tl.load(p_R + o_R + o_j[None, :], mask=m, other=0.0)
        tl.store(p_dlogits + o_R + o_j[None, :], b_D * b_dD, mask=m)
    p_own = p_df + at[0] + pid_i * BLOCK_I + tl.arange(0, BLOCK_I)
    tl.store(p_own, tl.load(p_own, mask=m_i & (t < n_iters - 1), other=0.0) + b_dot - b_cost_sum, mask=m_i)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def stored_bwd_kernel(
    p_count, first, last, p_a, p_offsets, p_V, p_B, p_use, p_ign, p_R, p_vectors, p_scalars, p_dvectors, p_dscalars,
    p_dlogits, p_df, p_da, p_dmu, p_dsig2, n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, eps,
    C: tl.constexpr, H: tl.constexpr, SUM_I: tl.constexpr, SUM_J: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_V: tl.constexpr, B_K: tl.constexpr, BETA_K: tl.constexpr, PACKED: tl.constexpr,
    GAUSSIAN: tl.constexpr,
):  # fmt: skip
    """Run phases `first` to `last`: from the last iteration back, gradients of models and of the logits before."""
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        t = n_iters - 1 - phase // 2
        if phase % 2 == 0:
            for unit in range(pid, n_local * tl.cdiv(J, SUM_J), n_pids):
                models_bwd(
                    p_a, p_offsets, p_V, p_B, p_dlogits, p_vectors, p_scalars, p_dvectors, p_dscalars, p_da, p_dmu,
                    p_dsig2, unit, t, n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, eps, C, H, SUM_I,
                    SUM_J, BLOCK_V, B_K, PACKED, GAUSSIAN,
                )  # fmt: skip
        else:
            for unit in range(pid, n_local * tl.cdiv(n_inp, BLOCK_I), n_pids):
                assign_bwd(
                    p_a, p_offsets, p_V, p_B, p_use, p_ign, p_R, p_vectors, p_dvectors, p_dscalars, p_dlogits, p_df,
                    unit, t, n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, C, H, BLOCK_I, BLOCK_J,
                    BLOCK_V, B_K, BETA_K, PACKED,
                )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def votes_bwd_kernel(
    p_a, p_offsets, p_V, p_B, p_use, p_ign, p_R, p_vectors, p_dvectors, p_dscalars, p_dlogits, p_df, p_dV, p_daD,
    n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, C: tl.constexpr, H: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_V: tl.constexpr, B_K: tl.constexpr, BETA_K: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Compute gradients of votes, over all iterations, and of a_inp; `p_dV` may be `p_V`.

    With betas that differ between kinds, each input's `sum_t da D_use` is stored too, `[n, j]`.
    """
    n_tiles = tl.cdiv(n_inp, BLOCK_I)
    local, pid_i = tl.program_id(0) // n_tiles, tl.program_id(0) % n_tiles
    b = tl.cast(first_b + local, tl.int64)
    at = locate_inputs(p_offsets, b, local, n_local, n_inp, n_places, PACKED)
    rows, kinds, m_i, b_f = load_inputs(p_a, at, pid_i, BLOCK_I)
    b_df = tl.zeros([BLOCK_I], tl.float32)
    o_v = tl.arange(0, BLOCK_V)
    for first_j in range(0, J, BLOCK_J):
        o_j = first_j + tl.arange(0, BLOCK_J)
        m = m_i[:, None] & (o_j < J)[None, :]
        b_V = load_votes(p_V, p_B, rows, kinds, m_i, o_j, J, C, H, BLOCK_V, B_K)
        b_dD, b_cost, b_da, b_E, b_dE, b_dEE = D_use_bwd(
            b_V, p_use, p_ign, p_vectors, p_dvectors, p_dscalars, kinds, m_i, o_j, n_b, b, 0, J, C, H, BLOCK_V, BETA_K
        )
        b_df += tl.sum(tl.where((o_j < J)[None, :], b_dD / J - b_cost, 0.0), 1)
        b_D = tl.where(m, b_f[:, None] / J, 0.0)
        b_dV = b_D[:, :, None] * (b_dE + 2.0 * b_dEE * b_E)
        b_daD = b_D * b_da
        for t in range(1, n_iters):
            row, before = t * 2 * n_b + b, (t - 1) * 4 * n_b + b
            b_E = b_V - load_vector(p_vectors, t * 4 * n_b + b, o_j, J, C, H, BLOCK_V)[None, :, :]
            b_dE = load_vector(p_dvectors, row, o_j, J, C, H, BLOCK_V)[None, :, :]
            b_dEE = load_vector(p_dvectors, row + n_b, o_j, J, C, H, BLOCK_V)[None, :, :]
            b_D = load_D_use(p_R, rows, m_i, o_j, b_f, t, n_rows, J)
            b_dV += b_D[:, :, None] * (b_dE + 2.0 * b_dEE * b_E)
            b_mu = load_vector(p_vectors, before, o_j, J, C, H, BLOCK_V)
            b_p = load_vector(p_vectors, before + n_b, o_j, J, C, H, BLOCK_V)
            p_dl = p_dlogits + ((t - 1) * tl.cast(n_rows, tl.int64) + rows[:, None]) * J + o_j[None, :]
            b_dl = tl.load(p_dl, mask=m, other=0.0)
            b_dV -= 2.0 * b_dl[:, :, None] * b_p[None, :, :] * (b_V - b_mu[None, :, :])
            b_daD += b_D * tl.load(p_dscalars + (t * 4 * n_b + n_b + b) * J + o_j, mask=o_j < J, other=0.0)[None, :]
        o_jv = o_j[:, None] * H + (o_v // H * J * H + o_v % H)[None, :]
        p_rows = p_dV + rows[:, None, None] * (C * J * H)
        tl.store(p_rows + o_jv[None, :, :], b_dV, mask=m[:, :, None] & (o_v < C * H)[None, None, :])
        if BETA_K:
            tl.store(p_daD + rows[:, None] * J + o_j[None, :], b_daD, mask=m)
    p_own = p_df + at[0] + pid_i * BLOCK_I + tl.arange(0, BLOCK_I)
    b_df += tl.load(p_own, mask=m_i & (n_iters > 1), other=0.0)
    tl.store(p_own, b_df * b_f * (1.0 - b_f), mask=m_i)
