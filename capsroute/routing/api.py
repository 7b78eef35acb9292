"""`route()`: checks the arguments, picks an implementation, and runs it without autocast.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `...` batch. Inputs come as
`k` kinds at places, kinds first; parameters belong to a kind.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from . import blocked, moments, reference, triton
from .agreement import Agreement, resolve_agreement
from .capsules import Capsules, Step
from .case import Case
from .checks import check_axes, check_choice, check_float, check_integer, check_positive
from .costs import estimate_ms
from .mapping import disable_autocast, in_forward_mode
from .packing import check_offsets, group_samples

Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""`a_inp`, `mu_inp`, `W`, `B`, `beta_use` and `beta_ign`."""
PARAM_AXES = {"W": "[k, j, d, h]", "B": "[k, j, c, h]", "beta_use": "[k, j]", "beta_ign": "[k, j]"}
AXES = {"a_inp": "[..., i]", "mu_inp": "[..., i, c, d]", **PARAM_AXES}


class Impl(NamedTuple):
    """One implementation."""

    reasons_against: Callable[[Case], list[str]]
    """Lists what keeps it from a case."""
    route: Callable[..., Capsules]
    takes_any_dtype: bool = False
    """Whether it converts arguments and bounds capsules itself."""
    route_packed: Callable[..., Capsules] | None = None
    """Routes samples of different sizes without padding, if it can."""


IMPLS = {
    "reference": Impl(reference.reasons_against, reference.route),
    "moments": Impl(moments.reasons_against, moments.route),
    "blocked": Impl(blocked.reasons_against, partial(blocked.route, differentiable=reference.route)),
    "triton": Impl(triton.reasons_against, triton.route, takes_any_dtype=True, route_packed=triton.route_packed),
}

FEATURES_PER_VOTE = 16
"""Features per number of a vote up to which `moments` is the fastest, where sizes are not known."""
FEW_VOTES_GPU = 2**24
"""Numbers in all votes up to which `reference` is the fastest on a GPU, for it has the least overhead."""


def pick(case: Case) -> str:
    """Return the name of the implementation that `impl="auto"` means for a case."""
    if case.device == "cuda" and not case.forward_mode and not triton.reasons_against(case):
        return "triton"
    exact = case.dtype != torch.float64  # whose last digits moments lose
    # a captured graph must serve any number of inputs, so only eager mode looks at it
    if case.device == "cpu" and not case.compiling:
        costs = estimate_ms(case)
        names = [name for name in costs if (exact or name != "moments") and not IMPLS[name].reasons_against(case)]
        return min(names, key=costs.__getitem__)
    votes = case.d_cov * case.d_out
    if not case.compiling and case.n_samples * case.n_inp * case.n_out * votes <= FEW_VOTES_GPU:
        return "reference"
    small = exact and case.n_kinds == 1 and moments.n_features(case) <= FEATURES_PER_VOTE * votes
    if small and not moments.reasons_against(case):
        return "moments"
    return "reference" if blocked.reasons_against(case) else "blocked"


def route(
    a_inp: Tensor,
    mu_inp: Tensor,
    W: Tensor,
    B: Tensor,
    beta_use: Tensor,
    beta_ign: Tensor,
    *,
    n_iters: int = 3,
    agreement: str | Agreement = "gaussian",
    eps: float = 1e-5,
    impl: str = "auto",
) -> Capsules:
    """Route input capsules to output capsules by agreement: Algorithm 1 of the paper.

    Args:
        a_inp: Input scores before the logistic function, minus and plus infinity included, `[..., i]`.
        mu_inp: Input capsules, `[..., i, c, d]`.
        W: Weights of the votes, `[k, j, d, h]`, for k kinds of inputs: of `i` inputs the first `i / k` are of the first
            kind. With k = 1 all inputs share them, with k = `i` each has its own; size 1 on axis `j` shares them too.
        B: Biases of the votes, `[k, j, c, h]`, or with size 1 as `W`.
        beta_use: Net benefit to use an input, `[k, j]`, or with size 1 as `W`.
        beta_ign: Net cost to ignore an input, `[k, j]`, or with size 1 as `W`.
        n_iters: Iterations of the loop, at least 1.
        agreement: `"gaussian"`, `"kmeans"` or an `Agreement` of your own.
        eps: Added to the data each output uses and to its variances.
        impl: `"auto"`, `"reference"`, `"moments"`, `"blocked"` or `"triton"`. An explicit choice never falls back.

    Returns:
        The output capsules, in the widest precision among the arguments; the loop itself never runs below float32.
    """
    tensors = a_inp, mu_inp, W, B, beta_use, beta_ign
    case = check_arguments(tensors, n_iters, agreement, eps, impl)
    chosen = IMPLS[resolve_impl(impl, case)]
    with disable_autocast(case.device):
        arguments = expand(tensors, case) if chosen.takes_any_dtype else convert(tensors, case)
        out = chosen.route(*arguments, case.n_iters, case.agreement, eps)
    return Capsules(*[saturate(t, case.dtype) for t in out])


