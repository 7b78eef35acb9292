"""What an implementation is asked to run, without the numbers: enough to refuse a case or to prefer it."""

from dataclasses import dataclass

import torch

from .agreement import Agreement


@dataclass(frozen=True)
class Case:
    """Sizes and kinds of one routing; `shared` says that no parameter differs between inputs."""

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
