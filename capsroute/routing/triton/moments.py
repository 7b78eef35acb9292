"""The moment form: small capsules whose parameters all inputs share. No vote is formed, not even on chip.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `x` is `c` and `d` together,
`k` features. A sample's `phi [i, k]` holds four blocks of size `x`: the squares of a capsule's numbers, their products
with the next number of the row, which is taken for a circle, with the next but one, and the numbers; with up to five in
a row these are all products there are. Capsules are counted from the sample's mean. `S [j, k]` is `D_use' phi`. A
sample's inputs are cut into slots, each with sums of its own. `docs/kernels.md` explains the kernels.
"""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from .moments_float64 import FLOAT64, hard_sums, store_rows
from .moments_model import (
    LOG2_E,
    along_features,
    along_votes,
    at_outputs,
    blocks_of,
    in_single,
    is_one,
    load_usual,
    log_sigmoid,
    mean_vote,
    model_of,
    parts_sum,
    slots_range,
    slots_sum,
    slots_total,
    spread_unit,
    store_pairs,
    weights,
)
from .moments_tile import (
    NOTHING,
    TINY,
    UNIT,
    bounded,
    centred,
    coefficients,
    dot,
    feature,
    features,
    gates,
    load_capsules,
    load_logs,
    load_scores,
    parts,
    power,
    sample,
    slot,
    split_in_steps,
    stack,
    turn,
    unstack,
)
from .numerics import at_least, rounded

NUMBERS = (
    "n_b", "n_inp", "n_iters", "n_slots", "slot_tiles", "t", "again", "fresh", "stride_W", "stride_use", "stride_ign"
)  # fmt: skip
"""Arguments that a kernel is not compiled anew for."""


