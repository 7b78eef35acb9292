"""The routing layer: parameters, their initial values, and the ways to size it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from .routing import Agreement, Capsules, Step
from .routing import route as route_capsules
from .routing import route_packed as route_packed_capsules
from .routing import trace as trace_capsules
from .routing.api import check_settings
from .routing.checks import check_axes, check_choice, check_integer, check_positive, check_tensor
from .routing.mapping import is_transforming

MEAN_RATE = 0.1
"""Factor of the mean over kinds of benefits and costs, where initial values are random."""


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
        n_kinds: Number of kinds of inputs. Each kind has parameters of its own, which its places share; inputs come
            kinds first, as many of each. By default every input is a kind where `n_inp` is fixed, else all are one.
        n_iters: Iterations of the loop.
        tie_betas: Use one parameter, `beta_use`, as both the net benefit to use an input and the net cost to ignore it.
        agreement: `"gaussian"`, `"kmeans"` or an `Agreement` of your own.
        eps: Added to the data each output uses and to its variances.
        init: Initial values, `"paper"` or `"random"`: benefits and costs are random, so that inputs get gradients from
            the first step on. They sum to zero over kinds, and steps of an optimiser move their mean over kinds by a
            tenth of what they move its differences, for every input adds to what the mean does to a score.
        beta_scale: Factor of benefits and costs. One above 1 makes steps of an optimiser larger for them.
        impl: Implementation, see [`route`][capsroute.route].
    """

    beta_ign: nn.Parameter  # none where betas are tied

    def __init__(
        self,
        d_cov: int,
        d_inp: int,
        d_out: int,
        n_inp: int | None = None,
        n_out: int | None = None,
        *,
        n_kinds: int | None = None,
        n_iters: int = 3,
        tie_betas: bool = False,
        agreement: str | Agreement = "gaussian",
        eps: float = 1e-5,
        init: str = "paper",
        beta_scale: float = 1.0,
        impl: str = "auto",
    ):
        super().__init__()
        d_cov, d_inp, d_out = (check_integer(*size) for size in (("d_cov", d_cov), ("d_inp", d_inp), ("d_out", d_out)))
        n_inp, n_out, n_kinds = (
            size if size is None else check_integer(name, size)
            for name, size in (("n_inp", n_inp), ("n_out", n_out), ("n_kinds", n_kinds))
        )
        if n_inp and n_kinds and n_inp % n_kinds:
            raise ValueError(f"n_kinds: expected a number that divides n_inp, {n_inp}, got {n_kinds}")
        if not isinstance(tie_betas, bool):
            raise TypeError(f"tie_betas: expected True or False, got {tie_betas!r}")
        n_iters = check_settings(n_iters, agreement, eps, impl)
        check_choice("init", init, ["paper", "random"])
        check_positive("beta_scale", beta_scale)
        self.d_cov, self.d_inp, self.d_out, self.n_inp, self.n_out = d_cov, d_inp, d_out, n_inp, n_out
        self.n_kinds = n_kinds or n_inp or 1
        self.init, self.beta_scale = init, beta_scale
        self.n_iters, self.tie_betas, self.agreement, self.eps, self.impl = n_iters, tie_betas, agreement, eps, impl

        k, j = self.n_kinds, n_out or 1
        self.W = nn.Parameter(torch.empty(k, j, d_inp, d_out))
        self.B = nn.Parameter(torch.empty(k, j, d_cov, d_out))
        if n_out is None:
            self.B_brk = nn.Parameter(torch.empty(1, d_cov, d_out))
        self.beta_use = nn.Parameter(torch.empty(k, j))
        self.register_parameter("beta_ign", None if tie_betas else nn.Parameter(torch.empty(k, j)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as in the paper: weights normal, scaled by 1 / d_inp; everything else zero.

        With `init="random"`, benefits and costs are normal with a standard deviation of 0.1, less the mean over kinds.
        """
        scales = {"W": 1 / self.d_inp, "B": 0.0, "B_brk": 0.0}
        scales |= dict.fromkeys(("beta_use", "beta_ign"), 0.1 if self.init == "random" else 0.0)
        for name, scale in scales.items():
            p = getattr(self, name, None)
            if p is not None:
                value = nn.init.normal_(torch.empty_like(p), std=scale) if scale else torch.zeros_like(p)
                if scale and name != "W" and self.n_kinds > 1:
                    value = value - value.mean(0)
                with torch.no_grad():  # a parametrized tensor is computed: it takes values by assignment
                    setattr(self, name, value) if is_parametrized(self, name) else p.copy_(value)

    def forward(
        self, a_inp: Tensor, mu_inp: Tensor, *, mask: Tensor | None = None, n_out: int | None = None
    ) -> Capsules:
        """Route input capsules to output capsules.

        Args:
            a_inp: Input scores before the logistic function, `[..., n_inp]`.
            mu_inp: Input capsules, `[..., n_inp, d_cov, d_inp]`.
            mask: 1 or true for the inputs that count and 0 or false for the others, `[..., n_inp]`, of any dtype. The
                values of the others do not matter. On a GPU and in graphs, where it would take a synchronisation to
                see them, values of the mask are not checked, and all but 0 count as 1.
            n_out: Number of outputs, only where the layer leaves it open; by default that of the inputs.
        """
        tensors = self.route_arguments(a_inp, mu_inp, mask=mask, n_out=n_out)
        return route_capsules(**tensors, **self.settings, impl=self.impl)

    def forward_packed(self, a_inp: Tensor, mu_inp: Tensor, offsets: Tensor, *, n_out: int | None = None) -> Capsules:
        """Route samples of different sizes, each by itself, without padding them to the largest.

        Args:
            a_inp: Scores of all samples' inputs, one sample after the other, `[total]`.
            mu_inp: Their capsules, `[total, d_cov, d_inp]`.
            offsets: Start of each sample, and the end of the last one, `[samples + 1]`; samples may be empty. They are
                read on the host: offsets on a GPU take a synchronisation.
            n_out: Number of outputs of every sample, needed where the layer leaves it open.
        """
        if self.n_inp is not None:
            raise ValueError(f"n_inp: expected a layer that leaves it open, this one fixes it at {self.n_inp}")
        if self.n_out is None and n_out is None:
            raise ValueError("n_out: expected a number for all samples, which differ in their number of inputs")
        for name, t, axes in (("mu_inp", mu_inp, "[total, d_cov, d_inp]"), ("a_inp", a_inp, "[total]")):
            check_tensor(name, t)
            check_axes(name, t, axes)
        if len(a_inp) != len(mu_inp):
            raise ValueError(f"a_inp: expected [total], got shape {list(a_inp.shape)}")
        tensors = self.route_arguments(a_inp, mu_inp, n_out=n_out)
        return route_packed_capsules(**tensors, offsets=offsets, **self.settings, impl=self.impl)

    def trace(
        self, a_inp: Tensor, mu_inp: Tensor, *, mask: Tensor | None = None, n_out: int | None = None
    ) -> list[Step]:
        """Route as `forward` does, and return a record of every iteration."""
        return list(trace_capsules(**self.route_arguments(a_inp, mu_inp, mask=mask, n_out=n_out), **self.settings))

    def extra_repr(self) -> str:
        sizes = f"{self.d_cov}, {self.d_inp}, {self.d_out}, n_inp={self.n_inp}, n_out={self.n_out}"
        sizes += "" if self.n_kinds == (self.n_inp or 1) else f", n_kinds={self.n_kinds}"
        agreement = self.agreement if isinstance(self.agreement, str) else self.agreement.name
        loop = f"n_iters={self.n_iters}, tie_betas={self.tie_betas}, agreement={agreement!r}, eps={self.eps:g}"
        start = "" if self.init == "paper" else f", init={self.init!r}"
        start += "" if self.beta_scale == 1 else f", beta_scale={self.beta_scale:g}"
        return f"{sizes}, {loop}{start}, impl={self.impl!r}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the loop, as `route` takes them."""
        return {"n_iters": self.n_iters, "agreement": self.agreement, "eps": self.eps}

    def route_arguments(
        self, a_inp: Tensor, mu_inp: Tensor, *, mask: Tensor | None = None, n_out: int | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors that `forward` calls `route` with: the inputs, checked and masked, and the parameters."""
        for name, t, axes in (("a_inp", a_inp, "[..., n_inp]"), ("mu_inp", mu_inp, "[..., n_inp, d_cov, d_inp]")):
            check_tensor(name, t)
            check_axes(name, t, axes)
        shape, n_inp = list(mu_inp.shape), mu_inp.shape[-3]
        expected = [n_inp if self.n_inp is None else self.n_inp, self.d_cov, self.d_inp]
        if shape[-3:] != expected:
            raise ValueError(f"mu_inp: expected [..., n_inp, d_cov, d_inp] ending in {expected}, got shape {shape}")
        if n_inp % self.n_kinds:
            raise ValueError(f"mu_inp: expected as many inputs of each of {self.n_kinds} kinds, got shape {shape}")
        if mask is not None:
            if a_inp.shape != mu_inp.shape[:-2]:
                raise ValueError(
                    f"a_inp: expected {list(mu_inp.shape[:-2])}, as in mu_inp, got shape {list(a_inp.shape)}"
                )
            masked = ~check_mask(mask, a_inp)
            a_inp, mu_inp = a_inp.masked_fill(masked, -torch.inf), mu_inp.masked_fill(masked[..., None, None], 0.0)
        B = self.B if self.n_out is not None and n_out is None else self._spread_biases(n_inp, n_out)
        beta_use = self.beta_use
        betas = {"beta_use": beta_use, "beta_ign": beta_use if self.tie_betas else self.beta_ign}
        if self.init == "random" and self.n_kinds > 1:
            betas = {name: beta - (1 - MEAN_RATE) * beta.mean(0) for name, beta in betas.items()}
        if self.beta_scale != 1:
            betas = {name: beta * self.beta_scale for name, beta in betas.items()}
        return {"a_inp": a_inp, "mu_inp": mu_inp, "W": self.W, "B": B, **betas}

    def _spread_biases(self, n_inp: int, n_out: int | None) -> Tensor:
        if self.n_out is not None:
            raise ValueError(f"n_out: expected none at the call, the layer fixes it at {self.n_out}, got {n_out}")
        if n_out is None and n_inp < 1:
            raise ValueError("n_out: expected a number where there are no inputs, by default theirs, got none")
        n_out = check_integer("n_out", n_inp if n_out is None else n_out)
        steps = torch.linspace(-1, 1, n_out, dtype=self.B.dtype, device=self.B.device)  # [j]
        return self.B + self.B_brk * steps[:, None, None]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Accept the author's files, which also hold a constant, and tied betas under both names."""
        state_dict.pop(f"{prefix}CONST_one", None)
        if self.tie_betas and (beta_ign := state_dict.pop(f"{prefix}beta_ign", None)) is not None:
            beta_use = state_dict.get(f"{prefix}beta_use")
            if beta_use is not None and not torch.equal(beta_ign, beta_use):
                raise ValueError(
                    f"{prefix}beta_ign: expected the same numbers as beta_use, which the layer ties, got others"
                )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def check_mask(mask: Tensor, a_inp: Tensor) -> Tensor:
    """Return a mask of 0 and 1 as one of bool, or refuse it."""
    check_tensor("mask", mask)
    if mask.shape != a_inp.shape or mask.device != a_inp.device:
        expected, got = (f"shape {list(t.shape)} on {t.device}" for t in (a_inp, mask))
        raise ValueError(f"mask: expected {expected}, as a_inp, got {got}")
    if mask.is_complex():
        raise TypeError(f"mask: expected a tensor of 0 and 1, got {mask.dtype}")
    if mask.dtype == torch.bool:
        return mask
    check_values(mask, (mask == 0) | (mask == 1), "0 and 1")
    return mask != 0


def check_values(mask: Tensor, valid: Tensor, expected: str) -> None:
    """Refuse a mask with other values, where they can be read without waiting for a GPU or breaking a graph."""
    tracing = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    traced = torch.compiler.is_compiling() or tracing or is_transforming()
    if mask.device.type == "cpu" and type(mask) is Tensor and not traced and not valid.all():
        raise ValueError(f"mask: expected {expected}, got {mask[~valid][0].item():g}")
