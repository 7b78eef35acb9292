"""Operations of the moment form on the models of some outputs, in float64. Axes as in `moments.py`."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from .moments_tile import (
    MAX_DISTANCE,
    MIN_SPREAD,
    TRUNCATION_BIAS,
    compute_scales,
    stack_features,
    unstack_features,
)
from .numerics import max_nan, mul_without_fma, split_halves

BLOCK_Q = tl.constexpr(16)
"""Slots of partial sums loaded at a time."""


@triton.jit
def count_products(o_d, shift: tl.constexpr, T: tl.constexpr):
    """Return how often the product of entries d and `d + shift` occurs in a square: twice, and zero for repetitions."""
    return tl.where((2 * shift < T.D) | (2 * o_d < T.D), 2.0 if 2 * shift <= T.D else 0.0, 0.0).to(tl.float64)


@triton.jit
def load_rotated_W(p_W, o_j, shift, stride_W, T: tl.constexpr):
    """Load `W [j, 1, d, h]`, rotated by `shift` along d."""
    o_d, o_h = tl.arange(0, T.BLOCK_D)[None, None, :, None], tl.arange(0, T.BLOCK_H)[None, None, None, :]
    j = o_j[:, None, None, None]
    m = (j < T.J) & (o_d < T.D) & (o_h < T.H)
    return tl.load(p_W + j * stride_W + (o_d + shift + T.D) % T.D * T.H + o_h, mask=m, other=0.0).to(tl.float64)


@triton.jit
def load_weights(p_W, o_j, stride_W, T: tl.constexpr):
    """Return weights `[j, 1, d, h]` of entries in votes, and of the three kinds of products in squared votes."""
    o_d = tl.arange(0, T.BLOCK_D)[None, None, :, None]
    b_W = load_rotated_W(p_W, o_j, 0, stride_W, T)
    b_1 = b_W * load_rotated_W(p_W, o_j, 1, stride_W, T) * count_products(o_d, 1, T)
    b_2 = b_W * load_rotated_W(p_W, o_j, 2, stride_W, T) * count_products(o_d, 2, T)
    return b_W, b_W * b_W, b_1, b_2


@triton.jit
def sum_votes(blocks, weights, T: tl.constexpr):
    """Turn sums of features, four blocks `[j, x]`, into sums of votes and of squared votes `[j, c, h]`."""
    b_0, b_1, b_2, b_x = blocks
    W, WW_0, WW_1, WW_2 = weights
    b_VV = unflatten(b_0, T) * WW_0 + unflatten(b_1, T) * WW_1
    b_VV += unflatten(b_2, T) * WW_2
    return tl.sum(mul_without_fma(unflatten(b_x, T), W), 2), tl.sum(b_VV, 2)


@triton.jit
def project_to_features(b_v, b_vv, spread, weights, T: tl.constexpr):
    """Turn coefficients of votes and squared votes `[j, c, h]` into coefficients of features `[j, k]`."""
    W, WW_0, WW_1, WW_2 = weights
    b_v, b_vv = b_v[:, :, None, :] * spread, b_vv[:, :, None, :] * (spread * spread)
    b_0, b_1 = tl.sum(mul_without_fma(b_vv, WW_0), 3), tl.sum(mul_without_fma(b_vv, WW_1), 3)
    b_2, b_x = tl.sum(mul_without_fma(b_vv, WW_2), 3), tl.sum(mul_without_fma(b_v, W), 3)
    return stack_features(flatten(b_0), flatten(b_1), flatten(b_2), flatten(b_x), T)


@triton.jit
def unflatten(b, T: tl.constexpr):
    """Reshape a block `[j, x]` to `[j, c, d, 1]`."""
    return tl.reshape(b, [b.shape[0], b.shape[1] // T.BLOCK_D, T.BLOCK_D, 1])


@triton.jit
def flatten(b):
    """Reshape `[j, c, d]` to a block `[j, x]`."""
    return tl.reshape(b, [b.shape[0], b.shape[1] * b.shape[2]])


@triton.jit
def as_float32(p_partial):
    """Return the pointer as one to float32: partial sums of halves fill the first half of a float64 slot."""
    return p_partial.to(tl.pointer_type(tl.float32))


@triton.jit
def sum_feature_slots(p_partial, in_float64, pid_b, o_j, n_slots, T: tl.constexpr):
    """Sum rows `[j, k]` over a sample's slots, float32 with its truncation bias corrected, or float64."""
    if in_float64 == 0:
        b_sum = sum_row_slots(as_float32(p_partial), pid_b, o_j, n_slots, 2 * T.J * T.K, T.J, T)
        return b_sum * TRUNCATION_BIAS
    else:
        return sum_row_slots(p_partial, pid_b, o_j, n_slots, T.J * T.K, T.J, T)


