"""Backward kernels of the moment form, from the sums that every iteration stored. Axes and names as in `moments.py`."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from . import moments_model as model
from . import moments_tile as tile
from .moments import RUNTIME_SCALARS
from .moments_float64 import FLOAT64, sum_features_float64_bwd
from .moments_tile import FEATURE_UNIT, LN_2, load_row_halves, rotate
from .numerics import MAX_CAPSULE, dot_halves, mul_without_fma, sample_range, split_halves


class BwdWorkspace(NamedTuple):
    """What kernels of the backward pass hand on."""

    partial: Any = "float64 slots j k"  # sums of a slot, of gradients of theta, as in `FwdWorkspace`
    dS: Any = "float16 b j 2 k"  # gradients of S as high and low halves
    dS_scale: Any = "float32 b j"  # their scales
    dS64: Any = "float64 b j k"  # the same in float64
    df_total: Any = "float64 b j"  # gradients of the sum of f(a_inp)
    dparams: Any = "float64 b j width"  # a sample's gradients of W, B and both betas, d h + c h + 2 for each output


@triton.jit
def store_or_add(p, b, mask, overwrite):
    """Overwrite what is in memory, or add to it."""
    if overwrite:
        tl.store(p, b, mask=mask)
    else:
        tl.store(p, tl.load(p, mask=mask, other=0.0) + b, mask=mask)


@triton.jit
def weights_bwd(blocks, b_v, b_vv, rotations, T: tl.constexpr):
    """Compute gradients of `W [j, c, d, h]` from blocks of features and coefficients of votes and squares."""
    forth, back = rotations
    o_x = tl.arange(0, blocks[3].shape[1])[None, :]
    b_dW = 2 * model.unflatten(blocks[0], T) * forth[0]
    for k in tl.static_range(1, T.D // 2 + 1):  # a product depends on both its entries
        b_k = blocks[k] * model.count_products(o_x % T.BLOCK_D, k, T)
        rotated = rotate(b_k, T.D - k, T)
        b_dW += model.unflatten(b_k, T) * forth[k] + model.unflatten(rotated, T) * back[k]
    return b_dW * b_vv[:, :, None, :] + model.unflatten(blocks[3], T) * b_v[:, :, None, :]


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def models_bwd_kernel(
    args, saved, douts, work, n_b, t, n_slots, eps, stride_W, stride_use, stride_ign, LAST: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Compute gradients of an iteration's sums and of parameters from those of its output capsules."""
    DH: tl.constexpr = T.D * T.H
    CH: tl.constexpr = T.C * T.H
    pid_b, o_j, m_j, row = model.locate_outputs(t, n_b, T)
    p_own = saved.feature_mean + pid_b * T.K
    weights = model.load_weights(args.W, o_j, stride_W, T)
    W_1 = model.load_rotated_W(args.W, o_j, 1, stride_W, T)
    W_2 = model.load_rotated_W(args.W, o_j, 2, stride_W, T)
    back_1 = model.load_rotated_W(args.W, o_j, T.D - 1, stride_W, T)
    back_2 = model.load_rotated_W(args.W, o_j, T.D - 2 if T.D >= 2 else 0, stride_W, T)
    rotations = (weights[0], W_1, W_2), (weights[0], back_1, back_2)
    S_blocks = tile.unstack_features(tile.load_rows(saved.S + row * T.K, o_j, T), T)
    b_D = tl.load(saved.D + row + o_j, mask=m_j, other=0.0)
    b_f_total, spread = tl.load(saved.f_total + pid_b), 1 / tl.load(saved.scale + pid_b).to(tl.float64)
    b_mean, b_mean_vote = model.vote_mean(p_own + 3 * T.X, weights[0], T)
    b_V, b_VV = model.sum_votes(S_blocks, weights, T)
    b_m, b_N, b_sig2, b_B, b_a, b_use, b_ign = model.compute_model(
        b_D, b_V, b_VV, b_mean_vote, b_f_total, args, o_j, eps, stride_use, stride_ign, T
    )
    at, m_v = model.offset_outputs(o_j, T)
    b_dW = tl.full([T.BLOCK_J, T.BLOCK_C, T.BLOCK_D, T.BLOCK_H], 0.0, tl.float64)
    if LAST:
        o_out = pid_b * (T.J * T.C * T.H) + at
        b_da = tl.load(douts.a + pid_b * T.J + o_j, mask=m_j, other=0.0).to(tl.float64)
        b_dmu = tl.load(douts.mu + o_out, mask=m_v, other=0.0).to(tl.float64)
        b_dm = tl.zeros_like(b_dmu)
        b_dsig2 = tl.load(douts.sig2 + o_out, mask=m_v, other=0.0).to(tl.float64)
    else:
        in_float64 = tl.load(saved.in_float64 + pid_b)
        b_dtheta = model.sum_feature_slots(work.partial, in_float64, pid_b, o_j, n_slots, T)
        b_dlog = tl.sum(tl.where(model.mask_constant(T), b_dtheta, 0.0), 1)
        b_dtheta += b_dlog[:, None] * model.load_feature_mean(p_own, T)
        d_blocks = model.unstack_in_spreads(b_dtheta, spread, T)
        b_V, b_VV = model.sum_votes(d_blocks, weights, T)
        dlog = b_dlog[:, None, None]
        if T.GAUSSIAN:
            b_p = tl.where(m_v, 0.5 / b_sig2, 0.0)
            b_dp = -b_VV + 2 * b_m * b_V - b_m * b_m * dlog
            b_dsig2 = -(b_dp / b_sig2 + dlog) * b_p
        else:
            b_p = tl.where(m_v, 1.0, 0.0).to(tl.float64)
            b_dsig2 = tl.zeros_like(b_sig2)
        b_dm = 2 * b_p * (b_V - b_m * dlog)
        b_dmu = tl.zeros_like(b_dm)
        b_da = b_dlog / (1 + tl.exp(b_a))
        b_dW += weights_bwd(d_blocks, 2 * b_p * b_m, -b_p, rotations, T)
    inverse = 1 / (b_D[:, None, None] + eps)
    b_dN = tl.where(m_v & (b_N > 0), b_dsig2 * inverse, 0.0)
    b_dm = b_dm - 2 * eps * (b_m + b_B) * b_dN
    b_dB = tl.where(m_v, (b_dmu * b_D[:, None, None] - eps * b_dm) * inverse, 0.0)
    b_dm = b_dm + b_dmu
    b_dV = tl.where(m_v, b_dm * inverse - 2 * b_m * b_dN, 0.0)
    b_dD = tl.where(m_v, b_m * b_m * b_dN - (b_dm * b_m + b_dN * b_N) * inverse, 0.0)
    b_dD = tl.sum(tl.sum(b_dD, 2), 1) + (b_use + b_ign) * b_da
    b_dS = model.project_to_features(b_dV, b_dN, spread, weights, T)
    if t > 0:  # the first iteration's features are not reduced by their mean
        b_dD += tl.sum(mul_without_fma(b_dS, model.load_feature_mean(p_own, T)), 1)
    b_dS = tl.where(model.mask_constant(T), b_dD[:, None], b_dS)
    model.store_row_halves(work.dS + pid_b * (T.J * 2 * T.K), work.dS_scale + pid_b * T.J + o_j, b_dS, o_j, T.J)
    tile.store_rows(work.dS64 + pid_b * (T.J * T.K), b_dS, o_j, T)
    b_dW += weights_bwd(S_blocks, b_dV, b_dN, rotations, T)
    b_dW += b_mean[:, :, :, None] * b_dB[:, :, None, :]
    store_or_add(work.df_total + pid_b * T.J + o_j, -b_ign * b_da, m_j, LAST)
    p_own_params = work.dparams + (pid_b * T.J + o_j) * (DH + CH + 2)
    o_d, o_h = tl.arange(0, T.BLOCK_D)[None, :, None], tl.arange(0, T.BLOCK_H)[None, None, :]
    m_W = m_j[:, None, None] & (o_d < T.D) & (o_h < T.H)
    store_or_add(p_own_params[:, None, None] + o_d * T.H + o_h, tl.sum(b_dW, 1), m_W, LAST)
    store_or_add(p_own_params[:, None, None] + DH + at - o_j[:, None, None] * (T.C * T.H), b_dB, m_v, LAST)
    store_or_add(p_own_params + DH + CH, b_da * b_D, m_j, LAST)
    store_or_add(p_own_params + DH + CH + 1, b_da * (b_D - b_f_total), m_j, LAST)


