"""The moment form: small capsules whose parameters all inputs share. No vote is formed, not even on chip.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties, `k` features, `v` is `c` and
`h` together. A sample's `phi [i, k]` holds the products `x_cd x_cd'` with `d <= d'`, then `x_cd`, then one, all of
capsules counted from the sample's mean; `S [j, k]` is `D_use' phi`. `first` and `second` say which two numbers of a
capsule a feature multiplies, `c * d` standing for one and beyond it for none. `docs/kernels.md` explains the phases.
"""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .grid import programs_at_once, run_phases, wait_for_all
from .sizes import Plan, Sizes

BLOCK_J = tl.constexpr(4)
"""Outputs whose models one program computes at a time."""
BLOCK_Q = tl.constexpr(8)
"""Slots of partial sums added at a time."""
TINY = tl.constexpr(1e-30)
SMALL, LARGE = tl.constexpr(1e-36), tl.constexpr(1e36)
"""Numbers whose powers of two have inverses."""
LARGEST = tl.constexpr(3.4028234663852886e38 ** (1 / 4))
"""Capsules are bounded so that no square overflows, as they are for every implementation."""


class Tile(NamedTuple):
    """Sizes of the kernels' blocks, from `tiles`."""

    block_i: int
    warps: int
    per_core: int


TILES = {"fwd": Tile(64, 4, 2), "bwd": Tile(64, 4, 2)}


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


@triton.jit(noinline=True)
def capsule_sums(
    p_a, p_x, p_offsets, p_mean, n_b, n_inp, n_slots, slot_tiles,
    PACKED: tl.constexpr, CD: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_X: tl.constexpr,
):  # fmt: skip
    """Phase: every slot's sum of capsules and of one, weighted by their gates."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0  # what it is added to counts in 64 bits
    o_i, o_x = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_X)
    for unit in range(pid, n_b * n_slots, n_pid):
        u_b, u_q = zero + unit // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        b_sum = tl.zeros([BLOCK_I, BLOCK_X], tl.float64)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_x = capsules(p_x + start * CD, i, n, o_x, CD) + (o_x == CD)[None, :].to(tl.float32)
            b_sum += gates(p_a + start, i, n)[:, None] * b_x
        tl.store(p_mean + unit * BLOCK_X + o_x, tl.sum(b_sum, 0))


@triton.jit(noinline=True)
def first_sums(
    p_a, p_x, p_offsets, p_first, p_second, p_mean, p_row_0, p_shift, n_b, n_inp, n_slots, slot_tiles,
    PACKED: tl.constexpr, J: tl.constexpr, CD: tl.constexpr, K: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_X: tl.constexpr,
):  # fmt: skip
    """Phase: every sample's mean, and every slot's sums of features in the first iteration, one row for all outputs."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    o_i, o_k, o_x = tl.arange(0, BLOCK_I), tl.arange(0, K), tl.arange(0, BLOCK_X)
    for unit in range(pid, n_b * n_slots, n_pid):
        u_b, u_q = zero + unit // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        b_mean = mean_of(p_mean, u_b, n_slots, CD, BLOCK_X)
        b_total = tl.sum(tl.where(o_x == CD, b_mean, 0.0), 0)
        b_shift = (b_mean / tl.maximum(b_total, TINY)).to(tl.float32).to(tl.float64)
        b_shift = tl.where(o_x < CD, b_shift, 0.0)
        tl.store(p_shift + u_b * BLOCK_X + o_x, tl.where(o_x < CD, b_shift, b_total))  # every slot's program, the same
        b_sum = tl.zeros([BLOCK_I, K], tl.float64)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_x = capsules(p_x + start * CD, i, n, o_x, CD) - b_shift.to(tl.float32)[None, :]
            b_1, b_2 = factors(b_x, p_first, p_second, o_x, o_k, CD)
            b_sum += gates(p_a + start, i, n)[:, None] * (b_1 * b_2)
        tl.store(p_row_0 + unit * K + o_k, tl.sum(b_sum, 0) / J)


