"""What the moment form does with a tile of inputs, or with the models of some outputs. Axes as in `moments.py`."""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

BLOCK_J = tl.constexpr(4)
"""Outputs whose models one program computes at a time."""
BLOCK_Q = tl.constexpr(8)
"""Slots of partial sums added at a time."""
TINY = tl.constexpr(1e-30)
SMALL, LARGE = tl.constexpr(1e-36), tl.constexpr(1e36)
"""Numbers whose powers of two have inverses."""
LARGEST = tl.constexpr(3.4028234663852886e38 ** (1 / 4))
"""Capsules are bounded so that no square overflows, as they are for every implementation."""


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
def gates(p_a, i, n):
    """`f(a_inp)` of a sample's inputs, zero past its end."""
    b_a = tl.load(p_a + i, mask=i < n, other=float("-inf")).to(tl.float32)
    return 1 / (1 + tl.exp(-b_a))


@triton.jit
def capsules(p_x, i, n, o_x, CD: tl.constexpr):
    """A sample's inputs `[i, c d]`, bounded; nothing past its end."""
    m = (i < n)[:, None] & (o_x < CD)[None, :]
    b_x = tl.load(p_x + i[:, None] * CD + o_x[None, :], mask=m, other=0.0).to(tl.float32)
    return tl.minimum(tl.maximum(b_x, -LARGEST), LARGEST)


