"""Operations of the moment form on a tile of inputs. Axes as in `moments.py`."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numerics import clamp_capsules, max_nan, min_nan, sample_range

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


class Tile(NamedTuple):
    """Constants that a kernel is compiled for; block sizes are powers of two."""

    PACKED: bool
    GAUSSIAN: bool
    J: int
    C: int
    D: int
    H: int
    BLOCK_I: int
    BLOCK_J: int
    BLOCK_C: int
    BLOCK_D: int
    BLOCK_H: int
    X: int  # entries of a padded capsule
    K: int  # features


class Args(NamedTuple):
    """Arguments of a routing."""

    a: Any  # [n]
    x: Any  # [n, c, d]
    offsets: Any  # [b + 1]
    W: Any  # [j|1, d, h]
    B: Any  # [j, c, h]
    use: Any  # [j|1]
    ign: Any  # [j|1]


class Saved(NamedTuple):
    """What the forward pass keeps for the backward pass."""

    feature_mean: Any = "float32 b k"  # of the centred features, but in the last block of the capsules before
    scale: Any = "float32 b"  # power of two by which centred capsules are multiplied
    f_total: Any = "float64 b"
    S: Any = "float64 t b j k"
    D: Any = "float64 t b j"
    theta: Any = "float16 t b j 2 k"  # high and low halves
    log: Any = "float32 t b 4 j"  # scales of theta, terms that all inputs share with their rounding errors, separations
    in_float64: Any = (
        "int32 2 b"  # whether a sample is routed in float64, and whether only from the second iteration on
    )
    theta64: Any = "float64 t b j k"


class Slot(NamedTuple):
    """A program's slot: its sample's pointers, size, and the first and last of the slot's inputs in it."""

    a: Any  # [i]
    x: Any  # [i, c, d]
    feature_mean: Any  # [k]
    scale: Any
    n: Any
    first: Any
    last: Any


@triton.jit
def locate_slot(args, saved, n_inp, n_slots, slot_tiles, T: tl.constexpr):
    """Return a program's slot, its number, its sample, and where the sample starts."""
    pid, pid_q = tl.program_id(0).to(tl.int64), tl.program_id(0) % n_slots
    pid_b = pid // n_slots
    start, n = sample_range(args.offsets, pid_b, n_inp, T.PACKED)
    first, last = pid_q * slot_tiles * T.BLOCK_I, tl.minimum((pid_q + 1) * slot_tiles * T.BLOCK_I, n)
    p_feature_mean, p_scale = saved.feature_mean + pid_b * T.K, saved.scale + pid_b
    slot = Slot(args.a + start, args.x + start * (T.C * T.D), p_feature_mean, p_scale, n, first, last)
    return slot, pid, pid_b, start


