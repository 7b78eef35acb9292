"""What the moment form does with the models of some outputs, `[j, c, d, h]` at a time, in float64.

Axes as in `moments.py`.
"""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from .moments_tile import CLOSEST, FARTHEST, KEPT, power, split, stack, unstack
from .numerics import at_least, at_most, rounded

BLOCK_Q = tl.constexpr(16)
"""Slots of partial sums added at a time."""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def times(o_d, shift: tl.constexpr, D: tl.constexpr):
    """How often a number's product with the one `shift` places on is in a square: twice, but each product only once."""
    return tl.where((2 * shift < D) | (2 * o_d < D), 2.0 if 2 * shift <= D else 0.0, 0.0).to(tl.float64)


@triton.jit
def weight(p_W, o_j, shift, stride_W, J: tl.constexpr, D: tl.constexpr, H: tl.constexpr, BLOCK_D: tl.constexpr,
           BLOCK_H: tl.constexpr):  # fmt: skip
    """`W [j, 1, d, h]`, turned by `shift` along `d`."""
    o_d, o_h = tl.arange(0, BLOCK_D)[None, None, :, None], tl.arange(0, BLOCK_H)[None, None, None, :]
    j = o_j[:, None, None, None]
    m = (j < J) & (o_d < D) & (o_h < H)
    return tl.load(p_W + j * stride_W + (o_d + shift + D) % D * H + o_h, mask=m, other=0.0).to(tl.float64)


@triton.jit
def weights(p_W, o_j, stride_W, J: tl.constexpr, D: tl.constexpr, H: tl.constexpr, BLOCK_D: tl.constexpr,
            BLOCK_H: tl.constexpr):  # fmt: skip
    """What numbers and their products are multiplied by in votes and squared votes, `[j, 1, d, h]` each."""
    o_d = tl.arange(0, BLOCK_D)[None, None, :, None]
    b_W = weight(p_W, o_j, 0, stride_W, J, D, H, BLOCK_D, BLOCK_H)
    b_1 = b_W * weight(p_W, o_j, 1, stride_W, J, D, H, BLOCK_D, BLOCK_H) * times(o_d, 1, D)
    b_2 = b_W * weight(p_W, o_j, 2, stride_W, J, D, H, BLOCK_D, BLOCK_H) * times(o_d, 2, D)
    return b_W, b_W * b_W, b_1, b_2


@triton.jit
def along_votes(b_0, b_1, b_2, b_x, W, WW_0, WW_1, WW_2, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr,
                BLOCK_D: tl.constexpr):  # fmt: skip
    """From blocks of features sums of votes and of their squares, `[j, c, h]` each."""
    b_VV = apart(b_0, BLOCK_J, BLOCK_C, BLOCK_D) * WW_0 + apart(b_1, BLOCK_J, BLOCK_C, BLOCK_D) * WW_1
    b_VV += apart(b_2, BLOCK_J, BLOCK_C, BLOCK_D) * WW_2
    return tl.sum(rounded(apart(b_x, BLOCK_J, BLOCK_C, BLOCK_D), W), 2), tl.sum(b_VV, 2)


@triton.jit
def along_features(b_v, b_vv, unit, W, WW_0, WW_1, WW_2, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr,
                   BLOCK_D: tl.constexpr):  # fmt: skip
    """The reverse: rows of coefficients from those of votes and squares `[j, c, h]`, in units of capsules."""
    b_v, b_vv = b_v[:, :, None, :] * unit, b_vv[:, :, None, :] * (unit * unit)
    b_0, b_1 = tl.sum(rounded(b_vv, WW_0), 3), tl.sum(rounded(b_vv, WW_1), 3)
    b_2, b_x = tl.sum(rounded(b_vv, WW_2), 3), tl.sum(rounded(b_v, W), 3)
    return stack(
        together(b_0, BLOCK_J, BLOCK_C, BLOCK_D), together(b_1, BLOCK_J, BLOCK_C, BLOCK_D),
        together(b_2, BLOCK_J, BLOCK_C, BLOCK_D), together(b_x, BLOCK_J, BLOCK_C, BLOCK_D),
        BLOCK_J, BLOCK_C * BLOCK_D, BLOCK_D,
    )  # fmt: skip


@triton.jit
def in_single(p_part):
    """Where easy samples have their partial sums: in the first half of the room that hard ones fill."""
    return p_part.to(tl.pointer_type(tl.float32))


