"""Forward kernels of the moment form, for small capsules whose parameters all inputs share: no vote is ever formed.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties, `x` c and d together, `k`
features. Features `phi [i, k]` of capsules `[i, x]` are four blocks of size x: squares of the entries, products with
the next entry of the same row, products with the next but one (rows are circular, so that up to five entries have no
other products), and the entries. Capsules are centred at the sample's mean. `S [j, k]` is `D_use^T phi`; `theta [j, k]`
are the coefficients of logits. A sample's inputs are divided into slots, each with its own partial sums; `p_partial`
holds those of features, `p_D_partial` those of D_use. `docs/kernels.md` explains the kernels.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from . import moments_model as model
from . import moments_tile as tile
from .moments_float64 import FLOAT64, sum_features_float64
from .moments_tile import FEATURE_UNIT, LOG2_E, NEGLIGIBLE_F, TINY, rotate, stack_features, store_rows
from .numerics import clamp_capsules, dot_halves, log_sigmoid, max_nan, mul_without_fma, sample_range

RUNTIME_SCALARS = (
    "n_b", "n_inp", "n_iters", "n_slots", "slot_tiles", "t", "rerun", "overwrite", "stride_W", "stride_use",
    "stride_ign",
)  # fmt: skip
"""Arguments that kernels are not specialised for."""


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def first_sums_fwd_kernel(
    p_a, p_x, p_offsets, p_first, p_f_partial, p_range, p_in_float64, n_b, n_inp, n_slots, slot_tiles,
    PACKED: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum a slot's features in the first iteration, not yet centred: one row for all outputs."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    pid = tl.program_id(0)
    pid_b, pid_q = pid.to(tl.int64) // n_slots, pid % n_slots
    start, n = sample_range(p_offsets, pid_b, n_inp, PACKED)
    o_i, o_x = tl.arange(0, BLOCK_I), tl.arange(0, X)
    b_0, b_1 = tl.zeros([BLOCK_I, X], tl.float64), tl.zeros([BLOCK_I, X], tl.float64)
    b_2, b_3 = tl.zeros([BLOCK_I, X], tl.float64), tl.zeros([BLOCK_I, X], tl.float64)
    b_f_sum = tl.zeros([BLOCK_I], tl.float64)
    b_min = tl.full([BLOCK_I, X], float("inf"), tl.float32)
    b_max = tl.full([BLOCK_I, X], float("-inf"), tl.float32)
    p_sample = p_x + start * (C * D)
    tl.store(p_in_float64 + pid_b, 0)
    tl.store(p_in_float64 + n_b + pid_b, 0)
    for pid_i in range(pid_q * slot_tiles, tl.minimum((pid_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
        i = pid_i * BLOCK_I + o_i
        b_f = tl.sigmoid(tile.load_scores(p_a + start, i, n))
        b_x = clamp_capsules(tile.load_capsules(p_sample, i, n, o_x, C, D, BLOCK_D))
        b_min = tl.minimum(b_min, tl.where((b_f > NEGLIGIBLE_F)[:, None], b_x, float("inf")))
        b_max = tl.maximum(b_max, tl.where((b_f > NEGLIGIBLE_F)[:, None], b_x, float("-inf")))
        b_x = b_x.to(tl.float64)
        b_fx = b_x * b_f[:, None]
        b_f_sum += b_f
        b_3 += b_fx
        b_0 += b_fx * b_x
        if D >= 2:
            b_1 += b_fx * rotate(b_x, 1, D, BLOCK_D)
        if D >= 4:
            b_2 += b_fx * rotate(b_x, 2, D, BLOCK_D)
    p_slot = p_first + pid.to(tl.int64) * (4 * X)
    tl.store(p_slot + tile.offset_features(o_x, 0, BLOCK_D), tl.sum(b_0, 0))
    tl.store(p_slot + tile.offset_features(o_x, 1, BLOCK_D), tl.sum(b_1, 0))
    tl.store(p_slot + tile.offset_features(o_x, 2, BLOCK_D), tl.sum(b_2, 0))
    tl.store(p_slot + tile.offset_features(o_x, 3, BLOCK_D), tl.sum(b_3, 0))
    tl.store(p_f_partial + pid, tl.sum(b_f_sum, 0))
    p_slot = p_range + pid.to(tl.int64) * (2 * X) + o_x
    tl.store(p_slot, tl.min(b_min, 0))
    tl.store(p_slot + X, tl.max(b_max, 0))


@triton.jit
def sum_features(
    p_a, p_x, p_feature_mean, p_scale, p_theta, p_log, p_partial, p_D_partial, first, last, n, J: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, X: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Run the E-step and sum features over the inputs from `first` to `last`; all pointers are the sample's."""
    K: tl.constexpr = 4 * X
    o_i, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_JJ), tl.arange(0, X)
    b_mean, b_scale = tl.load(p_feature_mean + 3 * X + o_x), tl.load(p_scale)
    c_hi, c_lo = tile.load_row_halves(p_theta, o_jj, J, K)
    c_scale = tl.load(p_log + o_jj, mask=o_jj < J, other=0.0) * FEATURE_UNIT
    b_log = tile.load_log_terms(p_log + J, o_jj, J)
    b_S, b_D_sum = tl.zeros([BLOCK_JJ, K], tl.float32), tl.zeros([BLOCK_JJ], tl.float32)
    i = first + o_i
    next_x, next_a = tile.load_capsules(p_x, i, n, o_x, C, D, BLOCK_D), tile.load_scores(p_a, i, n)
    for _ in range(first, last, BLOCK_I):
        b_x, b_a = tile.centre_capsules(next_x, b_mean, b_scale), next_a
        i += BLOCK_I
        next_x, next_a = tile.load_capsules(p_x, i, n, o_x, C, D, BLOCK_D), tile.load_scores(p_a, i, n)
        b_hi, b_lo = tile.compute_feature_halves(b_x, p_feature_mean, D, BLOCK_D)
        b_acc = dot_halves(b_hi, b_lo, tl.trans(c_hi), tl.trans(c_lo), tl.zeros([BLOCK_I, BLOCK_JJ], tl.float32))
        b_exp, b_inverse = tile.softmax_terms(b_acc, c_scale, b_log)
        b_D = b_exp * (b_inverse * tl.sigmoid(b_a))[:, None]
        b_D_tile = tl.sum(b_D, 0)
        b_D_sum += b_D_tile  # not from products: scores are differences of it, and need its last digit
        d_scale, d_inverse = tile.compute_scales(b_D_tile)  # for each output, so that all are equally exact
        d_hi, d_lo = tile.split_rounded_halves(b_D * d_inverse[None, :])
        b_acc = dot_halves(tl.trans(d_hi), tl.trans(d_lo), b_hi, b_lo, tl.zeros([BLOCK_JJ, K], tl.float32))
        b_S += b_acc * (d_scale * FEATURE_UNIT)[:, None]
    store_rows(model.as_float32(p_partial), b_S, o_jj, J)
    tl.store(p_D_partial + o_jj, b_D_sum, mask=o_jj < J)


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def feature_sums_fwd_kernel(
    p_a, p_x, p_offsets, p_feature_mean, p_scale, p_theta, p_log, p_in_float64, p_theta64, p_partial, p_D_partial,
    n_b, n_inp, t, rerun, max_separation, n_slots, slot_tiles, PACKED: tl.constexpr, J: tl.constexpr, C: tl.constexpr,
    D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Run the E-step and sum a slot's features, `D_use^T phi`.

    With `rerun`, only samples whose outputs turned out too far apart for float16 halves, in float64.
    """
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    pid, pid_b, start, n, first, last = tile.slot_range(p_offsets, n_inp, n_slots, slot_tiles, PACKED, BLOCK_I)
    row = (t * n_b + pid_b) * J
    p_a, p_x, p_log = p_a + start, p_x + start * (C * D), p_log + row * 4
    p_feature_mean, p_scale = p_feature_mean + pid_b * K, p_scale + pid_b
    p_partial, p_D_partial = p_partial + pid * (J * K), p_D_partial + pid * J
    if FLOAT64:
        in_halves, o_jj = tl.load(p_in_float64 + pid_b) == 0, tl.arange(0, BLOCK_JJ)
        b_separation = tl.sum(tl.load(p_log + 3 * J + o_jj, mask=(o_jj < J) & (rerun != 0), other=0.0), 0)
        separated = in_halves & (rerun != 0) & (b_separation > max_separation)
        tl.store(p_in_float64 + n_b + pid_b, 1, mask=separated)
        in_float64 = separated | ((rerun == 0) & (in_halves == 0))
        in_halves = in_halves & (rerun == 0)
    else:
        in_halves: tl.constexpr = True
    if in_halves:
        sum_features(
            p_a, p_x, p_feature_mean, p_scale, p_theta + row * (2 * K), p_log, p_partial, p_D_partial, first, last, n,
            J, C, D, BLOCK_I, BLOCK_JJ, X, BLOCK_D,
        )  # fmt: skip
    elif in_float64:
        sum_features_float64(
            p_a, p_x, p_feature_mean, p_scale, p_theta64 + row * K, p_partial, p_D_partial, first, last, n,
            J, C, D, BLOCK_I, BLOCK_JJ, X, BLOCK_D,
        )  # fmt: skip


@triton.jit
def centre_first_sums(
    p_first, p_f_partial, p_range, p_feature_mean, p_scale, p_f_total, pid_b, n_slots,
    J: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return a sample's sums of the first iteration, centred; stores its mean, spread and total f(a_inp)."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    o_one = tl.arange(0, 1)
    b_f_total = tl.sum(model.sum_scalar_slots(p_f_partial, pid_b, o_one, n_slots, 1, 1, 1), 0)
    b_sums = model.sum_row_slots(p_first, pid_b, o_one, n_slots, 1, 4 * X, 1, 4 * X, 1)
    b_0, b_1, b_2, b_x = tile.unstack_features(b_sums, BLOCK_D)
    weight = tl.maximum(b_f_total, TINY)
    b_mean = (b_x / weight).to(tl.float32)
    p_own = p_feature_mean + pid_b * (4 * X) + tl.arange(0, X)[None, :]
    tl.store(p_own + 3 * X, b_mean)
    b_mean = b_mean.to(tl.float64)
    b_0 = max_nan(b_0 - b_mean * (2 * b_x - b_f_total * b_mean), 0.0)
    if D >= 2:
        mean_1, x_1 = rotate(b_mean, 1, D, BLOCK_D), rotate(b_x, 1, D, BLOCK_D)
        b_1 -= b_mean * x_1 + mean_1 * (b_x - b_f_total * b_mean)
    if D >= 4:
        mean_2, x_2 = rotate(b_mean, 2, D, BLOCK_D), rotate(b_x, 2, D, BLOCK_D)
        b_2 -= b_mean * x_2 + mean_2 * (b_x - b_f_total * b_mean)
    b_min, b_max = model.reduce_range_slots(p_range, pid_b, n_slots, X)
    b_scale = model.compute_spread_scale(b_0, b_f_total, tl.max(b_max - b_min, 0), b_mean)
    b_farthest = tl.max(tl.maximum(b_max[None, :] - b_mean, b_mean - b_min[None, :]), 1) * b_scale
    tl.store(p_scale + pid_b, b_scale)
    tl.store(p_f_total + pid_b, b_f_total)
    norm = b_scale.to(tl.float64) * b_scale / weight
    tl.store(p_own, (b_0 * norm).to(tl.float32))
    tl.store(p_own + X, (b_1 * norm).to(tl.float32))
    tl.store(p_own + 2 * X, (b_2 * norm).to(tl.float32))
    R = 1.0 / J
    b_S = stack_features(b_0 * R, b_1 * R, b_2 * R, (b_x - b_f_total * b_mean) * R, BLOCK_D)
    return b_f_total, b_scale.to(tl.float64), b_farthest, b_S


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def models_fwd_kernel(
    p_W, p_B, p_use, p_ign, p_first, p_f_partial, p_range, p_partial, p_D_partial, p_feature_mean, p_scale, p_f_total,
    p_S, p_D, p_theta, p_log, p_in_float64, p_theta64, p_a_out, p_mu_out, p_sig2_out, n_b, t, rerun, n_iters, n_slots,
    eps, max_logit, min_weight, stride_W, stride_use, stride_ign,
    FIRST: tl.constexpr, GAUSSIAN: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Compute output capsules from an iteration's sums, and the coefficients of the next E-step's logits.

    Logits and variances are differences of squares, which cancel the more, the further an output lies from the mean of
    all inputs in units of its own spread. That separation is stored; where its mean over inputs is large, the sample's
    iteration runs again in float64.
    """
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    BLOCKS: tl.constexpr = (J + BLOCK_J - 1) // BLOCK_J
    pid = tl.program_id(0)
    pid_b = pid.to(tl.int64) // BLOCKS
    o_j = pid % BLOCKS * BLOCK_J + tl.arange(0, BLOCK_J)
    m_j = o_j < J
    row, p_own = (t * n_b + pid_b) * J, p_feature_mean + pid_b * K
    separated = tl.load(p_in_float64 + n_b + pid_b)
    if (rerun != 0) & (separated == 0):
        return
    weights = model.load_weights(p_W, o_j, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    if FIRST:
        b_f_total, b_scale, b_farthest, b_S = centre_first_sums(
            p_first, p_f_partial, p_range, p_feature_mean, p_scale, p_f_total, pid_b, n_slots, J, D, BLOCK_C, BLOCK_D
        )
        b_S = b_S + tl.zeros([BLOCK_J, K], tl.float64)
        blocks = tile.unstack_features(b_S, BLOCK_D)
        b_D = tl.zeros([BLOCK_J], tl.float64) + b_f_total / J
        spread = 1 / b_scale
        tl.debug_barrier()  # other threads read the mean just stored
    else:
        b_f_total, spread = tl.load(p_f_total + pid_b), 1 / tl.load(p_scale + pid_b).to(tl.float64)
        b_D = model.sum_scalar_slots(p_D_partial, pid_b, o_j, n_slots, J, J, BLOCK_J)
        in_float64 = tl.load(p_in_float64 + pid_b) | separated
        tl.store(p_in_float64 + pid_b, 1, mask=in_float64 != 0)
        b_S = model.sum_feature_slots(p_partial, in_float64, pid_b, o_j, n_slots, J, K, BLOCK_J)
        b_S += b_D[:, None] * model.load_feature_mean(p_own, X, BLOCK_D)
        blocks = model.unstack_in_spreads(b_S, spread, BLOCK_D)
        b_S = stack_features(blocks[0], blocks[1], blocks[2], blocks[3], BLOCK_D)
    store_rows(p_S + row * K, b_S, o_j, J)
    tl.store(p_D + row + o_j, b_D, mask=m_j)
    _, b_mean_vote = model.vote_mean(p_own + 3 * X, weights[0], D, BLOCK_C, BLOCK_D)
    b_V, b_VV = model.sum_votes(blocks, weights, BLOCK_D)
    b_m, _, b_sig2, b_B, b_a, _, _ = model.compute_model(
        b_D, b_V, b_VV, b_mean_vote, b_f_total, p_B, p_use, p_ign, o_j, eps, stride_use, stride_ign,
        J, C, H, BLOCK_C, BLOCK_H,
    )  # fmt: skip
    at, m_v = model.offset_outputs(o_j, J, C, H, BLOCK_C, BLOCK_H)
    b_p = tl.where(m_v, 0.5 / b_sig2 if GAUSSIAN else 1.0, 0.0).to(tl.float64)
    b_separation = tl.sum(tl.sum(mul_without_fma(b_p * b_m, b_m), 2), 1)
    b_share = b_separation * b_D / tl.maximum(b_f_total, TINY)
    tl.store(p_log + row * 4 + 3 * J + o_j, b_share.to(tl.float32), mask=m_j)
    if t == n_iters - 1:
        o_out = pid_b * (J * C * H) + at
        tl.store(p_a_out + pid_b * J + o_j, b_a.to(tl.float32), mask=m_j)
        tl.store(p_mu_out + o_out, (b_m + b_B).to(tl.float32), mask=m_v)
        tl.store(p_sig2_out + o_out, b_sig2.to(tl.float32), mask=m_v)
    else:
        b_log = log_sigmoid(b_a)
        if GAUSSIAN:
            b_log -= 0.5 * tl.sum(tl.sum(tl.where(m_v, tl.log(6.283185307179586 * b_sig2), 0.0), 2), 1)
        b_log = (b_log - b_separation) * LOG2_E
        b_theta = model.project_to_features(b_p * b_m * (2 * LOG2_E), b_p * -LOG2_E, spread, weights, BLOCK_D)
        b_log += tl.sum(mul_without_fma(b_theta, model.load_feature_mean(p_own, X, BLOCK_D)), 1)
        if FIRST:
            b_logit = tl.max(tl.max(tl.abs(b_theta), 1), 0) * tl.max(b_farthest * b_farthest, 0)
            tl.store(p_in_float64 + pid_b, 1, mask=(b_logit > max_logit) | (b_f_total < min_weight * J))
        p_next = p_log + (row + n_b * J) * 4 + o_j
        b_theta64 = tl.where(model.mask_constant(BLOCK_D, K), b_log[:, None], b_theta)
        store_rows(p_theta64 + (row + n_b * J) * K, b_theta64, o_j, J)
        model.store_row_halves(p_theta + (row + n_b * J) * (2 * K), p_next, b_theta, o_j, J)
        tl.store(p_next + J, b_log.to(tl.float32), mask=m_j)
        tl.store(p_next + 2 * J, (b_log - b_log.to(tl.float32)).to(tl.float32), mask=m_j)
