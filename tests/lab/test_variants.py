"""Variations of the paper's network: each differs in what it names, learns, and has about as many parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from capsroute.lab.rivals import RIVALS
from capsroute.lab.training.config import SettingError, change_settings
from capsroute.lab.training.experiments import make_config
from capsroute.lab.training.vision import Vision
from capsroute.lab.variants import Variant, Variation
from capsroute.layers import Routing
from capsroute.nets import SmallNORB

OTHERS = [{"routing": name} for name in (*RIVALS, "mean", "attention")]
ABLATIONS: list[dict[str, Any]] = [
    {"n_iters": 1},
    {"n_layers": 1},
    {"kinds": True, "n_iters": 2},
    {"tie_betas": True},
    {"agreement": "kmeans"},
    {"ignore_costs": False},
    {"coordinates": False},
]


def describe(variation: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in variation.items())


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("variation", OTHERS, ids=describe)
def test_other_algorithms_have_as_many_parameters_within_five_percent(variation: dict[str, Any]) -> None:
    assert count(Variant(**variation)) == pytest.approx(count(SmallNORB()), rel=0.05)


@pytest.mark.parametrize("variation", [*OTHERS, *ABLATIONS], ids=describe)
def test_variant_learns_one_batch_and_is_saved(variation: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Variant(n_classes=3, n_channels=8, n_parts=16, **variation)
    for layer in network.routings.modules():
        if isinstance(layer, Routing):  # which starts slowly: from zero betas
            nn.init.normal_(layer.beta_use)
    images, target = torch.rand(6, 2, 32, 32), torch.arange(6) % 3
    optimizer, losses = torch.optim.Adam(network.parameters(), 1e-2), []
    for _ in range(40):
        loss = nn.functional.cross_entropy(network(images).a, target)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    network.eval().save_pretrained(tmp_path)
    assert torch.equal(Variant.from_pretrained(tmp_path).eval()(images).a, network(images).a)


def test_without_variation_it_is_the_papers_network() -> None:
    paper, variant = SmallNORB(n_parts=3, n_channels=4).eval(), Variant(n_parts=3, n_channels=4).eval()
    variant.load_state_dict(paper.state_dict())
    images = torch.rand(2, 2, 32, 32)
    assert torch.equal(variant(images).a, paper(images).a)
    assert Variation().variation() == {}


def test_variation_changes_what_it_names() -> None:
    variant = Variant(kinds=True, n_parts=4, n_channels=6, n_iters=5, tie_betas=True, beta_scale=0.1)
    assert {layer.out_channels for layer in variant.convolve if isinstance(layer, nn.Conv2d)} == {6}
    first, last = variant.routings
    assert isinstance(first, Routing)
    assert isinstance(last, Routing)
    assert (first.n_kinds, last.n_kinds, first.n_iters, last.n_iters) == (4, 4, 5, 5)
    assert first.beta_scale == last.beta_scale == 0.1
    assert first.beta_ign is None
    images = torch.rand(1, 2, 32, 32)
    x = Variant(coordinates=False, n_parts=2, n_channels=2).embed(images)
    assert torch.equal(x[:, :2], images)
    assert not x[:, 2:].any()
    blind = Variant(ignore_costs=False, n_parts=2, n_channels=2)
    assert not any(p.requires_grad for name, p in blind.named_parameters() if "beta_ign" in name)


def test_settings_of_a_run_choose_the_network() -> None:
    config = make_config("toys")
    assert type(Vision(change_settings(config, [])).network()) is SmallNORB
    kinds = Vision(change_settings(config, ["kinds=true", "n_parts=8", "n_channels=16"])).network()
    assert type(kinds) is SmallNORB
    assert kinds.config["kinds"]
    assert isinstance(Vision(change_settings(config, ["routing=em"])).network(), Variant)
    for bad in ("routing=capsules", "kinds=maybe", "n_layers=3", "beta_scale=0", "fold=5"):
        with pytest.raises(SettingError, match=f"{bad.partition('=')[0]}: expected"):
            change_settings(config, [bad])
