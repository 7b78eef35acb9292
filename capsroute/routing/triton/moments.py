"""Forward kernels of the moment form, for small capsules whose parameters all inputs share: no vote is ever formed.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties, `x` c and d together, `k`
features. Features `phi [i, k]` of capsules `[i, x]` are four blocks of size x: squares of the entries, products with
the next entry of the same row, products with the next but one (rows are circular, so that up to five entries have no
other products), and the entries. Capsules are centred at the sample's mean. `S [j, k]` is `D_use^T phi`; `theta [j, k]`
are the coefficients of logits. A sample's inputs are divided into slots, each with its own partial sums.
`docs/kernels.md` explains the kernels.
"""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from . import moments_model as model
from . import moments_tile as tile
from .moments_float64 import FLOAT64, sum_features_float64
from .moments_tile import FEATURE_UNIT, LOG2_E, NEGLIGIBLE_F, TINY, rotate, stack_features, store_rows
from .numerics import clamp_capsules, dot_halves, log_sigmoid, max_nan, mul_without_fma, sample_range, split_halves

RUNTIME_SCALARS = (
    "n_b", "n_inp", "n_iters", "n_slots", "slot_tiles", "t", "rerun", "overwrite", "stride_W", "stride_use",
    "stride_ign",
)  # fmt: skip
"""Arguments that kernels are not specialised for."""


class FwdWorkspace(NamedTuple):
    """Partial sums of slots, of which the first iteration has its own."""

    first: Any = "float64 first_slots k"  # of features in the first iteration
    f: Any = "float64 first_slots"  # of f(a_inp)
    range: Any = "float32 first_slots 2 x"  # least and largest entries of inputs with weight
    partial: Any = "float64 slots j k"  # of features, float32 where they come from halves
    D_partial: Any = "float64 slots j"


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def first_sums_fwd_kernel(args, work, saved, n_b, n_inp, n_slots, slot_tiles, T: tl.constexpr):
    """Sum a slot's features in the first iteration, not yet centred: one row for all outputs."""
    pid = tl.program_id(0)
    pid_b, pid_q = pid.to(tl.int64) // n_slots, pid % n_slots
    start, n = sample_range(args.offsets, pid_b, n_inp, T.PACKED)
    o_i, o_x = tl.arange(0, T.BLOCK_I), tl.arange(0, T.X)
    b_0, b_1 = tl.full([T.BLOCK_I, T.X], 0.0, tl.float64), tl.full([T.BLOCK_I, T.X], 0.0, tl.float64)
    b_2, b_3 = tl.full([T.BLOCK_I, T.X], 0.0, tl.float64), tl.full([T.BLOCK_I, T.X], 0.0, tl.float64)
    b_f_sum = tl.full([T.BLOCK_I], 0.0, tl.float64)
    b_min = tl.full([T.BLOCK_I, T.X], float("inf"), tl.float32)
    b_max = tl.full([T.BLOCK_I, T.X], float("-inf"), tl.float32)
    tl.store(saved.in_float64 + pid_b, 0)
    tl.store(saved.in_float64 + n_b + pid_b, 0)
    for pid_i in range(pid_q * slot_tiles, tl.minimum((pid_q + 1) * slot_tiles, tl.cdiv(n, T.BLOCK_I))):
        i = pid_i * T.BLOCK_I + o_i
        b_f = tl.sigmoid(tile.load_scores(args.a + start, i, n))
        b_x = clamp_capsules(tile.load_capsules(args.x + start * (T.C * T.D), i, n, T))
        b_min = tl.minimum(b_min, tl.where((b_f > NEGLIGIBLE_F)[:, None], b_x, float("inf")))
        b_max = tl.maximum(b_max, tl.where((b_f > NEGLIGIBLE_F)[:, None], b_x, float("-inf")))
        b_x = b_x.to(tl.float64)
        b_fx = b_x * b_f[:, None]
        b_f_sum += b_f
        b_3 += b_fx
        b_0 += b_fx * b_x
        if T.D >= 2:
            b_1 += b_fx * rotate(b_x, 1, T)
        if T.D >= 4:
            b_2 += b_fx * rotate(b_x, 2, T)
    p_slot, blocks = work.first + pid.to(tl.int64) * T.K, (b_0, b_1, b_2, b_3)
    for k in tl.static_range(4):
        tl.store(p_slot + tile.offset_features(o_x, k, T), tl.sum(blocks[k], 0))
    tl.store(work.f + pid, tl.sum(b_f_sum, 0))
    p_slot = work.range + pid.to(tl.int64) * (2 * T.X) + o_x
    tl.store(p_slot, tl.min(b_min, 0))
    tl.store(p_slot + T.X, tl.max(b_max, 0))