def route_packed(
    a_inp: Tensor,
    mu_inp: Tensor,
    offsets: Tensor,
    W: Tensor,
    B: Tensor,
    beta_use: Tensor,
    beta_ign: Tensor,
    *,
    n_iters: int = 3,
    agreement: str | Agreement = "gaussian",
    eps: float = 1e-5,
    impl: str = "auto",
) -> Capsules:
    """Route samples of different sizes, each as `route()` would alone.

    Their inputs lie one sample after the other in `a_inp [n]` and `mu_inp [n, c, d]`; those of sample `b` are from
    `offsets [b]` to `offsets [b + 1]`, which are read on the host and may be there. Each holds its inputs kinds first.
    """
    tensors = a_inp, mu_inp, W, B, beta_use, beta_ign
    case = check_arguments(tensors, n_iters, agreement, eps, impl)
    lengths = check_offsets(offsets, len(mu_inp), case.n_kinds)
    case = replace(case, n_samples=len(lengths), n_inp=int(lengths.max()) if len(lengths) else 0)
    route_kernel = IMPLS[resolve_impl(impl, case)].route_packed
    if route_kernel and case.n_kinds == 1:
        with disable_autocast(case.device):
            a_inp, mu_inp, *params = expand(tensors, case)
            offsets = offsets.to(mu_inp.device, torch.int64)
            out = route_kernel(a_inp, mu_inp, offsets, lengths.tolist(), *params, case.n_iters, case.agreement, eps)
        return Capsules(*(saturate(t, case.dtype) for t in out))
    # in the loop's precision, so that gradients of parameters are rounded once and not for every group
    a_inp, mu_inp, W, B, beta_use, beta_ign = (t.to(torch.promote_types(case.dtype, torch.float32)) for t in tensors)
    groups = group_samples(lengths, case.n_kinds, mu_inp.device)
    parts = []
    for group in groups:
        a, mu = a_inp[group.inputs], mu_inp[group.inputs]
        a, mu = a.masked_fill(~group.mask, -torch.inf), mu.masked_fill(~group.mask[..., None, None], 0.0)
        parts.append(route(a, mu, W, B, beta_use, beta_ign, n_iters=n_iters, agreement=agreement, eps=eps, impl=impl))
    order = torch.cat([group.samples for group in groups]).argsort()
    return Capsules(*(saturate(torch.cat(ts)[order], case.dtype) for ts in zip(*parts, strict=True)))


def trace(
    a_inp: Tensor,
    mu_inp: Tensor,
    W: Tensor,
    B: Tensor,
    beta_use: Tensor,
    beta_ign: Tensor,
    *,
    n_iters: int = 3,
    agreement: str | Agreement = "gaussian",
    eps: float = 1e-5,
) -> Iterator[Step]:
    """Route as `route()` does, by the reference, and yield a record of every iteration."""
    tensors = a_inp, mu_inp, W, B, beta_use, beta_ign
    case = check_arguments(tensors, n_iters, agreement, eps)
    with disable_autocast(case.device):
        for step in reference.trace(*convert(tensors, case), case.n_iters, case.agreement, eps):
            yield Step(*(saturate(t, case.dtype) for t in step))


def resolve_impl(impl: str, case: Case) -> str:
    """Return the name of the implementation to run, or refuse one that cannot run the case."""
    if impl == "auto":
        return pick(case)
    if reasons := IMPLS[impl].reasons_against(case):
        raise ValueError(f"impl: expected one that can run this case, got {impl!r}: {'; '.join(reasons)}")
    return impl


def convert(tensors: Arguments, case: Case) -> Arguments:
    """Convert to the precision of the loop, and bound numbers so large that products of them would overflow."""
    dtype = torch.promote_types(case.dtype, torch.float32)
    largest, most = torch.finfo(dtype).max ** (1 / 4), 1 / (8 * torch.finfo(dtype).eps)  # of weights, and of votes
    a_inp, mu_inp, W, *others = (t.to(dtype) for t in tensors)
    W, *others = W.clamp(-largest, largest), *(t.clamp(-most, most) for t in others)
    with torch.no_grad():
        gain = W.abs().sum(-2).max() if W.numel() else W.new_zeros(())  # of the largest number of a capsule in a vote
        bound = (most / gain).clamp(max=largest)
    return expand((a_inp, mu_inp.clamp(-bound, bound), W, *others), case)


