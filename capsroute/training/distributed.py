"""Batch statistics over all processes, so that their number does not change what is learned."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation with the mean and variance of the whole batch, on CPU and GPU alike.

    torch's own is for CUDA devices alone.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        count = input.numel() // input.shape[1] * dist.get_world_size()
        mean = total(input.sum((0, 2, 3))) / count  # [channels]
        centred = input - mean[:, None, None]
        var = total(centred.square().sum((0, 2, 3))) / count
        self._follow(mean.detach(), var.detach() * (count / (count - 1)))
        scale = self.weight * torch.rsqrt(var + self.eps)
        return centred * scale[:, None, None] + self.bias[:, None, None]

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        self.running_var.lerp_(var.to(self.running_var), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


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
    """Let every BatchNorm2d of a network see the whole batch."""
    for m in module.modules():
        if type(m) is nn.BatchNorm2d:
            m.__class__ = SharedBatchNorm2d  # same parameters and buffers, another forward
    return module