@triton.jit
def power(b):
    """The powers of two just below positive numbers, and their inverses."""
    bits = tl.minimum(tl.maximum(b, SMALL), LARGE).to(tl.int32, bitcast=True) & 0x7F800000
    return bits.to(tl.float32, bitcast=True), (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def split(b):
    """Numbers up to 2 as pairs of half precision, the second 2^11 times as large as what it stands for."""
    b_high = b.to(tl.float16)
    return b_high, ((b - b_high.to(tl.float32)) * 2048).to(tl.float16)


@triton.jit
def dot(b_high, b_low, c_high, c_low):
    """A product of pairs, as exact as one in single precision: only low times low, 2^-22 of the rest, is left out."""
    b_rest = tl.dot(b_low, c_high)
    b_rest = tl.dot(b_high, c_low, b_rest)
    return tl.dot(b_high, c_high) + b_rest * (1 / 2048)


@triton.jit
def select(b_x, b_which):
    """`b_x @ b_which`, to the last bit, `b_which` being of zeros and at most a one in each column."""
    b_size, b_inverse = power(tl.max(tl.abs(b_x), 1))
    b_high, b_low = split(b_x * b_inverse[:, None])
    b_rest = (b_x * b_inverse[:, None] - b_high.to(tl.float32)) * 2048 - b_low.to(tl.float32)
    b = tl.dot((b_rest * 2048).to(tl.float16), b_which) * (1 / 2048)
    b = tl.dot(b_low, b_which, b) * (1 / 2048)
    return tl.dot(b_high, b_which, b) * b_size[:, None]


@triton.jit
def factors(b_x, p_first, p_second, o_x, o_k, CD: tl.constexpr):
    """Both factors of each feature `[i, k]`: a number of the capsule, or one, or nothing."""
    first, second = tl.load(p_first + o_k), tl.load(p_second + o_k)
    b_1 = select(b_x, (o_x[:, None] == first[None, :]).to(tl.float16))
    b_2 = select(b_x, (o_x[:, None] == second[None, :]).to(tl.float16))
    return b_1 + (first == CD)[None, :].to(tl.float32), b_2 + (second == CD)[None, :].to(tl.float32)


@triton.jit
def units(p_first, p_second, b_scale, o_k, CD: tl.constexpr):
    """What each feature is multiplied by when capsules are."""
    b_1 = tl.where(tl.load(p_first + o_k) < CD, b_scale, 1.0)
    return b_1 * tl.where(tl.load(p_second + o_k) < CD, b_scale, 1.0)


@triton.jit
def coefficients(p_rows, o_jj, o_k, J: tl.constexpr, K: tl.constexpr):
    """Rows `[k, j]` of coefficients as pairs, and the power of two that each output's were divided by."""
    b_rows = tl.load(p_rows + o_jj[None, :] * K + o_k[:, None], mask=(o_jj < J)[None, :], other=0.0)
    b_size, b_inverse = power(tl.max(tl.abs(b_rows), 0))
    b_high, b_low = split(b_rows * b_inverse[None, :])
    return b_high, b_low, b_size


@triton.jit
def mean_of(p_mean, u_b, n_slots, CD: tl.constexpr, BLOCK_X: tl.constexpr):
    """The sample's weighted sum of capsules and, in the last place, of gates."""
    o_x = tl.arange(0, BLOCK_X)
    o_q = tl.arange(0, 32)
    b_sum = tl.zeros([BLOCK_X], tl.float64)
    for q in range(0, n_slots, 32):
        at = (u_b * n_slots + q + o_q)[:, None] * BLOCK_X + o_x[None, :]
        b_sum += tl.sum(tl.load(p_mean + at, mask=(q + o_q < n_slots)[:, None], other=0.0), 0)
    return b_sum


@triton.jit
def total_of(p_part, u_b, o_j, o_k, n_slots, n_j, J: tl.constexpr, K: tl.constexpr):
    """The sum over a sample's slots, `[j, k]`; `n_j` is how many rows a slot holds, one for all outputs or each its."""
    o_q = tl.arange(0, BLOCK_Q)
    m_j = o_j < J
    row = tl.minimum(o_j, n_j - 1)
    b_sum = tl.zeros([BLOCK_J, K], tl.float64)
    for q in range(0, n_slots, BLOCK_Q):
        slot = u_b * n_slots + q + o_q
        at = (slot[:, None, None] * n_j + row[None, :, None]) * K + o_k[None, None, :]
        m = (q + o_q < n_slots)[:, None, None] & m_j[None, :, None]
        b_sum += tl.sum(tl.load(p_part + at, mask=m, other=0.0).to(tl.float64), 0)
    return b_sum


@triton.jit
def weight(p_W, o_j, m, o_d, o_h, stride_W, H: tl.constexpr):
    """`W[j, d, h]` for offsets that broadcast together."""
    return tl.load(p_W + o_j * stride_W + o_d * H + o_h, mask=m, other=0.0).to(tl.float64)


@triton.jit
def along_votes(
    p_row, p_W, o_j, o_v, stride_W, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """From sums of features `[j, k]` in memory those of one `[j]`, of votes and of their squares `[j, v]`."""
    PAIRS = D * (D + 1) // 2
    m_j = o_j < J
    j, c, h = o_j[:, None, None], (o_v // H)[None, :, None], (o_v % H)[None, :, None]
    m_jv = m_j[:, None, None] & (o_v < C * H)[None, :, None]
    o_d = tl.arange(0, BLOCK_D)[None, None, :]
    m = m_jv & (o_d < D)
    b_x = tl.load(p_row + j * K + C * PAIRS + c * D + o_d, mask=m, other=0.0)
    b_V = tl.sum(b_x * weight(p_W, j, m, o_d, h, stride_W, H), 2)
    b_VV = tl.zeros_like(b_V)
    o_e = tl.arange(0, BLOCK_D)[None, None, :]
    for d in tl.static_range(D):
        m = m_jv & (o_e < D) & (o_e >= d)
        k = d * D - d * (d - 1) // 2 + o_e - d
        b_xx = tl.load(p_row + j * K + c * PAIRS + k, mask=m, other=0.0)
        b_WW = weight(p_W, j, m, d, h, stride_W, H) * weight(p_W, j, m, o_e, h, stride_W, H)
        b_VV += tl.sum(tl.where(o_e == d, 1.0, 2.0) * b_xx * b_WW, 2)
    b_one = tl.load(p_row + o_j * K + C * PAIRS + C * D, mask=m_j, other=0.0)
    return b_one, b_V, b_VV


@triton.jit
def along_features(
    p_v, p_vv, b_one, p_W, o_j, o_k, p_first, p_second, stride_W, J: tl.constexpr, C: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The reverse: coefficients of features `[j, k]` from those of one `[j]`, and in memory of votes and squares."""
    PAIRS = D * (D + 1) // 2
    first, second = tl.load(p_first + o_k)[None, :, None], tl.load(p_second + o_k)[None, :, None]
    j, h = o_j[:, None, None], tl.arange(0, BLOCK_H)[None, None, :]
    m_j = (o_j < J)[:, None, None] & (h < H)
    quad, line = o_k < C * PAIRS, (o_k >= C * PAIRS) & (o_k < C * PAIRS + C * D)
    c, r, s = first // D, first % D, second % D
    m_q, m_l = m_j & quad[None, :, None], m_j & line[None, :, None]
    at = j * BLOCK_V + c * H + h
    b_W = weight(p_W, j, m_q | m_l, r, h, stride_W, H)
    b_WW = b_W * weight(p_W, j, m_q, s, h, stride_W, H) * tl.where(r == s, 1.0, 2.0)
    b_q = tl.load(p_vv + at, mask=m_q, other=0.0) * b_WW
    b_l = tl.load(p_v + at, mask=m_l, other=0.0) * b_W
    return tl.sum(b_q + b_l, 2) + tl.where((o_k == C * PAIRS + C * D)[None, :], b_one[:, None], 0.0)


@triton.jit
def spread_unit(b_S, p_first, p_second, o_k, CD: tl.constexpr):
    """The power of two that makes a sample's capsules, counted from their mean, about one in size."""
    first, second = tl.load(p_first + o_k), tl.load(p_second + o_k)
    b_square = tl.max(tl.max(tl.where(((first == second) & (first < CD))[None, :], b_S, 0.0), 1), 0)
    b_one = tl.max(tl.max(tl.where(((first == second) & (first == CD))[None, :], b_S, 0.0), 1), 0)
    _, b_unit = power(tl.sqrt(b_square / tl.maximum(b_one, TINY)).to(tl.float32))
    return tl.where(b_square > 0, b_unit, 1.0).to(tl.float64)


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def model_of(
    p_S, p_W, p_B, p_use, p_ign, b_total, b_shift_W, o_j, o_v, eps, stride_W, stride_use, stride_ign,
    J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The output capsules that sums in memory give; `m` is their mean counted from the vote of the inputs' mean."""
    m_j = o_j < J
    m_jv = m_j[:, None] & (o_v < C * H)[None, :]
    b_D, b_DV, b_DVV = along_votes(p_S, p_W, o_j, o_v, stride_W, J, C, D, H, K, BLOCK_D)
    b_B = tl.load(p_B + o_j[:, None] * (C * H) + o_v[None, :], mask=m_jv, other=0.0).to(tl.float64) + b_shift_W
    used = b_D[:, None] + eps
    b_m = (b_DV - eps * b_B) / used
    b_N = tl.where(m_jv, tl.maximum(b_DVV - 2 * b_m * b_DV + b_m * b_m * b_D[:, None], 0.0), 0.0)
    b_sig2 = tl.where(m_jv, b_N / used + eps, 1.0)
    b_use = tl.load(p_use + o_j * stride_use, mask=m_j, other=0.0).to(tl.float64)
    b_ign = tl.load(p_ign + o_j * stride_ign, mask=m_j, other=0.0).to(tl.float64)
    b_a = (b_use + b_ign) * b_D - b_ign * b_total
    return b_D, b_m, b_N, b_sig2, b_B, b_a, b_use, b_ign


@triton.jit
def vote_of(p_shift, p_W, o_j, o_v, stride_W, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
            BLOCK_D: tl.constexpr):  # fmt: skip
    """What the inputs' mean votes for each output, without the bias, `[j, v]`."""
    o_d = tl.arange(0, BLOCK_D)[None, None, :]
    j, c, h = o_j[:, None, None], (o_v // H)[None, :, None], (o_v % H)[None, :, None]
    m = (o_j < J)[:, None, None] & (o_v < C * H)[None, :, None] & (o_d < D)
    b_shift = tl.load(p_shift + c * D + o_d, mask=(o_v < C * H)[None, :, None] & (o_d < D), other=0.0)
    return tl.sum(b_shift * weight(p_W, j, m, o_d, h, stride_W, H), 2)


@triton.jit
def assign(b_high, b_low, b_size, c_high, c_low, c_size, b_log, b_rest, m_j, FILLED: tl.constexpr):
    """E-step: routing probabilities `[i, j]`; `log` and `rest` add up to the part of a logit common to all inputs."""
    b_logit = dot(b_high, b_low, c_high, c_low) * b_size[:, None] * c_size[None, :] + b_log[None, :]
    if FILLED:
        b_R = tl.exp(tl.maximum(b_logit - tl.max(b_logit, 1)[:, None] + b_rest[None, :], -60.0))
    else:
        b_logit = tl.where(m_j[None, :], b_logit, float("-inf"))
        b_R = tl.exp(tl.maximum(b_logit - tl.max(b_logit, 1)[:, None] + b_rest[None, :], -60.0))
        b_R = tl.where(m_j[None, :], b_R, 0.0)
    return b_R * (1 / tl.sum(b_R, 1))[:, None]