@triton.jit
def sum_features_bwd(slot, p_theta, p_log, p_partial, p_dS, p_dS_scale, p_da_inp, p_dx, overwrite, T: tl.constexpr):
    """Compute gradients of a slot's inputs, and sum those of the E-step's coefficients over them."""
    o_i, o_j = tl.arange(0, T.BLOCK_I), tl.arange(0, T.BLOCK_J)
    b_mean, b_scale = tl.load(slot.feature_mean + 3 * T.X + tl.arange(0, T.X)), tl.load(slot.scale)
    c_hi, c_lo = load_row_halves(p_theta, o_j, T)
    g_hi, g_lo = load_row_halves(p_dS, o_j, T)
    # one product instead of two, which would wait for each other
    cg_hi, cg_lo = tile.concat_rows(c_hi, g_hi), tile.concat_rows(c_lo, g_lo)
    b_dtheta = tl.full([T.BLOCK_J, T.K], 0.0, tl.float32)
    c_scale = tl.load(p_log + o_j, mask=o_j < T.J, other=0.0) * FEATURE_UNIT
    b_log = tile.load_log_terms(p_log + T.J, o_j, T)
    g_scale = tl.load(p_dS_scale + o_j, mask=o_j < T.J, other=0.0) * FEATURE_UNIT
    i = slot.first + o_i
    next_x, next_a = tile.load_capsules(slot.x, i, slot.n, T), tile.load_scores(slot.a, i, slot.n)
    for start in range(slot.first, slot.last, T.BLOCK_I):
        b_x, b_f = tile.centre_capsules(next_x, b_mean, b_scale), tl.sigmoid(next_a)
        i = start + o_i
        b_hi, b_lo = split_halves(tile.compute_features(b_x, slot.feature_mean, 1 / FEATURE_UNIT, T))
        b_acc = tl.full([T.BLOCK_I, 2 * T.BLOCK_J], 0.0, tl.float32)
        b_acc, b_dD = tile.split_columns(dot_halves(b_hi, b_lo, tl.trans(cg_hi), tl.trans(cg_lo), b_acc))
        b_exp, b_inverse = tile.softmax_terms(b_acc, c_scale, b_log)
        b_dD = b_dD * g_scale[None, :]
        b_df = tl.sum(b_exp * b_dD, 1) * b_inverse
        b_D = b_exp * (b_f * b_inverse)[:, None]
        b_dlogit = b_D * (b_dD - b_df[:, None])
        d_scale, d_inverse = tile.compute_scales(tl.max(tl.abs(b_dlogit), 0))
        d_hi, d_lo = split_halves(b_dlogit * d_inverse[None, :])
        at_x, m_x = tile.offset_capsules(i, T)
        m_i, m_old = i < slot.n, i < tl.where(overwrite == 0, slot.n, 0)
        # loaded before the products, to hide the latency
        b_old_dx = tl.load(p_dx + at_x, mask=m_old[:, None] & m_x, other=0.0)
        b_old_df = tl.load(p_da_inp + i, mask=m_old, other=0.0)
        b_dlogit, b_D = b_dlogit * c_scale[None, :], b_D * g_scale[None, :]
        # one scale per input for both, in units of c and g; logits are to base two
        r_scale, r_inverse = tile.compute_scales(tl.max(tl.maximum(tl.abs(b_dlogit), b_D), 1))
        l_hi, l_lo = split_halves(b_dlogit * (r_inverse * LN_2)[:, None])
        u_hi, u_lo = split_halves(b_D * r_inverse[:, None])
        i_next = i + T.BLOCK_I
        next_x, next_a = tile.load_capsules(slot.x, i_next, slot.n, T), tile.load_scores(slot.a, i_next, slot.n)
        lu_lo, lu_hi = tile.concat_columns(l_lo, u_lo), tile.concat_columns(l_hi, u_hi)
        b_dphi = dot_halves(lu_hi, lu_lo, cg_hi, cg_lo, tl.full([T.BLOCK_I, T.K], 0.0, tl.float32)) * r_scale[:, None]
        b_dx = tile.features_bwd(b_dphi, b_x, T) * (b_scale * (1 / FEATURE_UNIT))
        tl.store(p_dx + at_x, b_old_dx + b_dx, mask=m_i[:, None] & m_x)
        tl.store(p_da_inp + i, b_old_df + b_df, mask=m_i)
        # last, when most registers are free again
        b_acc = dot_halves(tl.trans(d_hi), tl.trans(d_lo), b_hi, b_lo, tl.full([T.BLOCK_J, T.K], 0.0, tl.float32))
        b_dtheta += b_acc * d_scale[:, None]
    tile.store_rows(model.as_float32(p_partial), b_dtheta * FEATURE_UNIT, o_j, T)


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def feature_sums_bwd_kernel(args, saved, work, grads, n_b, n_inp, t, overwrite, n_slots, slot_tiles, T: tl.constexpr):
    """Compute gradients of f(a_inp) and capsules, and a slot's partial sums of those of the E-step's coefficients."""
    slot, pid, pid_b, start = tile.locate_slot(args, saved, n_inp, n_slots, slot_tiles, T)
    row, p_partial = (t * n_b + pid_b) * T.J, work.partial + pid * (T.J * T.K)
    p_da_inp, p_dx = grads.a + start, grads.x + start * (T.C * T.D)
    if FLOAT64:
        in_halves = tl.load(saved.in_float64 + pid_b) == 0
    else:
        in_halves: tl.constexpr = True
    if in_halves:
        p_theta, p_dS = saved.theta + row * (2 * T.K), work.dS + pid_b * (T.J * 2 * T.K)
        p_log, p_dS_scale = saved.log + row * 4, work.dS_scale + pid_b * T.J
        sum_features_bwd(slot, p_theta, p_log, p_partial, p_dS, p_dS_scale, p_da_inp, p_dx, overwrite, T)
    else:
        p_theta64, p_dS64 = saved.theta64 + row * T.K, work.dS64 + pid_b * (T.J * T.K)
        sum_features_float64_bwd(slot, p_theta64, p_partial, p_dS64, p_da_inp, p_dx, overwrite, T)


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def first_sums_bwd_kernel(args, saved, work, grads, n_b, n_inp, overwrite, n_slots, slot_tiles, T: tl.constexpr):
    """Add the first iteration's gradients of inputs to those of the others; and sum parameters' over samples."""
    pid = tl.program_id(0)
    if pid >= n_b * n_slots:
        reduce_param_grads(work.dparams, grads, pid - n_b * n_slots, n_b, T)
    else:
        pid_b, pid_q = pid.to(tl.int64) // n_slots, pid % n_slots
        start, n = sample_range(args.offsets, pid_b, n_inp, T.PACKED)
        o_i, o_j = tl.arange(0, T.BLOCK_I), tl.arange(0, T.BLOCK_J)
        p_mean = saved.feature_mean + pid_b * T.K + 3 * T.X
        b_mean, b_scale = tl.load(p_mean + tl.arange(0, T.X)), tl.load(saved.scale + pid_b)
        b_hi, b_lo = load_row_halves(work.dS + pid_b * (T.J * 2 * T.K), o_j, T)
        g_scale = tl.load(work.dS_scale + pid_b * T.J + o_j, mask=o_j < T.J, other=0.0) * (1.0 / T.J)
        b_dS = tl.sum(mul_without_fma(b_hi.to(tl.float32) + b_lo.to(tl.float32), g_scale[:, None]), 0)[None, :]
        m_constant = model.mask_constant(T)
        b_dD = tl.sum(tl.where(m_constant, b_dS, 0.0), 1)
        g_blocks = tile.unstack_features(tl.where(m_constant, 0.0, b_dS), T)
        b_df_total = tl.load(work.df_total + pid_b * T.J + o_j, mask=o_j < T.J, other=0.0)
        b_df_shared = b_dD + tl.sum(b_df_total, 0).to(tl.float32)
        for pid_i in range(pid_q * slot_tiles, tl.minimum((pid_q + 1) * slot_tiles, tl.cdiv(n, T.BLOCK_I))):
            i = pid_i * T.BLOCK_I + o_i
            b_a = tile.load_scores(args.a + start, i, n)
            b_f = tl.sigmoid(b_a)
            b_x_inp = tile.load_capsules(args.x + start * (T.C * T.D), i, n, T)
            b_x = tile.centre_capsules(b_x_inp, b_mean, b_scale)
            b_gx = b_x * g_blocks[0]  # sums to the gradient of f(a_inp) once multiplied by x
            b_dx = 2 * b_gx + g_blocks[3]
            b_gx += g_blocks[3]
            for k in tl.static_range(1, T.D // 2 + 1):
                b_next = rotate(b_x, k, T) * g_blocks[k]
                b_back = rotate(b_x * g_blocks[k], T.D - k, T)
                b_gx, b_dx = b_gx + b_next, b_dx + b_next + b_back
            b_df = tl.sum(mul_without_fma(b_gx, b_x), 1) + b_df_shared
            b_dx = b_dx * (b_f * b_scale)[:, None]
            m_i = i < n
            at_x, m_x = tile.offset_capsules(i, T)
            at_x, m_x = start * (T.C * T.D) + at_x, m_i[:, None] & m_x
            if overwrite == 0:
                b_dx += tl.load(grads.x + at_x, mask=m_x, other=0.0)
                b_df += tl.load(grads.a + start + i, mask=m_i, other=0.0)
            tl.store(grads.x + at_x, tl.where(tl.abs(b_x_inp) <= MAX_CAPSULE, b_dx, 0.0), mask=m_x)
            tl.store(grads.a + start + i, b_df * b_f * tl.sigmoid(-b_a), mask=m_i)


@triton.jit
def reduce_param_grads(p_dparams, grads, pid, n_b, T: tl.constexpr):
    """Sum gradients of parameters over samples."""
    DH: tl.constexpr = T.D * T.H
    CH: tl.constexpr = T.C * T.H
    SIZE: tl.constexpr = T.J * (DH + CH + 2)
    at = pid * 128 + tl.arange(0, 128)
    zero = pid.to(tl.int64) * 0  # makes offsets 64-bit
    b_sum = tl.full([128], 0.0, tl.float64)
    for b in range(n_b):
        b_sum += tl.load(p_dparams + (zero + b) * SIZE + at, mask=at < SIZE, other=0.0)
    b_sum = b_sum.to(tl.float32)
    j, entry = at // (DH + CH + 2), at % (DH + CH + 2)
    tl.store(grads.W + j * DH + entry, b_sum, mask=(at < SIZE) & (entry < DH))
    tl.store(grads.B + j * CH + entry - DH, b_sum, mask=(at < SIZE) & (entry >= DH) & (entry < DH + CH))
    tl.store(grads.use + j, b_sum, mask=(at < SIZE) & (entry == DH + CH))
    tl.store(grads.ign + j, b_sum, mask=(at < SIZE) & (entry == DH + CH + 1))
