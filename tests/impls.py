"""Implementations that tests run on any machine; `test_triton*.py` and `test_cuda.py` have the others."""

from capsroute.routing import IMPLS

ANYWHERE = [impl for impl in IMPLS if impl != "triton"]
