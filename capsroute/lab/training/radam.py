"""RAdam as torch has it, in a form that a CUDA graph can hold: what changes from step to step lies on the device.

torch's own reads rate, momentum and the number of the step on the host, which a graph would freeze. It is not compiled,
which would round differently: a captured run is to have the very losses of a plain one.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def step_sizes(lr: float, beta1: float, beta2: float, step: int) -> tuple[float, float, float]:
    """The new gradient's weight in its average, and the parts of the step with and without rectification."""
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    longest = 2 / (1 - beta2) - 1  # of the average of squares, were it started long ago
    length = longest - 2 * step * beta2**step / correction2
    if length <= 5:  # too few squares to divide by
        return 1 - beta1, 0.0, -lr / correction1
    rect = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
    return 1 - beta1, -(correction2**0.5) * (lr * rect / correction1), 0.0


def descend(
    avg: Tensor,  # [n]
    avg_sq: Tensor,  # [n]
    grad: Tensor,  # [n]
    sizes: Tensor,  # [steps, 3] as `step_sizes` gives them
    number: Tensor,  # [1] of the step
    beta2: float,
    eps: float,
) -> Tensor:
    """Follow the gradient with both averages; returns how far to go along the first, rounded as torch rounds it."""
    weight, rectified, plain = sizes.index_select(0, number)[0].unbind()
    avg.lerp_(grad, weight)
    avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    return avg_sq.sqrt().add_(eps).div_(rectified).reciprocal_().add_(plain)


class FlatRAdam:
    """Steps of torch's RAdam for all parameters in one piece.

    The optimizer's averages become parts of the pieces, so that it reads, saves and continues what is done here. Its
    counts of steps lie on the host; `count` brings them up to date.
    """

    def __init__(self, optimizer: torch.optim.RAdam, schedule: Iterable[tuple[float, float]]):
        (group,) = optimizer.param_groups
        self.optimizer, self.params, self.eps, self.beta2 = optimizer, group["params"], group["eps"], group["betas"][1]
        prime(optimizer)
        self.avg, self.avg_sq = (self._in_one(name) for name in ("exp_avg", "exp_avg_sq"))
        numbers = [step_sizes(lr, beta1, self.beta2, n + 1) for n, (lr, beta1) in enumerate(schedule)]
        self.sizes = torch.tensor(numbers, dtype=torch.float64).to(self.avg)  # [steps, 3]

    @torch.no_grad()
    def step(self, number: Tensor) -> None:
        """The step of that number [1], counted from 0, from the gradients that the parameters have."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        grad = torch.cat([in_line(g, p) for g, p in zip(grads, self.params, strict=True)])
        far = descend(self.avg, self.avg_sq, grad, self.sizes, number, self.beta2, self.eps)
        torch._foreach_addcmul_(self.params, self._parts(self.avg), self._parts(far))  # pyright: ignore[reportPrivateImportUsage]

    def count(self, steps: int) -> None:
        """Let the optimizer know how many steps were made."""
        for p in self.params:
            self.optimizer.state[p]["step"].fill_(steps)

    def _in_one(self, name: str) -> Tensor:
        flat = torch.cat([in_line(self.optimizer.state[p][name], p) for p in self.params])
        for p, part in zip(self.params, self._parts(flat), strict=True):
            self.optimizer.state[p][name] = part
        return flat

    def _parts(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([p.numel() for p in self.params])
        return [part.as_strided(p.shape, p.stride()) for part, p in zip(parts, self.params, strict=True)]


def in_line(t: Tensor, like: Tensor) -> Tensor:
    """The numbers of a tensor [n] in the order in which a parameter has them in memory."""
    t = t if t.stride() == like.stride() else torch.empty_like(like).copy_(t)
    return t.as_strided((t.numel(),), (1,))


def prime(optimizer: torch.optim.RAdam) -> None:
    """Give every parameter the state that torch would make at its first step."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if not optimizer.state[p]:
                zeros = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[p] = {"step": torch.tensor(0.0), **zeros}
