"""Checks that passed before are not made again, and nothing slips through for it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from capsroute import route
from capsroute.routing import api
from capsroute.routing.agreement import Gaussian
from capsroute.testing import Shape, make_inputs

SHAPE = Shape(2, 6, 3, 2, 3, 2)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was checked, from now on; nothing is known from before."""
    seen, check = [], api._case

    def spy(*args: Any) -> Any:
        seen.append(args)
        return check(*args)

    monkeypatch.setattr(api, "_case", spy)
    api._settled.cache_clear()
    yield seen
    api._settled.cache_clear()


def test_the_same_kinds_of_arguments_are_checked_once(checks: list[Any]) -> None:
    for seed in range(3):
        route(**make_inputs(SHAPE, seed))
    assert len(checks) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"n_iters": 2},
        {"eps": 1e-3},
        {"agreement": "kmeans"},
        {"agreement": Gaussian()},
        {"impl": "reference"},
        {"W": torch.zeros(1, 1, 3, 2)},
        {"W": torch.zeros(1, 3, 3, 2, dtype=torch.float64)},
    ],
    ids=["n_iters", "eps", "agreement", "agreement of one's own", "impl", "shape", "dtype"],
)
def test_other_arguments_are_checked(checks: list[Any], other: dict[str, Any]) -> None:
    inputs = make_inputs(SHAPE)
    route(**inputs)
    route(**inputs | other)
    assert len(checks) == 2


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"n_iters": True}, "n_iters: expected an integer, got bool"),
        ({"n_iters": 1.0}, "n_iters: expected an integer, got float"),
        ({"n_iters": [1]}, "n_iters: expected an integer, got list"),
        ({"eps": 0.0}, "eps: expected a number above 0"),
        ({"agreement": []}, "agreement: expected a name or an Agreement, got list"),
        ({"impl": "fastest"}, "impl: expected one of"),
        ({"W": None}, "W: expected a tensor, got NoneType"),
        ({"W": torch.zeros(1, 3, 3, 2, dtype=torch.int32)}, "W: expected a floating-point tensor"),
        ({"B": torch.zeros(1, 3, 2, 2, device="meta")}, "B: expected on cpu"),
    ],
    ids=str,
)
def test_what_equals_or_resembles_a_known_call_is_still_refused(other: dict[str, Any], said: str) -> None:
    inputs = make_inputs(SHAPE)
    route(**inputs, n_iters=1)
    for _ in range(2):  # a refusal is not remembered as a success
        with pytest.raises((TypeError, ValueError), match=said):
            route(**{**inputs, "n_iters": 1, **other})


def test_an_agreement_is_the_one_that_was_passed() -> None:
    class Told(Gaussian):
        asked = 0

        def weights(self, sig2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.asked += 1
            return super().weights(sig2)

    inputs, mine = make_inputs(SHAPE), [Told(), Told()]
    for agreement in mine:
        route(**inputs, agreement=agreement, impl="reference")
    assert [agreement.asked for agreement in mine] == [2, 2]


def test_sizes_that_are_symbols() -> None:
    inputs, other = [
        [t.detach() for t in make_inputs(shape).values()] for shape in (SHAPE, replace(SHAPE, batch=4, n_inp=9))
    ]
    traced = make_fx(lambda *args: tuple(route(*args)), tracing_mode="symbolic")(*inputs)
    for found, expected in zip(traced(*other), route(*other), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("impl", ["reference", "blocked"])
def test_no_inputs_of_which_each_would_have_one_beta_of_its_own(impl: str) -> None:
    inputs = make_inputs(replace(SHAPE, n_inp=0))
    inputs["beta_ign"] = inputs["beta_ign"][:0]
    out = route(**inputs, impl=impl)
    assert not out.a.any()
    assert not out.mu.any()
    assert torch.equal(out.sig2, torch.full_like(out.sig2, 1e-5))