@triton.jit
def sum_row_slots(p_partial, pid_b, o_j, n_slots, stride, J: tl.constexpr, T: tl.constexpr):
    """Sum rows `[j, k]` over a sample's slots; slots have `J` rows, one for all outputs or one for each."""
    at = tl.minimum(o_j, J - 1)[:, None] * T.K + tl.arange(0, T.K)[None, :]
    b_sum = tl.full([o_j.shape[0], T.K], 0.0, tl.float64)
    for q in range(0, n_slots, BLOCK_Q):
        for r in tl.static_range(BLOCK_Q):  # unrolled: all loads at once, and added in order
            m = (o_j < tl.where(q + r < n_slots, J, 0))[:, None]
            b_partial = tl.load(p_partial + (pid_b * n_slots + q + r) * stride + at, mask=m, other=0.0)
            b_sum += b_partial.to(tl.float64)
    return b_sum


@triton.jit
def sum_scalar_slots(p_partial, pid_b, o_j, n_slots, J: tl.constexpr):
    """Sum numbers `[j]` over a sample's slots, which hold one for all outputs or one for each."""
    o_q = tl.arange(0, BLOCK_Q)
    row = tl.minimum(o_j, J - 1)[None, :]
    b_sum = tl.zeros([o_j.shape[0]], tl.float64)
    for q in range(0, n_slots, BLOCK_Q):
        p_slot = p_partial + (pid_b * n_slots + q + o_q)[:, None] * J
        m = (q + o_q < n_slots)[:, None] & (o_j < J)[None, :]
        b_sum += tl.sum(tl.load(p_slot + row, mask=m, other=0.0).to(tl.float64), 0)
    return b_sum


@triton.jit
def reduce_range_slots(p_range, pid_b, n_slots, T: tl.constexpr):
    """Return the least and the largest value `[x]` of each entry among a sample's inputs with weight."""
    o_q, o_x = tl.arange(0, BLOCK_Q), tl.arange(0, T.X)
    b_min, b_max = tl.full([T.X], float("inf"), tl.float32), tl.full([T.X], float("-inf"), tl.float32)
    for q in range(0, n_slots, BLOCK_Q):
        p_slot = p_range + (pid_b * n_slots + q + o_q)[:, None] * (2 * T.X) + o_x[None, :]
        m = (q + o_q < n_slots)[:, None]
        b_min = tl.minimum(b_min, tl.min(tl.load(p_slot, mask=m, other=float("inf")), 0))
        b_max = tl.maximum(b_max, tl.max(tl.load(p_slot + T.X, mask=m, other=float("-inf")), 0))
    return b_min, b_max


@triton.jit
def unstack_in_spreads(b_rows, spread, T: tl.constexpr):
    """Split rows `[j, k]` into four blocks `[j, x]`, entries times the spread and products times its square."""
    b_0, b_1, b_2, b_x = unstack_features(b_rows, T)
    square = spread * spread
    return b_0 * square, b_1 * square, b_2 * square, b_x * spread


@triton.jit
def mask_constant(T: tl.constexpr):
    """Return which feature is the constant one, `[1, k]`."""
    return (tl.arange(0, T.K) == 3 * T.BLOCK_D - 1)[None, :]


@triton.jit
def load_feature_mean(p_feature_mean, T: tl.constexpr):
    """Load the mean of each feature over a sample `[1, k]`; zero for entries, which are centred already."""
    o_k = tl.arange(0, T.K)
    block = o_k // T.BLOCK_D % 4
    at = block * T.X + o_k // (4 * T.BLOCK_D) * T.BLOCK_D + o_k % T.BLOCK_D
    m = (block < 3) & (o_k != 3 * T.BLOCK_D - 1)
    return tl.load(p_feature_mean + at, mask=m, other=0.0).to(tl.float64)[None, :]


