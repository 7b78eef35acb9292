"""Removing inputs in order: the measure itself by hand, and credit against its rivals in both domains, in small."""

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice

import pytest
import torch
from torch import Tensor

import capsroute
from capsroute import Routing
from capsroute.lab.analysis.deletion import Deletion, deletion, gradient_times_input, measured, removed
from capsroute.lab.data import toys, treebank
from capsroute.lab.predict import Judge
from capsroute.nets import SST, SmallNORB
from conftest import ROOT

FEW = (0, 0.05, 0.15, 0.3, 0.6, 1)


def layers(n_inp: int | None = None) -> list[Routing]:
    made = [Routing(2, 3, 3, n_inp=n_inp, n_out=5).double(), Routing(2, 3, 3, n_inp=5, n_out=3).double()]
    for layer in made:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
    return made


def sample(n: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(n).double(), torch.randn(n, 2, 3).double()


def chances(stack: Sequence[Routing], a: Tensor, mu: Tensor) -> Tensor:
    for layer in stack:
        a, mu, _ = layer(a, mu)
    return a.softmax(-1)


def test_the_highest_go_first_and_all_of_them_last() -> None:
    stack, (a, mu) = layers(), sample()
    worth = torch.randperm(10).double()
    found = removed(stack, a, mu, worth, (0, 0.3, 1))
    winner = int(chances(stack, a, mu).argmax())
    kept = worth < 7
    torch.testing.assert_close(found[0], chances(stack, a, mu)[winner].detach())
    torch.testing.assert_close(found[1], chances(stack, a[kept], mu[kept])[winner].detach())
    nothing = torch.full_like(a, -torch.inf)
    torch.testing.assert_close(found[2], chances(stack, nothing, mu)[winner].detach())


def test_layers_of_a_fixed_number_of_inputs_mask_them() -> None:
    stack, (a, mu) = layers(n_inp=10), sample()
    winner = int(chances(stack, a, mu).argmax())
    without = a.masked_fill(torch.arange(10) < 4, -torch.inf)
    found = removed(stack, a, mu, -torch.arange(10.0), (0.4,))
    torch.testing.assert_close(found[0], chances(stack, without, mu)[winner].detach())


def test_gradient_times_input_is_what_torch_says() -> None:
    stack, (a, mu) = layers(), sample()
    for t in (a, mu):
        t.requires_grad_()
    winning = chances(stack, a, mu).max()
    d_a, d_mu = torch.autograd.grad((winning / (1 - winning)).log(), (a, mu))
    torch.testing.assert_close(gradient_times_input(stack, a, mu), (d_a * a + (d_mu * mu).sum((1, 2))).detach())


def test_gradient_times_input_of_texts_whose_scores_are_infinite() -> None:
    stack, (_, mu) = layers(), sample()
    found = gradient_times_input(stack, torch.full((10,), torch.inf).double(), mu, odds=False)
    assert found.isfinite().all()
    assert (found != 0).any()


def test_areas_and_errors_by_hand() -> None:
    found = Deletion(
        torch.tensor([0, 0.5, 1.0]),
        {"first": torch.tensor([[1.0, 0, 0], [1, 1, 0]]), "second": torch.tensor([[1.0, 1, 1], [1, 1, 1]])},
    )
    assert found.area("first") == pytest.approx((0.5, 0.25))
    assert found.area("second") == (1, 0)
    assert found.difference("first", "second") == pytest.approx((-0.5, 0.25))
    assert found.curve("first")[1] == pytest.approx((0.5, 0.5))


def test_a_seed_gives_the_same_curves() -> None:
    stack, samples = layers(), [sample() for _ in range(2)]
    once, again, other = (deletion(stack, samples, fractions=FEW, seed=seed) for seed in (0, 0, 1))
    for name, curves in once.chances.items():
        assert torch.equal(curves, again.chances[name])
    assert not torch.equal(once.chances["random"], other.chances["random"])


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="samples: expected at least one, got none"):
        measured(layers(), [])


def of(network: SmallNORB | SST, *inputs: Tensor) -> Deletion:
    with torch.no_grad():
        a, mu = network.parts(*inputs)
    routings = [layer for layer in network.routings if isinstance(layer, Routing)]
    return deletion(routings, zip(a, mu, strict=True), fractions=FEW)


@pytest.mark.parametrize("rival", ["gradient times input", "random"])
def test_credit_beats_its_rivals_on_toys(on_toys: Deletion, rival: str) -> None:
    assert on_toys.difference("credit", rival).mean < 0


@pytest.mark.parametrize("rival", ["gradient times input", "random"])
def test_credit_beats_its_rivals_on_sentences(on_sentences: Deletion, rival: str) -> None:
    mean, error = on_sentences.difference("credit", rival)
    assert mean + 2 * error < 0


@pytest.mark.parametrize("name", ["smallnorb", "toys", "sst5", "treebank"])
def test_credit_beat_its_rivals_when_last_measured(name: str) -> None:
    """On 200 samples of the test split, by more than two standard errors of the difference."""
    record = json.loads((ROOT / "results" / f"deletion-{name}" / "areas.json").read_text())
    assert (record["split"], record["samples"]) == ("test", 200)
    for difference in record["credit less rival"].values():
        assert difference["mean"] + 2 * difference["error"] < 0


def test_the_pages_tables_are_those_of_the_results() -> None:
    subprocess.run([sys.executable, "results/deletion.py", "tables", "--check"], check=True, cwd=ROOT)


@pytest.fixture(scope="module")
def on_toys() -> Deletion:
    network = capsroute.load("toys")
    assert isinstance(network, SmallNORB)
    images = [toys.render(category, 4, 45, 40, 1, size=60)[0] for category in ("animal", "airplane", "car")]
    return of(network, torch.stack(images).float() / 255)


@pytest.fixture(scope="module")
def on_sentences() -> Deletion:
    judge = Judge("treebank")
    texts = [tree.text() for tree in islice(treebank.generate_sentences(0, "validation"), 24)]
    found = [of(judge.network, *judge.encoder.encode(judge.encoder.tokenize([text]))) for text in texts]
    return Deletion(
        found[0].fractions, {name: torch.cat([one.chances[name] for one in found]) for name in found[0].chances}
    )