@triton.jit
def parts_sum(p_part, hard, u_b, o_j, n_slots, J: tl.constexpr, K: tl.constexpr, BLOCK_J: tl.constexpr):
    """The sum over a sample's slots of rows `[j, k]`, easy, with what tensor cores cut off made up for, or hard."""
    if hard == 0:
        return slots_sum(in_single(p_part), u_b, o_j, n_slots, J, 2 * J * K, J, K, BLOCK_J) * KEPT
    else:
        return slots_sum(p_part, u_b, o_j, n_slots, J, J * K, J, K, BLOCK_J)


@triton.jit
def slots_sum(p_part, u_b, o_j, n_slots, n_j, stride, J: tl.constexpr, K: tl.constexpr, BLOCK_J: tl.constexpr):
    """Likewise of slots that are `stride` apart, with `n_j` rows each: one for all outputs, or each its own."""
    at = tl.minimum(o_j, n_j - 1)[:, None] * K + tl.arange(0, K)[None, :]
    b_sum = tl.zeros([BLOCK_J, K], tl.float64)
    for q in range(0, n_slots, BLOCK_Q):
        for r in tl.static_range(BLOCK_Q):  # all loads at once, and added in order
            m = (o_j < tl.where(q + r < n_slots, J, 0))[:, None]
            b_part = tl.load(p_part + (u_b * n_slots + q + r) * stride + at, mask=m, other=0.0)
            b_sum += b_part.to(tl.float64)
    return b_sum


@triton.jit
def slots_total(p_one, u_b, o_j, n_slots, n_j, J: tl.constexpr, BLOCK_J: tl.constexpr):
    """Likewise of a number for each output, or for all."""
    o_q = tl.arange(0, BLOCK_Q)
    row = tl.minimum(o_j, n_j - 1)[None, :]
    b_sum = tl.zeros([BLOCK_J], tl.float64)
    for q in range(0, n_slots, BLOCK_Q):
        p_slot = p_one + (u_b * n_slots + q + o_q)[:, None] * n_j
        m = (q + o_q < n_slots)[:, None] & (o_j < J)[None, :]
        b_sum += tl.sum(tl.load(p_slot + row, mask=m, other=0.0).to(tl.float64), 0)
    return b_sum


@triton.jit
def slots_range(p_range, u_b, n_slots, X: tl.constexpr):
    """The least and the largest number in each place of a sample's capsules, of inputs that have weight."""
    o_q, o_x = tl.arange(0, BLOCK_Q), tl.arange(0, X)
    b_low, b_high = tl.full([X], float("inf"), tl.float32), tl.full([X], float("-inf"), tl.float32)
    for q in range(0, n_slots, BLOCK_Q):
        p_slot = p_range + (u_b * n_slots + q + o_q)[:, None] * (2 * X) + o_x[None, :]
        m = (q + o_q < n_slots)[:, None]
        b_low = tl.minimum(b_low, tl.min(tl.load(p_slot, mask=m, other=float("inf")), 0))
        b_high = tl.maximum(b_high, tl.max(tl.load(p_slot + X, mask=m, other=float("-inf")), 0))
    return b_low, b_high


