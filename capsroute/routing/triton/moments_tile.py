"""Operations of the moment form on a tile of inputs. Axes as in `moments.py`."""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from .numerics import clamp_capsules, max_nan, min_nan, sample_range, split_halves

TINY = tl.constexpr(1e-30)
LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
MIN_SCALED, MAX_SCALED = tl.constexpr(1e-33), tl.constexpr(1e36)
"""Range of numbers whose power of two has a normal inverse."""
SCALE_BITS = tl.constexpr(13)
"""Rows are scaled to 2^13: just below the end of float16, so that low halves are never subnormal."""
MAX_DISTANCE = tl.constexpr(2.0**4)
"""Largest distance from the mean, in units of the spread, of inputs with weight: the unit grows to keep to it."""
MIN_SPREAD = tl.constexpr(2.0**-14)
"""Smallest spread relative to the mean: closer inputs have few digits in float32 anyway."""
FEATURE_UNIT = tl.constexpr(2.0**-3)
"""Unit of features in halves: none exceeds 2^13, and those over 2^-5 keep all digits."""
ROUND_STEP = tl.constexpr(2.0**-1)
"""High halves of assignments are multiples of it, where those of an output in a tile sum to at least 2^13."""
TRUNCATION_BIAS = tl.constexpr(1 + 0.75 * 2.0**-23)
"""Factor that corrects the mean truncation of tensor-core sums, which drop digits after each 16 products."""
NEGLIGIBLE_F = tl.constexpr(2.0**-64)
"""Largest f(a_inp) of an input whose position is ignored."""


