"""Inputs with structure on a GPU: clusters, outliers, masks, and what networks for images give their first routing."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Generator, Tensor

from capsroute import load
from capsroute.lab.data import toys
from capsroute.nets import SmallNORB
from capsroute.testing import Shape, make_inputs, over_budget

N_SAMPLES = 12
N_CLUSTERS = 8
Inputs = dict[str, Tensor]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def spread_scores(inputs: Inputs, generator: Generator) -> None:
    inputs["a_inp"] *= 6


def mask_most(inputs: Inputs, generator: Generator) -> None:
    """Leave a third of the inputs; the others hold numbers that nobody may read."""
    masked = torch.rand(inputs["a_inp"].shape, generator=generator).to(inputs["a_inp"]) > 1 / 3
    inputs["a_inp"][masked] = -torch.inf
    inputs["mu_inp"][masked] = 1e30


def add_outliers(inputs: Inputs, generator: Generator) -> None:
    inputs["mu_inp"][:, ::100] *= 100


def separate_halves(inputs: Inputs, generator: Generator) -> None:
    near, far = inputs["mu_inp"].chunk(2, 1)
    near *= 0.3
    far += 3


def cluster(inputs: Inputs, generator: Generator, size: float, distance: float, in_order: bool = False) -> None:
    mu_inp = inputs["mu_inp"]
    centres = distance * torch.randn(N_CLUSTERS, *mu_inp.shape[2:], generator=generator)
    which = torch.randint(N_CLUSTERS, mu_inp.shape[1:2], generator=generator)
    mu_inp.mul_(size).add_(centres[which.sort()[0] if in_order else which].to(mu_inp))


STRUCTURES: dict[str, Callable[[Inputs, Generator], None]] = {
    "none": lambda inputs, generator: None,
    "scores six times as far apart": spread_scores,
    "masks": mask_most,
    "outliers": add_outliers,
    "two halves": separate_halves,
    "distant clusters": partial(cluster, size=0.3, distance=3.0),
    "distant clusters in order": partial(cluster, size=0.3, distance=3.0, in_order=True),
    "tight clusters": partial(cluster, size=0.1, distance=1.0),
    "clusters": partial(cluster, size=0.3, distance=1.0),
}


@pytest.mark.parametrize("shape", [Shape(1, 1024, 16, 4, 4, 4), Shape(1, 5184, 64, 4, 4, 4)], ids=["1024", "5184"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_structures(structure: str, shape: Shape) -> None:
    samples = []
    for seed in range(N_SAMPLES):
        inputs = {name: t.detach() for name, t in make_inputs(shape, seed, device="cuda").items()}
        STRUCTURES[structure](inputs, Generator().manual_seed(seed))
        samples.append(inputs)
    assert over_budget(samples, "triton") == {}


@pytest.mark.parametrize("name", ["untrained", "smallnorb", "toys"])
def test_first_routing_of_networks(name: str) -> None:
    """Toys of all categories, from all sides and under all lightings."""
    images = torch.cat([toys.render(k % 5, k % 10, 30 + 3 * k, 30 * k, k % 6) for k in range(N_SAMPLES)])
    network = SmallNORB().train() if name == "untrained" else load(name)  # in training, means are those of the batch
    network = network.cuda()
    assert isinstance(network, SmallNORB)
    with torch.no_grad():
        a_inp, mu_inp = network.parts(images.cuda() / 255)
    layer = network.routings[0]
    params = {name: layer.get_parameter(name).detach() for name in ("W", "B", "beta_use", "beta_ign")}
    samples = [{"a_inp": a_inp[[k]], "mu_inp": mu_inp[[k]], **params} for k in range(N_SAMPLES)]
    assert over_budget(samples, "triton") == {}
