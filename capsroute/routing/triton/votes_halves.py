"""Matrix products of votes, by pairs of half precision, which tensor cores multiply.

A row is divided by a power of two, so that its largest number lies between 2^14 and 2^15, and each number is split into
a high and a low part of 11 bits. So large, low parts are seldom subnormal, and all products add up in one place.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from .numerics import max_nan, min_nan

LARGEST_X = tl.constexpr(float.fromhex("0x1.fffffep127") ** 0.25)
"""Capsules are bounded by it, so that no square of a vote overflows."""
SMALL = tl.constexpr(2.0**-112)
"""Of smaller numbers the units would be subnormal."""
ROWS = tl.constexpr(64)
"""That a program prepares at a time."""


@triton.jit
def sigmoid(b_a):
    """In float64, which overflows beyond 700."""
    return 1.0 / (1.0 + tl.exp(-max_nan(b_a.to(tl.float64), -700.0)))


@triton.jit
def bounded(b_x):
    return min_nan(max_nan(b_x.to(tl.float32), -LARGEST_X), LARGEST_X)


@triton.jit
def units(b_max):
    """The powers of two to count in numbers up to these, and their inverses."""
    bits = tl.maximum(b_max, SMALL).to(tl.int32, bitcast=True) & 0x7F800000
    bits -= 14 << 23
    return bits.to(tl.float32, bitcast=True), (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def in_halves(b):
    """Numbers below 2^15 as pairs of half precision."""
    b_high = b.to(tl.float16)
    return b_high, (b - b_high.to(tl.float32)).to(tl.float16)


@triton.jit
def multiply(b_x, b_x_rest, b_y, b_y_rest, b_sum):
    """Adds a product of pairs, the small parts first; low times low, 2^-22 of the rest, is left out."""
    b_sum = tl.dot(b_x_rest, b_y, b_sum)
    b_sum = tl.dot(b_x, b_y_rest, b_sum)
    return tl.dot(b_x, b_y, b_sum)


@triton.jit
def load_pair(p_pair, row, m_row, k, PAD: tl.constexpr, BLOCK_D: tl.constexpr):
    """A step of some rows `[..., 2, PAD]`, high parts and low ones."""
    p = p_pair + row.to(tl.int64)[:, None] * (2 * PAD) + (k + tl.arange(0, BLOCK_D))[None, :]
    return tl.load(p, mask=m_row[:, None], other=0.0), tl.load(p + PAD, mask=m_row[:, None], other=0.0)


@triton.jit
def load_row(p_x, m_row, k, BOUND: tl.constexpr, STRIDE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A step of some rows, from pointers `[R]` to their first numbers, each `STRIDE` from the next."""
    o_d = k + tl.arange(0, BLOCK_D)
    b_x = tl.load(p_x[:, None] + o_d[None, :] * STRIDE, mask=m_row[:, None] & (o_d < D)[None, :], other=0.0)
    return bounded(b_x) if BOUND else b_x


@triton.jit
def store_pair(p_pair, row, m_row, k, b_x, PAD: tl.constexpr, BLOCK_D: tl.constexpr):
    b_high, b_low = in_halves(b_x)
    p = p_pair + row.to(tl.int64)[:, None] * (2 * PAD) + (k + tl.arange(0, BLOCK_D))[None, :]
    tl.store(p, b_high, mask=m_row[:, None])
    tl.store(p + PAD, b_low, mask=m_row[:, None])


@triton.jit
def prepare_rows(p_pair, p_unit, p_x, row, m_row, BOUND: tl.constexpr, STRIDE: tl.constexpr, T: tl.constexpr):
    """Some rows as pairs, and the units they are counted in."""
    b_x = load_row(p_x, m_row, 0, BOUND, STRIDE, T.D, T.BLOCK_D)
    b_max = tl.max(tl.abs(b_x), 1)
    for k in range(T.BLOCK_D, T.D, T.BLOCK_D):
        b_max = tl.maximum(b_max, tl.max(tl.abs(load_row(p_x, m_row, k, BOUND, STRIDE, T.D, T.BLOCK_D)), 1))
    b_unit, b_inverse = units(b_max)
    store_pair(p_pair, row, m_row, 0, b_x * b_inverse[:, None], T.PAD_D, T.BLOCK_D)
    for k in range(T.BLOCK_D, T.D, T.BLOCK_D):
        b_x = load_row(p_x, m_row, k, BOUND, STRIDE, T.D, T.BLOCK_D)
        store_pair(p_pair, row, m_row, k, b_x * b_inverse[:, None], T.PAD_D, T.BLOCK_D)
    tl.store(p_unit + row, b_unit, mask=m_row)


@triton.jit
def prepare(inp, layer, pid, n_pids, T: tl.constexpr):
    """What all passes read instead of capsules, scores and weights."""
    o_r = tl.arange(0, ROWS)
    n_rows = tl.cast(inp.n, tl.int64) * T.C
    for unit in range(pid, tl.cdiv(n_rows, ROWS), n_pids):
        row = o_r + tl.cast(unit, tl.int64) * ROWS
        prepare_rows(inp.pair, inp.unit, inp.x + row * T.D, row, row < n_rows, True, 1, T)
    n_out = inp.j if T.W_J else 1
    for unit in range(pid, tl.cdiv(n_out, ROWS) * T.H, n_pids):
        o_j, h = o_r + unit // T.H * ROWS, unit % T.H
        p_W = layer.W + o_j.to(tl.int64) * (T.D * T.H) + h
        row = o_j + tl.cast(h, tl.int64) * n_out
        prepare_rows(layer.pair, layer.unit, p_W, row, o_j < n_out, False, T.H, T)
    for unit in range(pid, tl.cdiv(inp.n, 128), n_pids):
        o_n = tl.cast(unit, tl.int64) * 128 + tl.arange(0, 128)
        b_a = tl.load(inp.a + o_n, mask=o_n < inp.n, other=0.0)
        tl.store(inp.f + o_n, sigmoid(b_a).to(tl.float32), mask=o_n < inp.n)
