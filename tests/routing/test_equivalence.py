"""Every implementation against the float64 reference: outputs and all gradients, by name."""

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch

from capsroute.routing import IMPLS
from capsroute.routing.api import pick
from capsroute.routing.blocked import route as route_blocked
from capsroute.testing import (  # fmt: skip
    SHAPES,
    Judged,
    Shape,
    distance,
    judged,
    make_inputs,
    orders,
    over,
    over_budget,
    run,
    samples,
)
from impls import ANYWHERE

FAST = [impl for impl in ANYWHERE if impl != "reference"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ODD = {
    f"{'fixed' if fixed_inp else 'any'} inputs, {'fixed' if fixed_out else 'any'} outputs": Shape(
        3, 63, 13, 3, 5, 2, fixed_inp, fixed_out
    )
    for fixed_inp, fixed_out in product((True, False), repeat=2)
}
ODD |= {
    "one input": Shape(2, 1, 5, 2, 3, 4),
    "one output": Shape(2, 17, 1, 2, 3, 4),
    "one of everything": Shape(1, 1, 1, 1, 1, 1, fixed_inp=True),
    "no batch": Shape(1, 31, 7, 4, 4, 4),
}


def can_run(impl: str, shape: Shape, agreement: str) -> bool:
    return not IMPLS[impl].reasons_against(shape.case(agreement))


def reduced(impl: str, name: str, dtype: torch.dtype) -> Shape:
    """A named shape with fewer samples and inputs, fewer outputs except in float32, few where moments fill memory."""
    shape = SHAPES[name]
    if impl == "moments" and pick(shape.case()) != "moments":
        return replace(shape, batch=1, n_inp=min(shape.n_inp, 100), n_out=min(shape.n_out, 200))
    n_out = shape.n_out if dtype == torch.float32 else min(shape.n_out, 5_000)
    return replace(shape, n_out=n_out).at_most(2**19)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize(("impl", "name"), list(product(FAST, SHAPES)))
def test_named_shapes(impl: str, name: str, agreement: str, dtype: torch.dtype) -> None:
    shape = reduced(impl, name, dtype)
    if not can_run(impl, shape, agreement):
        pytest.skip("; ".join(IMPLS[impl].reasons_against(shape.case(agreement))))
    assert over_budget(samples(shape), impl, dtype, agreement=agreement) == {}


@lru_cache(maxsize=1)
def odd(name: str, dtype: torch.dtype, **settings: Any) -> list[Judged]:
    """Samples of an odd shape, kept for the next test."""
    return judged(samples(ODD[name]), dtype, **settings)


@pytest.mark.parametrize(("name", "impl"), [(n, i) for n, i in product(ODD, FAST) if can_run(i, ODD[n], "gaussian")])
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize(
    ("n_iters", "dtype"), [*((n, torch.float32) for n in (1, 2, 5)), *((3, dtype) for dtype in DTYPES)], ids=str
)
def test_odd_shapes_and_iterations(name: str, impl: str, agreement: str, n_iters: int, dtype: torch.dtype) -> None:
    settings = {"agreement": agreement, "n_iters": n_iters}
    assert over(odd(name, dtype, **settings), impl, dtype, **settings) == {}


@pytest.mark.parametrize("impl", FAST)
def test_without_batch_axes_and_with_many(impl: str) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(Shape(12, 31, 7, 4, 4, 4)).items()}
    whole = run(inputs, impl)
    many = run(inputs | {k: inputs[k].unflatten(0, (2, 1, 6)) for k in ("a_inp", "mu_inp")}, impl)
    for name in ("a", "mu", "sig2", "da_inp", "dmu_inp"):
        torch.testing.assert_close(many[name].flatten(0, 2), whole[name], rtol=0, atol=0)
    single = run(inputs | {k: inputs[k][0] for k in ("a_inp", "mu_inp")}, impl)
    assert single["a"].shape == (7,)
    assert single["dmu_inp"].shape == (31, 4, 4)


@pytest.mark.parametrize("block_votes", [200, 1000, 6000])
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("name", [name for name in ODD if "puts" in name])
def test_blocked_gives_the_same_however_it_is_cut(name: str, agreement: str, block_votes: int, monkeypatch) -> None:
    """From pairs of inputs, one left over, to several samples at once; in float64, for blocks are never so small."""
    monkeypatch.setattr(
        "capsroute.routing.api.IMPLS",
        IMPLS | {"blocked": IMPLS["blocked"]._replace(route=lambda *a: route_blocked(*a, block_votes=block_votes))},
    )
    assert over(odd(name, torch.float64, agreement=agreement), "blocked", torch.float64, agreement=agreement) == {}


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-13)], ids=str)
def test_the_budget_catches_an_error_in_the_last_digits(dtype: torch.dtype, error: float, monkeypatch) -> None:
    def wrong(*args: object):
        out = IMPLS["reference"].route(*args)
        return out._replace(mu=out.mu * (1 + error * (out.mu.dtype == dtype)))

    monkeypatch.setattr("capsroute.routing.api.IMPLS", IMPLS | {"wrong": IMPLS["reference"]._replace(route=wrong)})
    assert "mu" in over_budget(samples(Shape(2, 31, 7, 4, 4, 4)), "wrong", dtype)
    assert over_budget(samples(Shape(2, 31, 7, 4, 4, 4)), "reference", dtype) == {}


def test_a_result_that_is_not_a_number_is_out_of_budget(monkeypatch) -> None:
    """And one where nothing but zero may be, in a single sample too."""

    def wrong(*args: object):
        out = IMPLS["reference"].route(*args)
        return out._replace(a=out.a + 1e-30, mu=out.mu * (torch.nan if calls.pop() else 1))

    calls, drawn = [False] * 11 + [True], samples(Shape(1, 1, 1, 1, 1, 1))[:12]
    for inputs in drawn:
        inputs["beta_use"], inputs["beta_ign"] = torch.zeros(1, 1), torch.zeros(1, 1)
    monkeypatch.setattr("capsroute.routing.api.IMPLS", IMPLS | {"wrong": IMPLS["reference"]._replace(route=wrong)})
    assert {"a", "mu"} <= set(over_budget(drawn, "wrong"))


@pytest.mark.parametrize("name", ODD)
def test_another_order_changes_nothing_but_roundings(name: str) -> None:
    inputs = make_inputs(ODD[name], dtype=torch.float64)
    one, (order,) = run(inputs, "reference"), orders(inputs, 1)
    for key, t in run(inputs, "reference", order=order).items():
        torch.testing.assert_close(t, one[key], rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize("impl", FAST)
def test_tight_clusters_far_apart(impl: str) -> None:
    """Where expanded squares cancel worst: groups a hundred apart, each spread over a hundredth."""
    clustered = samples(Shape(2, 60, 5, 2, 4, 3))
    for inputs in clustered:
        centres = 100 * torch.randn(3, 2, 4).repeat_interleave(20, 0)
        inputs["mu_inp"] = centres + 0.01 * inputs["mu_inp"].detach()
    assert over_budget(clustered, impl) == {}


@pytest.mark.parametrize("impl", FAST)
def test_mixed_dtypes_give_the_widest(impl: str) -> None:
    inputs = make_inputs(Shape(2, 31, 7, 4, 4, 4))
    inputs = {name: t.detach().bfloat16() if name == "mu_inp" else t.detach() for name, t in inputs.items()}
    found, expected = run(inputs, impl), run(inputs, "reference")
    assert found["mu"].dtype == torch.float32
    assert found["dmu_inp"].dtype == torch.bfloat16
    assert distance(found["mu"], expected["mu"]) < 1e-5
