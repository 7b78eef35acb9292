"""Every implementation against the float64 reference: outputs and all gradients, by name."""

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch

from capsroute.routing import Capsules, moments, pick
from capsroute.routing.reference import route as route_reference
from capsroute.testing import (  # fmt: skip
    SHAPES,
    Shape,
    Target,
    distance,
    draw_samples,
    make_inputs,
    make_targets,
    over_budget,
    random_orders,
    run,
    targets_over_budget,
)
from impls import ANYWHERE

FAST = [impl for impl in ANYWHERE if impl != "reference"]
N_SAMPLES, FEW_VOTES = 12, 1_000
"""Samples that show a mean error, but of shapes with few votes."""
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ODD = {
    f"{'fixed' if fixed_inp else 'any'} inputs, {'fixed' if fixed_out else 'any'} outputs": Shape(
        3, 63, 13, 3, 5, 2, fixed_inp, fixed_out
    )
    for fixed_inp, fixed_out in product((True, False), repeat=2)
}
ODD |= {
    "kinds of inputs": Shape(3, 63, 13, 3, 5, 2, n_kinds=7),
    "one input": Shape(2, 1, 5, 2, 3, 4),
    "one output": Shape(2, 17, 1, 2, 3, 4),
    "one of everything": Shape(1, 1, 1, 1, 1, 1, fixed_inp=True),
    "no batch": Shape(1, 31, 7, 4, 4, 4),
}
ITERATIONS = [
    (1, "gaussian", torch.float32),
    (2, "kmeans", torch.float32),
    (5, "gaussian", torch.float32),
    (3, "kmeans", torch.float64),
    (3, "gaussian", torch.float64),
    (3, "gaussian", torch.bfloat16),
    (3, "kmeans", torch.float16),
]
"""Every dtype and number of iterations; named shapes take each dtype with each agreement."""


def reduced(impl: str, name: str, dtype: torch.dtype, agreement: str) -> Shape:
    """Return a named shape with fewer samples and inputs, and all its outputs at least once."""
    shape = SHAPES[name]
    if impl == "moments" and moments.n_features(shape.case()) > 1_000:
        return replace(shape, batch=1, n_inp=min(shape.n_inp, 100), n_out=min(shape.n_out, 100))
    n_out = shape.n_out if (dtype, agreement) == (torch.float32, "gaussian") else min(shape.n_out, 5_000)
    return replace(shape, n_out=n_out).at_most(2**18 if name == "wide_out" else 2**17)


@lru_cache(maxsize=1)
def compute_targets(shape: Shape, dtype: torch.dtype, agreement: str, n_iters: int) -> list[Target]:
    """Make targets of a shape, kept for the next implementation."""
    samples = draw_samples(shape)
    samples = samples[:N_SAMPLES] if shape.votes > FEW_VOTES else samples
    return make_targets(samples, dtype, agreement=agreement, n_iters=n_iters)


def assert_within_budget(impl: str, shape: Shape, dtype: torch.dtype, agreement: str, n_iters: int = 3) -> None:
    targets = compute_targets(shape, dtype, agreement, n_iters)
    assert targets_over_budget(targets, impl, dtype, agreement=agreement, n_iters=n_iters) == {}


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes_stay_within_budget(name: str, agreement: str, dtype: torch.dtype, impl: str) -> None:
    assert_within_budget(impl, reduced(impl, name, dtype, agreement), dtype, agreement)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(("n_iters", "agreement", "dtype"), ITERATIONS, ids=str)
@pytest.mark.parametrize("name", ODD)
def test_odd_shapes_and_iterations_stay_within_budget(
    name: str, n_iters: int, agreement: str, dtype: torch.dtype, impl: str
) -> None:
    assert_within_budget(impl, ODD[name], dtype, agreement, n_iters)


@pytest.mark.parametrize("impl", FAST)
def test_any_number_of_batch_axes(impl: str) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(Shape(12, 31, 7, 4, 4, 4)).items()}
    whole = run(inputs, impl)
    many = run(inputs | {k: inputs[k].unflatten(0, (2, 1, 6)) for k in ("a_inp", "mu_inp")}, impl)
    for name in ("a", "mu", "sig2", "da_inp", "dmu_inp"):
        torch.testing.assert_close(many[name].flatten(0, 2), whole[name], rtol=0, atol=0)
    single = run(inputs | {k: inputs[k][0] for k in ("a_inp", "mu_inp")}, impl)
    assert single["a"].shape == (7,)
    assert single["dmu_inp"].shape == (31, 4, 4)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-13)], ids=str)
def test_budget_detects_errors_in_the_last_digits(dtype: torch.dtype, error: float) -> None:
    def wrong(*args: Any) -> Capsules:
        out = route_reference(*args)
        return out._replace(mu=out.mu * (1 + error))

    assert "mu" in over_budget(draw_samples(Shape(2, 31, 7, 4, 4, 4)), wrong, dtype)
    assert over_budget(draw_samples(Shape(2, 31, 7, 4, 4, 4)), "reference", dtype) == {}


def test_budget_detects_nan_and_nonzero_in_one_sample() -> None:
    def wrong(*args: Any) -> Capsules:
        out = route_reference(*args)
        return out._replace(a=out.a + 1e-30, mu=out.mu * (torch.nan if calls.pop() else 1))

    calls, drawn = [False] * 11 + [True], draw_samples(Shape(1, 1, 1, 1, 1, 1))[:12]
    for inputs in drawn:
        inputs["beta_use"], inputs["beta_ign"] = torch.zeros(1, 1), torch.zeros(1, 1)
    assert {"a", "mu"} <= set(over_budget(drawn, wrong))


@pytest.mark.parametrize("name", ODD)
def test_order_of_axes_changes_only_rounding(name: str) -> None:
    inputs = make_inputs(ODD[name], dtype=torch.float64)
    one, (order,) = run(inputs, "reference"), random_orders(inputs, 1)
    for key, t in run(inputs, "reference", order=order).items():
        torch.testing.assert_close(t, one[key], rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize(
    ("impl", "dtype"),
    [*product(FAST, [torch.float32]), ("blocked", torch.float64), ("auto", torch.float64)],
    ids=str,
)
def test_tight_distant_clusters_stay_within_budget(impl: str, dtype: torch.dtype) -> None:
    """Expanded squares cancel worst here: groups a hundred apart, each spread over a hundredth.

    In float64 `moments` is over budget here, and `auto` picks another even where it is the fastest.
    """
    shape = Shape(2, 60, 5, 2, 4, 3)
    assert pick(replace(shape.case(), n_inp=10_000)) == "moments"
    assert pick(replace(shape.case(), n_inp=10_000, dtype=torch.float64)) != "moments"
    clustered = draw_samples(shape)
    for inputs in clustered:
        centres = 100 * torch.randn(3, 2, 4).repeat_interleave(20, 0)
        inputs["mu_inp"] = centres + 0.01 * inputs["mu_inp"].detach()
    assert over_budget(clustered, impl, dtype) == {}
    assert impl != "auto" or over_budget(clustered, "moments", dtype)


@pytest.mark.parametrize("impl", FAST)
def test_mixed_dtypes_return_the_widest(impl: str) -> None:
    inputs = make_inputs(Shape(2, 31, 7, 4, 4, 4))
    inputs = {name: t.detach().bfloat16() if name == "mu_inp" else t.detach() for name, t in inputs.items()}
    found, expected = run(inputs, impl), run(inputs, "reference")
    assert found["mu"].dtype == torch.float32
    assert found["dmu_inp"].dtype == torch.bfloat16
    assert distance(found["mu"], expected["mu"]) < 1e-5
