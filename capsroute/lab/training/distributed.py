"""Batch normalisation over all processes, so that their number does not change what is learned."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SyncBatchNorm(nn.BatchNorm2d):
    """Normalises with mean and variance of the batches of all processes, on CPU and GPU; torch's own needs CUDA."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of axes, as the classes it replaces each check their own."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        axes = [0, *range(2, input.ndim)]
        count = input.numel() // input.shape[1] * dist.get_world_size()
        mean = SumOverProcesses.apply(input.sum(axes, keepdim=True)) / count  # [1, channels, 1, ...]
        centred = input - mean
        var = SumOverProcesses.apply(centred.square().sum(axes, keepdim=True)) / count
        with torch.no_grad():
            for running, new in ((self.running_mean, mean), (self.running_var, var * (count / (count - 1)))):
                assert running is not None
                assert self.momentum is not None
                running.lerp_(new.flatten().to(running), self.momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        result = centred * torch.rsqrt(var + self.eps)
        return result * self.weight.view_as(mean) + self.bias.view_as(mean) if self.affine else result


class SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return SumOverProcesses.forward(ctx, grad.contiguous())  # every process used the sum


def synchronise_batch_norm(module: nn.Module) -> None:
    """Make every batch normalisation of a network use the batches of all processes."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            # same parameters and buffers, another forward
            m.__class__ = SyncBatchNorm  # pyright: ignore[reportAttributeAccessIssue]
