"""Agreements of one's own: two examples, of what each has to define."""

import pytest
import torch
from torch import Tensor

from capsroute import Routing, route
from capsroute.routing import Agreement, Quadratic
from capsroute.testing import Shape, make_inputs, over_budget
from impls import ANYWHERE


class Isotropic(Quadratic):
    """A Gaussian with one variance for all components: it defines `weights` alone."""

    def weights(self, sig2: Tensor) -> tuple[Tensor, Tensor]:
        one = sig2.mean((-2, -1), keepdim=True)
        size = sig2.shape[-2] * sig2.shape[-1]
        return (0.5 / one).expand_as(sig2), -0.5 * size * one[..., 0, 0].log()


class Laplace(Agreement):
    """Absolute distances, no quadratic: it defines `log_p` alone."""

    def log_p(self, V: Tensor, mu: Tensor, sig2: Tensor) -> Tensor:
        scale = (sig2 / 2).sqrt().unsqueeze(-4)
        return -((V - mu.unsqueeze(-4)).abs() / scale + scale.log()).sum((-2, -1))


@pytest.mark.parametrize("n_kinds", [1, 8, 40])
@pytest.mark.parametrize("impl", ["moments", "blocked"])
def test_quadratic_agreement_runs_on_every_implementation(impl: str, n_kinds: int) -> None:
    samples = [make_inputs(Shape(2, 40, 7, 2, 3, 4, n_kinds=n_kinds), seed) for seed in range(12)]
    assert over_budget(samples, impl, agreement=Isotropic()) == {}


def test_other_agreement_runs_on_the_reference() -> None:
    inputs = make_inputs(Shape(2, 40, 7, 2, 3, 4))
    out = route(**inputs, agreement=Laplace())
    expected = route(**inputs, agreement=Laplace(), impl="reference")
    assert torch.equal(out.mu, expected.mu)
    assert not torch.allclose(out.mu, route(**inputs).mu)
    for impl in set(ANYWHERE) - {"reference"}:
        with pytest.raises(ValueError, match=f"impl: expected .*, got '{impl}': .*'laplace' is not quadratic"):
            route(**inputs, agreement=Laplace(), impl=impl)


def test_layer_accepts_an_instance() -> None:
    layer = Routing(2, 3, 4, n_out=7, agreement=Isotropic())
    assert "agreement='isotropic'" in repr(layer)
    assert layer(torch.zeros(5), torch.randn(5, 2, 3)).mu.isfinite().all()
