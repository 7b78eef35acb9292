"""Modes and transforms of PyTorch: which are active, and autograd functions under those of `torch.func`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

Tensors = tuple[Tensor, ...]


def is_transforming() -> bool:
    """Tell whether a transform of `torch.func` is active; assume so where PyTorch cannot tell."""
    return getattr(torch._C, "_are_functorch_transforms_active", lambda: True)()


def in_forward_mode() -> bool:
    """Tell whether derivatives in forward mode are being computed."""
    return forward_ad._current_level >= 0


def disable_autocast(device: str) -> AbstractContextManager[object]:
    """Return a context without autocast; where it is off already, entering one would only take time."""
    if torch.compiler.is_compiling():  # a graph is also called under autocast; asking what is available would break it
        on = device != "meta"
    else:
        on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


def largest_gradients(dtype: torch.dtype) -> tuple[float, float]:
    """Return bounds for the gradients of variances and of logits, between which no iteration can overflow.

    From one to the other they grow by the square of a vote, divided by `eps`; variances divide by its square.
    """
    largest = torch.finfo(dtype).max
    return largest ** (7 / 16), largest ** (5 / 16)


def bound_gradient(t: Tensor, largest: float) -> Tensor:
    """Clamp the gradient of an intermediate result; a captured graph takes no hooks and does without."""
    if t.requires_grad and not torch.compiler.is_compiling():
        t.register_hook(lambda d: None if d is None else d.clamp(-largest, largest))
    return t


def map_one_by_one(
    call: Callable[..., Tensors], info: Any, in_dims: tuple[int | None, ...], *args: Any
) -> tuple[Tensors, Any]:
    """Return what `torch.func.vmap` expects of a function that takes one sample of the mapped axis at a time."""
    dims = [dim if isinstance(a, Tensor) else None for a, dim in zip(args, in_dims, strict=True)]
    moved = [a if dim is None else a.movedim(dim, 0) for a, dim in zip(args, dims, strict=True)]
    samples = [[a if dim is None else a[k] for a, dim in zip(moved, dims, strict=True)] for k in range(info.batch_size)]
    stacked = tuple([torch.stack(outs) for outs in zip(*[call(*sample) for sample in samples], strict=True)])
    return stacked, (0,) * len(stacked)


def pull_back(function: Callable[..., Tensors], primals: Tensors, grads: Tensors) -> Tensors:
    """Return the gradients of `primals`, from those of the results of `function`."""
    return torch.func.vjp(function, *primals)[1](grads)


class FirstDerivatives(Function):
    """A backward pass as a function of its own, so that `torch.func` can map over it; it has no derivatives."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("this impl has no second derivatives; route with impl='moments' or 'reference'")
