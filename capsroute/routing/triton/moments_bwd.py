"""Gradients of the moment form, from the sums that every iteration left. Axes as in `moments.py`."""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from .grid import programs_at_once, run_phases, wait_for_all
from .moments import TILES, cut, features, fixed
from .moments_tile import (
    BLOCK_J,
    LARGEST,
    along_features,
    along_votes,
    assign,
    capsules,
    coefficients,
    dot,
    factors,
    gates,
    model_of,
    power,
    sample,
    split,
    total_of,
    units,
    vote_of,
    weight,
)
from .sizes import Plan, Sizes


@triton.jit
def weights_bwd(
    p_S, p_dtheta, p_votes, p_shift, p_W, o_j, o_w, has_theta, stride_W, J: tl.constexpr, C: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of `W [j, d h]`, from what multiplies it: sums of features, and coefficients of votes in memory."""
    PAIRS = D * (D + 1) // 2
    o_e = tl.arange(0, BLOCK_E)  # c and d' together
    j, d, h = o_j[:, None, None], (o_w // H)[None, :, None], (o_w % H)[None, :, None]
    c, e = (o_e // D)[None, None, :], (o_e % D)[None, None, :]
    m = (o_j < J)[:, None, None] & (o_w < D * H)[None, :, None] & (o_e < C * D)[None, None, :]
    low, high = tl.minimum(d, e), tl.maximum(d, e)
    at_quad = j * K + c * PAIRS + low * D - low * (low - 1) // 2 + high - low
    at_votes = j * BLOCK_V + c * H + h
    b_two = 2 * weight(p_W, j, m, e, h, stride_W, H)
    b_dVV = tl.load(p_votes + at_votes, mask=m, other=0.0)
    b_dW = tl.load(p_S + at_quad, mask=m, other=0.0) * b_dVV * b_two
    m_one = m & (e == 0)  # what has no d' is counted once
    at_line = j * K + C * PAIRS + c * D + d
    b_dV = tl.load(p_votes + J * BLOCK_V + at_votes, mask=m_one, other=0.0)
    b_dB = tl.load(p_votes + 2 * J * BLOCK_V + at_votes, mask=m_one, other=0.0)
    b_dW += tl.load(p_S + at_line, mask=m_one, other=0.0) * b_dV
    b_dW += tl.load(p_shift + c * D + d, mask=m_one, other=0.0) * b_dB
    if has_theta:
        b_p = tl.load(p_votes + 3 * J * BLOCK_V + at_votes, mask=m, other=0.0)
        b_pm = tl.load(p_votes + 4 * J * BLOCK_V + at_votes, mask=m_one, other=0.0)
        b_dW -= tl.load(p_dtheta + at_quad, mask=m, other=0.0) * b_p * b_two
        b_dW += tl.load(p_dtheta + at_line, mask=m_one, other=0.0) * 2 * b_pm
    return tl.sum(b_dW, 2)


@triton.jit
def gather(b, p_which, o_x, o_k):
    """To every number of a capsule what belongs to it among the features, `[i, c d]` from `[i, k]`."""
    b_to = (tl.load(p_which + o_k)[:, None] == o_x[None, :]).to(tl.float16)
    b_size, b_inverse = power(tl.max(tl.abs(b), 1))
    b_high, b_low = split(b * b_inverse[:, None])
    return (tl.dot(b_high, b_to) + tl.dot(b_low, b_to) * (1 / 2048)) * b_size[:, None]


@triton.jit
def rows_dot(b, c_high, c_low, c_size):
    """`b @ c'`, for coefficients `[k, j]` as pairs."""
    b = b * c_size[None, :]
    b_size, b_inverse = power(tl.max(tl.abs(b), 1))
    b_high, b_low = split(b * b_inverse[:, None])
    return dot(b_high, b_low, tl.trans(c_high), tl.trans(c_low)) * b_size[:, None]


@triton.jit
def add_to(p, b, mask, fresh):
    """Add to what is in memory, or begin it."""
    if fresh:
        tl.store(p, b, mask=mask)
    else:
        tl.store(p, tl.load(p, mask=mask, other=0.0) + b, mask=mask)


@triton.jit(noinline=True)
def models_bwd(
    p_W, p_B, p_use, p_ign, p_first, p_second, p_shift, p_S, p_da, p_dmu, p_dsig2, p_part, p_dtheta, p_votes, p_dS,
    p_dtotal, p_dlayer, n_b, t, n_iters, n_slots, eps, stride_shift, stride_W, stride_use, stride_ign,
    GAUSSIAN: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Phase: from the gradients of an iteration's output capsules those of its sums of features and of parameters."""
    CD = C * D
    WIDTH = D * H + C * H + 2  # gradients of one output's parameters
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    o_k = tl.arange(0, K)
    blocks = tl.cdiv(J, BLOCK_J)
    o_v, o_w = tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_W)
    last = t == n_iters - 1
    for unit in range(pid, n_b * blocks, n_pid):
        u_b = zero + unit // blocks
        o_j = unit % blocks * BLOCK_J + tl.arange(0, BLOCK_J)
        m_j, m_v = o_j < J, o_v < C * H
        m_jv = m_j[:, None] & m_v[None, :]
        p_row = p_S + (t * n_b + u_b) * J * K
        p_own = p_shift + u_b * stride_shift
        b_total = tl.load(p_own + CD)
        b_units = units(p_first, p_second, tl.load(p_own + CD + 1), o_k, CD)
        b_near = vote_of(p_own, p_W, o_j, o_v, stride_W, J, C, D, H, BLOCK_D)
        b_D, b_m, b_N, b_sig2, b_B, b_a, b_use, b_ign = model_of(
            p_row, p_W, p_B, p_use, p_ign, b_total, b_near, o_j, o_v, eps, stride_W, stride_use, stride_ign,
            J, C, D, H, K, BLOCK_D,
        )  # fmt: skip
        p_votes_b = p_votes + u_b * (5 * J * BLOCK_V)
        at_v = o_j[:, None] * BLOCK_V + o_v[None, :]
        if last:
            at_out = (u_b * J + o_j)[:, None] * (C * H) + o_v[None, :]
            b_da = tl.load(p_da + u_b * J + o_j, mask=m_j, other=0.0).to(tl.float64)
            b_dmu = tl.load(p_dmu + at_out, mask=m_jv, other=0.0).to(tl.float64)
            b_dm = tl.zeros([BLOCK_J, BLOCK_V], tl.float64)  # by way of the next E-step
            b_dsig2 = tl.load(p_dsig2 + at_out, mask=m_jv, other=0.0).to(tl.float64)
        else:
            p_dtheta_b = p_dtheta + u_b * J * K
            b_sum = total_of(p_part, u_b, o_j, o_k, n_slots, J, J, K) / b_units[None, :]
            tl.store(p_dtheta_b + o_j[:, None] * K + o_k[None, :], b_sum, mask=m_j[:, None])
            tl.debug_barrier()
            b_one, b_V, b_VV = along_votes(p_dtheta_b, p_W, o_j, o_v, stride_W, J, C, D, H, K, BLOCK_D)
            if GAUSSIAN:
                b_p = tl.where(m_jv, 0.5 / b_sig2, 0.0)
                b_dp = -b_VV + 2 * b_m * b_V - b_m * b_m * b_one[:, None]
                b_dsig2 = -(b_dp / b_sig2 + b_one[:, None]) * b_p
            else:
                b_p = tl.where(m_jv, 1.0, 0.0).to(tl.float64)
                b_dsig2 = tl.zeros([BLOCK_J, BLOCK_V], tl.float64)
            b_dm = 2 * b_p * (b_V - b_m * b_one[:, None])
            b_dmu = tl.zeros([BLOCK_J, BLOCK_V], tl.float64)
            b_da = b_one / (1 + tl.exp(b_a))
            tl.store(p_votes_b + 3 * J * BLOCK_V + at_v, b_p, mask=m_j[:, None])
            tl.store(p_votes_b + 4 * J * BLOCK_V + at_v, b_p * b_m, mask=m_j[:, None])
        used = b_D[:, None] + eps
        b_dN = tl.where(m_jv & (b_N > 0), b_dsig2 / used, 0.0)
        b_dm = b_dm - 2 * eps * (b_m + b_B) * b_dN
        b_dB = (b_dmu * b_D[:, None] - eps * b_dm) / used
        b_dm = b_dm + b_dmu
        b_dV = b_dm / used - 2 * b_m * b_dN
        b_dD = tl.sum(tl.where(m_jv, b_m * b_m * b_dN - (b_dm * b_m + b_dN * b_N) / used, 0.0), 1)
        b_dD += (b_use + b_ign) * b_da
        tl.store(p_votes_b + at_v, tl.where(m_jv, b_dN, 0.0), mask=m_j[:, None])
        tl.store(p_votes_b + J * BLOCK_V + at_v, tl.where(m_jv, b_dV, 0.0), mask=m_j[:, None])
        tl.store(p_votes_b + 2 * J * BLOCK_V + at_v, tl.where(m_jv, b_dB, 0.0), mask=m_j[:, None])
        tl.debug_barrier()
        b_dS = along_features(
            p_votes_b + J * BLOCK_V, p_votes_b, b_dD, p_W, o_j, o_k, p_first, p_second,
            stride_W, J, C, D, H, BLOCK_H, BLOCK_V,
        )  # fmt: skip
        at_S = (u_b * J + o_j)[:, None] * K + o_k[None, :]
        tl.store(p_dS + at_S, (b_dS / b_units[None, :]).to(tl.float32), mask=m_j[:, None])
        add_to(p_dtotal + u_b * J + o_j, -b_ign * b_da, m_j, last)
        b_dW = weights_bwd(
            p_row, p_dtheta + u_b * J * K, p_votes_b, p_own, p_W, o_j, o_w, not last, stride_W,
            J, C, D, H, K, BLOCK_E, BLOCK_V,
        )  # fmt: skip
        p_layer = p_dlayer + (u_b * J + o_j) * WIDTH
        m_w = m_j[:, None] & (o_w < D * H)[None, :]
        add_to(p_layer[:, None] + o_w[None, :], b_dW, m_w, last)
        add_to(p_layer[:, None] + D * H + o_v[None, :], b_dB, m_jv, last)
        add_to(p_layer + D * H + C * H, b_da * b_D, m_j, last)
        add_to(p_layer + D * H + C * H + 1, b_da * (b_D - b_total), m_j, last)


