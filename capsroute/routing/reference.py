"""Algorithm 1 of the paper, step by step, in the paper's letters: the specification of every other implementation.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties; `...` batch.
`f` is the logistic function. Parameters have one row for each kind of inputs, `k`, and are expanded to one for each
input; those shared by all inputs or outputs have size 1 on axis `i` or `j`.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .agreement import Agreement
from .capsules import Capsules, Step
from .case import Case
from .checks import check_agreement
from .mapping import bound_gradient, largest_gradients


def reasons_against(case: Case) -> list[str]:
    """List what keeps it from a case: nothing does."""
    return []


def expand_kinds(p: Tensor, n_inp: int) -> Tensor:
    """Repeat a parameter `[k, ...]` for all places of each kind, `[i, ...]`, unless all inputs share it."""
    return p if p.shape[0] in (1, n_inp) else p.repeat_interleave(n_inp // p.shape[0], 0)  # i = (k, p)


def votes(mu_inp: Tensor, W: Tensor, B: Tensor) -> Tensor:
    """Compute V: each input capsule's vote for each output capsule."""
    return torch.einsum("...icd,ijdh->...ijch", mu_inp, W) + B  # [..., i, j, c, h]


def e_step(V: Tensor, a: Tensor, mu: Tensor, sig2: Tensor, agreement: Agreement) -> Tensor:
    """Compute R: the probability that input i belongs to output j, given the last iteration's models."""
    log_P = agreement.log_p(V, mu, sig2)  # [..., i, j]
    check_agreement("log_p", log_P, V.shape[:-2], V)
    logits = F.logsigmoid(a).unsqueeze(-2) + log_P
    return torch.softmax(bound_gradient(logits, largest_gradients(V.dtype)[1]), dim=-1)  # [..., i, j]


def d_step(a_inp: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """Compute D_use and D_ign: the shares of each input's data that each output uses and ignores."""
    f_a_inp = torch.sigmoid(a_inp).unsqueeze(-1)  # [..., i, 1]
    D_use = f_a_inp * R
    return D_use, f_a_inp - D_use  # [..., i, j] each


def m_step(
    V: Tensor, D_use: Tensor, D_ign: Tensor, beta_use: Tensor, beta_ign: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a, mu and sig2: scores are benefit less cost, models are weighted means and variances."""
    a = (beta_use * D_use).sum(-2) - (beta_ign * D_ign).sum(-2)  # [..., j]
    used = D_use.sum(-2)[..., None, None] + eps  # [..., j, 1, 1]
    mu = torch.einsum("...ij,...ijch->...jch", D_use, V) / used
    sig2 = torch.einsum("...ij,...ijch->...jch", D_use, (V - mu.unsqueeze(-4)).square()) / used + eps
    return a, mu, sig2


def trace(
    a_inp: Tensor,  # [..., i]
    mu_inp: Tensor,  # [..., i, c, d]
    W: Tensor,  # [k|1, j|1, d, h]
    B: Tensor,  # [k|1, j, c, h]
    beta_use: Tensor,  # [k|1, j|1]
    beta_ign: Tensor,  # [k|1, j|1]
    n_iters: int,
    agreement: Agreement,
    eps: float,
) -> Iterator[Step]:
    """Route, and yield every iteration."""
    W, B, beta_use, beta_ign = (expand_kinds(p, mu_inp.shape[-3]) for p in (W, B, beta_use, beta_ign))
    V = votes(mu_inp, W, B)
    R = torch.full_like(V[..., 0, 0], 1 / V.shape[-3])
    for iteration in range(n_iters):
        if iteration > 0:
            R = e_step(V, a, mu, sig2, agreement)
        D_use, D_ign = d_step(a_inp, R)
        a, mu, sig2 = m_step(V, D_use, D_ign, beta_use, beta_ign, eps)
        sig2 = bound_gradient(sig2, largest_gradients(V.dtype)[0])
        yield Step(R, D_use, D_ign, a, mu, sig2)


def route(
    a_inp: Tensor,
    mu_inp: Tensor,
    W: Tensor,
    B: Tensor,
    beta_use: Tensor,
    beta_ign: Tensor,
    n_iters: int,
    agreement: Agreement,
    eps: float,
) -> Capsules:
    """Route, and return the last iteration."""
    for step in trace(a_inp, mu_inp, W, B, beta_use, beta_ign, n_iters, agreement, eps):
        out = Capsules(step.a, step.mu, step.sig2)
    return out
