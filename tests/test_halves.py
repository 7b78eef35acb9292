"""Sums of products of halves, where a tensor core cuts off what is too small beside a sum: emulated without a GPU."""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from capsroute.routing import triton as kernels
from capsroute.routing.triton.moments_tile import STEP, dot, split, split_in_steps
from capsroute.routing.triton.sizes import NEVER
from capsroute.testing import Shape, make_inputs, over_budget

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PER_PRODUCT = 16
"""Numbers that a tensor core multiplies and adds at a time."""
BITS = 24
"""Of a sum that it keeps: with so many, errors of the moment form come out as they do on an H200."""


@triton.jit
def sums(p_D, p_phi, p_high, p_out, IN_STEPS: tl.constexpr, N: tl.constexpr, J: tl.constexpr, K: tl.constexpr):
    """`D' phi`."""
    o_i, o_j, o_k = tl.arange(0, N), tl.arange(0, J), tl.arange(0, K)
    b_high, b_low = split(tl.load(p_phi + o_i[:, None] * K + o_k[None, :]))
    b_D = tl.load(p_D + o_i[:, None] * J + o_j[None, :])
    d_high, d_low = split_in_steps(b_D) if IN_STEPS else split(b_D)
    b_sum = dot(tl.trans(d_high), tl.trans(d_low), b_high, b_low, tl.zeros([J, K], tl.float32))
    tl.store(p_high + o_i[:, None] * J + o_j[None, :], d_high)
    tl.store(p_out + o_j[:, None] * K + o_k[None, :], b_sum)


def cut(x: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Towards zero, to multiples of powers of two."""
    return np.trunc(x / least) * least


def last_bit(x: np.ndarray) -> np.ndarray:
    """Of numbers with so many of them."""
    return np.ldexp(1.0, np.frexp(x)[1] - BITS)


def product(a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """As a tensor core does it: every product, and the sum so far, is cut off where the largest of them ends."""
    for k in range(0, a.shape[1], PER_PRODUCT):
        some = a[:, None, k : k + PER_PRODUCT] * b.T[None, :, k : k + PER_PRODUCT]
        least = last_bit(np.maximum(np.abs(some).max(-1), np.abs(acc)))
        acc = cut(some, least[..., None]).sum(-1) + cut(acc, least)
        acc = cut(acc, last_bit(acc))
    return acc


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cuda":
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        found = product(*(one.data.astype(np.float64) for one in (a, b, d)))
        return TensorHandle(found.astype(np.float32), d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.usefixtures("cutting")
def test_sums_of_one_sign_come_out_low_but_in_steps() -> None:
    inputs, outputs, features = 64, 64, 64
    rng = torch.Generator().manual_seed(0)
    D = (0.5 + torch.rand(inputs, outputs, generator=rng)) * 2**13 / 40  # in sum from 2^13 to 2^14
    phi = 8 + torch.randn(inputs, features, generator=rng)
    D, phi = D.to(DEVICE), phi.to(DEVICE)
    exact, low = D.double().T @ phi.double(), {}
    for in_steps in (False, True):
        high, out = torch.empty_like(D, dtype=torch.float16), torch.empty(outputs, features, device=DEVICE)
        sums[(1,)](D, phi, high, out, in_steps, inputs, outputs, features)
        low[in_steps] = 1 - (out / exact).mean().item()
        assert bool((high % STEP.value == 0).all()) == in_steps
    rounding = torch.finfo(torch.float32).eps
    assert abs(low[True]) < rounding, low
    assert low[False] > (1 if DEVICE == "cuda" else 4) * rounding, low


@pytest.mark.skipif(DEVICE == "cuda", reason="benchmarks/structure.py measures it there")
@pytest.mark.usefixtures("cutting")
def test_what_is_cut_off_leaves_variances_within_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of outputs away from the mean of all inputs; the moment form's sums by plain halves are at three times that."""
    monkeypatch.setattr(kernels, "ENOUGH", kernels.Enough(0, 2, 1, hard=NEVER))
    drawn = []
    for seed in range(4):
        inputs = {name: t.detach() for name, t in make_inputs(Shape(1, 512, 4, 4, 4, 4), seed).items()}
        near, away = inputs["mu_inp"].chunk(2, 1)
        near.mul_(0.3)
        away.add_(3)
        drawn.append(inputs)
    wrong = over_budget(drawn, "triton")
    assert not {"mu", "sig2"} & set(wrong), wrong
