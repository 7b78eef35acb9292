"""No NaN, no infinity, no variance below eps: for any finite input."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Any

import pytest
import torch
from torch import Tensor

from capsroute import Routing, route
from capsroute.testing import Shape, make_inputs, over_budget, run
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


def inputs_of(shape: Shape, seed: int = 0) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in make_inputs(shape, seed).items()}


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


def with_extremes(dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Yield arguments of which all numbers of one, a slice or a single number are very small or large."""
    largest = torch.finfo(dtype).max
    for k, (shape, name, scale) in enumerate(
        product((SHARED, FIXED, KINDS), make_inputs(SHARED), [1e-38, 1e5, 3e7, 4e9, 1e20, 3e38, largest])
    ):
        inputs = {key: t.detach() for key, t in make_inputs(shape, k, torch.float64).items()}
        t = inputs[name]
        for place in (..., -1, (-1,) * t.ndim):
            changed = t.clone()
            changed[place] = t * scale if place is ... else scale
            yield {key: one.clamp(-largest, largest).to(dtype) for key, one in (inputs | {name: changed}).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("impl", ANYWHERE)
def test_extremes_anywhere_give_finite_results(impl: str, dtype: torch.dtype) -> None:
    for k, inputs in enumerate(islice(with_extremes(dtype), 0, None, 2)):
        assert_sound(inputs, impl, n_iters=(1, 3, 5)[k % 3], agreement=("gaussian", "kmeans")[k % 2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("impl", ANYWHERE)
def test_extremes_in_half_precision(impl: str, dtype: torch.dtype) -> None:
    """A gradient too large for float16 is infinite, as everywhere in PyTorch: loss scalers look for that."""
    for inputs in islice(with_extremes(dtype), 0, None, 5):
        for name, t in run(inputs, impl).items():
            assert not t.isnan().any(), name
            assert t.isfinite().all() or (dtype == torch.float16 and name.startswith("d")), name


@pytest.mark.parametrize("outlier", [3e7, 4e9, 1e20])
@pytest.mark.parametrize("impl", ANYWHERE)
def test_one_large_capsule_gives_finite_gradients(impl: str, outlier: float) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        layer, mu_inp = Routing(4, 4, 4, n_inp=64, n_out=5, impl=impl), torch.randn(64, 4, 4)
        mu_inp[7] = outlier
        out = layer(torch.randn(64), mu_inp)
        torch.cat([t.flatten() for t in out]).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(("n_iters", "scale"), [(5, 1e4), (8, 1e3), (12, 1e6)])
@pytest.mark.parametrize("impl", ANYWHERE)
def test_ties_of_large_votes_give_finite_gradients(impl: str, n_iters: int, scale: float) -> None:
    """Where outputs are alike, each iteration multiplies gradients by the square of a vote."""
    for shape, dtype in product((SHARED, FIXED), (torch.float32, torch.float64)):
        inputs = inputs_of(replace(shape, fixed_out=False))
        inputs["mu_inp"], inputs["B"] = inputs["mu_inp"] * scale, torch.zeros_like(inputs["B"])
        assert_sound(inputs, impl, n_iters=n_iters, agreement="kmeans", dtype=dtype)


@pytest.mark.parametrize("impl", [impl for impl in ANYWHERE if impl != "reference"])
def test_outputs_far_from_all_others_stay_within_budget(impl: str) -> None:
    """What an output gets of votes it never sees has to be zero, not merely small: gradients square their distance."""
    samples = [inputs_of(SHARED, seed) for seed in range(12)]
    for inputs in samples:
        inputs["B"][-1, -1] = 1e5
    assert over_budget(samples, impl, n_iters=5) == {}


@pytest.mark.parametrize("name", ["mu_inp", "W", "B", "beta_use", "beta_ign"])
@pytest.mark.parametrize("impl", ANYWHERE)
def test_infinities_saturate_and_nan_is_seen(impl: str, name: str) -> None:
    inputs = inputs_of(SHARED)
    place = (-1,) * inputs[name].ndim
    inputs[name][place] = torch.finfo(torch.float32).max
    largest = run(inputs, impl)
    inputs[name][place] = torch.inf
    assert all(torch.equal(t, largest[key]) for key, t in assert_sound(inputs, impl).items())
    inputs[name][place] = torch.nan
    found = run(inputs, impl)
    assert found["a"][-1].isnan().all()
    assert name != "mu_inp" or found["a"][0].isfinite().all()