@triton.jit
def sum_features(slot, p_theta, p_log, p_partial, p_D_partial, T: tl.constexpr):
    """Run the E-step and sum features over a slot's inputs."""
    o_j = tl.arange(0, T.BLOCK_J)
    b_mean, b_scale = tl.load(slot.feature_mean + 3 * T.X + tl.arange(0, T.X)), tl.load(slot.scale)
    c_hi, c_lo = tile.load_row_halves(p_theta, o_j, T)
    c_scale = tl.load(p_log + o_j, mask=o_j < T.J, other=0.0) * FEATURE_UNIT
    b_log = tile.load_log_terms(p_log + T.J, o_j, T)
    b_S, b_D_sum = tl.full([T.BLOCK_J, T.K], 0.0, tl.float32), tl.full([T.BLOCK_J], 0.0, tl.float32)
    i = slot.first + tl.arange(0, T.BLOCK_I)
    next_x, next_a = tile.load_capsules(slot.x, i, slot.n, T), tile.load_scores(slot.a, i, slot.n)
    for _ in range(slot.first, slot.last, T.BLOCK_I):
        b_x, b_a = tile.centre_capsules(next_x, b_mean, b_scale), next_a
        i += T.BLOCK_I
        next_x, next_a = tile.load_capsules(slot.x, i, slot.n, T), tile.load_scores(slot.a, i, slot.n)
        b_hi, b_lo = split_halves(tile.compute_features(b_x, slot.feature_mean, 1 / FEATURE_UNIT, T))
        b_acc = dot_halves(b_hi, b_lo, tl.trans(c_hi), tl.trans(c_lo), tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32))
        b_exp, b_inverse = tile.softmax_terms(b_acc, c_scale, b_log)
        b_D = b_exp * (b_inverse * tl.sigmoid(b_a))[:, None]
        b_D_tile = tl.sum(b_D, 0)
        b_D_sum += b_D_tile  # not from products: scores are differences of it, and need its last digit
        d_scale, d_inverse = tile.compute_scales(b_D_tile)  # for each output, so that all are equally exact
        d_hi, d_lo = tile.split_rounded_halves(b_D * d_inverse[None, :])
        b_acc = dot_halves(tl.trans(d_hi), tl.trans(d_lo), b_hi, b_lo, tl.full([T.BLOCK_J, T.K], 0.0, tl.float32))
        b_S += b_acc * (d_scale * FEATURE_UNIT)[:, None]
    store_rows(model.as_float32(p_partial), b_S, o_j, T)
    tl.store(p_D_partial + o_j, b_D_sum, mask=o_j < T.J)


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def feature_sums_fwd_kernel(
    args, saved, work, n_b, n_inp, t, rerun, max_separation, n_slots, slot_tiles, T: tl.constexpr
):
    """Run the E-step and sum a slot's features, `D_use^T phi`.

    With `rerun`, only samples whose outputs turned out too far apart for float16 halves, in float64.
    """
    slot, pid, pid_b, _ = tile.locate_slot(args, saved, n_inp, n_slots, slot_tiles, T)
    row = (t * n_b + pid_b) * T.J
    p_log, p_partial, p_D_partial = saved.log + row * 4, work.partial + pid * (T.J * T.K), work.D_partial + pid * T.J
    if FLOAT64:
        in_halves, o_j = tl.load(saved.in_float64 + pid_b) == 0, tl.arange(0, T.BLOCK_J)
        b_separation = tl.sum(tl.load(p_log + 3 * T.J + o_j, mask=(o_j < T.J) & (rerun != 0), other=0.0), 0)
        separated = in_halves & (rerun != 0) & (b_separation > max_separation)
        tl.store(saved.in_float64 + n_b + pid_b, 1, mask=separated)
        in_float64 = separated | ((rerun == 0) & (in_halves == 0))
        in_halves = in_halves & (rerun == 0)
    else:
        in_halves: tl.constexpr = True
    if in_halves:
        sum_features(slot, saved.theta + row * (2 * T.K), p_log, p_partial, p_D_partial, T)
    elif in_float64:
        sum_features_float64(slot, saved.theta64 + row * T.K, p_partial, p_D_partial, T)


