"""Properties of any routing, on every implementation."""

from itertools import product

import pytest
import torch
from torch import Tensor

from capsroute import Capsules, Routing, route
from capsroute.testing import AXES, Shape, make_inputs, permute_axes, random_orders, run
from impls import ANYWHERE

SHARED = Shape(3, 40, 7, 2, 3, 4)
FIXED = Shape(3, 40, 7, 2, 3, 4, fixed_inp=True)
KINDS = Shape(3, 40, 7, 2, 3, 4, n_kinds=8)
each_case = pytest.mark.parametrize(
    ("impl", "shape"),
    list(product(ANYWHERE, (SHARED, FIXED, KINDS))),
    ids=lambda x: x if isinstance(x, str) else f"{x.kinds} kinds",
)


def inputs_of(shape: Shape) -> dict[str, Tensor]:
    """Draw inputs in float64, where rounding hides no property."""
    return {name: t.detach() for name, t in make_inputs(shape, dtype=torch.float64).items()}


def assert_same(found: Capsules, expected: Capsules) -> None:
    for name, t in expected._asdict().items():
        torch.testing.assert_close(getattr(found, name), t, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@each_case
def test_permuted_inputs_change_nothing(impl: str, shape: Shape) -> None:
    inputs = inputs_of(shape)
    (order,) = random_orders(inputs, 1)
    order = {axis: order[axis] for axis in "ik"}  # where parameters differ between inputs, they move along
    other = {name: permute_axes(t, AXES[name], order) for name, t in inputs.items()}
    assert_same(route(**other, impl=impl), route(**inputs, impl=impl))


@each_case
def test_permuted_outputs_are_permuted(impl: str, shape: Shape) -> None:
    inputs, order = inputs_of(shape), torch.randperm(shape.n_out)
    permuted = {name: t if name.endswith("_inp") else t[:, order] for name, t in inputs.items()}
    expected = route(**inputs, impl=impl)
    assert_same(
        route(**permuted, impl=impl),
        Capsules(expected.a[:, order], expected.mu[:, order], expected.sig2[:, order]),
    )


@each_case
def test_minus_infinity_removes_an_input(impl: str, shape: Shape) -> None:
    inputs, n_places = inputs_of(shape), shape.n_inp // shape.kinds
    keep = torch.arange(shape.n_inp) % (3 if shape.fixed_inp else n_places) % 3 != 0  # as many of every kind
    gone = inputs | {"a_inp": inputs["a_inp"].masked_fill(~keep, -torch.inf)}
    per_input = ("W", "B", "beta_use", "beta_ign") if shape.fixed_inp else ()
    kept = inputs | {"a_inp": inputs["a_inp"][:, keep], "mu_inp": inputs["mu_inp"][:, keep]}
    kept |= {name: inputs[name][keep] for name in per_input}
    assert_same(route(**gone, impl=impl), route(**kept, impl=impl))
    gradients = run(gone, impl)
    assert (gradients["da_inp"][:, ~keep] == 0).all()
    assert (gradients["dmu_inp"][:, ~keep] == 0).all()


@each_case
def test_plus_infinity_uses_an_input_fully(impl: str, shape: Shape) -> None:
    inputs = inputs_of(shape)
    open_ = inputs | {"a_inp": torch.full_like(inputs["a_inp"], torch.inf)}
    wide = inputs | {"a_inp": torch.full_like(inputs["a_inp"], 50.0)}
    assert_same(route(**open_, impl=impl), route(**wide, impl=impl))
    assert all(t.isfinite().all() for t in run(open_, impl).values())


@each_case
def test_shifting_all_votes_shifts_mu(impl: str, shape: Shape) -> None:
    inputs, shift = inputs_of(shape), torch.randn(shape.d_cov, shape.d_out, dtype=torch.float64)
    plain = route(**inputs, impl=impl, eps=1e-15)
    moved = route(**inputs | {"B": inputs["B"] + shift}, impl=impl, eps=1e-15)
    assert_same(moved, plain._replace(mu=plain.mu + shift))


@each_case
def test_samples_are_independent(impl: str, shape: Shape) -> None:
    inputs = inputs_of(shape)
    together = route(**inputs, impl=impl)
    for k in range(shape.batch):
        alone = route(**inputs | {"a_inp": inputs["a_inp"][k], "mu_inp": inputs["mu_inp"][k]}, impl=impl)
        assert_same(alone, Capsules(*(t[k] for t in together)))


@each_case
def test_results_are_reproducible(impl: str, shape: Shape) -> None:
    first, second = run(make_inputs(shape), impl), run(make_inputs(shape), impl)
    assert all(torch.equal(first[name], second[name]) for name in first)


@each_case
def test_one_output_is_weighted_mean_and_variance(impl: str, shape: Shape) -> None:
    shape = Shape(*(2, 9, 1, 2, 3, 2), fixed_inp=shape.fixed_inp, n_kinds=3 if shape is KINDS else 1)
    inputs = inputs_of(shape)
    W, B, beta_use = (inputs[name].repeat_interleave(9 // shape.kinds, 0) for name in ("W", "B", "beta_use"))
    V = torch.einsum("bicd,ijdh->bijch", inputs["mu_inp"], W) + B
    f = torch.sigmoid(inputs["a_inp"])[:, :, None, None]
    mean = (f * V[:, :, 0]).sum(1) / f.sum(1)
    found = route(**inputs, impl=impl, eps=1e-12)
    torch.testing.assert_close(found.mu[:, 0], mean, rtol=1e-9, atol=1e-9)
    variance = (f * (V[:, :, 0] - mean.unsqueeze(1)).square()).sum(1) / f.sum(1)
    torch.testing.assert_close(found.sig2[:, 0], variance, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.a, (beta_use * f[:, :, 0]).sum(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("impl", ANYWHERE)
def test_open_outputs_differ(impl: str) -> None:
    layer = Routing(2, 3, 4, impl=impl)
    with torch.no_grad():
        layer.B_brk.fill_(0.5)
    a_inp, mu_inp = torch.zeros(6), torch.randn(6, 2, 3)
    assert layer(a_inp, mu_inp).mu.shape == (6, 2, 4)
    out = layer(a_inp, mu_inp, n_out=3)
    torch.testing.assert_close(out.mu[2] - out.mu[0], torch.ones(2, 4), rtol=0, atol=1e-2)
