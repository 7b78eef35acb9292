"""`route()`: checks the arguments, picks an implementation, and frames it in one precision.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `...` batch.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from . import blocked, moments, reference, triton
from .agreement import AGREEMENTS, Agreement
from .capsules import Capsules, Step
from .case import Case
from .packing import checked_lengths, grouped

Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""`a_inp`, `mu_inp`, `W`, `B`, `beta_use` and `beta_ign`."""
NAMES = ("a_inp", "mu_inp", "W", "B", "beta_use", "beta_ign")


class Kind(NamedTuple):
    """All that checks need to know of a tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


Kinds = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
"""Of the six tensors; as plain tuples they are made and compared fastest."""


class Impl(NamedTuple):
    """One implementation: what keeps it from a case, and how it routes."""

    reasons_against: Callable[[Case], list[str]]
    route: Callable[..., Capsules]
    widens: bool = False
    """Whether it takes any precision, and bounds capsules itself."""
    route_packed: Callable[..., Capsules] | None = None
    """How it routes samples of different sizes without padding, if it can."""


IMPLS = {
    "reference": Impl(reference.reasons_against, reference.route),
    "moments": Impl(moments.reasons_against, moments.route),
    "blocked": Impl(blocked.reasons_against, blocked.route),
    "triton": Impl(triton.reasons_against, triton.route, widens=True, route_packed=triton.route_packed),
}

FEATURES_PER_VOTE = 16
"""`moments` wins while its features are at most this many times a vote's numbers (`benchmarks/` measures it)."""
FEW_VOTES, FEW_VOTES_GPU = 2**15, 2**24
"""Up to so many numbers in all votes, no other implementation makes up for its overhead."""