@triton.jit
def centre_first_sums(work, saved, pid_b, n_slots, T: tl.constexpr):
    """Return a sample's sums of the first iteration, centred; stores its mean, spread and total f(a_inp)."""
    o_one = tl.arange(0, 1)
    b_f_total = tl.sum(model.sum_scalar_slots(work.f, pid_b, o_one, n_slots, 1), 0)
    b_sums = model.sum_row_slots(work.first, pid_b, o_one, n_slots, T.K, 1, T)
    b_0, b_1, b_2, b_x = tile.unstack_features(b_sums, T)
    weight = tl.maximum(b_f_total, TINY)
    b_mean = (b_x / weight).to(tl.float32)
    p_own = saved.feature_mean + pid_b * T.K + tl.arange(0, T.X)[None, :]
    tl.store(p_own + 3 * T.X, b_mean)
    b_mean = b_mean.to(tl.float64)
    b_0 = max_nan(b_0 - b_mean * (2 * b_x - b_f_total * b_mean), 0.0)
    if T.D >= 2:
        mean_1, x_1 = rotate(b_mean, 1, T), rotate(b_x, 1, T)
        b_1 -= b_mean * x_1 + mean_1 * (b_x - b_f_total * b_mean)
    if T.D >= 4:
        mean_2, x_2 = rotate(b_mean, 2, T), rotate(b_x, 2, T)
        b_2 -= b_mean * x_2 + mean_2 * (b_x - b_f_total * b_mean)
    b_min, b_max = model.reduce_range_slots(work.range, pid_b, n_slots, T)
    b_scale = model.compute_spread_scale(b_0, b_f_total, tl.max(b_max - b_min, 0), b_mean)
    b_farthest = tl.max(tl.maximum(b_max[None, :] - b_mean, b_mean - b_min[None, :]), 1) * b_scale
    tl.store(saved.scale + pid_b, b_scale)
    tl.store(saved.f_total + pid_b, b_f_total)
    norm = b_scale.to(tl.float64) * b_scale / weight
    tl.store(p_own, (b_0 * norm).to(tl.float32))
    tl.store(p_own + T.X, (b_1 * norm).to(tl.float32))
    tl.store(p_own + 2 * T.X, (b_2 * norm).to(tl.float32))
    R = 1.0 / T.J
    b_S = stack_features(b_0 * R, b_1 * R, b_2 * R, (b_x - b_f_total * b_mean) * R, T)
    return b_f_total, b_scale.to(tl.float64), b_farthest, b_S


