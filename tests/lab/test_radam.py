"""Our form of RAdam takes torch's steps, and either goes on where the other stopped."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from capsroute.lab.training.radam import FlatRAdam, step_sizes
from capsroute.lab.training.regime import Regime
from capsroute.lab.training.snapshot import Snapshot

STEPS = 400


def made(dtype: torch.dtype) -> nn.Module:
    """With one weight in another order than the others, as convolutions have it on a GPU."""
    by_channels = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), by_channels, nn.Linear(5, 3)).to(dtype)


class Pair:
    """Two networks that get the same gradients, one with torch's optimizer and one with ours."""

    def __init__(self, regime: Regime, dtype: torch.dtype):
        self.regime = regime
        self.theirs = made(dtype)
        self.ours = copy.deepcopy(self.theirs)
        self.torchs, self.shared = regime.optimizer(self.theirs), regime.optimizer(self.ours)
        self.flat = FlatRAdam(self.shared, [regime.cycle(n, STEPS) for n in range(STEPS)])

    def give_gradients(self) -> None:
        for p, q in zip(self.theirs.parameters(), self.ours.parameters(), strict=True):
            p.grad = torch.randn_like(p) * torch.rand(()).square() + p.detach()  # of many sizes, and it pulls back
            q.grad = p.grad.contiguous() if float(p.detach().sum()) > 0 else p.grad.clone()  # in either order

    def step(self, n: int) -> None:
        self.give_gradients()
        self.regime.turn_to(self.torchs, n, STEPS)
        self.torchs.step()
        self.flat.step(torch.tensor([n]))
        self.flat.count(n + 1)

    def distance(self) -> float:
        """Of parameters and state, in roundings of each tensor's largest value."""
        far = 0.0
        for p, q in zip(self.theirs.parameters(), self.ours.parameters(), strict=True):
            state, other = self.torchs.state[p], self.shared.state[q]
            assert state.keys() == other.keys()
            for one, two in ((p, q), *((state[name], other[name]) for name in state)):
                assert one.dtype == two.dtype
                assert one.shape == two.shape
                scale = float(one.detach().abs().max()) * torch.finfo(one.dtype).eps
                far = max(far, float((one - two).detach().abs().max()) / scale)
        return far


@pytest.mark.parametrize("beta2", [0.999, 0.9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_it_takes_the_steps_of_torch(dtype: torch.dtype, beta2: float) -> None:
    pair = Pair(Regime(beta2=beta2), dtype)
    start = copy.deepcopy(pair.theirs)
    farthest = 0.0
    for n in range(STEPS):
        pair.step(n)
        farthest = max(farthest, pair.distance())
    assert farthest < 4  # roundings, of which each step may add some
    moved = [
        float((p - q).detach().abs().max()) for p, q in zip(start.parameters(), pair.ours.parameters(), strict=True)
    ]
    assert min(moved) > 1e-3


def test_it_rounds_as_torch_does_on_a_gpu() -> None:
    pair = Pair(Regime(), torch.float32)
    pair.torchs.param_groups[0]["foreach"] = True  # the default there
    for n in range(STEPS):
        pair.step(n)
        assert pair.distance() == 0, n


def test_rectification_starts_where_torchs_does() -> None:
    parts = [step_sizes(1.0, 0.9, 0.999, n)[1:] for n in range(1, 9)]
    assert [rectified == 0 for rectified, _ in parts] == [True] * 5 + [False] * 3
    assert [plain == 0 for _, plain in parts] == [False] * 5 + [True] * 3


def test_each_goes_on_from_the_other() -> None:
    pair = Pair(Regime(), torch.float64)
    for n in range(20):
        pair.step(n)
    states = [copy.deepcopy(o.state_dict()) for o in (pair.torchs, pair.shared)]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    pair.torchs.load_state_dict(states[1])
    pair.shared.load_state_dict(states[0])
    pair.flat = FlatRAdam(pair.shared, [pair.regime.cycle(n, STEPS) for n in range(STEPS)])
    for n in range(20, 60):
        pair.step(n)
    assert pair.distance() < 4


def test_torch_steps_on_the_state_that_is_in_one_piece() -> None:
    pair = Pair(Regime(), torch.float64)
    for n in range(10):
        pair.step(n)
    pair.give_gradients()
    for optimizer in (pair.torchs, pair.shared):
        pair.regime.turn_to(optimizer, 10, STEPS)
        optimizer.step()
    for n in range(11, 20):
        pair.step(n)
    assert pair.distance() < 4


def test_a_parameter_without_a_gradient_stays() -> None:
    network = made(torch.float32)
    optimizer = Regime().optimizer(network)
    flat = FlatRAdam(optimizer, [(0.1, 0.9)] * 9)
    before = [p.detach().clone() for p in network.parameters()]
    for n in range(9):
        for p in list(network.parameters())[1:]:
            p.grad = torch.ones_like(p)
        flat.step(torch.tensor([n]))
    same = [torch.equal(p, q) for p, q in zip(network.parameters(), before, strict=True)]
    assert same == [True, *[False] * (len(same) - 1)]


@pytest.mark.parametrize("change", [lambda t: t.add_(1), lambda t: t.zero_()], ids=["add", "zero"])
def test_a_snapshot_goes_back(change: Callable[[Tensor], Tensor]) -> None:
    parameter, counts = nn.Parameter(torch.randn(3)), torch.arange(3)
    snapshot = Snapshot([parameter, counts])
    with torch.no_grad():
        parameter.mul_(2)
    snapshot.take()
    expected = parameter.detach().clone()
    with torch.no_grad():
        change(parameter)
    change(counts)
    snapshot.restore()
    assert torch.equal(parameter, expected)
    assert torch.equal(counts, torch.arange(3))
