"""Bounds that what is not a number passes, for it has to be seen."""

import triton
import triton.language as tl


@triton.jit
def at_least(b, low):
    return tl.maximum(b, low, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def at_most(b, high):
    return tl.minimum(b, high, propagate_nan=tl.PropagateNan.ALL)
