"""Arithmetic that the forms share."""

import triton
import triton.language as tl

LOG_PI = tl.constexpr(1.1447298858494002)
MAX_DISTANCE = tl.constexpr(1e38)
"""Of squared distances: sums and differences of two, and of one and the least logit, do not overflow."""
MAX_CAPSULE = tl.constexpr(3.4028234663852886e38 ** (1 / 4))
"""Bound of input capsules, so that no square of a vote overflows."""


@triton.jit
def max_nan(b, low):
    """Return the larger of both, or NaN where one is NaN."""
    return tl.maximum(b, low, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def min_nan(b, high):
    """Return the smaller of both, or NaN where one is NaN."""
    return tl.minimum(b, high, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def clamp_capsules(b_x):
    """Clamp input capsules to `MAX_CAPSULE`, in float32."""
    return min_nan(max_nan(b_x.to(tl.float32), -MAX_CAPSULE), MAX_CAPSULE)


@triton.jit
def mul_without_fma(x, y):
    """Multiply what is to be summed over threads, rounded before the sum.

    With an FMA each of two threads would add its unrounded product to the other's rounded one, and their sums differ.
    """
    x, y = tl.broadcast(x, y)
    return tl.fma(x, y, tl.zeros_like(x))


@triton.jit
def log_sigmoid(x):
    return min_nan(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def split_halves(b):
    """Split float32 numbers into float16 high and low halves, whose sum has 22 bits."""
    b_hi = b.to(tl.float16)
    return b_hi, (b - b_hi.to(tl.float32)).to(tl.float16)


@triton.jit
def dot_halves(b_hi, b_lo, c_hi, c_lo, b_acc):
    """Add a matrix product of split numbers to an accumulator, small terms first; lo x lo, 2^-22 of it, is dropped."""
    b_acc = tl.dot(b_lo, c_hi, b_acc)
    b_acc = tl.dot(b_hi, c_lo, b_acc)
    return tl.dot(b_hi, c_hi, b_acc)


@triton.jit
def sample_range(p_offsets, pid_b, n_inp, PACKED: tl.constexpr):
    """Return where the inputs of a sample start, and how many it has."""
    if PACKED:
        start = tl.load(p_offsets + pid_b)
        return start, (tl.load(p_offsets + pid_b + 1) - start).to(tl.int32)
    else:
        return tl.cast(pid_b, tl.int64) * n_inp, tl.cast(n_inp, tl.int32)


@triton.jit
def sum_slots(p_x, n_slots, stride, o_x, m_x, BLOCK_S: tl.constexpr):
    """Sum the numbers at offsets `o_x` over slots, in order and in float64."""
    SIZE: tl.constexpr = o_x.numel
    b_sum = tl.zeros([SIZE], tl.float64)
    o_flat, m_flat = tl.reshape(o_x, [SIZE]), tl.reshape(m_x, [SIZE])
    for s in range(0, n_slots, BLOCK_S):
        o_s = s + tl.arange(0, BLOCK_S)
        o_slot = o_s.to(tl.int64)[:, None] * stride + o_flat[None, :]
        b_s = tl.load(p_x + o_slot, mask=(o_s < n_slots)[:, None] & m_flat[None, :], other=0.0)
        b_sum += tl.sum(b_s.to(tl.float64), 0)
    return tl.reshape(b_sum, o_x.shape)
