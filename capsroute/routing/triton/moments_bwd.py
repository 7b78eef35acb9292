"""Gradients of the moment form, from the sums that every iteration left. Axes as in `moments.py`."""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from .moments import NUMBERS
from .moments_float64 import FLOAT64, LN_2, hard_sums_bwd, load_rows, store_rows
from .moments_model import (
    along_features,
    along_votes,
    apart,
    at_outputs,
    blocks_of,
    in_single,
    is_one,
    load_usual,
    mean_vote,
    model_of,
    parts_sum,
    store_pairs,
    times,
    weight,
    weights,
)
from .moments_tile import (
    LARGEST,
    UNIT,
    above,
    beside,
    centred,
    coefficients,
    dot,
    features,
    gates,
    halves,
    load_capsules,
    load_logs,
    load_scores,
    parts,
    place,
    power,
    real,
    sample,
    slot,
    split,
    to_capsules,
    turn,
    unstack,
)
from .numerics import rounded


@triton.jit
def add_to(p, b, mask, fresh):
    """Add to what is in memory, or begin it."""
    if fresh:
        tl.store(p, b, mask=mask)
    else:
        tl.store(p, tl.load(p, mask=mask, other=0.0) + b, mask=mask)


@triton.jit
def weights_bwd(
    b_0, b_1, b_2, b_x, b_v, b_vv, W, W_1, W_2, back_1, back_2, D: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What `W [j, c, d, h]` gets, blocks of features meeting coefficients of votes and squares `[j, c, h]` in it."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    o_x = tl.arange(0, X)[None, :]
    b_W = 2 * apart(b_0, BLOCK_J, BLOCK_C, BLOCK_D) * W
    if D >= 2:  # a product belongs to both its numbers
        b_1 = b_1 * times(o_x % BLOCK_D, 1, D)
        turned = turn(b_1, D - 1, D, BLOCK_J, X, BLOCK_D)
        b_1, turned = apart(b_1, BLOCK_J, BLOCK_C, BLOCK_D), apart(turned, BLOCK_J, BLOCK_C, BLOCK_D)
        b_W += b_1 * W_1 + turned * back_1
    if D >= 4:
        b_2 = b_2 * times(o_x % BLOCK_D, 2, D)
        turned = turn(b_2, D - 2, D, BLOCK_J, X, BLOCK_D)
        b_2, turned = apart(b_2, BLOCK_J, BLOCK_C, BLOCK_D), apart(turned, BLOCK_J, BLOCK_C, BLOCK_D)
        b_W += b_2 * W_2 + turned * back_2
    return b_W * b_vv[:, :, None, :] + apart(b_x, BLOCK_J, BLOCK_C, BLOCK_D) * b_v[:, :, None, :]


@triton.jit(do_not_specialize=NUMBERS)
def models_bwd_kernel(
    p_W, p_B, p_use, p_ign, p_usual, p_scale, p_total, p_S, p_D, p_hard, p_da, p_dmu, p_dsig2, p_part, p_rows, p_size,
    p_exact, p_dtotal, p_dlayer, n_b, t, n_slots, eps, stride_W, stride_use, stride_ign,
    LAST: tl.constexpr, GAUSSIAN: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """From the gradients of an iteration's output capsules those of its sums of features and of parameters."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    BLOCKS: tl.constexpr = (J + BLOCK_J - 1) // BLOCK_J
    WIDTH: tl.constexpr = D * H + C * H + 2  # gradients of one output's parameters
    unit = tl.program_id(0)
    u_b = unit.to(tl.int64) // BLOCKS
    o_j = unit % BLOCKS * BLOCK_J + tl.arange(0, BLOCK_J)
    m_j = o_j < J
    row, p_own = (t * n_b + u_b) * J, p_usual + u_b * K
    W, WW_0, WW_1, WW_2 = weights(p_W, o_j, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    W_1 = weight(p_W, o_j, 1, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    W_2 = weight(p_W, o_j, 2, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    back_1 = weight(p_W, o_j, D - 1, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    back_2 = weight(p_W, o_j, D - 2 if D >= 2 else 0, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    b_rows = load_rows(p_S + row * K, o_j, J, K)
    S_0, S_1, S_2, S_x = unstack(b_rows, BLOCK_J, X, BLOCK_D)
    b_D = tl.load(p_D + row + o_j, mask=m_j, other=0.0)
    b_total, unit = tl.load(p_total + u_b), 1 / tl.load(p_scale + u_b).to(tl.float64)
    b_mean, b_near = mean_vote(p_own + 3 * X, W, D, BLOCK_C, BLOCK_D)
    b_V, b_VV = along_votes(S_0, S_1, S_2, S_x, W, WW_0, WW_1, WW_2, BLOCK_J, BLOCK_C, BLOCK_D)
    b_m, b_N, b_sig2, b_B, b_a, b_use, b_ign = model_of(
        b_D, b_V, b_VV, b_near, b_total, p_B, p_use, p_ign, o_j, eps, stride_use, stride_ign, J, C, H, BLOCK_C, BLOCK_H
    )
    at, m_v = at_outputs(o_j, J, C, H, BLOCK_C, BLOCK_H)
    b_dW = tl.zeros([BLOCK_J, BLOCK_C, BLOCK_D, BLOCK_H], tl.float64)
    if LAST:
        p_out = u_b * (J * C * H) + at
        b_da = tl.load(p_da + u_b * J + o_j, mask=m_j, other=0.0).to(tl.float64)
        b_dmu = tl.load(p_dmu + p_out, mask=m_v, other=0.0).to(tl.float64)
        b_dm = tl.zeros_like(b_dmu)  # by way of the next E-step
        b_dsig2 = tl.load(p_dsig2 + p_out, mask=m_v, other=0.0).to(tl.float64)
    else:
        b_rows = parts_sum(p_part, tl.load(p_hard + u_b), u_b, o_j, n_slots, J, K, BLOCK_J)
        b_one = tl.sum(tl.where(is_one(BLOCK_D, K), b_rows, 0.0), 1)
        b_rows += b_one[:, None] * load_usual(p_own, X, BLOCK_D)
        d_0, d_1, d_2, d_x = blocks_of(b_rows, unit, BLOCK_J, BLOCK_C, BLOCK_D)
        b_V, b_VV = along_votes(d_0, d_1, d_2, d_x, W, WW_0, WW_1, WW_2, BLOCK_J, BLOCK_C, BLOCK_D)
        one = b_one[:, None, None]
        if GAUSSIAN:
            b_p = tl.where(m_v, 0.5 / b_sig2, 0.0)
            b_dp = -b_VV + 2 * b_m * b_V - b_m * b_m * one
            b_dsig2 = -(b_dp / b_sig2 + one) * b_p
        else:
            b_p = tl.where(m_v, 1.0, 0.0).to(tl.float64)
            b_dsig2 = tl.zeros_like(b_sig2)
        b_dm = 2 * b_p * (b_V - b_m * one)
        b_dmu = tl.zeros_like(b_dm)
        b_da = b_one / (1 + tl.exp(b_a))
        b_dW += weights_bwd(
            d_0, d_1, d_2, d_x, 2 * b_p * b_m, -b_p, W, W_1, W_2, back_1, back_2, D, BLOCK_J, BLOCK_C, BLOCK_D
        )
    share = 1 / (b_D[:, None, None] + eps)
    b_dN = tl.where(m_v & (b_N > 0), b_dsig2 * share, 0.0)
    b_dm = b_dm - 2 * eps * (b_m + b_B) * b_dN
    b_dB = tl.where(m_v, (b_dmu * b_D[:, None, None] - eps * b_dm) * share, 0.0)
    b_dm = b_dm + b_dmu
    b_dV = tl.where(m_v, b_dm * share - 2 * b_m * b_dN, 0.0)
    b_dD = tl.where(m_v, b_m * b_m * b_dN - (b_dm * b_m + b_dN * b_N) * share, 0.0)
    b_dD = tl.sum(tl.sum(b_dD, 2), 1) + (b_use + b_ign) * b_da
    b_rows = along_features(b_dV, b_dN, unit, W, WW_0, WW_1, WW_2, BLOCK_J, BLOCK_C, BLOCK_D)
    if t > 0:  # the first iteration has features as they are
        b_dD += tl.sum(rounded(b_rows, load_usual(p_own, X, BLOCK_D)), 1)
    b_rows = tl.where(is_one(BLOCK_D, K), b_dD[:, None], b_rows)
    store_pairs(p_rows + u_b * (J * 2 * K), p_size + u_b * J + o_j, b_rows, o_j, J, K)
    store_rows(p_exact + u_b * (J * K), b_rows, o_j, J, K)
    b_dW += weights_bwd(S_0, S_1, S_2, S_x, b_dV, b_dN, W, W_1, W_2, back_1, back_2, D, BLOCK_J, BLOCK_C, BLOCK_D)
    b_dW += b_mean[:, :, :, None] * b_dB[:, :, None, :]
    add_to(p_dtotal + u_b * J + o_j, -b_ign * b_da, m_j, LAST)
    p_layer = p_dlayer + (u_b * J + o_j) * WIDTH
    o_d, o_h = tl.arange(0, BLOCK_D)[None, :, None], tl.arange(0, BLOCK_H)[None, None, :]
    m_W = m_j[:, None, None] & (o_d < D) & (o_h < H)
    add_to(p_layer[:, None, None] + o_d * H + o_h, tl.sum(b_dW, 1), m_W, LAST)
    add_to(p_layer[:, None, None] + D * H + at - o_j[:, None, None] * (C * H), b_dB, m_v, LAST)
    add_to(p_layer + D * H + C * H, b_da * b_D, m_j, LAST)
    add_to(p_layer + D * H + C * H + 1, b_da * (b_D - b_total), m_j, LAST)


@triton.jit
def easy_sums_bwd(
    p_a, p_x, p_usual, p_scale, p_theta, p_log, p_part, p_rows, p_size, p_da_inp, p_dx, first, last, n, fresh,
    J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, X: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients of inputs from `first` to `last`, and what they add to those of the E-step's coefficients."""
    K: tl.constexpr = 4 * X
    o_i, o_k, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, K), tl.arange(0, BLOCK_JJ), tl.arange(0, X)
    b_mean, b_scale = tl.load(p_usual + 3 * X + o_x), tl.load(p_scale)
    c_high, c_low = coefficients(p_theta, o_jj, o_k, J, K)
    g_high, g_low = coefficients(p_rows, o_jj, o_k, J, K)
    # as one, for a product is waited for before the next begins
    cg_high, cg_low = above(c_high, g_high, BLOCK_JJ, K), above(c_low, g_low, BLOCK_JJ, K)
    b_dtheta = tl.zeros([BLOCK_JJ, K], tl.float32)
    c_size = tl.load(p_log + o_jj, mask=o_jj < J, other=0.0) * UNIT
    b_log = load_logs(p_log + J, o_jj, J)
    g_size = tl.load(p_size + o_jj, mask=o_jj < J, other=0.0) * UNIT
    i = first + o_i
    next_x, next_a = load_capsules(p_x, i, n, o_x, C, D, BLOCK_D), load_scores(p_a, i, n)
    for start in range(first, last, BLOCK_I):
        b_x, b_f = centred(next_x, b_mean, b_scale), gates(next_a)
        i = start + o_i
        b_high, b_low = features(b_x, p_usual, D, BLOCK_D, X, BLOCK_I)
        b_sums = dot(b_high, b_low, tl.trans(cg_high), tl.trans(cg_low), tl.zeros([BLOCK_I, 2 * BLOCK_JJ], tl.float32))
        b_sum, b_dD = halves(b_sums, BLOCK_I, BLOCK_JJ)
        b_R, b_part = parts(b_sum, c_size, b_log)
        b_dD = b_dD * g_size[None, :]
        b_df = tl.sum(b_R * b_dD, 1) * b_part
        b_D = b_R * (b_f * b_part)[:, None]
        b_dlogit = b_D * (b_dD - b_df[:, None])
        d_size, d_inverse = power(tl.max(tl.abs(b_dlogit), 0))
        d_high, d_low = split(b_dlogit * d_inverse[None, :])
        at_x = i[:, None] * (C * D) + place(o_x, D, BLOCK_D)[None, :]
        m_i, m_x, m_old = i < n, real(o_x, C, D, BLOCK_D)[None, :], i < tl.where(fresh == 0, n, 0)
        # loaded before the products, not to wait after them
        b_old = tl.load(p_dx + at_x, mask=m_old[:, None] & m_x, other=0.0)
        b_old_f = tl.load(p_da_inp + i, mask=m_old, other=0.0)
        b_dlogit, b_D = b_dlogit * c_size[None, :], b_D * g_size[None, :]
        # in units of c and g; logits are to base two
        r_size, r_inverse = power(tl.max(tl.maximum(tl.abs(b_dlogit), b_D), 1))
        l_high, l_low = split(b_dlogit * (r_inverse * LN_2)[:, None])
        u_high, u_low = split(b_D * r_inverse[:, None])
        next_x, next_a = load_capsules(p_x, i + BLOCK_I, n, o_x, C, D, BLOCK_D), load_scores(p_a, i + BLOCK_I, n)
        lu_low, lu_high = beside(l_low, u_low, BLOCK_I, BLOCK_JJ), beside(l_high, u_high, BLOCK_I, BLOCK_JJ)
        b_dphi = dot(lu_high, lu_low, cg_high, cg_low, tl.zeros([BLOCK_I, K], tl.float32)) * r_size[:, None]
        b_dx = to_capsules(b_dphi, b_x, D, BLOCK_D, X, BLOCK_I) * (b_scale * (1 / UNIT))
        tl.store(p_dx + at_x, b_old + b_dx, mask=m_i[:, None] & m_x)
        tl.store(p_da_inp + i, b_old_f + b_df, mask=m_i)
        # last, when most registers are free again
        b_new = dot(tl.trans(d_high), tl.trans(d_low), b_high, b_low, tl.zeros([BLOCK_JJ, K], tl.float32))
        b_dtheta += b_new * d_size[:, None]
    store_rows(in_single(p_part), b_dtheta * UNIT, o_jj, J, K)


@triton.jit(do_not_specialize=NUMBERS)
def feature_sums_bwd_kernel(
    p_a, p_x, p_offsets, p_usual, p_scale, p_theta, p_log, p_hard, p_exact, p_part, p_rows, p_size, p_drows, p_da_inp,
    p_dx, n_b, n_inp, t, fresh, n_slots, slot_tiles,
    PACKED: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients of the inputs, of gates and capsules, and a slot's of the E-step's coefficients."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    unit, u_b, start, n, first, last = slot(p_offsets, n_inp, n_slots, slot_tiles, PACKED, BLOCK_I)
    row = (t * n_b + u_b) * J
    p_a, p_x, p_log = p_a + start, p_x + start * (C * D), p_log + row * 4
    p_usual, p_scale = p_usual + u_b * K, p_scale + u_b
    p_da_inp, p_dx, p_part = p_da_inp + start, p_dx + start * (C * D), p_part + unit * (J * K)
    if FLOAT64:
        easy = tl.load(p_hard + u_b) == 0
    else:
        easy: tl.constexpr = True
    if easy:
        easy_sums_bwd(
            p_a, p_x, p_usual, p_scale, p_theta + row * (2 * K), p_log, p_part, p_rows + u_b * (J * 2 * K),
            p_size + u_b * J, p_da_inp, p_dx, first, last, n, fresh, J, C, D, BLOCK_I, BLOCK_JJ, X, BLOCK_D,
        )  # fmt: skip
    else:
        hard_sums_bwd(
            p_a, p_x, p_usual, p_scale, p_exact + row * K, p_part, p_drows + u_b * (J * K), p_da_inp, p_dx,
            first, last, n, fresh, J, C, D, BLOCK_I, BLOCK_JJ, X, BLOCK_D,
        )  # fmt: skip


@triton.jit(do_not_specialize=NUMBERS)
def first_sums_bwd_kernel(
    p_a, p_x, p_offsets, p_usual, p_scale, p_rows, p_size, p_dtotal, p_dlayer, p_da_inp, p_dx,
    p_dW, p_dB, p_duse, p_dign, n_b, n_inp, fresh, n_slots, slot_tiles,
    PACKED: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients of the inputs in the first iteration, added to those of all others; and of parameters, over samples."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    unit = tl.program_id(0)
    if unit >= n_b * n_slots:
        parameters_bwd(p_dlayer, p_dW, p_dB, p_duse, p_dign, unit - n_b * n_slots, n_b, J, D * H, C * H)
    else:
        u_b, u_q = unit.to(tl.int64) // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        o_i, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_JJ), tl.arange(0, X)
        b_mean, b_scale = tl.load(p_usual + u_b * K + 3 * X + o_x), tl.load(p_scale + u_b)
        b_high, b_low = coefficients(p_rows + u_b * (J * 2 * K), o_jj, tl.arange(0, K), J, K)
        share = tl.load(p_size + u_b * J + o_jj, mask=o_jj < J, other=0.0) * (1.0 / J)
        b_row = tl.sum(rounded(b_high.to(tl.float32) + b_low.to(tl.float32), share[:, None]), 0)[None, :]
        b_one = tl.sum(tl.where(is_one(BLOCK_D, K), b_row, 0.0), 1)
        g_0, g_1, g_2, g_x = unstack(tl.where(is_one(BLOCK_D, K), 0.0, b_row), 1, X, BLOCK_D)
        b_base = tl.load(p_dtotal + u_b * J + o_jj, mask=o_jj < J, other=0.0)
        b_base = b_one + tl.sum(b_base, 0).to(tl.float32)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_a = load_scores(p_a + start, i, n)
            b_f = gates(b_a)
            b_raw = load_capsules(p_x + start * (C * D), i, n, o_x, C, D, BLOCK_D)
            b_x = centred(b_raw, b_mean, b_scale)
            b_half = b_x * g_0
            b_dx = 2 * b_half + g_x
            b_half += g_x
            if D >= 2:
                b_next = turn(b_x, 1, D, BLOCK_I, X, BLOCK_D) * g_1
                b_back = turn(b_x * g_1, D - 1, D, BLOCK_I, X, BLOCK_D)
                b_half, b_dx = b_half + b_next, b_dx + b_next + b_back
            if D >= 4:
                b_next = turn(b_x, 2, D, BLOCK_I, X, BLOCK_D) * g_2
                b_back = turn(b_x * g_2, D - 2, D, BLOCK_I, X, BLOCK_D)
                b_half, b_dx = b_half + b_next, b_dx + b_next + b_back
            b_df = tl.sum(rounded(b_half, b_x), 1) + b_base
            b_dx = b_dx * (b_f * b_scale)[:, None]
            m_i = i < n
            at_x = start * (C * D) + i[:, None] * (C * D) + place(o_x, D, BLOCK_D)[None, :]
            m_x = m_i[:, None] & real(o_x, C, D, BLOCK_D)[None, :]
            if fresh == 0:
                b_dx += tl.load(p_dx + at_x, mask=m_x, other=0.0)
                b_df += tl.load(p_da_inp + start + i, mask=m_i, other=0.0)
            tl.store(p_dx + at_x, tl.where(tl.abs(b_raw) <= LARGEST, b_dx, 0.0), mask=m_x)
            tl.store(p_da_inp + start + i, b_df * b_f * gates(-b_a), mask=m_i)


@triton.jit
def parameters_bwd(p_dlayer, p_dW, p_dB, p_duse, p_dign, unit, n_b, J: tl.constexpr, DH: tl.constexpr,
                   CH: tl.constexpr):  # fmt: skip
    """Gradients of parameters, summed over samples."""
    SIZE: tl.constexpr = J * (DH + CH + 2)
    at = unit * 128 + tl.arange(0, 128)
    zero = unit.to(tl.int64) * 0  # what it is added to counts in 64 bits
    b_sum = tl.zeros([128], tl.float64)
    for b in range(n_b):
        b_sum += tl.load(p_dlayer + (zero + b) * SIZE + at, mask=at < SIZE, other=0.0)
    b_sum = b_sum.to(tl.float32)
    j, place = at // (DH + CH + 2), at % (DH + CH + 2)
    tl.store(p_dW + j * DH + place, b_sum, mask=(at < SIZE) & (place < DH))
    tl.store(p_dB + j * CH + place - DH, b_sum, mask=(at < SIZE) & (place >= DH) & (place < DH + CH))
    tl.store(p_duse + j, b_sum, mask=(at < SIZE) & (place == DH + CH))
    tl.store(p_dign + j, b_sum, mask=(at < SIZE) & (place == DH + CH + 1))
