"""Implementations that run on any machine; `tests/kernels` and `tests/gpu` have the others."""

from capsroute.routing import IMPLS

ANYWHERE = [impl for impl in IMPLS if impl != "triton"]
