"""Backward kernels of the moment form, from the sums that every iteration stored. Axes and names as in `moments.py`.

`p_dS` holds gradients of S as halves with their scales in `p_dS_scale`, `p_dS64` the same in float64.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from . import moments_model as model
from . import moments_tile as tile
from .moments import RUNTIME_SCALARS
from .moments_float64 import FLOAT64, sum_features_float64_bwd
from .moments_tile import FEATURE_UNIT, LN_2, load_row_halves, rotate
from .numerics import MAX_CAPSULE, dot_halves, mul_without_fma, sample_range, split_halves


@triton.jit
def store_or_add(p, b, mask, overwrite):
    """Overwrite what is in memory, or add to it."""
    if overwrite:
        tl.store(p, b, mask=mask)
    else:
        tl.store(p, tl.load(p, mask=mask, other=0.0) + b, mask=mask)


@triton.jit
def weights_bwd(blocks, b_v, b_vv, rotations, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Compute gradients of `W [j, c, d, h]` from blocks of features and coefficients of votes and squares."""
    b_0, b_1, b_2, b_x = blocks
    W, W_1, W_2, back_1, back_2 = rotations
    o_x = tl.arange(0, b_x.shape[1])[None, :]
    b_dW = 2 * model.unflatten(b_0, BLOCK_D) * W
    if D >= 2:  # a product depends on both its entries
        b_1 = b_1 * model.count_products(o_x % BLOCK_D, 1, D)
        rotated = rotate(b_1, D - 1, D, BLOCK_D)
        b_dW += model.unflatten(b_1, BLOCK_D) * W_1 + model.unflatten(rotated, BLOCK_D) * back_1
    if D >= 4:
        b_2 = b_2 * model.count_products(o_x % BLOCK_D, 2, D)
        rotated = rotate(b_2, D - 2, D, BLOCK_D)
        b_dW += model.unflatten(b_2, BLOCK_D) * W_2 + model.unflatten(rotated, BLOCK_D) * back_2
    return b_dW * b_vv[:, :, None, :] + model.unflatten(b_x, BLOCK_D) * b_v[:, :, None, :]


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def models_bwd_kernel(
    p_W, p_B, p_use, p_ign, p_feature_mean, p_scale, p_f_total, p_S, p_D, p_in_float64, p_da, p_dmu, p_dsig2,
    p_partial, p_dS, p_dS_scale, p_dS64, p_df_total, p_dparams, n_b, t, n_slots, eps, stride_W, stride_use, stride_ign,
    LAST: tl.constexpr, GAUSSIAN: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Compute gradients of an iteration's sums and of parameters from those of its output capsules."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    BLOCKS: tl.constexpr = (J + BLOCK_J - 1) // BLOCK_J
    WIDTH: tl.constexpr = D * H + C * H + 2  # gradients of one output's parameters
    pid = tl.program_id(0)
    pid_b = pid.to(tl.int64) // BLOCKS
    o_j = pid % BLOCKS * BLOCK_J + tl.arange(0, BLOCK_J)
    m_j = o_j < J
    row, p_own = (t * n_b + pid_b) * J, p_feature_mean + pid_b * K
    weights = model.load_weights(p_W, o_j, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    W_1 = model.load_rotated_W(p_W, o_j, 1, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    W_2 = model.load_rotated_W(p_W, o_j, 2, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    back_1 = model.load_rotated_W(p_W, o_j, D - 1, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    back_2 = model.load_rotated_W(p_W, o_j, D - 2 if D >= 2 else 0, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    rotations = weights[0], W_1, W_2, back_1, back_2
    S_blocks = tile.unstack_features(tile.load_rows(p_S + row * K, o_j, J, K), BLOCK_D)
    b_D = tl.load(p_D + row + o_j, mask=m_j, other=0.0)
    b_f_total, spread = tl.load(p_f_total + pid_b), 1 / tl.load(p_scale + pid_b).to(tl.float64)
    b_mean, b_mean_vote = model.vote_mean(p_own + 3 * X, weights[0], D, BLOCK_C, BLOCK_D)
    b_V, b_VV = model.sum_votes(S_blocks, weights, BLOCK_D)
    b_m, b_N, b_sig2, b_B, b_a, b_use, b_ign = model.compute_model(
        b_D, b_V, b_VV, b_mean_vote, b_f_total, p_B, p_use, p_ign, o_j, eps, stride_use, stride_ign,
        J, C, H, BLOCK_C, BLOCK_H,
    )  # fmt: skip
    at, m_v = model.offset_outputs(o_j, J, C, H, BLOCK_C, BLOCK_H)
    b_dW = tl.zeros([BLOCK_J, BLOCK_C, BLOCK_D, BLOCK_H], tl.float64)
    if LAST:
        o_out = pid_b * (J * C * H) + at
        b_da = tl.load(p_da + pid_b * J + o_j, mask=m_j, other=0.0).to(tl.float64)
        b_dmu = tl.load(p_dmu + o_out, mask=m_v, other=0.0).to(tl.float64)
        b_dm = tl.zeros_like(b_dmu)
        b_dsig2 = tl.load(p_dsig2 + o_out, mask=m_v, other=0.0).to(tl.float64)
    else:
        in_float64 = tl.load(p_in_float64 + pid_b)
        b_dtheta = model.sum_feature_slots(p_partial, in_float64, pid_b, o_j, n_slots, J, K, BLOCK_J)
        b_dlog = tl.sum(tl.where(model.mask_constant(BLOCK_D, K), b_dtheta, 0.0), 1)
        b_dtheta += b_dlog[:, None] * model.load_feature_mean(p_own, X, BLOCK_D)
        d_blocks = model.unstack_in_spreads(b_dtheta, spread, BLOCK_D)
        b_V, b_VV = model.sum_votes(d_blocks, weights, BLOCK_D)
        dlog = b_dlog[:, None, None]
        if GAUSSIAN:
            b_p = tl.where(m_v, 0.5 / b_sig2, 0.0)
            b_dp = -b_VV + 2 * b_m * b_V - b_m * b_m * dlog
            b_dsig2 = -(b_dp / b_sig2 + dlog) * b_p
        else:
            b_p = tl.where(m_v, 1.0, 0.0).to(tl.float64)
            b_dsig2 = tl.zeros_like(b_sig2)
        b_dm = 2 * b_p * (b_V - b_m * dlog)
        b_dmu = tl.zeros_like(b_dm)
        b_da = b_dlog / (1 + tl.exp(b_a))
        b_dW += weights_bwd(d_blocks, 2 * b_p * b_m, -b_p, rotations, D, BLOCK_D)
    inverse = 1 / (b_D[:, None, None] + eps)
    b_dN = tl.where(m_v & (b_N > 0), b_dsig2 * inverse, 0.0)
    b_dm = b_dm - 2 * eps * (b_m + b_B) * b_dN
    b_dB = tl.where(m_v, (b_dmu * b_D[:, None, None] - eps * b_dm) * inverse, 0.0)
    b_dm = b_dm + b_dmu
    b_dV = tl.where(m_v, b_dm * inverse - 2 * b_m * b_dN, 0.0)
    b_dD = tl.where(m_v, b_m * b_m * b_dN - (b_dm * b_m + b_dN * b_N) * inverse, 0.0)
    b_dD = tl.sum(tl.sum(b_dD, 2), 1) + (b_use + b_ign) * b_da
    b_dS = model.project_to_features(b_dV, b_dN, spread, weights, BLOCK_D)
    if t > 0:  # the first iteration's features are not reduced by their mean
        b_dD += tl.sum(mul_without_fma(b_dS, model.load_feature_mean(p_own, X, BLOCK_D)), 1)
    b_dS = tl.where(model.mask_constant(BLOCK_D, K), b_dD[:, None], b_dS)
    model.store_row_halves(p_dS + pid_b * (J * 2 * K), p_dS_scale + pid_b * J + o_j, b_dS, o_j, J)
    tile.store_rows(p_dS64 + pid_b * (J * K), b_dS, o_j, J)
    b_dW += weights_bwd(S_blocks, b_dV, b_dN, rotations, D, BLOCK_D)
    b_dW += b_mean[:, :, :, None] * b_dB[:, :, None, :]
    store_or_add(p_df_total + pid_b * J + o_j, -b_ign * b_da, m_j, LAST)
    p_own_params = p_dparams + (pid_b * J + o_j) * WIDTH
    o_d, o_h = tl.arange(0, BLOCK_D)[None, :, None], tl.arange(0, BLOCK_H)[None, None, :]
    m_W = m_j[:, None, None] & (o_d < D) & (o_h < H)
    store_or_add(p_own_params[:, None, None] + o_d * H + o_h, tl.sum(b_dW, 1), m_W, LAST)
    store_or_add(p_own_params[:, None, None] + D * H + at - o_j[:, None, None] * (C * H), b_dB, m_v, LAST)
    store_or_add(p_own_params + D * H + C * H, b_da * b_D, m_j, LAST)
    store_or_add(p_own_params + D * H + C * H + 1, b_da * (b_D - b_f_total), m_j, LAST)


@triton.jit
def sum_features_bwd(
    p_a, p_x, p_feature_mean, p_scale, p_theta, p_log, p_partial, p_dS, p_dS_scale, p_da_inp, p_dx, first, last, n,
    overwrite, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr,
    X: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the inputs from `first` to `last`, and sum those of the E-step's coefficients over them."""
    K: tl.constexpr = 4 * X
    o_i, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_JJ), tl.arange(0, X)
    b_mean, b_scale = tl.load(p_feature_mean + 3 * X + o_x), tl.load(p_scale)
    c_hi, c_lo = load_row_halves(p_theta, o_jj, J, K)
    g_hi, g_lo = load_row_halves(p_dS, o_jj, J, K)
    # one product instead of two, which would wait for each other
    cg_hi, cg_lo = tile.concat_rows(c_hi, g_hi), tile.concat_rows(c_lo, g_lo)
    b_dtheta = tl.zeros([BLOCK_JJ, K], tl.float32)
    c_scale = tl.load(p_log + o_jj, mask=o_jj < J, other=0.0) * FEATURE_UNIT
    b_log = tile.load_log_terms(p_log + J, o_jj, J)
    g_scale = tl.load(p_dS_scale + o_jj, mask=o_jj < J, other=0.0) * FEATURE_UNIT
    i = first + o_i
    next_x, next_a = tile.load_capsules(p_x, i, n, o_x, C, D, BLOCK_D), tile.load_scores(p_a, i, n)
    for start in range(first, last, BLOCK_I):
        b_x, b_f = tile.centre_capsules(next_x, b_mean, b_scale), tl.sigmoid(next_a)
        i = start + o_i
        b_hi, b_lo = tile.compute_feature_halves(b_x, p_feature_mean, D, BLOCK_D)
        b_acc = tl.zeros([BLOCK_I, 2 * BLOCK_JJ], tl.float32)
        b_acc, b_dD = tile.split_columns(dot_halves(b_hi, b_lo, tl.trans(cg_hi), tl.trans(cg_lo), b_acc))
        b_exp, b_inverse = tile.softmax_terms(b_acc, c_scale, b_log)
        b_dD = b_dD * g_scale[None, :]
        b_df = tl.sum(b_exp * b_dD, 1) * b_inverse
        b_D = b_exp * (b_f * b_inverse)[:, None]
        b_dlogit = b_D * (b_dD - b_df[:, None])
        d_scale, d_inverse = tile.compute_scales(tl.max(tl.abs(b_dlogit), 0))
        d_hi, d_lo = split_halves(b_dlogit * d_inverse[None, :])
        at_x = i[:, None] * (C * D) + tile.offset_entries(o_x, D, BLOCK_D)[None, :]
        m_i, m_x = i < n, tile.mask_entries(o_x, C, D, BLOCK_D)[None, :]
        m_old = i < tl.where(overwrite == 0, n, 0)
        # loaded before the products, to hide the latency
        b_old_dx = tl.load(p_dx + at_x, mask=m_old[:, None] & m_x, other=0.0)
        b_old_df = tl.load(p_da_inp + i, mask=m_old, other=0.0)
        b_dlogit, b_D = b_dlogit * c_scale[None, :], b_D * g_scale[None, :]
        # one scale per input for both, in units of c and g; logits are to base two
        r_scale, r_inverse = tile.compute_scales(tl.max(tl.maximum(tl.abs(b_dlogit), b_D), 1))
        l_hi, l_lo = split_halves(b_dlogit * (r_inverse * LN_2)[:, None])
        u_hi, u_lo = split_halves(b_D * r_inverse[:, None])
        i_next = i + BLOCK_I
        next_x, next_a = tile.load_capsules(p_x, i_next, n, o_x, C, D, BLOCK_D), tile.load_scores(p_a, i_next, n)
        lu_lo, lu_hi = tile.concat_columns(l_lo, u_lo), tile.concat_columns(l_hi, u_hi)
        b_dphi = dot_halves(lu_hi, lu_lo, cg_hi, cg_lo, tl.zeros([BLOCK_I, K], tl.float32)) * r_scale[:, None]
        b_dx = tile.features_bwd(b_dphi, b_x, D, BLOCK_D) * (b_scale * (1 / FEATURE_UNIT))
        tl.store(p_dx + at_x, b_old_dx + b_dx, mask=m_i[:, None] & m_x)
        tl.store(p_da_inp + i, b_old_df + b_df, mask=m_i)
        # last, when most registers are free again
        b_acc = dot_halves(tl.trans(d_hi), tl.trans(d_lo), b_hi, b_lo, tl.zeros([BLOCK_JJ, K], tl.float32))
        b_dtheta += b_acc * d_scale[:, None]
    tile.store_rows(model.as_float32(p_partial), b_dtheta * FEATURE_UNIT, o_jj, J)


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def feature_sums_bwd_kernel(
    p_a, p_x, p_offsets, p_feature_mean, p_scale, p_theta, p_log, p_in_float64, p_theta64, p_partial, p_dS, p_dS_scale,
    p_dS64, p_da_inp, p_dx, n_b, n_inp, t, overwrite, n_slots, slot_tiles,
    PACKED: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute gradients of f(a_inp) and capsules, and a slot's partial sums of those of the E-step's coefficients."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    pid, pid_b, start, n, first, last = tile.slot_range(p_offsets, n_inp, n_slots, slot_tiles, PACKED, BLOCK_I)
    row = (t * n_b + pid_b) * J
    p_a, p_x, p_log = p_a + start, p_x + start * (C * D), p_log + row * 4
    p_feature_mean, p_scale = p_feature_mean + pid_b * K, p_scale + pid_b
    p_da_inp, p_dx, p_partial = p_da_inp + start, p_dx + start * (C * D), p_partial + pid * (J * K)
    if FLOAT64:
        in_halves = tl.load(p_in_float64 + pid_b) == 0
    else:
        in_halves: tl.constexpr = True
    if in_halves:
        sum_features_bwd(
            p_a, p_x, p_feature_mean, p_scale, p_theta + row * (2 * K), p_log, p_partial, p_dS + pid_b * (J * 2 * K),
            p_dS_scale + pid_b * J, p_da_inp, p_dx, first, last, n, overwrite, J, C, D, BLOCK_I, BLOCK_JJ, X, BLOCK_D,
        )  # fmt: skip
    else:
        sum_features_float64_bwd(
            p_a, p_x, p_feature_mean, p_scale, p_theta64 + row * K, p_partial, p_dS64 + pid_b * (J * K), p_da_inp, p_dx,
            first, last, n, overwrite, J, C, D, BLOCK_I, BLOCK_JJ, X, BLOCK_D,
        )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def first_sums_bwd_kernel(
    p_a, p_x, p_offsets, p_feature_mean, p_scale, p_dS, p_dS_scale, p_df_total, p_dparams, p_da_inp, p_dx,
    p_dW, p_dB, p_duse, p_dign, n_b, n_inp, overwrite, n_slots, slot_tiles,
    PACKED: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Add the first iteration's gradients of inputs to those of the others; and sum parameters' over samples."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    pid = tl.program_id(0)
    if pid >= n_b * n_slots:
        reduce_param_grads(p_dparams, p_dW, p_dB, p_duse, p_dign, pid - n_b * n_slots, n_b, J, D * H, C * H)
    else:
        pid_b, pid_q = pid.to(tl.int64) // n_slots, pid % n_slots
        start, n = sample_range(p_offsets, pid_b, n_inp, PACKED)
        o_i, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_JJ), tl.arange(0, X)
        b_mean, b_scale = tl.load(p_feature_mean + pid_b * K + 3 * X + o_x), tl.load(p_scale + pid_b)
        b_hi, b_lo = load_row_halves(p_dS + pid_b * (J * 2 * K), o_jj, J, K)
        g_scale = tl.load(p_dS_scale + pid_b * J + o_jj, mask=o_jj < J, other=0.0) * (1.0 / J)
        b_dS = tl.sum(mul_without_fma(b_hi.to(tl.float32) + b_lo.to(tl.float32), g_scale[:, None]), 0)[None, :]
        m_constant = model.mask_constant(BLOCK_D, K)
        b_dD = tl.sum(tl.where(m_constant, b_dS, 0.0), 1)
        g_0, g_1, g_2, g_x = tile.unstack_features(tl.where(m_constant, 0.0, b_dS), BLOCK_D)
        b_df_total = tl.load(p_df_total + pid_b * J + o_jj, mask=o_jj < J, other=0.0)
        b_df_shared = b_dD + tl.sum(b_df_total, 0).to(tl.float32)
        for pid_i in range(pid_q * slot_tiles, tl.minimum((pid_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = pid_i * BLOCK_I + o_i
            b_a = tile.load_scores(p_a + start, i, n)
            b_f = tl.sigmoid(b_a)
            b_x_inp = tile.load_capsules(p_x + start * (C * D), i, n, o_x, C, D, BLOCK_D)
            b_x = tile.centre_capsules(b_x_inp, b_mean, b_scale)
            b_gx = b_x * g_0  # sums to the gradient of f(a_inp) once multiplied by x
            b_dx = 2 * b_gx + g_x
            b_gx += g_x
            if D >= 2:
                b_next = rotate(b_x, 1, D, BLOCK_D) * g_1
                b_back = rotate(b_x * g_1, D - 1, D, BLOCK_D)
                b_gx, b_dx = b_gx + b_next, b_dx + b_next + b_back
            if D >= 4:
                b_next = rotate(b_x, 2, D, BLOCK_D) * g_2
                b_back = rotate(b_x * g_2, D - 2, D, BLOCK_D)
                b_gx, b_dx = b_gx + b_next, b_dx + b_next + b_back
            b_df = tl.sum(mul_without_fma(b_gx, b_x), 1) + b_df_shared
            b_dx = b_dx * (b_f * b_scale)[:, None]
            m_i = i < n
            at_x = start * (C * D) + i[:, None] * (C * D) + tile.offset_entries(o_x, D, BLOCK_D)[None, :]
            m_x = m_i[:, None] & tile.mask_entries(o_x, C, D, BLOCK_D)[None, :]
            if overwrite == 0:
                b_dx += tl.load(p_dx + at_x, mask=m_x, other=0.0)
                b_df += tl.load(p_da_inp + start + i, mask=m_i, other=0.0)
            tl.store(p_dx + at_x, tl.where(tl.abs(b_x_inp) <= MAX_CAPSULE, b_dx, 0.0), mask=m_x)
            tl.store(p_da_inp + start + i, b_df * b_f * tl.sigmoid(-b_a), mask=m_i)


@triton.jit
def reduce_param_grads(p_dparams, p_dW, p_dB, p_duse, p_dign, pid, n_b, J: tl.constexpr, DH: tl.constexpr,
                       CH: tl.constexpr):  # fmt: skip
    """Sum gradients of parameters over samples."""
    SIZE: tl.constexpr = J * (DH + CH + 2)
    at = pid * 128 + tl.arange(0, 128)
    zero = pid.to(tl.int64) * 0  # makes offsets 64-bit
    b_sum = tl.zeros([128], tl.float64)
    for b in range(n_b):
        b_sum += tl.load(p_dparams + (zero + b) * SIZE + at, mask=at < SIZE, other=0.0)
    b_sum = b_sum.to(tl.float32)
    j, entry = at // (DH + CH + 2), at % (DH + CH + 2)
    tl.store(p_dW + j * DH + entry, b_sum, mask=(at < SIZE) & (entry < DH))
    tl.store(p_dB + j * CH + entry - DH, b_sum, mask=(at < SIZE) & (entry >= DH) & (entry < DH + CH))
    tl.store(p_duse + j, b_sum, mask=(at < SIZE) & (entry == DH + CH))
    tl.store(p_dign + j, b_sum, mask=(at < SIZE) & (entry == DH + CH + 1))