@triton.jit
def blocks_of(b_rows, unit, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows as blocks; the last is multiplied by `unit`, the others by its square."""
    b_0, b_1, b_2, b_x = unstack(b_rows, BLOCK_J, BLOCK_C * BLOCK_D, BLOCK_D)
    square = unit * unit
    return b_0 * square, b_1 * square, b_2 * square, b_x * unit


@triton.jit
def is_one(BLOCK_D: tl.constexpr, K: tl.constexpr):
    """Which feature is a one, `[1, k]`."""
    return (tl.arange(0, K) == 3 * BLOCK_D - 1)[None, :]


@triton.jit
def load_usual(p_usual, X: tl.constexpr, BLOCK_D: tl.constexpr):
    """What is usual in a sample for each feature `[1, k]`, nothing for numbers, which are counted from their mean."""
    o_k = tl.arange(0, 4 * X)
    block = o_k // BLOCK_D % 4
    at = block * X + o_k // (4 * BLOCK_D) * BLOCK_D + o_k % BLOCK_D
    return tl.load(p_usual + at, mask=(block < 3) & (o_k != 3 * BLOCK_D - 1), other=0.0).to(tl.float64)[None, :]


@triton.jit
def apart(b, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr):
    """A block as `[j, c, d, 1]`."""
    return tl.reshape(b, [BLOCK_J, BLOCK_C, BLOCK_D, 1])


@triton.jit
def together(b, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr):
    """The reverse, `[j, x]`."""
    return tl.reshape(b, [BLOCK_J, BLOCK_C * BLOCK_D])


@triton.jit
def store_pairs(p_rows, p_size, b_rows, o_j, J: tl.constexpr, K: tl.constexpr):
    """Rows as pairs, each divided by a power of two of its own, so that all outputs are equally exact.

    What sums of their products will lose is made up for before.
    """
    b_size, b_inverse = power(tl.max(tl.abs(b_rows), 1).to(tl.float32))
    b_high, b_low = split((b_rows * KEPT * b_inverse[:, None]).to(tl.float32))
    p_row = p_rows + o_j[:, None] * (2 * K) + tl.arange(0, K)[None, :]
    m_j = (o_j < J)[:, None]
    tl.store(p_row, b_high, mask=m_j)
    tl.store(p_row + K, b_low, mask=m_j)
    tl.store(p_size, b_size, mask=o_j < J)


@triton.jit
def mean_vote(p_mean, W, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr):
    """The mean `[1, c, d]` of a sample's inputs, and what it votes for each output, without the bias, `[j, c, h]`."""
    o_c, o_d = tl.arange(0, BLOCK_C)[None, :, None], tl.arange(0, BLOCK_D)[None, None, :]
    b_mean = tl.load(p_mean + o_c * BLOCK_D + o_d, mask=(o_d < D) & (o_c < BLOCK_C), other=0.0).to(tl.float64)
    return b_mean, tl.sum(rounded(b_mean[:, :, :, None], W), 2)


@triton.jit
def at_outputs(o_j, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr):
    """Places in tensors `[j, c, h]`, and which exist."""
    o_c, o_h = tl.arange(0, BLOCK_C)[None, :, None], tl.arange(0, BLOCK_H)[None, None, :]
    j = o_j[:, None, None]
    return (j * C + o_c) * H + o_h, (j < J) & (o_c < C) & (o_h < H)


@triton.jit
def model_of(
    b_D, b_V, b_VV, b_near, b_total, p_B, p_use, p_ign, o_j, eps, stride_use, stride_ign, J: tl.constexpr,
    C: tl.constexpr, H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """The output capsules that sums give; `m` is their mean counted from the vote of the inputs' mean."""
    at, m_v = at_outputs(o_j, J, C, H, BLOCK_C, BLOCK_H)
    b_B = tl.load(p_B + at, mask=m_v, other=0.0).to(tl.float64) + b_near
    D = b_D[:, None, None]
    share = 1 / (D + eps)
    b_m = (b_V - eps * b_B) * share
    b_N = tl.where(m_v, at_least(b_VV - 2 * b_m * b_V + b_m * b_m * D, 0.0), 0.0)
    b_sig2 = tl.where(m_v, b_N * share + eps, 1.0)
    b_use = tl.load(p_use + o_j * stride_use, mask=o_j < J, other=0.0).to(tl.float64)
    b_ign = tl.load(p_ign + o_j * stride_ign, mask=o_j < J, other=0.0).to(tl.float64)
    b_a = (b_use + b_ign) * b_D - b_ign * b_total
    return b_m, b_N, b_sig2, b_B, b_a, b_use, b_ign


@triton.jit
def log_sigmoid(x):
    return at_most(x, 0.0) - tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def spread_unit(b_square, b_total, b_range, b_mean):
    """The power of two that makes a sample's capsules, counted from their mean, about one in size.

    Where few inputs have most of the weight, and lie close together, the others count too. Where all are the same, what
    counts is where they lie: a row has gradients of capsules, in this unit, beside those of scores, which have none.
    """
    spread = tl.sqrt(tl.max(tl.max(b_square, 1), 0) / tl.maximum(b_total, 1e-30)).to(tl.float32)
    spread = tl.maximum(spread, b_range * (1 / FARTHEST))
    spread = tl.maximum(spread, tl.max(tl.max(tl.abs(b_mean), 1), 0).to(tl.float32) * CLOSEST)
    bits = tl.minimum(tl.maximum(spread, 1e-30), 1e30).to(tl.int32, bitcast=True) & 0x7F800000
    return tl.where(spread > 0, (0x7F000000 - bits).to(tl.float32, bitcast=True), 1.0)