@triton.jit
def offset_capsules(i, T: tl.constexpr):
    """Return where the entries `[i, x]` of a sample's padded capsules lie in memory, and which of a capsule exist."""
    o_x = tl.arange(0, T.X)
    m_x = ((o_x // T.BLOCK_D < T.C) & (o_x % T.BLOCK_D < T.D))[None, :]
    if T.D != T.BLOCK_D:
        o_x = o_x // T.BLOCK_D * T.D + o_x % T.BLOCK_D
    return i[:, None] * (T.C * T.D) + o_x[None, :], m_x


@triton.jit
def load_capsules(p_x, i, n, T: tl.constexpr):
    """Load a sample's capsules `[i, x]`, zero past its end."""
    at, m_x = offset_capsules(i, T)
    return tl.load(p_x + at, mask=(i < n)[:, None] & m_x, other=0.0).to(tl.float32)


@triton.jit
def load_scores(p_a, i, n):
    """Load the scores of a sample's inputs, -inf past its end."""
    return tl.load(p_a + i, mask=i < n, other=float("-inf")).to(tl.float32)


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
def rotate(b, shift: tl.constexpr, T: tl.constexpr):
    """Rotate the rows of capsules `[i, x]` along d: entry d gets entry `(d + shift) % D`."""
    ROWS: tl.constexpr = b.shape[0]
    if T.D == 2 and shift % 2 == 1:
        b = swap_pairs(tl.reshape(b, [ROWS, T.X // 2, 2]))
    elif T.D == 4 and shift % 2 == 1:
        even, odd = tl.split(tl.reshape(b, [ROWS, T.X // 4, 2, 2]))
        b = tl.join(odd, swap_pairs(even)) if shift % 4 == 1 else tl.join(swap_pairs(odd), even)
    elif T.D == 4:
        even, odd = tl.split(tl.reshape(b, [ROWS, T.X // 4, 2, 2]))
        b = tl.join(swap_pairs(even), swap_pairs(odd))
    else:
        o_x = tl.arange(0, T.X)
        at = tl.minimum(o_x // T.BLOCK_D * T.BLOCK_D + (o_x % T.BLOCK_D + shift % T.D) % T.D, T.X - 1)
        b = tl.gather(b, tl.full([ROWS, T.X], 0, tl.int32) + at[None, :], 1)
    return tl.reshape(b, [ROWS, T.X])


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
def offset_features(o_x, block, T: tl.constexpr):
    """Return where a block's features lie among all: row by row of a capsule, and in each row block by block.

    Products sum them in this order, so that partial sums never much exceed the result.
    """
    return (o_x // T.BLOCK_D * 4 + block) * T.BLOCK_D + o_x % T.BLOCK_D


@triton.jit
def stack_features(b_0, b_1, b_2, b_3, T: tl.constexpr):
    """Interleave four blocks `[i, x]` to features `[i, k]`."""
    b = tl.join(tl.join(b_0, b_2), tl.join(b_1, b_3))
    b = tl.permute(tl.reshape(b, [b_0.shape[0], b_0.shape[1] // T.BLOCK_D, T.BLOCK_D, 4]), (0, 1, 3, 2))
    return tl.reshape(b, [b_0.shape[0], 4 * b_0.shape[1]])


@triton.jit
def unstack_features(b, T: tl.constexpr):
    """Split features `[i, k]` into four blocks `[i, x]`."""
    ROWS: tl.constexpr = b.shape[0]
    b = tl.permute(tl.reshape(b, [ROWS, T.X // T.BLOCK_D, 4, T.BLOCK_D]), (0, 1, 3, 2))
    b_02, b_13 = tl.split(tl.reshape(b, [ROWS, T.X, 2, 2]))
    b_0, b_2 = tl.split(b_02)
    b_1, b_3 = tl.split(b_13)
    return b_0, b_1, b_2, b_3


@triton.jit
def compute_features(b_x, p_feature_mean, factor: tl.constexpr, T: tl.constexpr):
    """Compute `factor` times the features `[i, k]` of capsules `[i, x]`, less their mean over the sample.

    The product of a row's last entry with the next but one, which no capsule needs, is replaced by a constant one.
    """
    o_x = tl.arange(0, T.X)
    b_3 = b_x * factor
    b_0 = b_3 * b_x - tl.load(p_feature_mean + o_x)[None, :] * factor
    b_1, b_2 = tl.zeros_like(b_x), tl.zeros_like(b_x)
    if T.D >= 2:
        b_1 = b_3 * rotate(b_x, 1, T) - tl.load(p_feature_mean + T.X + o_x)[None, :] * factor
    if T.D >= 4:
        b_2 = b_3 * rotate(b_x, 2, T) - tl.load(p_feature_mean + 2 * T.X + o_x)[None, :] * factor
    b_2 = tl.where((o_x == T.BLOCK_D - 1)[None, :], factor, b_2)
    return stack_features(b_0, b_1, b_2, b_3, T)


@triton.jit
def features_bwd(b_dphi, b_x, T: tl.constexpr):
    """Compute gradients of capsules `[i, x]` from those of features `[i, k]`."""
    d_0, d_1, d_2, d_x = unstack_features(b_dphi, T)
    d_2 = tl.where((tl.arange(0, b_x.shape[1]) == T.BLOCK_D - 1)[None, :], 0.0, d_2)  # the constant has no gradient
    d_x += 2 * d_0 * b_x
    blocks = d_0, d_1, d_2
    for k in tl.static_range(1, T.D // 2 + 1):
        d_x += blocks[k] * rotate(b_x, k, T) + rotate(blocks[k] * b_x, T.D - k, T)
    return d_x


@triton.jit
def load_rows(p_rows, o_j, T: tl.constexpr):
    """Load rows `[j, k]`; in coefficients of logits the constant feature's holds the term all inputs share."""
    return tl.load(p_rows + o_j[:, None] * T.K + tl.arange(0, T.K)[None, :], mask=(o_j < T.J)[:, None], other=0.0)


@triton.jit
def store_rows(p_rows, b_rows, o_j, T: tl.constexpr):
    """Store rows `[j, k]`."""
    tl.store(p_rows + o_j[:, None] * T.K + tl.arange(0, T.K)[None, :], b_rows, mask=(o_j < T.J)[:, None])


@triton.jit
def load_row_halves(p_rows, o_j, T: tl.constexpr):
    """Load the high and low halves of rows `[j, k]`."""
    p_row = p_rows + o_j[:, None] * (2 * T.K) + tl.arange(0, T.K)[None, :]
    m = (o_j < T.J)[:, None]
    return tl.load(p_row, mask=m, other=0.0), tl.load(p_row + T.K, mask=m, other=0.0)


@triton.jit
def load_log_terms(p_log, o_j, T: tl.constexpr):
    """Load the term of each output's logits that all inputs share, relative to the largest."""
    b_log = tl.load(p_log + o_j, mask=o_j < T.J, other=float("-inf"))
    return b_log - tl.max(b_log, 0) + tl.load(p_log + T.J + o_j, mask=o_j < T.J, other=0.0)


@triton.jit
def softmax_terms(b_acc, c_scale, b_log):
    """Compute softmax numerators `[i, j]` and inverse denominators `[i]` from products with coefficients, base two."""
    b_logit = b_acc * c_scale[None, :] + b_log[None, :]
    b_exp = tl.exp2(b_logit - tl.maximum(tl.max(b_logit, 1), -MAX_SCALED)[:, None])
    return b_exp, 1 / tl.sum(b_exp, 1)