@triton.jit(do_not_specialize=NUMBERS)
def first_sums_fwd_kernel(
    p_a, p_x, p_offsets, p_first, p_gate, p_range, p_hard, n_b, n_inp, n_slots, slot_tiles,
    PACKED: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A slot's sums of features, not yet centred, in the first iteration: one row for all outputs."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    unit = tl.program_id(0)
    u_b, u_q = unit.to(tl.int64) // n_slots, unit % n_slots
    start, n = sample(p_offsets, u_b, n_inp, PACKED)
    o_i, o_x = tl.arange(0, BLOCK_I), tl.arange(0, X)
    b_0, b_1 = tl.zeros([BLOCK_I, X], tl.float64), tl.zeros([BLOCK_I, X], tl.float64)
    b_2, b_3 = tl.zeros([BLOCK_I, X], tl.float64), tl.zeros([BLOCK_I, X], tl.float64)
    b_gate = tl.zeros([BLOCK_I], tl.float64)
    b_low = tl.full([BLOCK_I, X], float("inf"), tl.float32)
    b_high = tl.full([BLOCK_I, X], float("-inf"), tl.float32)
    p_own = p_x + start * (C * D)
    tl.store(p_hard + u_b, 0)  # as far as is known
    tl.store(p_hard + n_b + u_b, 0)
    for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
        i = tile * BLOCK_I + o_i
        b_f = gates(load_scores(p_a + start, i, n))
        b_x = bounded(load_capsules(p_own, i, n, o_x, C, D, BLOCK_D))
        b_low = tl.minimum(b_low, tl.where((b_f > NOTHING)[:, None], b_x, float("inf")))
        b_high = tl.maximum(b_high, tl.where((b_f > NOTHING)[:, None], b_x, float("-inf")))
        b_x = b_x.to(tl.float64)
        b_fx = b_x * b_f[:, None]
        b_gate += b_f
        b_3 += b_fx
        b_0 += b_fx * b_x
        if D >= 2:
            b_1 += b_fx * turn(b_x, 1, D, BLOCK_I, X, BLOCK_D)
        if D >= 4:
            b_2 += b_fx * turn(b_x, 2, D, BLOCK_I, X, BLOCK_D)
    p_slot = p_first + unit.to(tl.int64) * (4 * X)
    tl.store(p_slot + feature(o_x, 0, BLOCK_D), tl.sum(b_0, 0))
    tl.store(p_slot + feature(o_x, 1, BLOCK_D), tl.sum(b_1, 0))
    tl.store(p_slot + feature(o_x, 2, BLOCK_D), tl.sum(b_2, 0))
    tl.store(p_slot + feature(o_x, 3, BLOCK_D), tl.sum(b_3, 0))
    tl.store(p_gate + unit, tl.sum(b_gate, 0))
    p_slot = p_range + unit.to(tl.int64) * (2 * X) + o_x
    tl.store(p_slot, tl.min(b_low, 0))
    tl.store(p_slot + X, tl.max(b_high, 0))


@triton.jit
def easy_sums(
    p_a, p_x, p_usual, p_scale, p_rows, p_log, p_part, p_one, first, last, n, J: tl.constexpr, C: tl.constexpr,
    D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, X: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """E-step and sums of features over inputs from `first` to `last`; all pointers are the sample's."""
    K: tl.constexpr = 4 * X
    o_i, o_k, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, K), tl.arange(0, BLOCK_JJ), tl.arange(0, X)
    b_mean, b_scale = tl.load(p_usual + 3 * X + o_x), tl.load(p_scale)
    c_high, c_low = coefficients(p_rows, o_jj, o_k, J, K)
    c_size = tl.load(p_log + o_jj, mask=o_jj < J, other=0.0) * UNIT
    b_log = load_logs(p_log + J, o_jj, J)
    b_S, b_one = tl.zeros([BLOCK_JJ, K], tl.float32), tl.zeros([BLOCK_JJ], tl.float32)
    i = first + o_i
    next_x, next_a = load_capsules(p_x, i, n, o_x, C, D, BLOCK_D), load_scores(p_a, i, n)
    for _ in range(first, last, BLOCK_I):
        b_x, b_a = centred(next_x, b_mean, b_scale), next_a
        i += BLOCK_I
        next_x, next_a = load_capsules(p_x, i, n, o_x, C, D, BLOCK_D), load_scores(p_a, i, n)
        b_high, b_low = features(b_x, p_usual, D, BLOCK_D, X, BLOCK_I)
        b_sum = dot(b_high, b_low, tl.trans(c_high), tl.trans(c_low), tl.zeros([BLOCK_I, BLOCK_JJ], tl.float32))
        b_R, b_part = parts(b_sum, c_size, b_log)
        b_D = b_R * (b_part * gates(b_a))[:, None]
        b_used = tl.sum(b_D, 0)
        b_one += b_used  # scores weigh what is used against what is not, and so need it to the last digit
        d_size, d_inverse = power(b_used)  # an output that uses little must be as exact as others
        d_high, d_low = split_in_steps(b_D * d_inverse[None, :])
        b_new = dot(tl.trans(d_high), tl.trans(d_low), b_high, b_low, tl.zeros([BLOCK_JJ, K], tl.float32))
        b_S += b_new * (d_size * UNIT)[:, None]
    store_rows(in_single(p_part), b_S, o_jj, J, K)
    tl.store(p_one + o_jj, b_one, mask=o_jj < J)


@triton.jit(do_not_specialize=NUMBERS)
def feature_sums_fwd_kernel(
    p_a, p_x, p_offsets, p_usual, p_scale, p_rows, p_log, p_hard, p_exact, p_part, p_one, n_b, n_inp, t, again, apart,
    n_slots, slot_tiles, PACKED: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """E-step and a slot's sums of features, `D_use' phi`; again, of samples that turn out to be hard by then."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    unit, u_b, start, n, first, last = slot(p_offsets, n_inp, n_slots, slot_tiles, PACKED, BLOCK_I)
    row = (t * n_b + u_b) * J
    p_a, p_x, p_log = p_a + start, p_x + start * (C * D), p_log + row * 4
    p_usual, p_scale = p_usual + u_b * K, p_scale + u_b
    p_part, p_one = p_part + unit * (J * K), p_one + unit * J
    if FLOAT64:
        easy, o_jj = tl.load(p_hard + u_b) == 0, tl.arange(0, BLOCK_JJ)
        b_apart = tl.sum(tl.load(p_log + 3 * J + o_jj, mask=(o_jj < J) & (again != 0), other=0.0), 0)
        late = easy & (again != 0) & (b_apart > apart)
        tl.store(p_hard + n_b + u_b, 1, mask=late)
        hard = late | ((again == 0) & (easy == 0))
        easy = easy & (again == 0)
    else:
        easy: tl.constexpr = True
    if easy:
        easy_sums(
            p_a, p_x, p_usual, p_scale, p_rows + row * (2 * K), p_log, p_part, p_one, first, last, n,
            J, C, D, BLOCK_I, BLOCK_JJ, X, BLOCK_D,
        )  # fmt: skip
    elif hard:
        hard_sums(
            p_a, p_x, p_usual, p_scale, p_exact + row * K, p_part, p_one, first, last, n,
            J, C, D, BLOCK_I, BLOCK_JJ, X, BLOCK_D,
        )  # fmt: skip


@triton.jit
def first_moments(
    p_first, p_gate, p_range, p_usual, p_scale, p_total, u_b, n_slots,
    J: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A sample's sums in the first iteration, centred; keeps what is usual, its spread and total for what follows."""
    X: tl.constexpr = BLOCK_C * BLOCK_D
    o_one = tl.arange(0, 1)
    b_total = tl.sum(slots_total(p_gate, u_b, o_one, n_slots, 1, 1, 1), 0)
    b_0, b_1, b_2, b_x = unstack(slots_sum(p_first, u_b, o_one, n_slots, 1, 4 * X, 1, 4 * X, 1), 1, X, BLOCK_D)
    weighed = tl.maximum(b_total, TINY)
    b_mean = (b_x / weighed).to(tl.float32)
    p_own = p_usual + u_b * (4 * X) + tl.arange(0, X)[None, :]
    tl.store(p_own + 3 * X, b_mean)
    b_mean = b_mean.to(tl.float64)
    b_0 = at_least(b_0 - b_mean * (2 * b_x - b_total * b_mean), 0.0)
    if D >= 2:
        b_turn, x_turn = turn(b_mean, 1, D, 1, X, BLOCK_D), turn(b_x, 1, D, 1, X, BLOCK_D)
        b_1 -= b_mean * x_turn + b_turn * (b_x - b_total * b_mean)
    if D >= 4:
        b_turn, x_turn = turn(b_mean, 2, D, 1, X, BLOCK_D), turn(b_x, 2, D, 1, X, BLOCK_D)
        b_2 -= b_mean * x_turn + b_turn * (b_x - b_total * b_mean)
    b_low, b_high = slots_range(p_range, u_b, n_slots, X)
    b_scale = spread_unit(b_0, b_total, tl.max(b_high - b_low, 0), b_mean)
    b_far = tl.max(tl.maximum(b_high[None, :] - b_mean, b_mean - b_low[None, :]), 1) * b_scale
    tl.store(p_scale + u_b, b_scale)
    tl.store(p_total + u_b, b_total)
    each = b_scale.to(tl.float64) * b_scale / weighed
    tl.store(p_own, (b_0 * each).to(tl.float32))
    tl.store(p_own + X, (b_1 * each).to(tl.float32))
    tl.store(p_own + 2 * X, (b_2 * each).to(tl.float32))
    share = 1.0 / J
    b_rows = stack(b_0 * share, b_1 * share, b_2 * share, (b_x - b_total * b_mean) * share, 1, X, BLOCK_D)
    return b_total, b_scale.to(tl.float64), b_far, b_rows


@triton.jit(do_not_specialize=NUMBERS)
def models_fwd_kernel(
    p_W, p_B, p_use, p_ign, p_first, p_gate, p_range, p_part, p_one, p_usual, p_scale, p_total, p_S, p_D, p_rows, p_log,
    p_hard, p_exact, p_a_out, p_mu_out, p_sig2_out, n_b, t, again, n_iters, n_slots, eps, far, weight, stride_W,
    stride_use, stride_ign,
    FIRST: tl.constexpr, GAUSSIAN: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """The output capsules that an iteration's sums give, and what they mean for the next E-step.

    An output's logits, and its variance, are what squares leave: the less, the further it lies from the mean of all
    inputs, as its own spread counts. If outputs do so in the mean over inputs, the sample's iteration is run again.
    """
    X: tl.constexpr = BLOCK_C * BLOCK_D
    K: tl.constexpr = 4 * X
    BLOCKS: tl.constexpr = (J + BLOCK_J - 1) // BLOCK_J
    unit = tl.program_id(0)
    u_b = unit.to(tl.int64) // BLOCKS
    o_j = unit % BLOCKS * BLOCK_J + tl.arange(0, BLOCK_J)
    m_j = o_j < J
    row, p_own = (t * n_b + u_b) * J, p_usual + u_b * K
    late = tl.load(p_hard + n_b + u_b)
    if (again != 0) & (late == 0):
        return
    W, WW_0, WW_1, WW_2 = weights(p_W, o_j, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    if FIRST:
        b_total, b_scale, b_far, b_rows = first_moments(
            p_first, p_gate, p_range, p_usual, p_scale, p_total, u_b, n_slots, J, D, BLOCK_C, BLOCK_D
        )
        b_rows = b_rows + tl.zeros([BLOCK_J, K], tl.float64)
        b_0, b_1, b_2, b_x = unstack(b_rows, BLOCK_J, X, BLOCK_D)
        b_D = tl.zeros([BLOCK_J], tl.float64) + b_total / J
        unit = 1 / b_scale
        tl.debug_barrier()  # what is usual is read again
    else:
        b_total, unit = tl.load(p_total + u_b), 1 / tl.load(p_scale + u_b).to(tl.float64)
        b_D = slots_total(p_one, u_b, o_j, n_slots, J, J, BLOCK_J)
        hard = tl.load(p_hard + u_b) | late
        tl.store(p_hard + u_b, 1, mask=hard != 0)
        b_rows = parts_sum(p_part, hard, u_b, o_j, n_slots, J, K, BLOCK_J)
        b_rows += b_D[:, None] * load_usual(p_own, X, BLOCK_D)
        b_0, b_1, b_2, b_x = blocks_of(b_rows, unit, BLOCK_J, BLOCK_C, BLOCK_D)
        b_rows = stack(b_0, b_1, b_2, b_x, BLOCK_J, X, BLOCK_D)
    store_rows(p_S + row * K, b_rows, o_j, J, K)
    tl.store(p_D + row + o_j, b_D, mask=m_j)
    _, b_near = mean_vote(p_own + 3 * X, W, D, BLOCK_C, BLOCK_D)
    b_V, b_VV = along_votes(b_0, b_1, b_2, b_x, W, WW_0, WW_1, WW_2, BLOCK_J, BLOCK_C, BLOCK_D)
    b_m, _, b_sig2, b_B, b_a, _, _ = model_of(
        b_D, b_V, b_VV, b_near, b_total, p_B, p_use, p_ign, o_j, eps, stride_use, stride_ign, J, C, H, BLOCK_C, BLOCK_H
    )
    at, m_v = at_outputs(o_j, J, C, H, BLOCK_C, BLOCK_H)
    b_p = tl.where(m_v, 0.5 / b_sig2 if GAUSSIAN else 1.0, 0.0).to(tl.float64)
    b_apart = tl.sum(tl.sum(rounded(b_p * b_m, b_m), 2), 1)
    tl.store(p_log + row * 4 + 3 * J + o_j, (b_apart * b_D / tl.maximum(b_total, TINY)).to(tl.float32), mask=m_j)
    if t == n_iters - 1:
        p_out = u_b * (J * C * H) + at
        tl.store(p_a_out + u_b * J + o_j, b_a.to(tl.float32), mask=m_j)
        tl.store(p_mu_out + p_out, (b_m + b_B).to(tl.float32), mask=m_v)
        tl.store(p_sig2_out + p_out, b_sig2.to(tl.float32), mask=m_v)
    else:
        b_log = log_sigmoid(b_a)
        if GAUSSIAN:
            b_log -= 0.5 * tl.sum(tl.sum(tl.where(m_v, tl.log(6.283185307179586 * b_sig2), 0.0), 2), 1)
        b_log = (b_log - b_apart) * LOG2_E
        b_rows = along_features(
            b_p * b_m * (2 * LOG2_E), b_p * -LOG2_E, unit, W, WW_0, WW_1, WW_2, BLOCK_J, BLOCK_C, BLOCK_D
        )
        b_log += tl.sum(rounded(b_rows, load_usual(p_own, X, BLOCK_D)), 1)
        if FIRST:
            b_most = tl.max(tl.max(tl.abs(b_rows), 1), 0) * tl.max(b_far * b_far, 0)
            tl.store(p_hard + u_b, 1, mask=(b_most > far) | (b_total < weight * J))
        p_next = p_log + (row + n_b * J) * 4 + o_j
        b_exact = tl.where(is_one(BLOCK_D, K), b_log[:, None], b_rows)
        store_rows(p_exact + (row + n_b * J) * K, b_exact, o_j, J, K)
        store_pairs(p_rows + (row + n_b * J) * (2 * K), p_next, b_rows, o_j, J, K)
        tl.store(p_next + J, b_log.to(tl.float32), mask=m_j)
        tl.store(p_next + 2 * J, (b_log - b_log.to(tl.float32)).to(tl.float32), mask=m_j)
