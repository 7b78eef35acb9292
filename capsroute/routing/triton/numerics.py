"""Bounds that what is not a number passes, for it has to be seen; and products that sums find rounded."""

import triton
import triton.language as tl


@triton.jit
def at_least(b, low):
    return tl.maximum(b, low, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def rounded(x, y):
    """Their product, to be summed over threads.

    Else a thread may add its own, not yet rounded, to its neighbour's, which is, and the neighbour the other way round:
    both then have sums of their own, which differ in the last digit.
    """
    x, y = tl.broadcast(x, y)
    return tl.fma(x, y, tl.zeros_like(x))


@triton.jit
def at_most(b, high):
    return tl.minimum(b, high, propagate_nan=tl.PropagateNan.ALL)
