"""A routing without its numbers: what implementations accept or refuse it by."""

from dataclasses import dataclass

import torch

from .agreement import Agreement


@dataclass(frozen=True)
class Case:
    """Sizes, dtype and device of one routing; `shared` says that no parameter differs between inputs."""

    n_samples: int
    n_inp: int
    n_out: int
    d_cov: int
    d_inp: int
    d_out: int
    shared: bool
    agreement: Agreement
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    compiling: bool = False