@triton.jit(noinline=True)
def first_sums_bwd(
    p_a, p_x, p_offsets, p_first, p_second, p_shift, p_dS, p_dtotal, p_da_inp, p_dx,
    n_b, n_inp, n_iters, n_slots, slot_tiles, stride_shift,
    PACKED: tl.constexpr, J: tl.constexpr, CD: tl.constexpr, K: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Phase: gradients of the inputs in the first iteration, added to those of all others."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    o_i, o_k, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, K), tl.arange(0, BLOCK_JJ), tl.arange(0, BLOCK_E)
    m_jj = o_jj < J
    for unit in range(pid, n_b * n_slots, n_pid):
        u_b, u_q = zero + unit // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        p_own = p_shift + u_b * stride_shift
        b_shift = tl.load(p_own + o_x, mask=o_x < CD, other=0.0).to(tl.float32)
        b_scale = tl.load(p_own + CD + 1).to(tl.float32)
        p_rows = p_dS + u_b * J * K
        b_rows = tl.load(p_rows + o_jj[:, None] * K + o_k[None, :], mask=m_jj[:, None], other=0.0)
        b_row = (tl.sum(b_rows.to(tl.float64), 0) / J).to(tl.float32)
        b_dtotal = tl.sum(tl.load(p_dtotal + u_b * J + o_jj, mask=m_jj, other=0.0), 0).to(tl.float32)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_x = (capsules(p_x + start * CD, i, n, o_x, CD) - b_shift[None, :]) * b_scale
            b_1, b_2 = factors(b_x, p_first, p_second, o_x, o_k, CD)
            b_f = gates(p_a + start, i, n)
            b_df = tl.sum(b_1 * b_2 * b_row[None, :], 1) + b_dtotal
            b_dx = gather(b_row[None, :] * b_2, p_first, o_x, o_k) + gather(b_row[None, :] * b_1, p_second, o_x, o_k)
            b_dx = b_dx * (b_f * b_scale)[:, None]
            m_i = i < n
            at_x, m_x = start * CD + i[:, None] * CD + o_x[None, :], m_i[:, None] & (o_x < CD)[None, :]
            if n_iters > 1:
                b_dx += tl.load(p_dx + at_x, mask=m_x, other=0.0)
                b_df += tl.load(p_da_inp + start + i, mask=m_i, other=0.0)
            b_raw = tl.load(p_x + at_x, mask=m_x, other=0.0).to(tl.float32)
            tl.store(p_dx + at_x, tl.where(tl.abs(b_raw) <= LARGEST, b_dx, 0.0), mask=m_x)
            tl.store(p_da_inp + start + i, b_df * b_f * (1 - b_f), mask=m_i)


@triton.jit(noinline=True)
def feature_sums_bwd(
    p_a, p_x, p_offsets, p_first, p_second, p_shift, p_theta, p_log, p_dS, p_part, p_da_inp, p_dx,
    n_b, n_inp, fresh, n_slots, slot_tiles, stride_shift,
    PACKED: tl.constexpr, J: tl.constexpr, CD: tl.constexpr, K: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Phase: gradients of the inputs, of gates and capsules, and every slot's of the E-step's coefficients."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    o_i, o_k, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, K), tl.arange(0, BLOCK_JJ), tl.arange(0, BLOCK_E)
    m_jj = o_jj < J
    for unit in range(pid, n_b * n_slots, n_pid):
        u_b, u_q = zero + unit // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        p_own = p_shift + u_b * stride_shift
        b_shift = tl.load(p_own + o_x, mask=o_x < CD, other=0.0).to(tl.float32)
        b_scale = tl.load(p_own + CD + 1).to(tl.float32)
        c_high, c_low, c_size = coefficients(p_theta + u_b * J * K, o_jj, o_k, J, K)
        g_high, g_low, g_size = coefficients(p_dS + u_b * J * K, o_jj, o_k, J, K)
        b_log = tl.load(p_log + u_b * J * 2 + o_jj * 2, mask=m_jj, other=0.0)
        b_rest = tl.load(p_log + u_b * J * 2 + o_jj * 2 + 1, mask=m_jj, other=0.0)
        b_dtheta = tl.zeros([BLOCK_JJ, K], tl.float32)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_x = (capsules(p_x + start * CD, i, n, o_x, CD) - b_shift[None, :]) * b_scale
            b_1, b_2 = factors(b_x, p_first, p_second, o_x, o_k, CD)
            b_phi = b_1 * b_2
            b_size, b_inverse = power(tl.max(tl.abs(b_phi), 1))
            b_high, b_low = split(b_phi * b_inverse[:, None])
            b_R = assign(b_high, b_low, b_size, c_high, c_low, c_size, b_log, b_rest, m_jj, J == BLOCK_JJ)
            b_dD = dot(b_high, b_low, g_high, g_low) * b_size[:, None] * g_size[None, :]
            b_df = tl.sum(b_R * b_dD, 1)
            b_D = b_R * gates(p_a + start, i, n)[:, None]
            b_dlogit = b_D * (b_dD - b_df[:, None])
            b_part = b_dlogit * b_size[:, None]
            d_size, d_inverse = power(tl.max(tl.abs(b_part), 0))
            d_high, d_low = split(tl.trans(b_part * d_inverse[None, :]))
            b_dtheta += dot(d_high, d_low, b_high, b_low) * d_size[:, None]
            b_dphi = rows_dot(b_dlogit, c_high, c_low, c_size) + rows_dot(b_D, g_high, g_low, g_size)
            # forming factors again takes fewer registers than keeping them
            b_x = (capsules(p_x + start * CD, i, n, o_x, CD) - b_shift[None, :]) * b_scale
            b_1, b_2 = factors(b_x, p_first, p_second, o_x, o_k, CD)
            b_dx = gather(b_dphi * b_2, p_first, o_x, o_k) + gather(b_dphi * b_1, p_second, o_x, o_k)
            at_x = start * CD + i[:, None] * CD + o_x[None, :]
            add_to(p_dx + at_x, b_dx * b_scale, (i < n)[:, None] & (o_x < CD)[None, :], fresh)
            add_to(p_da_inp + start + i, b_df, i < n, fresh)
        p_slot = p_part + (zero + unit) * J * K
        tl.store(p_slot + o_jj[:, None] * K + o_k[None, :], b_dtheta, mask=m_jj[:, None])


@triton.jit(noinline=True)
def parameters_bwd(p_dlayer, p_dparams, n_b, SIZE: tl.constexpr):
    """Phase: gradients of parameters, summed over samples."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    for unit in range(pid, tl.cdiv(SIZE, 128), n_pid):
        at = unit * 128 + tl.arange(0, 128)
        b_sum = tl.zeros([128], tl.float64)
        for b in range(n_b):
            b_sum += tl.load(p_dlayer + (zero + b) * SIZE + at, mask=at < SIZE, other=0.0)
        tl.store(p_dparams + at, b_sum.to(tl.float32), mask=at < SIZE)


@triton.jit
def moments_bwd_kernel(
    p_count, first_phase, last_phase,
    p_a, p_x, p_offsets, p_W, p_B, p_use, p_ign, p_first, p_second, p_shift, p_S, p_theta, p_log,
    p_da, p_dmu, p_dsig2, p_part, p_dtheta, p_votes, p_dS, p_dtotal, p_dlayer, p_dparams, p_da_inp, p_dx,
    n_b, n_inp, n_iters, n_slots, slot_tiles, eps, stride_shift, stride_W, stride_use, stride_ign,
    PACKED: tl.constexpr, GAUSSIAN: tl.constexpr,
    J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Phases, from the last iteration to the first: gradients of its sums, then of its inputs; then of parameters."""
    for phase in range(first_phase, last_phase):
        t = n_iters - 1 - phase // 2
        if t < 0:
            parameters_bwd(p_dlayer, p_dparams, n_b, J * (D * H + C * H + 2))
        elif phase % 2 == 0:
            models_bwd(
                p_W, p_B, p_use, p_ign, p_first, p_second, p_shift, p_S, p_da, p_dmu, p_dsig2, p_part, p_dtheta,
                p_votes, p_dS, p_dtotal, p_dlayer, n_b, t, n_iters, n_slots, eps, stride_shift, stride_W, stride_use,
                stride_ign, GAUSSIAN, J, C, D, H, K, BLOCK_V, BLOCK_D, BLOCK_H, BLOCK_W, BLOCK_E,
            )  # fmt: skip
        elif t == 0:
            first_sums_bwd(
                p_a, p_x, p_offsets, p_first, p_second, p_shift, p_dS, p_dtotal, p_da_inp, p_dx,
                n_b, n_inp, n_iters, n_slots, slot_tiles, stride_shift,
                PACKED, J, C * D, K, BLOCK_I, BLOCK_JJ, BLOCK_E,
            )  # fmt: skip
        else:
            at = t * n_b * J
            feature_sums_bwd(
                p_a, p_x, p_offsets, p_first, p_second, p_shift, p_theta + at * K, p_log + at * 2, p_dS, p_part,
                p_da_inp, p_dx, n_b, n_inp, phase == 1, n_slots, slot_tiles, stride_shift,
                PACKED, J, C * D, K, BLOCK_I, BLOCK_JJ, BLOCK_E,
            )  # fmt: skip
        if phase + 1 < last_phase:
            wait_for_all(p_count, phase - first_phase + 1)


def bwd(
    plan: Plan, sizes: Sizes, da: Tensor, dmu: Tensor, dsig2: Tensor, a_inp: Tensor, x: Tensor,
    offsets: Tensor | None, W: Tensor, B: Tensor, beta_use: Tensor, beta_ign: Tensor, saved: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of all arguments, as `votes_host.bwd` gives them."""
    shift, S, theta, log = saved
    tile, n, f = TILES["bwd"], sizes, fixed(sizes)
    tiles = max(1, -(-n.i // tile.block_i))
    slots = cut(n.b, tiles, programs_at_once(x.device, tile.per_core))
    where = features(n.c, n.d, f.K, x.device)
    small, exact = {"dtype": torch.float32, "device": x.device}, {"dtype": torch.float64, "device": x.device}
    part, dS = torch.empty(n.b * slots, n.j, f.K, **small), torch.empty(n.b, n.j, f.K, **small)
    dtheta, votes = torch.empty(n.b, n.j, f.K, **exact), torch.empty(n.b, 5, n.j, f.V, **exact)
    width = n.d * n.h + n.c * n.h + 2
    dtotal, dlayer = torch.empty(n.b, n.j, **exact), torch.empty(n.b, n.j, width, **exact)
    dparams, da_inp = torch.empty(n.j, width, **small), torch.empty(a_inp.shape, **small)
    dx = torch.empty(x.shape, **small)
    blocks = -(-n.j // BLOCK_J.value)
    run_phases(
        moments_bwd_kernel, 2 * plan.n_iters + 1, max(n.b * max(slots, blocks), n.j * width // 128), x, tile.warps,
        tile.per_core, (plan, n, a_inp.dtype, x.dtype, W.shape, beta_use.shape, beta_ign.shape),
        a_inp, x, x if offsets is None else offsets, W, B, beta_use, beta_ign, where[0], where[1],
        shift, S, theta, log, da, dmu, dsig2, part, dtheta, votes, dS, dtotal, dlayer, dparams, da_inp, dx,
        n.b, n.i, plan.n_iters, slots, -(-tiles // slots), plan.eps, shift.stride(0),
        *(p.stride(1) if p.shape[1] > 1 else 0 for p in (W, beta_use, beta_ign)),
        n.packed, plan.gaussian, n.j, n.c, n.d, n.h, f.K,
        tile.block_i, f.JJ, f.V, f.D, f.H, triton.next_power_of_2(n.d * n.h), f.E,
    )  # fmt: skip
    dW, dB, duse, dign = dparams.split([n.d * n.h, n.c * n.h, 1, 1], 1)
    dW, dB = dW.unflatten(1, (n.d, n.h)).unsqueeze(0), dB.unflatten(1, (n.c, n.h)).unsqueeze(0)
    dW, duse, dign = (
        d.sum_to_size(p.shape) for d, p in ((dW, W), (duse.mT, beta_use), (dign.mT, beta_ign))
    )  # summed over outputs where these share a parameter
    return da_inp.to(a_inp.dtype), dx.to(x.dtype), dW, dB, duse, dign
