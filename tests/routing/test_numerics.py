"""No NaN, no infinity, no variance below eps: for any finite float32 input."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from capsroute import Routing, route
from capsroute.testing import Shape, make_inputs, run
from impls import ANYWHERE

SHARED = Shape(2, 50, 6, 2, 4, 3)
FIXED = Shape(2, 50, 6, 2, 4, 3, fixed_inp=True)
KINDS = Shape(2, 50, 6, 2, 4, 3, n_kinds=5)
each_case = pytest.mark.parametrize(
    ("impl", "shape"),
    list(product(ANYWHERE, (SHARED, FIXED, KINDS))),
    ids=lambda x: x if isinstance(x, str) else f"{x.kinds} kinds",
)
SCALES = [1e-4, 1e-2, 1.0, 1e2, 1e4]
OFFSETS = [1.0, 1e2, 1e3]
EXTREMES = [1e-38, 1e8, 1e15, 1e20, 1e30, 3e38]


def inputs_of(shape: Shape) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in make_inputs(shape).items()}


def assert_sound(inputs: dict[str, Tensor], impl: str, **settings: Any) -> dict[str, Tensor]:
    found = run(inputs, impl, **settings)
    for name, t in found.items():
        assert t.isfinite().all(), name
    assert (found["sig2"] >= 1e-5).all()
    return found


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("scale", SCALES)
@each_case
def test_scaled_capsules_give_finite_results(impl: str, shape: Shape, scale: float, agreement: str) -> None:
    inputs = inputs_of(shape)
    inputs["mu_inp"] *= scale
    assert_sound(inputs, impl, n_iters=3, agreement=agreement)
    assert_sound(inputs, impl, n_iters=5, agreement=agreement)


@pytest.mark.parametrize("offset", OFFSETS)
@each_case
def test_tight_distant_capsules_give_finite_results(impl: str, shape: Shape, offset: float) -> None:
    inputs = inputs_of(shape)
    inputs["mu_inp"] = offset + 1e-2 * inputs["mu_inp"]
    assert_sound(inputs, impl, n_iters=3)
    assert_sound(inputs, impl, n_iters=5)


@pytest.mark.parametrize("scale", EXTREMES)
@each_case
def test_extreme_capsules_give_finite_results(impl: str, shape: Shape, scale: float) -> None:
    inputs = inputs_of(shape)
    inputs["mu_inp"] = (inputs["mu_inp"].double() * scale).clamp(-3.4e38, 3.4e38).float()
    assert_sound(inputs, impl)


@pytest.mark.parametrize("scale", [1e2, 1e10, 3e38])
@each_case
def test_extreme_scores_give_finite_results(impl: str, shape: Shape, scale: float) -> None:
    inputs = inputs_of(shape)
    inputs["a_inp"] = (inputs["a_inp"].double() * scale).clamp(-3.4e38, 3.4e38).float()
    assert_sound(inputs, impl)


@pytest.mark.parametrize("n_iters", [3, 5])
@each_case
def test_duplicated_inputs_give_finite_results(impl: str, shape: Shape, n_iters: int) -> None:
    inputs = inputs_of(shape)
    inputs["mu_inp"] = inputs["mu_inp"][:, :1].expand_as(inputs["mu_inp"]).clone()
    assert_sound(inputs, impl, n_iters=n_iters)


@pytest.mark.parametrize("n_iters", [1, 3, 5])
@pytest.mark.parametrize(("n_inp", "n_out"), [(1, 6), (1, 1), (50, 1)])
@each_case
def test_one_input_or_output_gives_finite_results(
    impl: str, shape: Shape, n_inp: int, n_out: int, n_iters: int
) -> None:
    n_kinds = shape.n_kinds if n_inp > 1 else 1
    assert_sound(inputs_of(replace(shape, n_inp=n_inp, n_out=n_out, n_kinds=n_kinds)), impl, n_iters=n_iters)


@each_case
def test_no_inputs(impl: str, shape: Shape) -> None:
    """With parameters of one kind, of none, and of several."""
    found = assert_sound(inputs_of(replace(shape, n_inp=0)), impl)
    assert (found["a"] == 0).all()
    assert (found["mu"] == 0).all()
    assert (found["sig2"] == torch.tensor(1e-5)).all()


@pytest.mark.parametrize("impl", ANYWHERE)
def test_no_samples(impl: str) -> None:
    found = assert_sound(inputs_of(Shape(0, 9, 6, 2, 4, 3)), impl)
    assert found["a"].shape == (0, 6)
    assert found["mu"].shape == found["sig2"].shape == (0, 6, 2, 3)


@each_case
def test_all_masked(impl: str, shape: Shape) -> None:
    layer = Routing(2, 4, 3, n_out=6, n_kinds=shape.kinds, impl=impl)
    mu_inp = torch.randn(2, 50, 2, 4, requires_grad=True)
    out = layer(torch.zeros(2, 50), mu_inp, mask=torch.zeros(2, 50, dtype=torch.bool))
    assert (out.a == 0).all()
    assert (out.mu == 0).all()
    assert (out.sig2 == torch.tensor(1e-5)).all()
    torch.cat([t.flatten() for t in out]).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in (*layer.parameters(), mu_inp))


@pytest.mark.parametrize("impl", ANYWHERE)
def test_masked_values_do_not_matter(impl: str) -> None:
    layer = Routing(2, 4, 3, n_out=6, impl=impl)
    a_inp, mu_inp, mask = torch.randn(2, 9), torch.randn(2, 9, 2, 4), torch.rand(2, 9) > 0.4
    plain = layer(a_inp, mu_inp, mask=mask)
    mu_inp[~mask], a_inp[~mask] = torch.nan, torch.nan
    hidden = layer(a_inp, mu_inp, mask=mask)
    assert all(torch.equal(one, two) for one, two in zip(plain, hidden, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@each_case
def test_autocast_changes_nothing(impl: str, shape: Shape, dtype: torch.dtype) -> None:
    inputs = {name: t.requires_grad_() for name, t in inputs_of(shape).items()}
    plain = route(**inputs, impl=impl)
    with torch.autocast("cpu", dtype):
        cast = route(**inputs, impl=impl)
    assert all(torch.equal(one, two) for one, two in zip(plain, cast, strict=True))
    one, two = (torch.autograd.grad(out.mu.sum(), inputs["W"]) for out in (plain, cast))
    assert torch.equal(*one, *two)


@pytest.mark.parametrize("impl", ANYWHERE)
def test_half_precision_saturates(impl: str) -> None:
    inputs = inputs_of(SHARED)
    inputs["mu_inp"] *= 1e4
    found = run(inputs, impl, dtype=torch.float16)
    assert found["sig2"].dtype == torch.float16
    assert all(found[name].isfinite().all() for name in ("a", "mu", "sig2"))
