"""Inputs of several kinds, whose places share parameters, by every implementation.

Axes: `i` inputs, which are kinds `k` at places `p`, kinds first; `j` outputs; `c`, `d`, `h` of capsules.
"""

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

import oracle
from capsroute import Routing, route
from capsroute.routing import trace
from capsroute.testing import Shape, Target, make_inputs, make_targets, targets_over_budget
from impls import ANYWHERE

PARAMS = ("W", "B", "beta_use", "beta_ign")
N_INP, N_OUT = 12, 4
SIZES = {"d_cov": 2, "d_inp": 3, "d_out": 2}
DENSITIES = {"gaussian": oracle.gaussian, "kmeans": oracle.kmeans}
MIXED = ["", "W", "B beta_use", "W B beta_ign", "beta_use beta_ign"]
each_n_kinds = pytest.mark.parametrize("n_kinds", [1, 3, N_INP])


def draw(n_kinds: int, one_kind: str = "", fixed_out: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """Draw arguments of `route` in float64; all kinds share the parameters named in `one_kind`."""
    shape = Shape(2, N_INP, N_OUT, **SIZES, fixed_out=fixed_out, n_kinds=n_kinds)
    inputs = {name: t.detach() for name, t in make_inputs(shape, seed, torch.float64).items()}
    return inputs | {name: inputs[name][:1] for name in one_kind.split()}


def repeat_params(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the arguments with parameters of each input's own: those of its kind."""
    places = {name: N_INP // len(inputs[name]) for name in PARAMS}
    return inputs | {name: inputs[name].repeat_interleave(n, 0) for name, n in places.items()}


@lru_cache
def route_by_oracle(n_kinds: int, one_kind: str, fixed_out: bool, agreement: str) -> list[list[dict[str, Any]]]:
    """Return the oracle's records for each sample, from parameters repeated for each place."""
    inputs = repeat_params(draw(n_kinds, one_kind, fixed_out))
    params = [inputs[name].expand(-1, N_OUT, *inputs[name].shape[2:]).numpy() for name in PARAMS]
    samples = zip(inputs["a_inp"].numpy(), inputs["mu_inp"].numpy(), strict=True)
    return [oracle.route(a, mu, *params, 3, 1e-5, DENSITIES[agreement]) for a, mu in samples]


@pytest.mark.parametrize("impl", ["auto", *ANYWHERE])
@pytest.mark.parametrize("agreement", DENSITIES)
@pytest.mark.parametrize("fixed_out", [True, False])
@pytest.mark.parametrize("one_kind", MIXED)
@each_n_kinds
def test_results_match_oracle(n_kinds: int, one_kind: str, fixed_out: bool, agreement: str, impl: str) -> None:
    found = route(**draw(n_kinds, one_kind, fixed_out), agreement=agreement, impl=impl)
    for k, records in enumerate(route_by_oracle(n_kinds, one_kind, fixed_out, agreement)):
        for name, t in found._asdict().items():
            expected = torch.from_numpy(records[-1][name])
            torch.testing.assert_close(t[k], expected, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@each_n_kinds
def test_records_match_oracle(n_kinds: int) -> None:
    steps = list(trace(**draw(n_kinds)))
    for k, records in enumerate(route_by_oracle(n_kinds, "", True, "gaussian")):
        for step, record in zip(steps, records, strict=True):
            for name, t in step._asdict().items():
                torch.testing.assert_close(t[k], torch.from_numpy(record[name]), rtol=1e-11, atol=1e-12, msg=name)


@lru_cache(maxsize=1)
def compute_targets(one_kind: str, fixed_out: bool, agreement: str) -> list[Target]:
    """Make targets in float32, kept for the next implementation."""
    shape = Shape(2, 60, 7, 2, 3, 4, fixed_out=fixed_out, n_kinds=5)
    samples = [make_inputs(shape, seed) for seed in range(12)]
    samples = [inputs | {name: inputs[name][:1] for name in one_kind.split()} for inputs in samples]
    return make_targets(samples, torch.float32, agreement=agreement)


@pytest.mark.parametrize("impl", [impl for impl in ANYWHERE if impl != "reference"])
@pytest.mark.parametrize(("agreement", "fixed_out"), [("gaussian", True), ("kmeans", False)])
@pytest.mark.parametrize("one_kind", MIXED)
def test_results_and_gradients_stay_within_budget(one_kind: str, agreement: str, fixed_out: bool, impl: str) -> None:
    targets = compute_targets(one_kind, fixed_out, agreement)
    assert targets_over_budget(targets, impl, torch.float32, agreement=agreement) == {}


@pytest.mark.parametrize("impl", ANYWHERE)
@pytest.mark.parametrize("n_out", [N_OUT, None], ids=["fixed outputs", "open outputs"])
def test_one_kind_and_kinds_of_one_place_are_the_open_and_the_fixed_layer(impl: str, n_out: int | None) -> None:
    a_inp, mu_inp = torch.randn(2, N_INP), torch.randn(2, N_INP, 2, 3)
    for n_kinds, n_inp in ((1, None), (N_INP, N_INP)):
        settings = SIZES | {"n_out": n_out, "impl": impl}
        with_kinds, without = Routing(**settings, n_kinds=n_kinds), Routing(**settings, n_inp=n_inp)
        for p in without.parameters():
            torch.nn.init.normal_(p, std=0.5)
        with_kinds.load_state_dict(without.state_dict())
        results = with_kinds(a_inp, mu_inp), without(a_inp, mu_inp)
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("impl", ANYWHERE)
def test_masked_places_equal_places_that_are_not_there(impl: str) -> None:
    """As many of each kind have to be left."""
    layer = Routing(**SIZES, n_out=N_OUT, n_kinds=3, impl=impl).double()
    torch.nn.init.normal_(layer.beta_ign)
    a_inp, mu_inp = torch.randn(2, N_INP).double(), torch.randn(2, N_INP, 2, 3).double()
    mask = torch.tensor([True, False, True, True] * 3)
    expected = layer(a_inp[:, mask], mu_inp[:, mask])
    mu_inp[:, ~mask], a_inp[:, ~mask] = torch.nan, torch.inf
    found = layer(a_inp, mu_inp, mask=mask.expand(2, -1))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