@triton.jit(do_not_specialize=RUNTIME_SCALARS)
def models_fwd_kernel(
    args, work, saved, outs, n_b, t, rerun, n_iters, n_slots, eps, max_logit, min_weight, stride_W, stride_use,
    stride_ign, FIRST: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Compute output capsules from an iteration's sums, and the coefficients of the next E-step's logits.

    Logits and variances are differences of squares, which cancel the more, the further an output lies from the mean of
    all inputs in units of its own spread. That separation is stored; where its mean over inputs is large, the sample's
    iteration runs again in float64.
    """
    pid_b, o_j, m_j, row = model.locate_outputs(t, n_b, T)
    p_own = saved.feature_mean + pid_b * T.K
    separated = tl.load(saved.in_float64 + n_b + pid_b)
    if (rerun != 0) & (separated == 0):
        return
    weights = model.load_weights(args.W, o_j, stride_W, T)
    if FIRST:
        b_f_total, b_scale, b_farthest, b_S = centre_first_sums(work, saved, pid_b, n_slots, T)
        b_S = b_S + tl.full([T.BLOCK_J, T.K], 0.0, tl.float64)
        blocks = tile.unstack_features(b_S, T)
        b_D = tl.full([T.BLOCK_J], 0.0, tl.float64) + b_f_total / T.J
        spread = 1 / b_scale
        tl.debug_barrier()  # other threads read the mean just stored
    else:
        b_f_total, spread = tl.load(saved.f_total + pid_b), 1 / tl.load(saved.scale + pid_b).to(tl.float64)
        b_D = model.sum_scalar_slots(work.D_partial, pid_b, o_j, n_slots, T.J)
        in_float64 = tl.load(saved.in_float64 + pid_b) | separated
        tl.store(saved.in_float64 + pid_b, 1, mask=in_float64 != 0)
        b_S = model.sum_feature_slots(work.partial, in_float64, pid_b, o_j, n_slots, T)
        b_S += b_D[:, None] * model.load_feature_mean(p_own, T)
        blocks = model.unstack_in_spreads(b_S, spread, T)
        b_S = stack_features(blocks[0], blocks[1], blocks[2], blocks[3], T)
    store_rows(saved.S + row * T.K, b_S, o_j, T)
    tl.store(saved.D + row + o_j, b_D, mask=m_j)
    _, b_mean_vote = model.vote_mean(p_own + 3 * T.X, weights[0], T)
    b_V, b_VV = model.sum_votes(blocks, weights, T)
    b_m, _, b_sig2, b_B, b_a, _, _ = model.compute_model(
        b_D, b_V, b_VV, b_mean_vote, b_f_total, args, o_j, eps, stride_use, stride_ign, T
    )
    at, m_v = model.offset_outputs(o_j, T)
    b_p = tl.where(m_v, 0.5 / b_sig2 if T.GAUSSIAN else 1.0, 0.0).to(tl.float64)
    b_separation = tl.sum(tl.sum(mul_without_fma(b_p * b_m, b_m), 2), 1)
    b_share = b_separation * b_D / tl.maximum(b_f_total, TINY)
    tl.store(saved.log + row * 4 + 3 * T.J + o_j, b_share.to(tl.float32), mask=m_j)
    if t == n_iters - 1:
        o_out = pid_b * (T.J * T.C * T.H) + at
        tl.store(outs.a + pid_b * T.J + o_j, b_a.to(tl.float32), mask=m_j)
        tl.store(outs.mu + o_out, (b_m + b_B).to(tl.float32), mask=m_v)
        tl.store(outs.sig2 + o_out, b_sig2.to(tl.float32), mask=m_v)
    else:
        b_log = log_sigmoid(b_a)
        if T.GAUSSIAN:
            b_log -= 0.5 * tl.sum(tl.sum(tl.where(m_v, tl.log(6.283185307179586 * b_sig2), 0.0), 2), 1)
        b_log = (b_log - b_separation) * LOG2_E
        b_theta = model.project_to_features(b_p * b_m * (2 * LOG2_E), b_p * -LOG2_E, spread, weights, T)
        b_log += tl.sum(mul_without_fma(b_theta, model.load_feature_mean(p_own, T)), 1)
        if FIRST:
            b_logit = tl.max(tl.max(tl.abs(b_theta), 1), 0) * tl.max(b_farthest * b_farthest, 0)
            tl.store(saved.in_float64 + pid_b, 1, mask=(b_logit > max_logit) | (b_f_total < min_weight * T.J))
        p_next = saved.log + (row + n_b * T.J) * 4 + o_j
        b_theta64 = tl.where(model.mask_constant(T), b_log[:, None], b_theta)
        store_rows(saved.theta64 + (row + n_b * T.J) * T.K, b_theta64, o_j, T)
        model.store_row_halves(saved.theta + (row + n_b * T.J) * (2 * T.K), p_next, b_theta, o_j, T.J)
        tl.store(p_next + T.J, b_log.to(tl.float32), mask=m_j)
        tl.store(p_next + 2 * T.J, (b_log - b_log.to(tl.float32)).to(tl.float32), mask=m_j)
