"""Sums of products of halves, as tensor cores add them up and cut them off: emulated without a GPU."""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import triton
import triton.language as tl

from capsroute import route
from capsroute.routing.triton import selection
from capsroute.routing.triton.moments_model import store_row_halves
from capsroute.routing.triton.moments_tile import ROUND_STEP, TRUNCATION_BIAS, split_rounded_halves
from capsroute.routing.triton.numerics import dot_halves, split_halves
from capsroute.testing import Shape, make_inputs
from forms import LIMITS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PER_PRODUCT = 16
"""Numbers that a tensor core multiplies and adds at a time."""
BITS, MORE = 24, 2
"""Of a sum that it keeps, and while it adds."""
ROUNDING = torch.finfo(torch.float32).eps


@triton.jit
def one_product(p_a, p_b, p_sum, p_out, N: tl.constexpr, K: tl.constexpr):
    """`a b` and a sum so far."""
    o_n, o_k = tl.arange(0, N), tl.arange(0, K)
    b_a, b_b = tl.load(p_a + o_n[:, None] * K + o_k[None, :]), tl.load(p_b + o_k[:, None] * N + o_n[None, :])
    at = o_n[:, None] * N + o_n[None, :]
    tl.store(p_out + at, tl.dot(b_a, b_b, tl.load(p_sum + at)))


@triton.jit
def sums(p_D, p_phi, p_high, p_out, IN_STEPS: tl.constexpr, N: tl.constexpr, J: tl.constexpr, K: tl.constexpr):
    """`D' phi`."""
    o_i, o_j, o_k = tl.arange(0, N), tl.arange(0, J), tl.arange(0, K)
    b_high, b_low = split_halves(tl.load(p_phi + o_i[:, None] * K + o_k[None, :]))
    b_D = tl.load(p_D + o_i[:, None] * J + o_j[None, :])
    d_high, d_low = split_rounded_halves(b_D) if IN_STEPS else split_halves(b_D)
    b_sum = dot_halves(tl.trans(d_high), tl.trans(d_low), b_high, b_low, tl.zeros([J, K], tl.float32))
    tl.store(p_high + o_i[:, None] * J + o_j[None, :], d_high)
    tl.store(p_out + o_j[:, None] * K + o_k[None, :], b_sum)


@triton.jit
def pairs(p_rows, p_pairs, p_size, J: tl.constexpr, K: tl.constexpr):
    o_j = tl.arange(0, J)
    b_rows = tl.load(p_rows + o_j[:, None] * K + tl.arange(0, K)[None, :])
    store_row_halves(p_pairs, p_size + o_j, b_rows, o_j, J)


def cut(x: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Towards zero, to multiples of powers of two."""
    return np.trunc(x / least) * least


def exponent(x: np.ndarray) -> np.ndarray:
    return np.where(x != 0, np.frexp(x)[1], -500)


def product(a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """As a tensor core does it: all are cut off where the largest ends, by the exponents of what is multiplied."""
    for k in range(0, a.shape[1], PER_PRODUCT):
        left, right = a[:, None, k : k + PER_PRODUCT], b.T[None, :, k : k + PER_PRODUCT]
        largest = np.maximum((exponent(left) + exponent(right) - 1).max(-1), exponent(acc))
        least = np.ldexp(1.0, largest - BITS - MORE)
        acc = cut(left * right, least[..., None]).sum(-1) + cut(acc, least)
        acc = cut(acc, np.ldexp(1.0, exponent(acc) - BITS))
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


@pytest.mark.skipif(DEVICE == "cpu" or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU")
@pytest.mark.parametrize("so_far", [0.0, 10.0])
@pytest.mark.parametrize("k", [16, 64])
def test_tensor_cores_do_what_is_emulated(k: int, so_far: float) -> None:
    rng = torch.Generator().manual_seed(0)
    spread = torch.exp2(torch.randint(-10, 10, (64, k), generator=rng))
    a, b = (torch.randn(64, k, generator=rng) * spread).half(), torch.randn(k, 64, generator=rng).half()
    acc = so_far * torch.randn(64, 64, generator=rng)
    out = torch.empty(64, 64, device=DEVICE)
    one_product[(1,)](a.to(DEVICE), b.to(DEVICE), acc.to(DEVICE), out, 64, k)
    exact = (one.double().numpy() for one in (a, b, acc))
    np.testing.assert_array_equal(out.cpu().double().numpy(), product(*exact))


@pytest.mark.usefixtures("cutting")
def test_sums_of_one_sign_come_out_low_but_in_steps_by_as_much_as_is_added_back() -> None:
    inputs, outputs, features = 64, 64, 64
    rng = torch.Generator().manual_seed(0)
    D = torch.randn(inputs, outputs, generator=rng).exp()
    D *= 1.5 * 2**13 / D.sum(0)
    phi = 8 + torch.randn(inputs, features, generator=rng)
    D, phi = D.to(DEVICE), phi.to(DEVICE)
    exact, low = D.double().T @ phi.double(), {}
    for in_steps in (False, True):
        high, out = torch.empty_like(D, dtype=torch.float16), torch.empty(outputs, features, device=DEVICE)
        sums[(1,)](D, phi, high, out, in_steps, inputs, outputs, features)
        low[in_steps] = 1 - (out.double() * TRUNCATION_BIAS.value / exact).mean().item()
        assert bool((high % ROUND_STEP.value == 0).all()) == in_steps
    assert abs(low[True]) < ROUNDING / 4, low
    assert low[False] > ROUNDING / 2, low


def test_coefficients_make_up_in_the_mean_for_what_sums_of_their_products_will_lose() -> None:
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    found, size = torch.empty(64, 2, 64, dtype=torch.half, device=DEVICE), torch.empty(64, device=DEVICE)
    pairs[(1,)](rows, found, size, 64, 64)
    more = (found.double().sum(1) * size[:, None] / rows - 1).mean().item()
    assert abs(more - (TRUNCATION_BIAS.value - 1)) < ROUNDING / 16, more


@pytest.mark.usefixtures("cutting")
def test_variances_of_outputs_away_from_the_mean_are_not_all_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that come out low make them so, by squares that leave little; by the moment form alone."""
    monkeypatch.setattr(selection, "LIMITS", LIMITS)

    def too_large(seed: int) -> Tensor:
        inputs = {name: t.detach() for name, t in make_inputs(Shape(1, 512, 4, 4, 4, 4), seed, device=DEVICE).items()}
        near, away = inputs["mu_inp"].chunk(2, 1)
        near.mul_(0.3)
        away.add_(3)
        found = route(**inputs, impl="triton")
        exact = route(**{name: t.double() for name, t in inputs.items()}, impl="reference")
        return (found.sig2.double() / exact.sig2).mean() - 1

    assert abs(torch.stack([too_large(seed) for seed in range(7)]).median()) < 3 * ROUNDING