@triton.jit
def slot_range(p_offsets, n_inp, n_slots, slot_tiles, PACKED: tl.constexpr, BLOCK_I: tl.constexpr):
    """Return a program's slot, its sample, the sample's start and size, and the slot's first and last input."""
    pid, pid_q = tl.program_id(0).to(tl.int64), tl.program_id(0) % n_slots
    start, n = sample_range(p_offsets, pid // n_slots, n_inp, PACKED)
    first, last = pid_q * slot_tiles * BLOCK_I, tl.minimum((pid_q + 1) * slot_tiles * BLOCK_I, n)
    return pid, pid // n_slots, start, n, first, last


@triton.jit
def load_scores(p_a, i, n):
    """Load the scores of a sample's inputs, -inf past its end."""
    return tl.load(p_a + i, mask=i < n, other=float("-inf")).to(tl.float32)


@triton.jit
def mask_entries(o_x, C: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return which entries of a padded capsule exist."""
    return (o_x // BLOCK_D < C) & (o_x % BLOCK_D < D)


@triton.jit
def offset_entries(o_x, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return where the entries of a padded capsule lie in memory."""
    if D == BLOCK_D:
        return o_x
    else:
        return o_x // BLOCK_D * D + o_x % BLOCK_D


@triton.jit
def load_capsules(p_x, i, n, o_x, C: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load a sample's inputs `[i, x]`, zero past its end."""
    m = (i < n)[:, None] & mask_entries(o_x, C, D, BLOCK_D)[None, :]
    p = p_x + i[:, None] * (C * D) + offset_entries(o_x, D, BLOCK_D)[None, :]
    return tl.load(p, mask=m, other=0.0).to(tl.float32)


@triton.jit
def centre_capsules(b_x, b_mean, b_scale):
    """Subtract the sample's mean and divide by its spread, clamped to what inputs with weight reach."""
    b_x = (clamp_capsules(b_x) - b_mean[None, :]) * b_scale
    return min_nan(max_nan(b_x, -2 * MAX_DISTANCE), 2 * MAX_DISTANCE)


@triton.jit
def swap_pairs(b):
    """Swap both entries of the last axis `[..., 2]`."""
    b_0, b_1 = tl.split(b)
    return tl.join(b_1, b_0)


@triton.jit
def rotate(b, shift: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rotate the rows of capsules `[i, x]` along d: entry d gets entry `(d + shift) % D`."""
    ROWS: tl.constexpr = b.shape[0]
    X: tl.constexpr = b.shape[1]
    if D == 2 and shift % 2 == 1:
        b = swap_pairs(tl.reshape(b, [ROWS, X // 2, 2]))
    elif D == 4 and shift % 2 == 1:
        even, odd = tl.split(tl.reshape(b, [ROWS, X // 4, 2, 2]))
        b = tl.join(odd, swap_pairs(even)) if shift % 4 == 1 else tl.join(swap_pairs(odd), even)
    elif D == 4:
        even, odd = tl.split(tl.reshape(b, [ROWS, X // 4, 2, 2]))
        b = tl.join(swap_pairs(even), swap_pairs(odd))
    else:
        o_x = tl.arange(0, X)
        at = tl.minimum(o_x // BLOCK_D * BLOCK_D + (o_x % BLOCK_D + shift % D) % D, X - 1)
        b = tl.gather(b, tl.zeros([ROWS, X], tl.int32) + at[None, :], 1)
    return tl.reshape(b, [ROWS, X])


@triton.jit
def compute_scales(b):
    """Return the powers of two that divide positive numbers to about 2^13, and their inverses."""
    bits = tl.minimum(tl.maximum(b, MIN_SCALED), MAX_SCALED).to(tl.int32, bitcast=True) & 0x7F800000
    scale, inverse = bits - (SCALE_BITS << 23), 0x7F000000 - bits + (SCALE_BITS << 23)
    return scale.to(tl.float32, bitcast=True), inverse.to(tl.float32, bitcast=True)


@triton.jit
def split_rounded_halves(b):
    """Split into halves, the high ones multiples of `ROUND_STEP`.

    Tensor cores truncate each product to the digits of the sum, so that sums of one sign come out low. Multiples of a
    step have little to truncate, and products of low halves have either sign.
    """
    far: tl.constexpr = 1.5 * 2**23 * ROUND_STEP  # float32 numbers are ROUND_STEP apart there, so adding it rounds
    b_hi = ((b + far) - far).to(tl.float16)
    return b_hi, (b - b_hi.to(tl.float32)).to(tl.float16)


@triton.jit
def concat_columns(b, c):
    """Concatenate `[i, j]` and `[i, j]` to `[i, 2 j]`."""
    return tl.reshape(tl.permute(tl.join(b, c), (0, 2, 1)), [b.shape[0], 2 * b.shape[1]])


@triton.jit
def split_columns(b):
    """Split `[i, 2 j]` into `[i, j]` and `[i, j]`."""
    return tl.split(tl.permute(tl.reshape(b, [b.shape[0], 2, b.shape[1] // 2]), (0, 2, 1)))


@triton.jit
def concat_rows(b, c):
    """Concatenate `[j, k]` and `[j, k]` to `[2 j, k]`."""
    return tl.reshape(tl.permute(tl.join(b, c), (2, 0, 1)), [2 * b.shape[0], b.shape[1]])


@triton.jit
def offset_features(o_x, block, BLOCK_D: tl.constexpr):
    """Return where a block's features lie among all: row by row of a capsule, and in each row block by block.

    Products sum them in this order, so that partial sums never much exceed the result.
    """
    return (o_x // BLOCK_D * 4 + block) * BLOCK_D + o_x % BLOCK_D


@triton.jit
def stack_features(b_0, b_1, b_2, b_3, BLOCK_D: tl.constexpr):
    """Interleave four blocks `[i, x]` to features `[i, k]`."""
    b = tl.join(tl.join(b_0, b_2), tl.join(b_1, b_3))
    b = tl.permute(tl.reshape(b, [b_0.shape[0], b_0.shape[1] // BLOCK_D, BLOCK_D, 4]), (0, 1, 3, 2))
    return tl.reshape(b, [b_0.shape[0], 4 * b_0.shape[1]])


@triton.jit
def unstack_features(b, BLOCK_D: tl.constexpr):
    """Split features `[i, k]` into four blocks `[i, x]`."""
    ROWS: tl.constexpr = b.shape[0]
    X: tl.constexpr = b.shape[1] // 4
    b = tl.permute(tl.reshape(b, [ROWS, X // BLOCK_D, 4, BLOCK_D]), (0, 1, 3, 2))
    b_02, b_13 = tl.split(tl.reshape(b, [ROWS, X, 2, 2]))
    b_0, b_2 = tl.split(b_02)
    b_1, b_3 = tl.split(b_13)
    return b_0, b_1, b_2, b_3


@triton.jit
def compute_features(b_x, p_feature_mean, factor: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Compute `factor` times the features `[i, k]` of capsules `[i, x]`, less their mean over the sample.

    The product of a row's last entry with the next but one, which no capsule needs, is replaced by a constant one.
    """
    X: tl.constexpr = b_x.shape[1]
    o_x = tl.arange(0, X)
    b_3 = b_x * factor
    b_0 = b_3 * b_x - tl.load(p_feature_mean + o_x)[None, :] * factor
    b_1, b_2 = tl.zeros_like(b_x), tl.zeros_like(b_x)
    if D >= 2:
        b_1 = b_3 * rotate(b_x, 1, D, BLOCK_D) - tl.load(p_feature_mean + X + o_x)[None, :] * factor
    if D >= 4:
        b_2 = b_3 * rotate(b_x, 2, D, BLOCK_D) - tl.load(p_feature_mean + 2 * X + o_x)[None, :] * factor
    b_2 = tl.where((o_x == BLOCK_D - 1)[None, :], factor, b_2)
    return stack_features(b_0, b_1, b_2, b_3, BLOCK_D)


@triton.jit
def compute_feature_halves(b_x, p_feature_mean, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Compute a tile's features split into halves, in units of `FEATURE_UNIT`."""
    return split_halves(compute_features(b_x, p_feature_mean, 1 / FEATURE_UNIT, D, BLOCK_D))


@triton.jit
def features_bwd(b_dphi, b_x, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Compute gradients of capsules `[i, x]` from those of features `[i, k]`."""
    d_0, d_1, d_2, d_x = unstack_features(b_dphi, BLOCK_D)
    d_2 = tl.where((tl.arange(0, b_x.shape[1]) == BLOCK_D - 1)[None, :], 0.0, d_2)  # the constant has no gradient
    d_x += 2 * d_0 * b_x
    if D >= 2:
        d_x += d_1 * rotate(b_x, 1, D, BLOCK_D) + rotate(d_1 * b_x, D - 1, D, BLOCK_D)
    if D >= 4:
        d_x += d_2 * rotate(b_x, 2, D, BLOCK_D) + rotate(d_2 * b_x, D - 2, D, BLOCK_D)
    return d_x


@triton.jit
def load_rows(p_rows, o_jj, J: tl.constexpr, K: tl.constexpr):
    """Load rows `[j, k]`; in coefficients of logits the constant feature's holds the term all inputs share."""
    return tl.load(p_rows + o_jj[:, None] * K + tl.arange(0, K)[None, :], mask=(o_jj < J)[:, None], other=0.0)


@triton.jit
def store_rows(p_rows, b_rows, o_jj, J: tl.constexpr):
    """Store rows `[j, k]`."""
    K: tl.constexpr = b_rows.shape[1]
    tl.store(p_rows + o_jj[:, None] * K + tl.arange(0, K)[None, :], b_rows, mask=(o_jj < J)[:, None])


@triton.jit
def load_row_halves(p_rows, o_jj, J: tl.constexpr, K: tl.constexpr):
    """Load the high and low halves of rows `[j, k]`."""
    p_row = p_rows + o_jj[:, None] * (2 * K) + tl.arange(0, K)[None, :]
    m = (o_jj < J)[:, None]
    return tl.load(p_row, mask=m, other=0.0), tl.load(p_row + K, mask=m, other=0.0)


@triton.jit
def load_log_terms(p_log, o_jj, J: tl.constexpr):
    """Load the term of each output's logits that all inputs share, relative to the largest."""
    b_log = tl.load(p_log + o_jj, mask=o_jj < J, other=float("-inf"))
    return b_log - tl.max(b_log, 0) + tl.load(p_log + J + o_jj, mask=o_jj < J, other=0.0)


@triton.jit
def softmax_terms(b_acc, c_scale, b_log):
    """Compute softmax numerators `[i, j]` and inverse denominators `[i]` from products with coefficients, base two."""
    b_logit = b_acc * c_scale[None, :] + b_log[None, :]
    b_exp = tl.exp2(b_logit - tl.maximum(tl.max(b_logit, 1), -MAX_SCALED)[:, None])
    return b_exp, 1 / tl.sum(b_exp, 1)
