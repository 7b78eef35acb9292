"""Normalisation inside a convolution's weights is normalisation before the convolution."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from capsroute.lab.training.distributed import SharedBatchNorm2d
from capsroute.nets.normed import Statistics, convolve


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsroute.nets.normed.pays", lambda x: True)


def layer(c: int, o: int, size: int, stride: int = 1) -> nn.Sequential:
    made = nn.Sequential(nn.BatchNorm2d(c), nn.Conv2d(c, o, size, stride)).double()
    for p in made.parameters():
        nn.init.normal_(p)
    return made


def images(*shape: int) -> Tensor:
    """Channels with means and variances of their own."""
    x = torch.randn(shape, dtype=torch.float64)
    return x * torch.rand(shape[1], 1, 1).double() + 3 * torch.randn(shape[1], 1, 1).double()


@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1)])
def test_results_gradients_and_running_statistics(size: int, stride: int, needs_grad: bool) -> None:
    layers = [layer(4, 6, size, stride), layer(4, 3, size, stride)]
    others = copy.deepcopy(layers)
    x = images(3, 4, 8, 9).requires_grad_(needs_grad)
    y = x.detach().clone().requires_grad_(needs_grad)
    for _ in range(2):  # running statistics follow from where they are
        one, two = convolve(x, *layers), torch.cat([other(y) for other in others], 1)
    torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-11)
    weights = torch.randn_like(one)
    (one * weights).sum().backward()
    (two * weights).sum().backward()
    for p, q in zip(nn.ModuleList(layers).parameters(), nn.ModuleList(others).parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-10)
    for p, q in zip(nn.ModuleList(layers).buffers(), nn.ModuleList(others).buffers(), strict=True):
        torch.testing.assert_close(p, q)
    if needs_grad:
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-10, atol=1e-10)


def test_the_convolution_of_images_has_no_gradient_for_them() -> None:
    """The most expensive one of all, for the sake of the first normalisation's few parameters."""
    asked: list[bool] = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.convolution_backward.default:
                asked.append(args[-1][0])
            return func(*args, **(kwargs or {}))

    first, x = layer(4, 6, 3), images(2, 4, 8, 8)
    with Watched():
        convolve(x, first).sum().backward()
        first(x).sum().backward()
    assert asked == [False, True]


def test_evaluation_is_that_of_the_modules() -> None:
    first, x = layer(4, 6, 3).eval(), images(2, 4, 8, 8)
    assert torch.equal(convolve(x, first), first(x))


def test_normalisation_over_several_processes_is_left_alone() -> None:
    first, x = layer(4, 6, 3), images(2, 4, 8, 8)
    norm, _ = first
    norm.__class__ = SharedBatchNorm2d
    with pytest.raises(ValueError, match="process group"):  # it asked the others
        convolve(x, first)


def test_statistics_of_one_value_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        convolve(images(1, 4, 1, 1), layer(4, 6, 1))


def test_half_precision_has_exact_statistics() -> None:
    first, x = layer(4, 6, 3).float(), images(2, 4, 8, 8).float()
    expected = first(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = convolve(x.bfloat16().requires_grad_(), first)
    assert found.dtype == torch.bfloat16
    assert float((found - expected).detach().norm() / expected.detach().norm()) < 0.03


def test_gradients_of_statistics() -> None:
    x = images(2, 3, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(Statistics.apply, x)
    assert torch.autograd.gradgradcheck(Statistics.apply, x)
