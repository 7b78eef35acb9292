"""What the moment form does with a tile of inputs. Axes as in `moments.py`."""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from .numerics import at_least, at_most

TINY = tl.constexpr(1e-30)
SMALL, LARGE = tl.constexpr(1e-33), tl.constexpr(1e36)
"""Numbers whose powers of two have inverses."""
BITS = tl.constexpr(13)
"""Rows are scaled to 2^13: half precision ends just above, and the low half of a number is then never subnormal."""
LARGEST = tl.constexpr(3.4028234663852886e38 ** (1 / 4))
"""Capsules are bounded so that no square overflows, as they are for every implementation."""
FARTHEST = tl.constexpr(2.0**4)
"""Spreads that inputs which have weight are at most apart, or else what is called a spread is more: features of a tile,
and a one among them, are as exact as the farthest input allows."""
CLOSEST = tl.constexpr(2.0**-14)
"""The least that is called a spread, as part of the size of inputs; of what is closer float32 has few digits anyway."""
UNIT = tl.constexpr(2.0**-3)
"""What features are divided by as pairs: none is then over 2^13, and of those that are over 2^-5 no digit is lost."""
STEP = tl.constexpr(2.0**-1)
"""What high halves of assignments are multiples of, where those of an output in a tile add up to at least 2^13."""
KEPT = tl.constexpr(1 + 0.75 * 2.0**-23)
"""What makes up for the digits of sums that tensor cores cut off after each 16 products, in the mean."""
NOTHING = tl.constexpr(2.0**-64)
"""Weight up to which an input does not count, half a million spreads away."""


@triton.jit
def sample(p_offsets, u_b, n_inp, PACKED: tl.constexpr):
    """Where the inputs of sample `u_b` begin, and how many there are."""
    if PACKED:
        start = tl.load(p_offsets + u_b)
        n = (tl.load(p_offsets + u_b + 1) - start).to(tl.int32)
    else:
        start = u_b * n_inp
        n = n_inp
    return start, n


