"""Checks of arguments; errors name the argument, what was expected and what came."""

import sys
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64


def check_tensor(name: str, t: Any) -> None:
    """Refuse what is no dense tensor."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(t).__name__}")
    if t.is_nested or t.layout is not torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got one that is {'nested' if t.is_nested else t.layout}")


def check_float(name: str, t: Any) -> None:
    """Refuse what is no dense tensor of a dtype that routing computes with or converts."""
    check_tensor(name, t)
    if t.dtype not in FLOATS:
        raise TypeError(f"{name}: expected a floating-point tensor of 16, 32 or 64 bits, got {t.dtype}")


def check_axes(name: str, t: Tensor, axes: str) -> None:
    """Refuse a tensor of other axes than such as `[k, j]`, or `[..., i]` with any others in front."""
    n_axes, any_batch = axes.count(",") + 1, axes.startswith("[...")
    if t.ndim != n_axes and not (any_batch and t.ndim >= n_axes - 1):
        raise ValueError(f"{name}: expected {axes}, got shape {list(t.shape)}")


def check_integer(name: str, value: Any, least: int = 1) -> int:
    """Return an integer, NumPy's too."""
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt | Integral):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")
    return value if isinstance(value, int | torch.SymInt) else int(value)  # pyright: ignore[reportReturnType]


def check_positive(name: str, value: Any) -> None:
    """Refuse what is no finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name}: expected a finite number above 0, got {value}")


def check_agreement(name: str, t: Any, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse a result of an agreement that is no dense tensor of a shape, or not of the dtype and device of another."""
    if not isinstance(t, Tensor):
        raise TypeError(f"agreement: expected {name} to be a tensor, got {type(t).__name__}")
    if t.layout is not torch.strided or t.shape != shape or t.dtype != like.dtype or t.device != like.device:
        expected = f"shape {list(shape)} and {like.dtype} on {like.device}"
        got = f"{list(t.shape)} and {t.dtype} on {t.device}, {t.layout}"
        raise ValueError(f"agreement: expected {name} of {expected}, got {got}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse what is none of some names."""
    if not isinstance(value, str) or value not in choices:
        raise (ValueError if isinstance(value, str) else TypeError)(f"{name}: expected one of {choices}, got {value!r}")
