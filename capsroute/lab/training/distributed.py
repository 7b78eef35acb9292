"""Batch statistics over all processes, so that their number does not change what is learned."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Shared(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation with the mean and variance of the whole batch, on CPU and GPU alike.

    torch's own is for CUDA devices alone.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        others = [0, *range(2, input.ndim)]
        count = input.numel() // input.shape[1] * dist.get_world_size()
        mean = total(input.sum(others, keepdim=True)) / count  # [1, channels, 1, ...]
        centred = input - mean
        var = total(centred.square().sum(others, keepdim=True)) / count
        self._follow(mean.detach().flatten(), var.detach().flatten() * (count / (count - 1)))
        result = centred * torch.rsqrt(var + self.eps)
        return result * self.weight.view_as(mean) + self.bias.view_as(mean) if self.affine else result

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        self.running_var.lerp_(var.to(self.running_var), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


class SharedBatchNorm1d(Shared, nn.BatchNorm1d): ...


class SharedBatchNorm2d(Shared, nn.BatchNorm2d): ...


SHARED = {nn.BatchNorm1d: SharedBatchNorm1d, nn.BatchNorm2d: SharedBatchNorm2d}


class _Total(torch.autograd.Function):
    """The sum over processes; each one's gradient is the sum of theirs, for all of them used it."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


def total(x: Tensor) -> Tensor:
    result = _Total.apply(x)
    assert isinstance(result, Tensor)
    return result


def share_batch_statistics(module: nn.Module) -> nn.Module:
    """Let every batch normalisation of a network see the whole batch."""
    for m in module.modules():
        m.__class__ = SHARED.get(type(m), type(m))  # same parameters and buffers, another forward
    return module
