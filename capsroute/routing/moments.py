"""Routing by moments: the exact algorithm in matrix products, without a single vote.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties, `k` the pairs of
input properties `d <= d'`; `...` batch. `docs/algorithm.md` derives it.

Votes are linear in the input capsule `x`, so weighted sums of votes follow from weighted sums of the features
`phi = [x x', x, 1]`, and a quadratic log-density is linear in `phi`. Sums of squares cancel when votes agree
closely; capsules are therefore centred first, and the loop runs in float64.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .agreement import Quadratic
from .capsules import Capsules
from .case import Case

TINY = 1e-30


def reasons_against(case: Case) -> list[str]:
    """List what keeps it from a case: it needs shared parameters, a quadratic agreement and float64."""
    reasons = []
    if not case.shared:
        reasons.append("parameters differ between inputs, so sums of votes do not factor")
    if not isinstance(case.agreement, Quadratic):
        reasons.append(f"agreement {case.agreement.name!r} is not quadratic in the votes")
    if case.device == "mps":
        reasons.append("the device has no float64")
    return reasons


def n_features(case: Case) -> int:
    """Return the number of columns of `phi`."""
    return case.d_cov * (case.d_inp * (case.d_inp + 1) // 2 + case.d_inp) + 1


def find_centre(f_a_inp: Tensor, x: Tensor) -> Tensor:
    """Return the mean input capsule `[..., c, d]`, weighted by `f(a_inp) [..., i, 1]`, without gradients."""
    # no result depends on the centre, so neither do gradients
    with torch.no_grad():
        total = f_a_inp.sum(-2).unsqueeze(-1).clamp(min=TINY)  # [..., 1, 1]
        return (f_a_inp.mT @ x.flatten(-2)).unflatten(-1, x.shape[-2:]).squeeze(-3) / total


def route(
    a_inp: Tensor,  # [..., i]
    mu_inp: Tensor,  # [..., i, c, d]
    W: Tensor,  # [1, j|1, d, h]
    B: Tensor,  # [1, j, c, h]
    beta_use: Tensor,  # [1, j|1]
    beta_ign: Tensor,  # [1, j|1]
    n_iters: int,
    agreement: Quadratic,
    eps: float,
) -> Capsules:
    """Route, iterating `logits = phi theta`, `R = softmax(logits)`, `S = R' (f phi)`."""
    dtype = mu_inp.dtype
    W, B, beta_use, beta_ign = (p[0].double() for p in (W, B, beta_use, beta_ign))
    (d_cov, d_inp), n_out = mu_inp.shape[-2:], B.shape[0]

    f_a_inp = torch.sigmoid(a_inp.double()).unsqueeze(-1)  # [..., i, 1]
    x = mu_inp.double()
    shift = find_centre(f_a_inp, x)  # [..., c, d]
    x = x - shift.unsqueeze(-3)
    B = shift.unsqueeze(-3) @ W + B  # the vote of the centre, [..., j, c, h]

    row, col = torch.triu_indices(d_inp, d_inp, device=x.device)  # [k] each
    one = torch.eye(d_inp, dtype=x.dtype, device=x.device)
    twice = torch.where(row == col, 1.0, 2.0).to(x)  # x_d x_d' stands for x_d' x_d too
    xx = ((x @ one[:, row]) * (x @ one[:, col])).flatten(-2)  # a product selects columns faster than indexing
    phi = torch.cat([xx, x.flatten(-2), torch.ones_like(f_a_inp)], -1)  # [..., i, ck + cd + 1]
    f_phi = f_a_inp * phi
    WW = W[:, row] * W[:, col] * twice.unsqueeze(-1)  # [j, k, h]
    f_total = f_phi[..., -1].sum(-1, keepdim=True)  # [..., 1]

    S = f_phi.sum(-2, keepdim=True) / n_out  # R = 1 / n_out: one row serves all outputs, [..., 1, ck + cd + 1]
    for iteration in range(n_iters):
        if iteration > 0 and n_out > 1:  # with one output R is 1
            p, g = agreement.weights(sig2)
            theta = torch.cat(
                [
                    -(p @ WW.mT).flatten(-2),
                    2 * (p * m @ W.mT).flatten(-2),
                    (F.logsigmoid(a) + g - (p * m * m).sum((-2, -1))).unsqueeze(-1),
                ],
                -1,
            )  # [..., j, ck + cd + 1]
            R = torch.softmax(phi @ theta.mT, dim=-1)  # [..., i, j]
            S = (f_phi.mT @ R).mT  # so that the gradient of R is laid out as R is, [..., j, ck + cd + 1]
        D_xx, D_x, D = S.split([d_cov * row.numel(), d_cov * d_inp, 1], -1)
        D_VV = D_xx.unflatten(-1, (d_cov, -1)) @ WW  # sum_i D_use V V, votes counted from the centre's, [..., j, c, h]
        D_V = D_x.unflatten(-1, (d_cov, -1)) @ W  # sum_i D_use V
        D = D.unsqueeze(-1)  # [..., j, 1, 1]
        used = D + eps
        a = (beta_use + beta_ign) * D[..., 0, 0] - beta_ign * f_total
        m = (D_V - eps * B) / used  # mu less the centre's vote
        sig2 = ((D_VV - 2 * m * D_V + m * m * D) / used).clamp(min=0) + eps
    mu = (D_V + D * B) / used
    return Capsules(a.expand(mu.shape[:-2]).to(dtype), mu.to(dtype), sig2.to(dtype))