@triton.jit
def slot(p_offsets, n_inp, n_slots, slot_tiles, PACKED: tl.constexpr, BLOCK_I: tl.constexpr):
    """A program's slot and its sample; where the sample begins, how many inputs it has, and which are the slot's."""
    unit, u_q = tl.program_id(0).to(tl.int64), tl.program_id(0) % n_slots
    start, n = sample(p_offsets, unit // n_slots, n_inp, PACKED)
    first, last = u_q * slot_tiles * BLOCK_I, tl.minimum((u_q + 1) * slot_tiles * BLOCK_I, n)
    return unit, unit // n_slots, start, n, first, last


@triton.jit
def load_scores(p_a, i, n):
    """Scores of a sample's inputs, of no input past its end."""
    return tl.load(p_a + i, mask=i < n, other=float("-inf")).to(tl.float32)


@triton.jit
def gates(b_a):
    """`f(a_inp)`."""
    return 1 / (1 + tl.exp(-b_a))


@triton.jit
def real(o_x, C: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Which places are numbers of a capsule."""
    return (o_x // BLOCK_D < C) & (o_x % BLOCK_D < D)


@triton.jit
def place(o_x, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Where in memory they lie in it."""
    if D == BLOCK_D:
        return o_x
    else:
        return o_x // BLOCK_D * D + o_x % BLOCK_D


@triton.jit
def load_capsules(p_x, i, n, o_x, C: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A sample's inputs `[i, x]`, zero past its end."""
    m = (i < n)[:, None] & real(o_x, C, D, BLOCK_D)[None, :]
    return tl.load(p_x + i[:, None] * (C * D) + place(o_x, D, BLOCK_D)[None, :], mask=m, other=0.0).to(tl.float32)


@triton.jit
def bounded(b_x):
    return at_most(at_least(b_x, -LARGEST), LARGEST)


@triton.jit
def centred(b_x, b_mean, b_scale):
    """Capsules counted from the sample's mean, in units of its spread; no further away than any that has weight."""
    return at_most(at_least((bounded(b_x) - b_mean[None, :]) * b_scale, -2 * FARTHEST), 2 * FARTHEST)


@triton.jit
def swap(b):
    """The two halves `[..., 2]` of a tensor the other way round."""
    b_0, b_1 = tl.split(b)
    return tl.join(b_1, b_0)


@triton.jit
def turn(b, shift: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, X: tl.constexpr, BLOCK_D: tl.constexpr):
    """Every row of capsules `[i, x]` as a circle turned: a number's place gets the one that is `shift` places on."""
    if D == 2 and shift % 2 == 1:
        b = swap(tl.reshape(b, [BLOCK_I, X // 2, 2]))
    elif D == 4 and shift % 2 == 1:
        even, odd = tl.split(tl.reshape(b, [BLOCK_I, X // 4, 2, 2]))
        b = tl.join(odd, swap(even)) if shift % 4 == 1 else tl.join(swap(odd), even)
    elif D == 4:
        even, odd = tl.split(tl.reshape(b, [BLOCK_I, X // 4, 2, 2]))
        b = tl.join(swap(even), swap(odd))
    else:
        o_x = tl.arange(0, X)
        at = tl.minimum(o_x // BLOCK_D * BLOCK_D + (o_x % BLOCK_D + shift % D) % D, X - 1)
        b = tl.gather(b, tl.zeros([BLOCK_I, X], tl.int32) + at[None, :], 1)
    return tl.reshape(b, [BLOCK_I, X])


@triton.jit
def power(b):
    """Powers of two that scale positive numbers to 2^13: their inverses, and they themselves."""
    bits = tl.minimum(tl.maximum(b, SMALL), LARGE).to(tl.int32, bitcast=True) & 0x7F800000
    size, inverse = bits - (BITS << 23), 0x7F000000 - bits + (BITS << 23)
    return size.to(tl.float32, bitcast=True), inverse.to(tl.float32, bitcast=True)


@triton.jit
def split(b):
    """Numbers as sums of two of half precision."""
    b_high = b.to(tl.float16)
    return b_high, (b - b_high.to(tl.float32)).to(tl.float16)


@triton.jit
def split_in_steps(b):
    """Likewise, their high halves in whole `STEP`s.

    Tensor cores cut off what is too small beside a sum, of each product on its own, so that sums of one sign come out
    low. Of products in steps there is little to cut off; those of low halves have either sign.
    """
    far: tl.constexpr = 1.5 * 2**23 * STEP  # where numbers are steps apart, so that to go there and back rounds
    b_high = ((b + far) - far).to(tl.float16)
    return b_high, (b - b_high.to(tl.float32)).to(tl.float16)


@triton.jit
def dot(b_high, b_low, c_high, c_low, b_sum):
    """A product of pairs, as exact as one in single precision: only low times low, 2^-22 of the rest, is left out."""
    b_sum = tl.dot(b_low, c_high, b_sum)
    b_sum = tl.dot(b_high, c_low, b_sum)
    return tl.dot(b_high, c_high, b_sum)


@triton.jit
def beside(b, c, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """`[i, j]` and `[i, j]` as one, the first on the left."""
    return tl.reshape(tl.permute(tl.join(b, c), (0, 2, 1)), [ROWS, 2 * WIDTH])


@triton.jit
def halves(b, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The reverse."""
    return tl.split(tl.permute(tl.reshape(b, [ROWS, 2, WIDTH]), (0, 2, 1)))


@triton.jit
def above(b, c, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """`[j, k]` and `[j, k]` as one, the first on top."""
    return tl.reshape(tl.permute(tl.join(b, c), (2, 0, 1)), [2 * ROWS, WIDTH])


@triton.jit
def feature(o_x, block, BLOCK_D: tl.constexpr):
    """Where the features of a block are among all: those of a row of a capsule lie together, block by block.

    Products add them up in this order, and so never much more than there is in the end.
    """
    return (o_x // BLOCK_D * 4 + block) * BLOCK_D + o_x % BLOCK_D


@triton.jit
def stack(b_0, b_1, b_2, b_3, BLOCK_I: tl.constexpr, X: tl.constexpr, BLOCK_D: tl.constexpr):
    """Features `[i, k]` from blocks `[i, x]`."""
    b = tl.join(tl.join(b_0, b_2), tl.join(b_1, b_3))
    b = tl.permute(tl.reshape(b, [BLOCK_I, X // BLOCK_D, BLOCK_D, 4]), (0, 1, 3, 2))
    return tl.reshape(b, [BLOCK_I, 4 * X])


@triton.jit
def unstack(b, BLOCK_I: tl.constexpr, X: tl.constexpr, BLOCK_D: tl.constexpr):
    """The reverse."""
    b = tl.permute(tl.reshape(b, [BLOCK_I, X // BLOCK_D, 4, BLOCK_D]), (0, 1, 3, 2))
    b = tl.reshape(b, [BLOCK_I, X, 2, 2])
    b_02, b_13 = tl.split(b)
    b_0, b_2 = tl.split(b_02)
    b_1, b_3 = tl.split(b_13)
    return b_0, b_1, b_2, b_3


@triton.jit
def all_features(
    b_x, p_usual, times: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, X: tl.constexpr, BLOCK_I: tl.constexpr
):
    """A tile's features `[i, k]`, less what is usual in the sample, so many times, in the precision of its capsules.

    The place of the last product with the next but one, which no capsule needs, holds a one.
    """
    o_x = tl.arange(0, X)
    b_3 = b_x * times
    b_0 = b_3 * b_x - tl.load(p_usual + o_x)[None, :] * times
    b_1, b_2 = tl.zeros_like(b_x), tl.zeros_like(b_x)
    if D >= 2:
        b_1 = b_3 * turn(b_x, 1, D, BLOCK_I, X, BLOCK_D) - tl.load(p_usual + X + o_x)[None, :] * times
    if D >= 4:
        b_2 = b_3 * turn(b_x, 2, D, BLOCK_I, X, BLOCK_D) - tl.load(p_usual + 2 * X + o_x)[None, :] * times
    b_2 = tl.where((o_x == BLOCK_D - 1)[None, :], times, b_2)
    return stack(b_0, b_1, b_2, b_3, BLOCK_I, X, BLOCK_D)


@triton.jit
def features(b_x, p_usual, D: tl.constexpr, BLOCK_D: tl.constexpr, X: tl.constexpr, BLOCK_I: tl.constexpr):
    """A tile's features as pairs, in `UNIT`s."""
    return split(all_features(b_x, p_usual, 1 / UNIT, D, BLOCK_D, X, BLOCK_I))


@triton.jit
def to_capsules(b_dphi, b_x, D: tl.constexpr, BLOCK_D: tl.constexpr, X: tl.constexpr, BLOCK_I: tl.constexpr):
    """Gradients of capsules `[i, x]` from those of features `[i, k]`."""
    d_0, d_1, d_2, d_x = unstack(b_dphi, BLOCK_I, X, BLOCK_D)
    d_2 = tl.where((tl.arange(0, X) == BLOCK_D - 1)[None, :], 0.0, d_2)  # of the one
    d_x += 2 * d_0 * b_x
    if D >= 2:
        d_x += d_1 * turn(b_x, 1, D, BLOCK_I, X, BLOCK_D) + turn(d_1 * b_x, D - 1, D, BLOCK_I, X, BLOCK_D)
    if D >= 4:
        d_x += d_2 * turn(b_x, 2, D, BLOCK_I, X, BLOCK_D) + turn(d_2 * b_x, D - 2, D, BLOCK_I, X, BLOCK_D)
    return d_x


@triton.jit
def coefficients(p_rows, o_jj, o_k, J: tl.constexpr, K: tl.constexpr):
    """Pairs of rows `[j, k]`."""
    p_row = p_rows + o_jj[:, None] * (2 * K) + o_k[None, :]
    m = (o_jj < J)[:, None]
    return tl.load(p_row, mask=m, other=0.0), tl.load(p_row + K, mask=m, other=0.0)


@triton.jit
def load_logs(p_log, o_jj, J: tl.constexpr):
    """The part of each output's logits that all inputs share, as its distance from the largest: that is what counts."""
    b_log = tl.load(p_log + o_jj, mask=o_jj < J, other=float("-inf"))
    return b_log - tl.max(b_log, 0) + tl.load(p_log + J + o_jj, mask=o_jj < J, other=0.0)


@triton.jit
def parts(b_sum, c_size, b_log):
    """E-step: routing probabilities `[i, j]` from products with coefficients, but for what makes their sum one `[i]`.

    Logits are to base two.
    """
    b_logit = b_sum * c_size[None, :] + b_log[None, :]
    b_R = tl.exp2(b_logit - tl.maximum(tl.max(b_logit, 1), -LARGE)[:, None])
    return b_R, 1 / tl.sum(b_R, 1)
