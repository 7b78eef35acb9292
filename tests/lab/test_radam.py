"""ScheduledRAdam takes the steps of torch.optim.RAdam."""

import copy

import pytest
import torch
from torch import nn

from capsroute.lab.training.radam import ScheduledRAdam, step_sizes
from capsroute.lab.training.regime import Regime

STEPS = 400


def make_network(dtype: torch.dtype) -> nn.Module:
    """Return a network with one weight in channels-last order, as convolutions have it on a GPU."""
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), convolution, nn.Linear(5, 3)).to(dtype)


class Pair:
    """Two networks that get the same gradients, one with torch's optimiser and one with ours."""

    def __init__(self, regime: Regime, dtype: torch.dtype, foreach: bool | None = None, **rates: float):
        self.regime, self.theirs = regime, make_network(dtype)
        self.ours = copy.deepcopy(self.theirs)
        betas = regime.beta1_max, regime.beta2
        decay = {"weight_decay": rates.get("weight_decay", 0.0), "decoupled_weight_decay": True}
        self.torch_radam = torch.optim.RAdam(self.theirs.parameters(), betas=betas, foreach=foreach, **decay)
        schedule = [regime.schedule(n, STEPS) for n in range(STEPS)]
        decayed = self.ours.parameters()
        self.radam = ScheduledRAdam(self.ours.parameters(), schedule, regime.beta2, decayed=decayed, **rates)

    def step(self, n: int) -> None:
        for p, q in zip(self.theirs.parameters(), self.ours.parameters(), strict=True):
            p.grad = torch.randn_like(p) * torch.rand(()).square() + p.detach()  # of many scales, and pulling back
            q.grad = p.grad.contiguous() if float(p.detach().sum()) > 0 else p.grad.clone()  # in either memory order
        lr, beta1 = self.regime.schedule(n, STEPS)
        self.torch_radam.param_groups[0] |= {"lr": lr, "betas": (beta1, self.regime.beta2)}
        self.torch_radam.step()
        self.radam.step(torch.tensor([n]))

    def distance(self) -> float:
        """Return the largest distance of parameters and moments, in roundings of each tensor's largest value."""
        largest, state = 0.0, self.radam.state()
        for k, (p, q) in enumerate(zip(self.theirs.parameters(), self.ours.parameters(), strict=True)):
            moments = self.torch_radam.state[p]
            pairs = (p, q), (moments["exp_avg"], state[f"{k}.avg"]), (moments["exp_avg_sq"], state[f"{k}.avg_sq"])
            for one, two in pairs:
                assert one.dtype == two.dtype
                assert one.shape == two.shape
                scale = float(one.detach().abs().max()) * torch.finfo(one.dtype).eps
                largest = max(largest, float((one - two).detach().abs().max()) / scale)
        return largest


@pytest.mark.parametrize(("beta2", "weight_decay"), [(0.999, 0.0), (0.9, 0.0), (0.999, 3.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_steps_match_torch(dtype: torch.dtype, beta2: float, weight_decay: float) -> None:
    pair = Pair(Regime(beta2=beta2), dtype, weight_decay=weight_decay)
    start = copy.deepcopy(pair.theirs)
    largest = 0.0
    for n in range(STEPS):
        pair.step(n)
        largest = max(largest, pair.distance())
    assert largest < 4  # roundings, of which each step may add some
    moved = [(p - q).detach().abs().max() for p, q in zip(start.parameters(), pair.ours.parameters(), strict=True)]
    assert min(moved) > 1e-3


def test_rounding_matches_torch_on_gpu() -> None:
    pair = Pair(Regime(), torch.float32, foreach=True)  # the default of torch on a GPU
    for n in range(STEPS):
        pair.step(n)
        assert pair.distance() == 0, n


def test_rectification_starts_where_torchs_does() -> None:
    parts = [step_sizes(1.0, 0.9, 0.999, n)[1:] for n in range(1, 9)]
    assert [rectified == 0 for rectified, _ in parts] == [True] * 5 + [False] * 3
    assert [plain == 0 for _, plain in parts] == [False] * 5 + [True] * 3


def test_loaded_state_continues_the_run() -> None:
    pair = Pair(Regime(), torch.float64)
    for n in range(20):
        pair.step(n)
    state = {name: t.clone(memory_format=torch.contiguous_format) for name, t in pair.radam.state().items()}
    schedule = [pair.regime.schedule(n, STEPS) for n in range(STEPS)]
    pair.radam = ScheduledRAdam(pair.ours.parameters(), schedule, pair.regime.beta2)
    for name, view in pair.radam.state().items():
        view.copy_(state[name])
    for n in range(20, 60):
        pair.step(n)
    assert pair.distance() < 4


def test_mean_follows_parameters() -> None:
    pair = Pair(Regime(), torch.float64, average=0.9)
    means = [p.detach().clone() for p in pair.ours.parameters()]
    for n in range(10):
        pair.step(n)
        for mean, p in zip(means, pair.ours.parameters(), strict=True):
            mean.mul_(0.9).add_(p.detach(), alpha=0.1)
    state = pair.radam.state()
    for k, mean in enumerate(means):
        torch.testing.assert_close(state[f"{k}.mean"], mean)


def test_parameter_without_gradient_stays() -> None:
    network = make_network(torch.float32)
    radam = ScheduledRAdam(network.parameters(), [(0.1, 0.9)] * 9)
    before = [p.detach().clone() for p in network.parameters()]
    for n in range(9):
        for p in list(network.parameters())[1:]:
            p.grad = torch.ones_like(p)
        radam.step(torch.tensor([n]))
    same = [torch.equal(p, q) for p, q in zip(network.parameters(), before, strict=True)]
    assert same == [True, *[False] * (len(same) - 1)]
