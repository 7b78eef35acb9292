"""Routing by moments: the exact algorithm in matrix products, without a single vote.

Axes: `k` kinds of inputs, `p` their places, `j` outputs, `c` covector, `d` input properties, `h` output properties,
`q` the pairs of input properties `d <= d'`; `...` batch. `docs/algorithm.md` derives it.

Votes of a kind are linear in the input capsule `x`, so weighted sums of votes follow from weighted sums of the features
`phi = [x x', x, 1]`, and a quadratic log-density is linear in `phi`. Sums of squares cancel when votes agree
closely; capsules are therefore centred first, and the loop runs in float64.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .agreement import Quadratic
from .capsules import Capsules
from .case import Case
from .mapping import bound_gradient, largest_gradients

TINY = 1e-30


def reasons_against(case: Case) -> list[str]:
    """List what keeps it from a case: it needs a quadratic agreement and float64."""
    reasons = []
    if not isinstance(case.agreement, Quadratic):
        reasons.append(f"agreement {case.agreement.name!r} is not quadratic in the votes")
    if case.device == "mps":
        reasons.append("the device has no float64")
    return reasons


def n_features(case: Case) -> int:
    """Return the number of columns of `phi`."""
    return case.d_cov * (case.d_inp * (case.d_inp + 1) // 2 + case.d_inp) + 1


def find_centre(f_a_inp: Tensor, x: Tensor) -> Tensor:
    """Return each kind's mean capsule `[..., k, c, d]`, weighted by `f(a_inp) [..., k, p, 1]`, without gradients."""
    # no result depends on the centre, so neither do gradients
    with torch.no_grad():
        total = f_a_inp.sum(-2).unsqueeze(-1).clamp(min=TINY)  # [..., k, 1, 1]
        return (f_a_inp.mT @ x.flatten(-2)).unflatten(-1, x.shape[-2:]).squeeze(-3) / total


def find_base(f_total: Tensor, B: Tensor) -> Tensor:
    """Return the mean over kinds of votes `[..., k, j, c, h]` of their centres, without gradients."""
    with torch.no_grad():
        share = f_total / f_total.sum(-2, keepdim=True).clamp(min=TINY)  # [..., k, 1]
        return (share[..., None, None] * B).sum(-4)


def route(
    a_inp: Tensor,  # [..., i]
    mu_inp: Tensor,  # [..., i, c, d]
    W: Tensor,  # [k|1, j|1, d, h]
    B: Tensor,  # [k|1, j, c, h]
    beta_use: Tensor,  # [k|1, j|1]
    beta_ign: Tensor,  # [k|1, j|1]
    n_iters: int,
    agreement: Quadratic,
    eps: float,
) -> Capsules:
    """Route, iterating `logits = phi theta`, `R = softmax(logits)`, `S = R' (f phi)`."""
    dtype, (d_cov, d_inp), n_out = mu_inp.dtype, mu_inp.shape[-2:], B.shape[1]
    tensors = (bound_gradient(t.double(), torch.finfo(dtype).max) for t in (a_inp, mu_inp, W, B, beta_use, beta_ign))
    a_inp, mu_inp, W, B, beta_use, beta_ign = tensors
    largest = largest_gradients(W.dtype)[1]  # of logits; no iteration can overflow between two of them
    n_kinds = next((p.shape[0] for p in (W, B, beta_use, beta_ign) if p.shape[0] != 1), 1)
    W = W.expand(n_kinds, -1, -1, -1)

    kinds_and_places = n_kinds, -1 if n_kinds else 0
    f_a_inp = torch.sigmoid(a_inp).unflatten(-1, kinds_and_places).unsqueeze(-1)  # [..., k, p, 1]
    x = mu_inp.unflatten(-3, kinds_and_places)  # [..., k, p, c, d]
    f_total = f_a_inp.sum(-2)  # [..., k, 1]
    shift = find_centre(f_a_inp, x)  # [..., k, c, d]
    x = x - shift.unsqueeze(-3)
    B = shift.unsqueeze(-3) @ W + B  # the vote of each kind's centre, [..., k, j, c, h]
    base = find_base(f_total, B)  # votes are counted from it, [..., j, c, h]
    B = B - base.unsqueeze(-4)

    row, col = torch.triu_indices(d_inp, d_inp, device=x.device)  # [q] each
    one = torch.eye(d_inp, dtype=x.dtype, device=x.device)
    twice = torch.where(row == col, 1.0, 2.0).to(x)  # x_d x_d' stands for x_d' x_d too
    xx = ((x @ one[:, row]) * (x @ one[:, col])).flatten(-2)  # a product selects columns faster than indexing
    phi = torch.cat([xx, x.flatten(-2), torch.ones_like(f_a_inp)], -1)  # [..., k, p, cq + cd + 1]
    f_phi = f_a_inp * phi
    WW = W[:, :, row] * W[:, :, col] * twice.unsqueeze(-1)  # [k, j, q, h]

    S = f_phi.sum(-2, keepdim=True) / n_out  # R = 1 / n_out: one row serves all outputs, [..., k, 1, cq + cd + 1]
    for iteration in range(n_iters):
        if iteration > 0 and n_out > 1:  # with one output R is 1
            p, g = agreement.checked_weights(sig2)
            p, m_k = p.unsqueeze(-4), m.unsqueeze(-4) - B  # [..., 1|k, j, c, h]
            theta = torch.cat(
                [
                    -(p @ WW.mT).flatten(-2),
                    2 * (p * m_k @ W.mT).flatten(-2),
                    ((F.logsigmoid(a) + g).unsqueeze(-2) - (p * m_k * m_k).sum((-2, -1))).unsqueeze(-1),
                ],
                -1,
            )  # [..., k, j, cq + cd + 1]
            R = torch.softmax(bound_gradient(phi @ theta.mT, largest), dim=-1)  # [..., k, p, j]
            S = (f_phi.mT @ R).mT  # so that the gradient of R is laid out as R is, [..., k, j, cq + cd + 1]
        D_xx, D_x, D_k = S.split([d_cov * row.numel(), d_cov * d_inp, 1], -1)
        D_xx, D_x = (t.unflatten(-1, (d_cov, -1)) for t in (D_xx, D_x))  # [..., k, j, c, q|d]
        Wx, D_k = D_x @ W, D_k.unsqueeze(-1)  # [..., k, j, c, h] and [..., k, j, 1, 1]
        D_V = (Wx + D_k * B).sum(-4)  # sum_i D_use V, [..., j, c, h]
        D_VV = (D_xx @ WW + (2 * Wx + D_k * B) * B).sum(-4)  # sum_i D_use V V
        a = ((beta_use + beta_ign) * D_k[..., 0, 0] - beta_ign * f_total).sum(-2)  # [..., j]
        D = D_k.sum(-4)  # [..., j, 1, 1]
        used = D + eps
        m = (D_V - eps * base) / used  # mu less the base
        sig2 = ((D_VV - 2 * m * D_V + m * m * D) / used).clamp(min=0) + eps
    mu = (D_V + D * base) / used
    return Capsules(a.expand(mu.shape[:-2]).to(dtype), mu.to(dtype), sig2.to(dtype))