def pick(case: Case) -> str:
    """The implementation that `impl="auto"` means for a case."""
    if case.device == "cuda" and not triton.reasons_against(case):
        return "triton"
    votes = case.d_cov * case.d_out
    # a captured graph must serve any number of inputs, so their number counts only outside of one
    if not case.compiling:
        few = FEW_VOTES if case.device == "cpu" else FEW_VOTES_GPU
        if case.n_samples * case.n_inp * case.n_out * votes <= few:
            return "reference"
    if not moments.reasons_against(case) and moments.n_features(case) <= FEATURES_PER_VOTE * votes:
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
        W: Weights of the votes, `[i, j, d, h]`; size 1 on axis `i` or `j` shares them.
        B: Biases of the votes, `[i, j, c, h]`, likewise.
        beta_use: Net benefit to use an input, `[i, j]`, likewise.
        beta_ign: Net cost to ignore an input, `[i, j]`, likewise.
        n_iters: Iterations of the loop, at least 1.
        agreement: `"gaussian"`, `"kmeans"` or an `Agreement` of your own.
        eps: Added to the data each output uses and to its variances.
        impl: `"auto"`, `"reference"`, `"moments"`, `"blocked"` or `"triton"`. An explicit choice never falls back.

    Returns:
        The output capsules, in the widest precision among the arguments; the loop itself never runs below float32.
    """
    tensors = a_inp, mu_inp, W, B, beta_use, beta_ign
    case, chosen = _settle(tensors, n_iters, agreement, eps, impl)
    with _exactly(case.device):
        arguments = _expand(tensors, case) if chosen.widens else _widen(tensors, case)
        out = chosen.route(*arguments, n_iters, case.agreement, eps)
    return out if out.a.dtype == case.dtype else Capsules(*[_narrow(t, case.dtype) for t in out])


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
    """Route samples of different sizes as `route()` would each alone.

    Their inputs lie one after the other in `a_inp [n]` and `mu_inp [n, c, d]`, from `offsets [b]` to `offsets [b + 1]`,
    which are read on the host and may lie there; all inputs share parameters.
    """
    lengths = checked_lengths(offsets, len(mu_inp))
    tensors = a_inp, mu_inp, W, B, beta_use, beta_ign
    case = _case(_kinds(tensors), n_iters, agreement, eps)
    case = replace(case, n_samples=len(lengths), n_inp=int(lengths.max()) if len(lengths) else 0)
    by_itself = IMPLS[_chosen(impl, case)].route_packed
    if by_itself:
        with _exactly(case.device):
            a_inp, mu_inp, *params = _expand(tensors, case)
            there = offsets.to(mu_inp.device, torch.int64)
            out = by_itself(a_inp, mu_inp, there, lengths.tolist(), *params, n_iters, case.agreement, eps)
        return Capsules(*(_narrow(t, case.dtype) for t in out))
    groups = grouped(lengths, mu_inp.device)
    parts = []
    for group in groups:
        a, mu = a_inp[group.inputs], mu_inp[group.inputs]
        a, mu = a.masked_fill(~group.mask, -torch.inf), mu.masked_fill(~group.mask[..., None, None], 0.0)
        parts.append(route(a, mu, W, B, beta_use, beta_ign, n_iters=n_iters, agreement=agreement, eps=eps, impl=impl))
    back = torch.cat([group.samples for group in groups]).argsort()
    return Capsules(*(torch.cat(ts)[back] for ts in zip(*parts, strict=True)))


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
    """Route as `route()` does, yielding a record of every iteration, computed by the reference."""
    tensors = a_inp, mu_inp, W, B, beta_use, beta_ign
    case = _case(_kinds(tensors), n_iters, agreement, eps)
    with _exactly(case.device):
        for step in reference.trace(*_widen(tensors, case), n_iters, case.agreement, eps):
            yield Step(*(_narrow(t, case.dtype) for t in step))


def _settle(tensors: Arguments, n_iters: int, agreement: str | Agreement, eps: float, impl: str) -> tuple[Case, Impl]:
    """What is asked for and who does it, looked up where the same was settled before."""
    kinds = _kinds(tensors)
    if not torch.compiler.is_compiling():
        try:
            case, name = _settled(kinds, n_iters, agreement, eps, impl)
            return case, IMPLS[name]
        except TypeError:  # sizes that are symbols have no hash; what is wrong with arguments is said again below
            pass
    case = _case(kinds, n_iters, agreement, eps)
    return case, IMPLS[_chosen(impl, case)]


@lru_cache(maxsize=1024, typed=True)
def _settled(kinds: Kinds, n_iters: int, agreement: str | Agreement, eps: float, impl: str) -> tuple[Case, str]:
    """Likewise: checks take longer than many a routing."""
    case = _case(kinds, n_iters, agreement, eps)
    return case, _chosen(impl, case)


def _chosen(impl: str, case: Case) -> str:
    """The implementation meant, if it can run the case."""
    if impl == "auto":
        return pick(case)
    if impl not in IMPLS:
        raise ValueError(f"impl: expected one of {['auto', *IMPLS]}, got {impl!r}")
    if reasons := IMPLS[impl].reasons_against(case):
        raise ValueError(f"impl={impl!r} cannot run this case: {'; '.join(reasons)}")
    return impl


def _exactly(device: str) -> AbstractContextManager[object]:
    """No autocast; where there is none, entering its context would only take time."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return NOTHING


NOTHING = nullcontext()


def _widen(tensors: Arguments, case: Case) -> Arguments:
    """Likewise, and to the loop's precision, capsules bounded so that no square overflows."""
    dtype = torch.promote_types(case.dtype, torch.float32)
    largest = torch.finfo(dtype).max ** (1 / 4)
    a_inp, mu_inp, W, B, beta_use, beta_ign = _expand(tuple(t.to(dtype) for t in tensors), case)
    return a_inp, mu_inp.clamp(-largest, largest), W, B, beta_use, beta_ign


def _expand(tensors: tuple[Tensor, ...], case: Case) -> Arguments:
    """To the shapes implementations expect."""
    a_inp, mu_inp, W, B, beta_use, beta_ign = tensors
    if B.shape[1] != case.n_out:
        B = B.expand(-1, case.n_out, -1, -1)
    if beta_use.shape[0] != beta_ign.shape[0]:
        n_beta = a_inp.shape[-1]  # one of them has that many, which may be none
        beta_use, beta_ign = beta_use.expand(n_beta, -1), beta_ign.expand(n_beta, -1)
    return a_inp, mu_inp, W, B, beta_use, beta_ign


