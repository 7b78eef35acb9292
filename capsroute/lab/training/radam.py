"""RAdam with its state and schedule on the device, so that a CUDA graph can hold a step.

torch's own reads learning rate, beta1 and step count on the host, which a graph would freeze. The update rounds as that
of `torch.optim.RAdam(foreach=True)`; it is not compiled, which would round differently.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

EPS = 1e-8  # added to the square root of the second moment


def step_sizes(lr: float, beta1: float, beta2: float, step: int) -> tuple[float, float, float]:
    """Return the new gradient's weight in the first moment, and the step sizes with and without rectification."""
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    rho_max = 2 / (1 - beta2) - 1
    rho = rho_max - 2 * step * beta2**step / correction2
    if rho <= 5:  # the second moment is not yet reliable
        return 1 - beta1, 0.0, -lr / correction1
    rect = ((rho - 4) * (rho - 2) * rho_max / ((rho_max - 4) * (rho_max - 2) * rho)) ** 0.5
    return 1 - beta1, -(correction2**0.5) * (lr * rect / correction1), 0.0


class ScheduledRAdam:
    """Updates all parameters at once; learning rate and beta1 follow a schedule given in advance.

    Args:
        params: Parameters on one device.
        schedule: Learning rate and beta1 of every step of the run.
        beta2: Decay of the second moment.
        decayed: Parameters that shrink before each step by the factor `1 - lr * weight_decay`.
        weight_decay: How fast they shrink.
        average: Decay of the parameters' running mean; 0 keeps none.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        schedule: Iterable[tuple[float, float]],
        beta2: float = 0.999,
        *,
        decayed: Iterable[nn.Parameter] = (),
        weight_decay: float = 0.0,
        average: float = 0.0,
    ):
        self.params: list[Tensor] = list(params)
        self.decayed: list[Tensor] = list(decayed) if weight_decay else []
        self.beta2, self.average, schedule = beta2, average, list(schedule)
        flat = torch.cat([_flatten(p.detach(), p) for p in self.params])
        dtype = torch.promote_types(flat.dtype, torch.float32)  # moments of half-precision weights need more digits
        self.avg, self.avg_sq = (torch.zeros_like(flat, dtype=dtype) for _ in range(2))  # [n] first, second moment
        sizes = [step_sizes(lr, beta1, beta2, n + 1) for n, (lr, beta1) in enumerate(schedule)]
        self.sizes = torch.tensor(sizes, dtype=torch.float64).to(self.avg)  # [steps, 3]
        self.shrink = torch.tensor([1 - lr * weight_decay for lr, _ in schedule], dtype=torch.float64).to(self.avg)
        self.mean = flat.to(dtype, copy=True) if average else flat.new_zeros(0)  # [n] of the parameters

    @torch.no_grad()
    def step(self, number: Tensor) -> None:
        """Update the parameters from their gradients; `number` [1] counts steps from 0 and lies on the device."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        grad = torch.cat([_flatten(g, p) for g, p in zip(grads, self.params, strict=True)]).to(self.avg)
        if self.decayed:
            torch._foreach_mul_(self.decayed, self.shrink.index_select(0, number)[0])  # pyright: ignore[reportPrivateImportUsage]
        weight, rectified, plain = self.sizes.index_select(0, number)[0].unbind()
        self.avg.lerp_(grad, weight)
        self.avg_sq.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        size = self.avg_sq.sqrt().add_(EPS).div_(rectified).reciprocal_().add_(plain)
        torch._foreach_addcmul_(self.params, self._views(self.avg), self._views(size))  # pyright: ignore[reportPrivateImportUsage]
        if self.average:
            self.mean.lerp_(torch.cat([_flatten(p, p) for p in self.params]).to(self.mean), 1 - self.average)

    def state(self) -> dict[str, Tensor]:
        """Return the moments and the mean of each parameter, as views in its shape."""
        moments = {"avg": self.avg, "avg_sq": self.avg_sq} | ({"mean": self.mean} if self.average else {})
        return {f"{k}.{name}": view for name, flat in moments.items() for k, view in enumerate(self._views(flat))}

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([p.numel() for p in self.params])
        return [part.as_strided(p.shape, p.stride()) for part, p in zip(parts, self.params, strict=True)]


def _flatten(t: Tensor, like: Tensor) -> Tensor:
    """Return the numbers of a tensor [n] in the memory order of a parameter."""
    t = t if t.stride() == like.stride() else torch.empty_like(like).copy_(t)
    return t.as_strided((t.numel(),), (1,))
