"""Batch normalisation over all processes, so that their number does not change what is learned."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Normalises with mean and variance of the batches of all processes, on CPU and GPU; torch's own needs CUDA."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of axes, as the classes it replaces each check their own."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        axes = [0, *range(2, input.ndim)]
        count = input.numel() // input.shape[1] * dist.get_world_size()
        mean = sum_over_processes(input.sum(axes, keepdim=True)) / count  # [1, channels, 1, ...]
        centred = input - mean
        var = sum_over_processes(centred.square().sum(axes, keepdim=True)) / count
        self._update_running(mean.detach().flatten(), var.detach().flatten() * (count / (count - 1)))
        result = centred * torch.rsqrt(var + self.eps)
        return result * self.weight.view_as(mean) + self.bias.view_as(mean) if self.affine else result

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        self.running_var.lerp_(var.to(self.running_var), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _SumOverProcesses.forward(ctx, grad.contiguous())  # every process used the sum


def sum_over_processes(x: Tensor) -> Tensor:
    result = _SumOverProcesses.apply(x)
    assert isinstance(result, Tensor)
    return result


def synchronise_batch_norm(module: nn.Module) -> None:
    """Make every batch normalisation of a network use the batches of all processes."""
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.__class__ = SyncBatchNorm  # same parameters and buffers, another forward