def _narrow(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Back to the arguments' precision; a number too large for it becomes its largest."""
    if t.dtype == dtype:
        return t
    largest = torch.finfo(dtype).max
    return t.clamp(-largest, largest).to(dtype)


def _kinds(tensors: Arguments) -> Kinds:
    """What tensors are, if they are tensors."""
    for k, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            raise TypeError(f"{NAMES[k]}: expected a tensor, got {type(t).__name__}")
    return tuple([(t.shape, t.dtype, t.device) for t in tensors])


def _case(kinds: Kinds, n_iters: int, agreement: str | Agreement, eps: float) -> Case:
    """Refuse what cannot be routed, naming the argument, what was expected and what came."""
    named = {name: Kind(*kind) for name, kind in zip(NAMES, kinds, strict=True)}
    a_inp, mu_inp, *params = named.values()
    W, B = params[:2]
    for name, t in named.items():
        if not t.dtype.is_floating_point:
            raise TypeError(f"{name}: expected a floating-point tensor, got {t.dtype}")
        if t.device != mu_inp.device:
            raise ValueError(f"{name}: expected on {mu_inp.device}, where mu_inp is, got on {t.device}")
    if len(a_inp.shape) < 1:
        raise ValueError(f"a_inp: expected [..., i], got shape {list(a_inp.shape)}")
    if len(mu_inp.shape) < 3:
        raise ValueError(f"mu_inp: expected [..., i, c, d], got shape {list(mu_inp.shape)}")
    for name, rank in {"W": 4, "B": 4, "beta_use": 2, "beta_ign": 2}.items():
        if len(named[name].shape) != rank:
            axes = {4: "[i, j, d, h]" if name == "W" else "[i, j, c, h]", 2: "[i, j]"}[rank]
            raise ValueError(f"{name}: expected {axes}, got shape {list(named[name].shape)}")

    *batch, n_inp, d_cov, d_inp = mu_inp.shape
    if list(a_inp.shape) != [*batch, n_inp]:
        raise ValueError(
            f"a_inp: expected {[*batch, n_inp]}, the batch axes and n_inp of mu_inp {list(mu_inp.shape)},"
            f" got shape {list(a_inp.shape)}"
        )
    n_out, d_out = max(p.shape[1] for p in params), W.shape[3]
    if n_out < 1:
        raise ValueError(f"W: expected n_out of at least 1 on axis j, got shape {list(W.shape)}")
    for name, p in zip(NAMES[2:], params, strict=True):
        if p.shape[0] != 1 and p.shape[0] != n_inp:
            raise ValueError(f"{name}: expected n_inp of 1 or {n_inp}, as in mu_inp, got shape {list(p.shape)}")
        if p.shape[1] != 1 and p.shape[1] != n_out:
            raise ValueError(f"{name}: expected n_out of 1 or {n_out}, as in the other parameters, got {list(p.shape)}")
    if W.shape[2] != d_inp:
        raise ValueError(f"W: expected d_inp of {d_inp}, as in mu_inp, got shape {list(W.shape)}")
    if list(B.shape[2:]) != [d_cov, d_out]:
        raise ValueError(f"B: expected d_cov and d_out of {[d_cov, d_out]}, as in mu_inp and W, got {list(B.shape)}")
    check_loop(n_iters, agreement, eps)

    return Case(
        n_samples=math.prod(batch),
        n_inp=n_inp,
        n_out=n_out,
        d_cov=d_cov,
        d_inp=d_inp,
        d_out=d_out,
        shared=all(p.shape[0] == 1 for p in params),
        agreement=AGREEMENTS[agreement] if isinstance(agreement, str) else agreement,
        dtype=reduce(torch.promote_types, [t.dtype for t in named.values()]),
        device=mu_inp.device.type,
        compiling=torch.compiler.is_compiling(),
    )


def check_loop(n_iters: int, agreement: str | Agreement, eps: float) -> None:
    """Refuse settings under which the loop cannot run."""
    if not isinstance(n_iters, int) or isinstance(n_iters, bool):
        raise TypeError(f"n_iters: expected an integer, got {type(n_iters).__name__}")
    if n_iters < 1:
        raise ValueError(f"n_iters: expected at least 1, got {n_iters}")
    if not eps > 0:
        raise ValueError(f"eps: expected a number above 0, got {eps}")
    if isinstance(agreement, str):
        if agreement not in AGREEMENTS:
            raise ValueError(f"agreement: expected one of {list(AGREEMENTS)} or an Agreement, got {agreement!r}")
    elif not isinstance(agreement, Agreement):
        raise TypeError(f"agreement: expected a name or an Agreement, got {type(agreement).__name__}")
