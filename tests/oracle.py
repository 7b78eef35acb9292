"""Algorithm 1 in float64 numpy loops straight from the equations; shares no code with the package."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def logistic(a: float) -> float:
    if a == math.inf or a == -math.inf:
        return 1.0 if a > 0 else 0.0
    return 1 / (1 + math.exp(-a)) if a >= 0 else math.exp(a) / (1 + math.exp(a))


def gaussian(V: Array, mu: Array, sig2: Array) -> Array:
    """Densities of one input's votes `[j, c, h]` under every output's model, `[j]`."""
    n_out, d_cov, d_out = V.shape
    P = np.ones(n_out)
    for j in range(n_out):
        for c in range(d_cov):
            for h in range(d_out):
                P[j] *= math.exp(-((V[j, c, h] - mu[j, c, h]) ** 2) / (2 * sig2[j, c, h]))
                P[j] /= math.sqrt(2 * math.pi * sig2[j, c, h])
    return P


def kmeans(V: Array, mu: Array, sig2: Array) -> Array:
    """Softmax over outputs of minus the squared distance, `[j]`."""
    P = np.array([math.exp(-sum(((V[j] - mu[j]) ** 2).flat)) for j in range(len(V))])
    return P / P.sum()


def route(
    a_inp: Array,
    mu_inp: Array,
    W: Array,
    B: Array,
    beta_use: Array,
    beta_ign: Array,
    n_iters: int,
    eps: float,
    density: Callable[[Array, Array, Array], Array],
) -> list[dict[str, Array]]:
    """One sample, parameters with all their axes; one record for each iteration."""
    n_inp, n_out, d_inp, d_out = W.shape
    d_cov = mu_inp.shape[1]
    V = np.zeros((n_inp, n_out, d_cov, d_out))
    for i, j, c, h in np.ndindex(V.shape):
        V[i, j, c, h] = sum(W[i, j, d, h] * mu_inp[i, c, d] for d in range(d_inp)) + B[i, j, c, h]

    R = np.full((n_inp, n_out), 1 / n_out)
    a, mu, sig2 = np.zeros(n_out), np.zeros((n_out, d_cov, d_out)), np.zeros((n_out, d_cov, d_out))
    records = []
    for iteration in range(n_iters):
        if iteration > 0:
            R = np.zeros((n_inp, n_out))
            for i in range(n_inp):
                weighted = [logistic(a[j]) * P for j, P in enumerate(density(V[i], mu, sig2))]
                R[i] = np.array(weighted) / sum(weighted)
        D_use, D_ign = np.zeros((n_inp, n_out)), np.zeros((n_inp, n_out))
        for i, j in np.ndindex(R.shape):
            D_use[i, j] = logistic(a_inp[i]) * R[i, j]
            D_ign[i, j] = logistic(a_inp[i]) - D_use[i, j]
        a, mu, sig2 = np.zeros(n_out), np.zeros_like(mu), np.zeros_like(sig2)
        for j in range(n_out):
            a[j] = sum(beta_use[i, j] * D_use[i, j] for i in range(n_inp))
            a[j] -= sum(beta_ign[i, j] * D_ign[i, j] for i in range(n_inp))
            used = sum(D_use[:, j]) + eps
            for c in range(d_cov):
                for h in range(d_out):
                    mu[j, c, h] = sum(D_use[i, j] * V[i, j, c, h] for i in range(n_inp)) / used
                    square = sum(D_use[i, j] * (V[i, j, c, h] - mu[j, c, h]) ** 2 for i in range(n_inp))
                    sig2[j, c, h] = square / used + eps
        records.append({"R": R, "D_use": D_use, "D_ign": D_ign, "a": a, "mu": mu, "sig2": sig2})
    return records