def expand(tensors: tuple[Tensor, ...], case: Case) -> Arguments:
    """Expand parameters to the shapes that implementations expect."""
    a_inp, mu_inp, W, B, beta_use, beta_ign = tensors
    if B.shape[1] != case.n_out:
        B = B.expand(-1, case.n_out, -1, -1)
    if beta_use.shape[0] != beta_ign.shape[0]:
        beta_use, beta_ign = beta_use.expand(case.n_kinds, -1), beta_ign.expand(case.n_kinds, -1)
    return a_inp, mu_inp, W, B, beta_use, beta_ign


def saturate(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to the arguments' precision; a number too large for it becomes the largest."""
    if t.dtype == dtype:
        return t
    largest = torch.finfo(dtype).max
    return t.clamp(-largest, largest).to(dtype)


def check_arguments(
    tensors: Arguments, n_iters: int, agreement: str | Agreement, eps: float, impl: str = "auto"
) -> Case:
    """Return the case, or raise an error that names the argument, what was expected and what came."""
    for name, t in zip(AXES, tensors, strict=True):
        check_float(name, t)
    a_inp, mu_inp, *params = tensors
    W, B = params[:2]
    for name, t in zip(AXES, tensors, strict=True):
        if t.device != mu_inp.device:
            raise ValueError(f"{name}: expected on {mu_inp.device}, where mu_inp is, got on {t.device}")
        check_axes(name, t, AXES[name])

    *batch, n_inp, d_cov, d_inp = mu_inp.shape
    if list(a_inp.shape) != [*batch, n_inp]:
        expected = f"{[*batch, n_inp]}, the batch axes and n_inp of mu_inp {list(mu_inp.shape)}"
        raise ValueError(f"a_inp: expected {expected}, got shape {list(a_inp.shape)}")
    n_out, d_out = max(p.shape[1] for p in params), W.shape[3]
    n_kinds = next((p.shape[0] for p in params if p.shape[0] != 1), 1)
    if d_cov < 1 or d_inp < 1:
        raise ValueError(f"mu_inp: expected d_cov and d_inp of at least 1, got shape {list(mu_inp.shape)}")
    if n_out < 1 or d_out < 1:
        raise ValueError(f"W: expected n_out and d_out of at least 1, got shape {list(W.shape)}")
    for name, p in zip(PARAM_AXES, params, strict=True):
        if p.shape[0] != 1 and p.shape[0] != n_kinds:
            raise ValueError(f"{name}: expected n_kinds of 1 or {n_kinds}, as in the others, got shape {list(p.shape)}")
        if n_inp % p.shape[0] if p.shape[0] else n_inp:
            divisor = f"a number that divides the {n_inp} inputs of mu_inp"
            raise ValueError(f"{name}: expected n_kinds to be {divisor}, got shape {list(p.shape)}")
        if p.shape[1] != 1 and p.shape[1] != n_out:
            raise ValueError(f"{name}: expected n_out of 1 or {n_out}, as in the other parameters, got {list(p.shape)}")
    if W.shape[2] != d_inp:
        raise ValueError(f"W: expected d_inp of {d_inp}, as in mu_inp, got shape {list(W.shape)}")
    if list(B.shape[2:]) != [d_cov, d_out]:
        raise ValueError(f"B: expected d_cov and d_out of {[d_cov, d_out]}, as in mu_inp and W, got {list(B.shape)}")
    n_iters = check_settings(n_iters, agreement, eps, impl)
    return Case(
        *(math.prod(batch), n_inp, n_out, d_cov, d_inp, d_out),
        n_kinds=n_kinds,
        agreement=resolve_agreement(agreement),
        dtype=reduce(torch.promote_types, [t.dtype for t in tensors]),
        device=mu_inp.device.type,
        compiling=torch.compiler.is_compiling(),
        n_iters=n_iters,
        forward_mode=not torch.compiler.is_compiling() and in_forward_mode(),
    )


def check_settings(n_iters: int, agreement: str | Agreement, eps: float, impl: str = "auto") -> int:
    """Refuse settings of a routing that are wrong for every case, and return `n_iters`."""
    check_positive("eps", eps)
    resolve_agreement(agreement)
    check_choice("impl", impl, ["auto", *IMPLS])
    return check_integer("n_iters", n_iters)