@triton.jit(noinline=True)
def feature_sums(
    p_a, p_x, p_offsets, p_first, p_second, p_shift, p_theta, p_log, p_part, n_b, n_inp, n_slots, slot_tiles,
    PACKED: tl.constexpr, J: tl.constexpr, CD: tl.constexpr, K: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Phase: E-step and every slot's sums of features, `D_use' phi`."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    o_i, o_k, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, K), tl.arange(0, BLOCK_JJ), tl.arange(0, BLOCK_E)
    m_jj = o_jj < J
    for unit in range(pid, n_b * n_slots, n_pid):
        u_b, u_q = zero + unit // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        p_own = p_shift + u_b * BLOCK_X
        b_shift = tl.load(p_own + o_x, mask=o_x < CD, other=0.0).to(tl.float32)
        b_scale = tl.load(p_own + CD + 1).to(tl.float32)
        c_high, c_low, c_size = coefficients(p_theta + u_b * J * K, o_jj, o_k, J, K)
        b_log = tl.load(p_log + u_b * J * 2 + o_jj * 2, mask=m_jj, other=0.0)
        b_rest = tl.load(p_log + u_b * J * 2 + o_jj * 2 + 1, mask=m_jj, other=0.0)
        b_S, b_one = tl.zeros([BLOCK_JJ, K], tl.float32), tl.zeros([BLOCK_JJ], tl.float32)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_x = (capsules(p_x + start * CD, i, n, o_x, CD) - b_shift[None, :]) * b_scale
            b_1, b_2 = factors(b_x, p_first, p_second, o_x, o_k, CD)
            b_phi = b_1 * b_2
            b_size, b_inverse = power(tl.max(tl.abs(b_phi), 1))
            b_high, b_low = split(b_phi * b_inverse[:, None])
            b_R = assign(b_high, b_low, b_size, c_high, c_low, c_size, b_log, b_rest, m_jj, J == BLOCK_JJ)
            b_f = gates(p_a + start, i, n)
            b_one += tl.sum(b_R * b_f[:, None], 0)
            b_D = b_R * (b_f * b_size)[:, None]
            d_size, d_inverse = power(tl.max(b_D, 0))  # an output that uses little must be as exact as others
            d_high, d_low = split(tl.trans(b_D * d_inverse[None, :]))
            b_S += dot(d_high, d_low, b_high, b_low) * d_size[:, None]
        # scores weigh what is used against what is not, and so need it to the last digit
        b_S = tl.where((tl.load(p_first + o_k) == CD)[None, :], b_one[:, None], b_S)
        p_slot = p_part + (zero + unit) * J * K
        tl.store(p_slot + o_jj[:, None] * K + o_k[None, :], b_S, mask=m_jj[:, None])


@triton.jit(noinline=True)
def models(
    p_W, p_B, p_use, p_ign, p_first, p_second, p_row_0, p_part, p_scratch, p_shift, p_S, p_theta, p_log,
    p_a_out, p_mu_out, p_sig2_out, n_b, t, n_iters, n_slots, eps, stride_W, stride_use, stride_ign,
    GAUSSIAN: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Phase: the output capsules that an iteration's sums give, and what they mean for the next E-step."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    blocks = tl.cdiv(J, BLOCK_J)
    o_k, o_v = tl.arange(0, K), tl.arange(0, BLOCK_V)
    for unit in range(pid, n_b * blocks, n_pid):
        u_b = zero + unit // blocks
        o_j = unit % blocks * BLOCK_J + tl.arange(0, BLOCK_J)
        m_j, m_jv = o_j < J, (o_j < J)[:, None] & (o_v < C * H)[None, :]
        row = (t * n_b + u_b) * J
        p_row = p_S + row * K
        p_own = p_shift + u_b * BLOCK_X
        if t == 0:
            b_S = total_of(p_row_0, u_b, o_j, o_k, n_slots, 1, J, K)
            # from now on the sample's spread is the unit of its capsules; all blocks of outputs find and write the same
            b_scale = spread_unit(b_S, p_first, p_second, o_k, C * D)
            tl.store(p_own + C * D + 1, b_scale)
        else:
            b_scale = tl.load(p_own + C * D + 1)
            b_S = total_of(p_part, u_b, o_j, o_k, n_slots, J, J, K)
            b_S = b_S / units(p_first, p_second, b_scale, o_k, C * D)[None, :]
        tl.store(p_row + o_j[:, None] * K + o_k[None, :], b_S, mask=m_j[:, None])
        tl.debug_barrier()
        b_total = tl.load(p_own + C * D)
        b_near = vote_of(p_own, p_W, o_j, o_v, stride_W, J, C, D, H, BLOCK_D)
        _, b_m, _, b_sig2, b_B, b_a, _, _ = model_of(
            p_row, p_W, p_B, p_use, p_ign, b_total, b_near, o_j, o_v, eps, stride_W, stride_use, stride_ign,
            J, C, D, H, K, BLOCK_D,
        )  # fmt: skip
        if t == n_iters - 1:
            at_out = (u_b * J + o_j)[:, None] * (C * H) + o_v[None, :]
            tl.store(p_a_out + u_b * J + o_j, b_a.to(tl.float32), mask=m_j)
            tl.store(p_mu_out + at_out, (b_m + b_B).to(tl.float32), mask=m_jv)
            tl.store(p_sig2_out + at_out, b_sig2.to(tl.float32), mask=m_jv)
        else:
            if GAUSSIAN:
                b_p = 0.5 / b_sig2
                b_g = -0.5 * tl.sum(tl.where(m_jv, tl.log(6.283185307179586 * b_sig2), 0.0), 1)
            else:
                b_p = tl.full([BLOCK_J, BLOCK_V], 1.0, tl.float64)
                b_g = tl.zeros([BLOCK_J], tl.float64)
            b_p = tl.where(m_jv, b_p, 0.0)
            p_p = p_scratch + u_b * (2 * J * BLOCK_V)
            at_v = o_j[:, None] * BLOCK_V + o_v[None, :]
            tl.store(p_p + at_v, -b_p, mask=m_j[:, None])
            tl.store(p_p + J * BLOCK_V + at_v, 2 * b_p * b_m, mask=m_j[:, None])
            tl.debug_barrier()
            b_theta = along_features(
                p_p + J * BLOCK_V, p_p, tl.zeros([BLOCK_J], tl.float64), p_W, o_j, o_k, p_first, p_second,
                stride_W, J, C, D, H, BLOCK_H, BLOCK_V,
            )  # fmt: skip
            b_theta = b_theta / units(p_first, p_second, b_scale, o_k, C * D)[None, :]
            b_log = log_sigmoid(b_a) + b_g - tl.sum(b_p * b_m * b_m, 1)
            at_j = row + n_b * J + o_j
            tl.store(p_theta + at_j[:, None] * K + o_k[None, :], b_theta.to(tl.float32), mask=m_j[:, None])
            tl.store(p_log + at_j * 2, b_log.to(tl.float32), mask=m_j)
            tl.store(p_log + at_j * 2 + 1, (b_log - b_log.to(tl.float32)).to(tl.float32), mask=m_j)


@triton.jit
def moments_fwd_kernel(
    p_count, first_phase, last_phase,
    p_a, p_x, p_offsets, p_W, p_B, p_use, p_ign, p_first, p_second,
    p_mean, p_row_0, p_part, p_scratch, p_shift, p_S, p_theta, p_log, p_a_out, p_mu_out, p_sig2_out,
    n_b, n_inp, n_iters, n_slots, slot_tiles, eps, stride_W, stride_use, stride_ign,
    PACKED: tl.constexpr, GAUSSIAN: tl.constexpr,
    J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Phases: sums of capsules; then for every iteration the sums of features, and the models these give."""
    for phase in range(first_phase, last_phase):
        t = (phase - 1) // 2
        if phase == 0:
            capsule_sums(
                p_a, p_x, p_offsets, p_mean, n_b, n_inp, n_slots, slot_tiles, PACKED, C * D, BLOCK_I, BLOCK_X
            )  # fmt: skip
        elif phase == 1:
            first_sums(
                p_a, p_x, p_offsets, p_first, p_second, p_mean, p_row_0, p_shift, n_b, n_inp, n_slots, slot_tiles,
                PACKED, J, C * D, K, BLOCK_I, BLOCK_X,
            )  # fmt: skip
        elif (phase - 1) % 2 == 0:
            at = t * n_b * J  # an iteration's models are few
            feature_sums(
                p_a, p_x, p_offsets, p_first, p_second, p_shift, p_theta + at * K, p_log + at * 2, p_part,
                n_b, n_inp, n_slots, slot_tiles, PACKED, J, C * D, K, BLOCK_I, BLOCK_JJ, BLOCK_X, BLOCK_E,
            )  # fmt: skip
        else:
            models(
                p_W, p_B, p_use, p_ign, p_first, p_second, p_row_0, p_part, p_scratch, p_shift, p_S, p_theta, p_log,
                p_a_out, p_mu_out, p_sig2_out, n_b, t, n_iters, n_slots, eps, stride_W, stride_use, stride_ign,
                GAUSSIAN, J, C, D, H, K, BLOCK_X, BLOCK_V, BLOCK_D, BLOCK_H,
            )  # fmt: skip
        if phase + 1 < last_phase:
            wait_for_all(p_count, phase - first_phase + 1)


class Fixed(NamedTuple):
    """The kernels' constants for one set of sizes."""

    K: int
    X: int
    V: int
    D: int
    H: int
    JJ: int
    E: int


@lru_cache
def fixed(sizes: Sizes) -> Fixed:
    c, d, h = sizes.c, sizes.d, sizes.h
    power = triton.next_power_of_2
    pairs = d * (d + 1) // 2
    k = max(16, power(c * pairs + c * d + 1))
    return Fixed(
        k, max(16, power(c * d + 2)), power(c * h), power(d), power(h), max(16, power(sizes.j)), max(16, power(c * d))
    )


@lru_cache
def features(c: int, d: int, k: int, device: torch.device) -> Tensor:
    """First and second factor of every feature, `[2, k]`."""
    row, col = torch.triu_indices(d, d)
    starts = torch.arange(c).unsqueeze(1) * d
    line = torch.arange(c * d)
    one = torch.full_like(line, c * d)
    pairs = [torch.cat([(starts + row).flatten(), line, one[:1]]), torch.cat([(starts + col).flatten(), one, one[:1]])]
    return torch.nn.functional.pad(torch.stack(pairs), (0, k - len(pairs[0])), value=c * d + 1).int().to(device)


@lru_cache
def cut(n_samples: int, tiles: int, programs: int) -> int:
    """Slots per sample: as many as keep all programs busy for the least time, the fewest of these."""
    slots = range(1, min(tiles, 4 * programs // n_samples + 1) + 1)
    return min(slots, key=lambda n: (-(-n_samples * n // programs)) * (-(-tiles // n) + 1))


def fwd(
    plan: Plan, sizes: Sizes, a_inp: Tensor, x: Tensor, offsets: Tensor | None, W: Tensor, B: Tensor,
    beta_use: Tensor, beta_ign: Tensor,
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """The output capsules, and what the backward pass needs; shapes as in `votes_host.fwd`."""
    tile, n, f = TILES["fwd"], sizes, fixed(sizes)
    tiles = max(1, -(-n.i // tile.block_i))
    slots = cut(n.b, tiles, programs_at_once(x.device, tile.per_core))
    where = features(n.c, n.d, f.K, x.device)
    small = {"dtype": torch.float32, "device": x.device}
    exact = {"dtype": torch.float64, "device": x.device}
    mean, shift = torch.empty(n.b * slots, f.X, **exact), torch.empty(n.b, f.X, **exact)
    row_0 = torch.empty(n.b * slots, f.K, **exact)
    part = torch.empty(n.b * slots, n.j, f.K, **small)
    theta, log = torch.empty(plan.n_iters, n.b, n.j, f.K, **small), torch.empty(plan.n_iters, n.b, n.j, 2, **small)
    S = torch.empty(plan.n_iters, n.b, n.j, f.K, **exact)
    scratch = torch.empty(n.b, 2, n.j, f.V, **exact)
    a, mu, sig2 = torch.empty(n.b, n.j, **small), *torch.empty(2, n.b, n.j, n.c, n.h, **small)
    blocks = -(-n.j // BLOCK_J.value)
    run_phases(
        moments_fwd_kernel, 1 + 2 * plan.n_iters, n.b * max(slots, blocks), x, tile.warps, tile.per_core,
        (plan, n, a_inp.dtype, x.dtype, W.shape, beta_use.shape, beta_ign.shape),
        a_inp, x, x if offsets is None else offsets, W, B, beta_use, beta_ign, where[0], where[1],
        mean, row_0, part, scratch, shift, S, theta, log, a, mu, sig2,
        n.b, n.i, plan.n_iters, slots, -(-tiles // slots), plan.eps,
        *(p.stride(1) if p.shape[1] > 1 else 0 for p in (W, beta_use, beta_ign)),
        n.packed, plan.gaussian, n.j, n.c, n.d, n.h, f.K,
        tile.block_i, f.JJ, f.X, f.V, f.D, f.H, f.E,
    )  # fmt: skip
    return (a, mu, sig2), (shift, S, theta, log)
