"""Gradients against finite differences in float64, for every implementation, agreement and size case."""

from itertools import product

import pytest
import torch
from torch.autograd import forward_ad

from capsroute import route
from capsroute.testing import Shape, make_inputs
from impls import ANYWHERE

SHAPES = {
    f"{'fixed' if i else 'any'} inputs, {'fixed' if j else 'any'} outputs": Shape(2, 4, 3, 2, 2, 2, i, j)
    for i, j in product((True, False), repeat=2)
}
SHAPES["kinds of inputs, any outputs"] = Shape(2, 4, 3, 2, 2, 2, fixed_out=False, n_kinds=2)


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("impl", ANYWHERE)
def test_gradients_match_finite_differences(impl: str, name: str, agreement: str) -> None:
    inputs = make_inputs(SHAPES[name], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *args: tuple(route(*args, impl=impl, agreement=agreement, eps=1e-2)), list(inputs.values())
    )


@pytest.mark.parametrize("impl", ANYWHERE)
def test_gradients_of_mixed_kinds_match_finite_differences(impl: str) -> None:
    """Where all kinds share some parameters."""
    inputs = make_inputs(Shape(1, 6, 3, 2, 2, 2, n_kinds=3), dtype=torch.float64)
    inputs |= {name: inputs[name][:1].detach().requires_grad_() for name in ("W", "beta_use")}
    assert torch.autograd.gradcheck(lambda *args: tuple(route(*args, impl=impl, eps=1e-2)), list(inputs.values()))


@pytest.mark.parametrize("impl", ANYWHERE)
def test_second_derivatives_match_finite_differences(impl: str) -> None:
    inputs = make_inputs(Shape(1, 4, 2, 1, 2, 2), dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda *args: tuple(route(*args, impl=impl, eps=1e-1)), list(inputs.values()))


@pytest.mark.parametrize("impl", ["auto", "reference", "moments"])
def test_forward_mode_matches_finite_differences(impl: str) -> None:
    inputs = make_inputs(Shape(1, 4, 2, 1, 2, 2, n_kinds=2), dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *args: tuple(route(*args, impl=impl, eps=1e-1)),
        list(inputs.values()),
        check_forward_ad=True,
        check_backward_ad=False,
    )


def test_forward_mode_of_blocked_is_refused() -> None:
    inputs = make_inputs(Shape(1, 4, 2, 1, 2, 2))
    with forward_ad.dual_level(), pytest.raises(ValueError, match="no derivatives in forward mode"):
        route(**inputs, impl="blocked")
