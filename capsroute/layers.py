"""The routing layer: parameters, their initial values, and the four size cases."""

from typing import Any

import torch
from torch import Tensor, nn

from .routing import IMPLS, Agreement, Capsules, Step
from .routing import route as route_capsules
from .routing import trace as trace_capsules
from .routing.api import check_loop, route_packed


class Routing(nn.Module):
    """Routes any number of input capsules to output capsules, by agreement.

    Leave `n_inp` out to share parameters between inputs and accept any number of them; leave `n_out` out to share
    them between outputs and choose their number at the call, by default that of the inputs.

    Args:
        d_cov: Size of the covector axis `c`, common to input and output capsules.
        d_inp: Size of an input capsule's other axis `d`.
        d_out: Size of an output capsule's other axis `h`.
        n_inp: Number of input capsules, if fixed.
        n_out: Number of output capsules, if fixed.
        n_iters: Iterations of the loop.
        tie_betas: Let the net cost to ignore an input be the net benefit to use it: one parameter.
        agreement: `"gaussian"`, `"kmeans"` or an `Agreement` of your own.
        eps: Added to the data each output uses and to its variances.
        impl: Implementation, see [`route`][capsroute.route].
    """

    def __init__(
        self,
        d_cov: int,
        d_inp: int,
        d_out: int,
        n_inp: int | None = None,
        n_out: int | None = None,
        *,
        n_iters: int = 3,
        tie_betas: bool = False,
        agreement: str | Agreement = "gaussian",
        eps: float = 1e-5,
        impl: str = "auto",
    ):
        super().__init__()
        sizes = {"d_cov": d_cov, "d_inp": d_inp, "d_out": d_out, "n_inp": n_inp, "n_out": n_out}
        for name, size in sizes.items():
            if size is None and name.startswith("n_"):
                continue
            if not isinstance(size, int) or isinstance(size, bool):
                raise TypeError(f"{name}: expected an integer, got {type(size).__name__}")
            if size < 1:
                raise ValueError(f"{name}: expected at least 1, got {size}")
        check_loop(n_iters, agreement, eps)
        if impl != "auto" and impl not in IMPLS:
            raise ValueError(f"impl: expected one of {['auto', *IMPLS]}, got {impl!r}")
        self.d_cov, self.d_inp, self.d_out, self.n_inp, self.n_out = d_cov, d_inp, d_out, n_inp, n_out
        self.n_iters, self.tie_betas, self.agreement, self.eps, self.impl = n_iters, tie_betas, agreement, eps, impl

        i, j = n_inp or 1, n_out or 1
        self.W = nn.Parameter(torch.empty(i, j, d_inp, d_out))
        self.B = nn.Parameter(torch.empty(i, j, d_cov, d_out))
        if n_out is None:
            self.B_brk = nn.Parameter(torch.empty(1, d_cov, d_out))
        self.beta_use = nn.Parameter(torch.empty(i, j))
        self.beta_ign = self.beta_use if tie_betas else nn.Parameter(torch.empty(i, j))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As in the paper: weights normal, scaled by 1 / d_inp; everything else zero."""
        for p in self.parameters():
            nn.init.zeros_(p)
        nn.init.normal_(self.W, std=1 / self.d_inp)

    def forward(
        self, a_inp: Tensor, mu_inp: Tensor, *, mask: Tensor | None = None, n_out: int | None = None
    ) -> Capsules:
        """Route.

        Args:
            a_inp: Input scores before the logistic function, `[..., n_inp]`.
            mu_inp: Input capsules, `[..., n_inp, d_cov, d_inp]`.
            mask: True for the inputs that count, `[..., n_inp]`; what the others hold does not matter.
            n_out: Number of outputs, only where the layer leaves it open; by default that of the inputs.
        """
        return route_capsules(*self._arguments(a_inp, mu_inp, mask, n_out), **self._loop(), impl=self.impl)

    def forward_packed(self, a_inp: Tensor, mu_inp: Tensor, offsets: Tensor, *, n_out: int | None = None) -> Capsules:
        """Route samples of different sizes, each by itself, without padding them to the largest.

        Args:
            a_inp: Scores of all samples' inputs, one sample after the other, `[total]`.
            mu_inp: Their capsules, `[total, d_cov, d_inp]`.
            offsets: Where each sample begins, and where the last one ends, `[samples + 1]`; an empty sample is one too.
                They are read on the host: if they lie on a GPU, it is waited for.
            n_out: Number of outputs of every sample, needed where the layer leaves it open.
        """
        if self.n_inp is not None:
            raise ValueError(f"n_inp: expected a layer that leaves it open, this one fixes it at {self.n_inp}")
        if self.n_out is None and n_out is None:
            raise ValueError("n_out: expected a number for all samples, which differ in their number of inputs")
        for name, t, rank in (("mu_inp", mu_inp, 3), ("a_inp", a_inp, 1)):
            if not isinstance(t, Tensor) or t.ndim != rank or len(t) != len(mu_inp):
                axes = "[total]" if rank == 1 else "[total, d_cov, d_inp]"
                came = f"shape {list(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
                raise ValueError(f"{name}: expected {axes}, got {came}")
        a_inp, mu_inp, *params = self._arguments(a_inp, mu_inp, None, n_out)
        return route_packed(a_inp, mu_inp, offsets, *params, **self._loop(), impl=self.impl)

    def trace(
        self, a_inp: Tensor, mu_inp: Tensor, *, mask: Tensor | None = None, n_out: int | None = None
    ) -> list[Step]:
        """Route as `forward` does and return a record of every iteration."""
        return list(trace_capsules(*self._arguments(a_inp, mu_inp, mask, n_out), **self._loop()))

    def extra_repr(self) -> str:
        sizes = f"{self.d_cov}, {self.d_inp}, {self.d_out}, n_inp={self.n_inp}, n_out={self.n_out}"
        agreement = self.agreement if isinstance(self.agreement, str) else self.agreement.name
        loop = f"n_iters={self.n_iters}, tie_betas={self.tie_betas}, agreement={agreement!r}, eps={self.eps:g}"
        return f"{sizes}, {loop}, impl={self.impl!r}"

    def _loop(self) -> dict[str, Any]:
        return {"n_iters": self.n_iters, "agreement": self.agreement, "eps": self.eps}

    def _arguments(
        self, a_inp: Tensor, mu_inp: Tensor, mask: Tensor | None, n_out: int | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Check what belongs to the layer, apply the mask, and give `B` its outputs where their number is open."""
        for name, t, rank in (("a_inp", a_inp, 1), ("mu_inp", mu_inp, 3)):
            if not isinstance(t, Tensor):
                raise TypeError(f"{name}: expected a tensor, got {type(t).__name__}")
            if t.ndim < rank:
                axes = "[..., n_inp]" if rank == 1 else "[..., n_inp, d_cov, d_inp]"
                raise ValueError(f"{name}: expected {axes}, got shape {list(t.shape)}")
        n_inp, d_cov, d_inp = mu_inp.shape[-3:]
        expected = [n_inp if self.n_inp is None else self.n_inp, self.d_cov, self.d_inp]
        if [n_inp, d_cov, d_inp] != expected:
            raise ValueError(
                f"mu_inp: expected [..., n_inp, d_cov, d_inp] ending in {expected}, got shape {list(mu_inp.shape)}"
            )
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise TypeError(f"mask: expected a tensor of bool, got {came}")
            if mask.shape != a_inp.shape:
                raise ValueError(f"mask: expected {list(a_inp.shape)}, as a_inp, got shape {list(mask.shape)}")
            left_out = ~mask
            a_inp = a_inp.masked_fill(left_out, -torch.inf)
            mu_inp = mu_inp.masked_fill(left_out[..., None, None], 0.0)
        return a_inp, mu_inp, self.W, self._biases(n_inp, n_out), self.beta_use, self.beta_ign

    def _biases(self, n_inp: int, n_out: int | None) -> Tensor:
        if self.n_out is not None:
            if n_out is not None:
                raise ValueError(f"n_out: expected none at the call, the layer fixes it at {self.n_out}, got {n_out}")
            return self.B
        if not isinstance(n_out, int | torch.SymInt | None) or isinstance(n_out, bool):
            raise TypeError(f"n_out: expected an integer, got {type(n_out).__name__}")
        n_out = n_inp if n_out is None else n_out
        if n_out < 1:
            raise ValueError(f"n_out: expected at least 1, by default the number of inputs, got {n_out}")
        steps = torch.linspace(-1, 1, n_out, dtype=self.B.dtype, device=self.B.device)  # [j]
        return self.B + self.B_brk * steps[:, None, None]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Accept the author's files, which also hold the number one."""
        state_dict.pop(f"{prefix}CONST_one", None)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
