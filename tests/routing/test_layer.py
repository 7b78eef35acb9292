"""The layer: parameters and their initial values, state dicts, copies, repr, trace."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

from capsroute import Capsules, Routing, route
from impls import ANYWHERE

SIZES = {
    "fixed, fixed": ({"n_inp": 9, "n_out": 5}, {"W": (9, 5, 4, 2), "B": (9, 5, 3, 2), "beta_use": (9, 5)}),
    "any, fixed": ({"n_out": 5}, {"W": (1, 5, 4, 2), "B": (1, 5, 3, 2), "beta_use": (1, 5)}),
    "fixed, any": ({"n_inp": 9}, {"W": (9, 1, 4, 2), "B": (9, 1, 3, 2), "beta_use": (9, 1), "B_brk": (1, 3, 2)}),
    "any, any": ({}, {"W": (1, 1, 4, 2), "B": (1, 1, 3, 2), "beta_use": (1, 1), "B_brk": (1, 3, 2)}),
    "kinds, fixed": ({"n_kinds": 3, "n_out": 5}, {"W": (3, 5, 4, 2), "B": (3, 5, 3, 2), "beta_use": (3, 5)}),
    "kinds of fixed, any": (
        {"n_inp": 9, "n_kinds": 3},
        {"W": (3, 1, 4, 2), "B": (3, 1, 3, 2), "beta_use": (3, 1), "B_brk": (1, 3, 2)},
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameter_names_and_shapes(name: str) -> None:
    sizes, expected = SIZES[name]
    state = Routing(3, 4, 2, **sizes).state_dict()
    assert {key: tuple(t.shape) for key, t in state.items()} == expected | {"beta_ign": expected["beta_use"]}


def test_initial_values() -> None:
    layer = Routing(4, 8, 4, n_inp=50, n_out=50)
    assert layer.W.mean().abs() < 1e-3
    assert abs(layer.W.std().item() * 8 - 1) < 0.01
    assert all((p == 0).all() for name, p in layer.named_parameters() if name != "W")


@pytest.mark.parametrize("tie_betas", [True, False])
def test_random_initial_values_sum_to_zero_over_kinds(tie_betas: bool) -> None:
    layer = Routing(1, 4, 2, n_inp=50, n_out=20, init="random", beta_scale=4.0, tie_betas=tie_betas)
    for name, beta in layer.named_parameters():
        if name.startswith("beta"):
            assert abs(beta.std().item() - 0.1) < 0.01
            assert beta.mean(0).abs().max() < 1e-6
            torch.nn.init.ones_(beta)
    used = layer.route_arguments(torch.zeros(50), torch.zeros(50, 1, 4))
    for name in ("beta_use", "beta_ign"):  # their mean over kinds counts a tenth
        torch.testing.assert_close(used[name], torch.full((50, 20), 0.4))


def test_tied_betas_are_one_parameter() -> None:
    layer = Routing(3, 4, 2, n_out=5, tie_betas=True)
    assert "beta_ign" not in dict(layer.named_parameters())
    assert sum(p.numel() for p in layer.parameters()) == 5 * (4 * 2 + 3 * 2 + 1)
    arguments = layer.route_arguments(torch.zeros(9), torch.randn(9, 3, 4))
    assert arguments["beta_ign"] is arguments["beta_use"]
    layer(torch.zeros(9), torch.randn(9, 3, 4)).a.sum().backward()
    assert layer.beta_use.grad is not None


class Doubled(torch.nn.Module):
    def forward(self, p: torch.Tensor) -> torch.Tensor:
        return 2 * p


def test_betas_stay_tied() -> None:
    """In a parametrized layer, on another device, and with the tensors of a state dict."""
    layer, inputs = Routing(3, 4, 2, n_out=5, tie_betas=True), (torch.randn(9), torch.randn(9, 3, 4))
    torch.nn.init.normal_(layer.beta_use)
    twin = Routing(3, 4, 2, n_out=5, tie_betas=True).to("meta")
    twin.load_state_dict(copy.deepcopy(layer.state_dict()), assign=True)
    for one in (layer, twin):
        parametrize.register_parametrization(one, "beta_use", Doubled())
    expected = route(**layer.route_arguments(*inputs) | {"beta_ign": layer.beta_use})
    for one in (layer, twin):
        assert torch.equal(one(*inputs).a, expected.a)
        assert sum(p.numel() for p in one.parameters()) == 5 * (4 * 2 + 3 * 2 + 1)


@pytest.mark.parametrize("prefix", ["", "routings.0."])
def test_untied_betas_do_not_load_into_a_tied_layer(prefix: str) -> None:
    layer, network = Routing(3, 4, 2, n_out=5, tie_betas=True), torch.nn.Module()
    network.routings = torch.nn.ModuleList([layer])
    target = network if prefix else layer
    state = {prefix + name: t for name, t in Routing(3, 4, 2, n_out=5).state_dict().items()}
    target.load_state_dict(state)  # they are equal
    state[f"{prefix}beta_ign"] = state[f"{prefix}beta_ign"] + 1
    with pytest.raises(ValueError, match=f"{prefix}beta_ign: expected the same numbers as beta_use"):
        target.load_state_dict(state)


@pytest.mark.parametrize("n_out", [5, None])
def test_parametrized_layers_are_reset(n_out: int | None) -> None:
    layer = Routing(4, 8, 4, n_inp=50, n_out=n_out)
    parametrizations.weight_norm(layer, "W")
    layer.reset_parameters()
    assert abs(layer.W.std().item() * 8 - 1) < 0.1
    before = layer.W.clone()
    layer.reset_parameters()
    assert not torch.equal(layer.W, before)
    assert all(t.isfinite().all() for t in layer(torch.zeros(50), torch.randn(50, 4, 8)))


def test_meta_tensors_have_shapes() -> None:
    layer = Routing(4, 4, 4, n_out=64).to("meta")
    a_inp, mu_inp = torch.empty(20, 3_000, device="meta"), torch.empty(20, 3_000, 4, 4, device="meta")
    for impl in ("auto", *ANYWHERE):
        layer.impl = impl
        out = layer(a_inp, mu_inp)
        assert out.mu.shape == (20, 64, 4, 4)
        out.mu.sum().backward()
        assert layer.W.grad is not None


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("impl", ANYWHERE)
def test_size_cases_match_trace(impl: str, name: str) -> None:
    sizes, _ = SIZES[name]
    layer = Routing(3, 4, 2, **sizes, impl=impl)
    torch.nn.init.normal_(layer.B)
    a_inp, mu_inp = torch.randn(2, 9), torch.randn(2, 9, 3, 4)
    out = layer(a_inp, mu_inp)
    assert isinstance(out, Capsules)
    assert out.mu.shape == (2, sizes.get("n_out", 9), 3, 2)
    steps = layer.trace(a_inp, mu_inp)
    assert len(steps) == layer.n_iters
    for field in out._fields:
        torch.testing.assert_close(getattr(out, field), getattr(steps[-1], field), rtol=1e-4, atol=1e-5)


def test_repr() -> None:
    text = repr(Routing(3, 4, 2, n_out=5, tie_betas=True, agreement="kmeans", impl="moments"))
    sizes, loop = "3, 4, 2, n_inp=None, n_out=5", "n_iters=3, tie_betas=True, agreement='kmeans', eps=1e-05"
    assert text == f"Routing({sizes}, {loop}, impl='moments')"
    assert "n_inp=None, n_out=5, n_kinds=2, n_iters" in repr(Routing(3, 4, 2, n_out=5, n_kinds=2))
    assert "n_inp=6, n_out=5, n_kinds=1, n_iters" in repr(Routing(3, 4, 2, n_inp=6, n_out=5, n_kinds=1))
    assert "n_kinds" not in repr(Routing(3, 4, 2, n_inp=6, n_kinds=6)) + repr(Routing(3, 4, 2, n_kinds=1))


@pytest.mark.parametrize("tie_betas", [True, False])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_give_equal_results(copied, tie_betas: bool) -> None:
    layer = Routing(3, 4, 2, n_out=5, tie_betas=tie_betas)
    twin = copied(layer)
    a_inp, mu_inp = torch.randn(9), torch.randn(9, 3, 4)
    assert all(torch.equal(one, two) for one, two in zip(layer(a_inp, mu_inp), twin(a_inp, mu_inp), strict=True))
    assert (twin.beta_ign is None) == tie_betas
    assert twin.W is not layer.W


def test_half_precision_in_and_out() -> None:
    layer = Routing(3, 4, 2, n_out=5).bfloat16()
    out = layer(torch.zeros(9, dtype=torch.bfloat16), torch.randn(9, 3, 4, dtype=torch.bfloat16))
    assert all(t.dtype == torch.bfloat16 for t in out)


def route_as_author(a_inp, mu_inp, W, B, beta_use, beta_ign):
    """Route as the code that trained the published files, by its description: eps on the data used and on variances."""
    V = (mu_inp[:, :, None, :, :] @ W) + B
    f = a_inp.sigmoid()[..., None]
    R = torch.full_like(V[..., 0, 0], 1 / V.shape[2])
    a, mu, sig2 = f, V, V
    for iteration in range(3):
        if iteration:
            density = torch.distributions.Normal(mu[:, None], sig2[:, None].sqrt())
            R = (a.sigmoid().log()[:, None] + density.log_prob(V).sum((-2, -1))).softmax(-1)
        D = (f * R)[..., None, None]
        a = (beta_use * f * R - beta_ign * f * (1 - R)).sum(1)
        mu = (D * V).sum(1) / (D.sum(1) + 1e-5)
        sig2 = (D * (V - mu[:, None]) ** 2).sum(1) / (D.sum(1) + 1e-5) + 1e-5
    return a, mu, sig2


VISION, TEXT = {"d_cov": 4, "d_inp": 4, "d_out": 4}, {"d_cov": 1, "d_inp": 2, "d_out": 2}
PUBLISHED = [
    ("smallNORB", [VISION | {"n_out": 64}, VISION | {"n_inp": 64, "n_out": 5}]),
    ("SST5R", [TEXT | {"d_inp": 64, "n_out": 64}, TEXT | {"n_inp": 64, "n_out": 5}]),
    ("SST2R", [TEXT | {"d_inp": 64, "n_out": 64}, TEXT | {"n_inp": 64, "n_out": 2}]),
]


@pytest.mark.data
@pytest.mark.parametrize(("name", "layers"), PUBLISHED, ids=[name for name, _ in PUBLISHED])
def test_published_weights_match_author_code(name: str, layers: list[dict[str, int]], data: Path) -> None:
    path = data / "official_checkpoints" / f"{name}_pretrained_model_state_dict.pt"
    state = torch.load(path, weights_only=True, map_location="cpu")
    a, mu = torch.randn(3, 100).double(), torch.randn(3, 100, layers[0]["d_cov"], layers[0]["d_inp"]).double()
    for k, sizes in enumerate(layers):
        layer = Routing(**sizes)
        prefix = f"routings.{k}."
        layer.load_state_dict({key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)})
        layer = layer.double()
        expected = route_as_author(a, mu, layer.W, layer.B, layer.beta_use, layer.beta_ign)
        found = layer(a, mu)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
        for impl in ANYWHERE:
            out = route(a, mu, layer.W, layer.B, layer.beta_use, layer.beta_ign, impl=impl)
            torch.testing.assert_close(out.a, expected[0], rtol=1e-9, atol=1e-9)
        a, mu = found.a.detach(), found.mu.detach()