@triton.jit
def store_row_halves(p_rows, p_scale, b_rows, o_j, J: tl.constexpr):
    """Store rows `[j, k]` as halves, each row divided by its own power of two so that all are equally exact.

    The truncation bias of the products to come is corrected here.
    """
    K: tl.constexpr = b_rows.shape[1]
    b_scale, b_inverse = compute_scales(tl.max(tl.abs(b_rows), 1).to(tl.float32))
    b_hi, b_lo = split_halves((b_rows * TRUNCATION_BIAS * b_inverse[:, None]).to(tl.float32))
    p_row = p_rows + o_j[:, None] * (2 * K) + tl.arange(0, K)[None, :]
    m_j = (o_j < J)[:, None]
    tl.store(p_row, b_hi, mask=m_j)
    tl.store(p_row + K, b_lo, mask=m_j)
    tl.store(p_scale, b_scale, mask=o_j < J)


@triton.jit
def vote_mean(p_mean, W, T: tl.constexpr):
    """Return the mean `[1, c, d]` of a sample's inputs and its votes `[j, c, h]` without bias."""
    o_c, o_d = tl.arange(0, T.BLOCK_C)[None, :, None], tl.arange(0, T.BLOCK_D)[None, None, :]
    b_mean = tl.load(p_mean + o_c * T.BLOCK_D + o_d, mask=(o_d < T.D) & (o_c < T.BLOCK_C), other=0.0).to(tl.float64)
    return b_mean, tl.sum(mul_without_fma(b_mean[:, :, :, None], W), 2)


@triton.jit
def offset_outputs(o_j, T: tl.constexpr):
    """Return offsets into tensors `[j, c, h]`, and which exist."""
    o_c, o_h = tl.arange(0, T.BLOCK_C)[None, :, None], tl.arange(0, T.BLOCK_H)[None, None, :]
    j = o_j[:, None, None]
    return (j * T.C + o_c) * T.H + o_h, (j < T.J) & (o_c < T.C) & (o_h < T.H)


@triton.jit
def locate_outputs(t, n_b, T: tl.constexpr):
    """Return a program's sample and outputs `[j]`, which of these exist, and the sample's row in `[t, b, j]`."""
    BLOCKS: tl.constexpr = (T.J + T.BLOCK_J - 1) // T.BLOCK_J
    pid = tl.program_id(0)
    pid_b = pid.to(tl.int64) // BLOCKS
    o_j = pid % BLOCKS * T.BLOCK_J + tl.arange(0, T.BLOCK_J)
    return pid_b, o_j, o_j < T.J, (t * n_b + pid_b) * T.J


@triton.jit
def compute_model(b_D, b_V, b_VV, b_mean_vote, b_f_total, args, o_j, eps, stride_use, stride_ign, T: tl.constexpr):
    """Compute output capsules from sums; `m` is their mean relative to the vote of the inputs' mean."""
    at, m_v = offset_outputs(o_j, T)
    b_B = tl.load(args.B + at, mask=m_v, other=0.0).to(tl.float64) + b_mean_vote
    D = b_D[:, None, None]
    inverse = 1 / (D + eps)
    b_m = (b_V - eps * b_B) * inverse
    b_N = tl.where(m_v, max_nan(b_VV - 2 * b_m * b_V + b_m * b_m * D, 0.0), 0.0)
    b_sig2 = tl.where(m_v, b_N * inverse + eps, 1.0)
    b_use = tl.load(args.use + o_j * stride_use, mask=o_j < T.J, other=0.0).to(tl.float64)
    b_ign = tl.load(args.ign + o_j * stride_ign, mask=o_j < T.J, other=0.0).to(tl.float64)
    b_a = (b_use + b_ign) * b_D - b_ign * b_f_total
    return b_m, b_N, b_sig2, b_B, b_a, b_use, b_ign


@triton.jit
def compute_spread_scale(b_square, b_f_total, b_range, b_mean):
    """Return the power of two that scales a sample's centred capsules to about one.

    The range counts too, where few close inputs have most of the weight. The mean counts where all inputs are equal:
    gradients of capsules, in this unit, share a row with those of scores, which have none.
    """
    spread = tl.sqrt(tl.max(tl.max(b_square, 1), 0) / tl.maximum(b_f_total, 1e-30)).to(tl.float32)
    spread = tl.maximum(spread, b_range * (1 / MAX_DISTANCE))
    spread = tl.maximum(spread, tl.max(tl.max(tl.abs(b_mean), 1), 0).to(tl.float32) * MIN_SPREAD)
    bits = tl.minimum(tl.maximum(spread, 1e-30), 1e30).to(tl.int32, bitcast=True) & 0x7F800000
    return tl.where(spread > 0, (0x7F000000 - bits).to(tl.float32, bitcast=True), 1.0)
