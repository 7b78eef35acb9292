"""Deletion curves: by hand, and credit against two baselines on a few images and sentences."""

from collections.abc import Sequence
from itertools import islice

import pytest
import torch
from torch import Tensor

import capsroute
from capsroute import Routing
from capsroute.lab.analysis.deletion import (
    Deletion,
    delete_inputs,
    gradient_times_input,
    measure_deletion,
)
from capsroute.lab.data import toys, treebank
from capsroute.lab.inference import Predictor
from capsroute.nets import SST, SmallNORB

FEW = (0, 0.05, 0.15, 0.3, 0.6, 1)


def layers(n_inp: int | None = None) -> list[Routing]:
    made = [Routing(2, 3, 3, n_inp=n_inp, n_out=5).double(), Routing(2, 3, 3, n_inp=5, n_out=3).double()]
    for layer in made:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
    return made


def sample(n: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(n).double(), torch.randn(n, 2, 3).double()


def predict(stack: Sequence[Routing], a: Tensor, mu: Tensor) -> Tensor:
    for layer in stack:
        a, mu, _ = layer(a, mu)
    return a.softmax(-1)


def test_highest_attribution_is_removed_first() -> None:
    stack, (a, mu) = layers(), sample()
    attribution = torch.randperm(10).double()
    found = delete_inputs(stack, a, mu, attribution, (0, 0.3, 1))
    winner = int(predict(stack, a, mu).argmax())
    left = attribution < 7
    torch.testing.assert_close(found[0], predict(stack, a, mu)[winner].detach())
    torch.testing.assert_close(found[1], predict(stack, a[left], mu[left])[winner].detach())
    nothing = torch.full_like(a, -torch.inf)
    torch.testing.assert_close(found[2], predict(stack, nothing, mu)[winner].detach())


def test_fixed_number_of_inputs_is_masked() -> None:
    stack, (a, mu) = layers(n_inp=10), sample()
    winner = int(predict(stack, a, mu).argmax())
    without = a.masked_fill(torch.arange(10) < 4, -torch.inf)
    found = delete_inputs(stack, a, mu, -torch.arange(10.0), (0.4,))
    torch.testing.assert_close(found[0], predict(stack, without, mu)[winner].detach())


def test_gradient_times_input_matches_autograd() -> None:
    stack, (a, mu) = layers(), sample()
    for t in (a, mu):
        t.requires_grad_()
    winning = predict(stack, a, mu).max()
    d_a, d_mu = torch.autograd.grad((winning / (1 - winning)).log(), (a, mu))
    torch.testing.assert_close(gradient_times_input(stack, a, mu), (d_a * a + (d_mu * mu).sum((1, 2))).detach())


def test_gradient_times_input_is_finite_for_infinite_scores() -> None:
    stack, (_, mu) = layers(), sample()
    found = gradient_times_input(stack, torch.full((10,), torch.inf).double(), mu, odds=False)
    assert found.isfinite().all()
    assert (found != 0).any()


def test_areas_and_errors_match_hand_computation() -> None:
    found = Deletion(
        torch.tensor([0, 0.5, 1.0]),
        {"first": torch.tensor([[1.0, 0, 0], [1, 1, 0]]), "second": torch.tensor([[1.0, 1, 1], [1, 1, 1]])},
    )
    assert found.area("first") == pytest.approx((0.5, 0.25))
    assert found.area("second") == (1, 0)
    assert found.difference("first", "second") == pytest.approx((-0.5, 0.25))
    assert found.curve("first")[1] == pytest.approx((0.5, 0.5))


def test_seed_fixes_the_curves() -> None:
    stack, samples = layers(), [sample() for _ in range(2)]
    once, again, other = (measure_deletion(stack, samples, fractions=FEW, seed=seed) for seed in (0, 0, 1))
    for name, curves in once.probabilities.items():
        assert torch.equal(curves, again.probabilities[name])
    assert not torch.equal(once.probabilities["random"], other.probabilities["random"])


def test_empty_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="samples: expected at least one, got none"):
        measure_deletion(layers(), [])


def measure(network: SmallNORB | SST, *inputs: Tensor) -> Deletion:
    with torch.no_grad():
        a, mu = network.parts(*inputs)
    routings = [layer for layer in network.routings if isinstance(layer, Routing)]
    return measure_deletion(routings, zip(a, mu, strict=True), fractions=FEW)


@pytest.mark.parametrize("baseline", ["gradient times input", "random"])
def test_credit_beats_baselines_on_toys(on_toys: Deletion, baseline: str) -> None:
    assert on_toys.difference("credit", baseline).mean < 0


@pytest.mark.parametrize("baseline", ["gradient times input", "random"])
def test_credit_beats_baselines_on_sentences(on_sentences: Deletion, baseline: str) -> None:
    mean, error = on_sentences.difference("credit", baseline)
    assert mean + 2 * error < 0


@pytest.fixture(scope="module")
def on_toys() -> Deletion:
    network = capsroute.load("toys")
    assert isinstance(network, SmallNORB)
    images = [toys.render(category, 4, 45, 40, 1, size=60)[0] for category in ("animal", "airplane", "car")]
    return measure(network, torch.stack(images).float() / 255)


@pytest.fixture(scope="module")
def on_sentences() -> Deletion:
    classifier = Predictor("treebank")
    encoder = classifier.preprocessing.model
    texts = [tree.text() for tree in islice(treebank.generate_sentences(0, "validation"), 24)]
    ids = encoder.tokenize(texts)
    found = [measure(classifier.network, *encoder.encode([row])) for row in ids]
    names = found[0].probabilities
    return Deletion(found[0].fractions, {k: torch.cat([one.probabilities[k] for one in found]) for k in names})
