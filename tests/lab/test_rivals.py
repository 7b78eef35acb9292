"""Other routing algorithms against their papers' equations, in float64 numpy loops."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from capsroute.lab.rivals import RIVALS, Rival

Array = np.ndarray
I, J, C, D, H, T = 5, 3, 2, 3, 2, 3  # noqa: E741, axes as in the equations


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return e / e.sum()


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def squash(s: Array) -> Array:
    n = np.linalg.norm(s)
    return n**2 / (1 + n**2) * s / n


def squash_exponentially(s: Array) -> Array:
    n = np.linalg.norm(s)
    return (1 - math.exp(-n)) * s / n


def votes(mu: Array, W: Array) -> Array:
    return np.array([[(mu[i] @ W[i, j]).ravel() for j in range(J)] for i in range(I)])


def normalise(x: Array) -> Array:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def dynamic(a: Array, mu: Array, p: dict[str, Array]) -> tuple[Array, Array]:
    V = votes(np.array([squash(m.ravel()).reshape(C, D) for m in mu]), p["W"])
    b, v = np.zeros((I, J)), np.zeros((J, C * H))
    for _ in range(T):
        c = np.array([softmax(row) for row in b])
        v = np.array([squash(sum(c[i, j] * V[i, j] for i in range(I))) for j in range(J)])
        b += np.array([[V[i, j] @ v[j] for j in range(J)] for i in range(I)])
    return np.array([logit(float(np.linalg.norm(x))) for x in v]), v


def em(a: Array, mu: Array, p: dict[str, Array]) -> tuple[Array, Array]:
    V, there = votes(mu, p["W"]), 1 / (1 + np.exp(-a))
    R, M, a_out = np.full((I, J), 1 / J), np.zeros((J, C * H)), np.zeros(J)
    for t in range(1, T + 1):
        S = np.zeros((J, C * H))
        for j in range(J):
            r = R[:, j] * there
            for h in range(C * H):
                M[j, h] = sum(r * V[:, j, h]) / sum(r)
                S[j, h] = sum(r * (V[:, j, h] - M[j, h]) ** 2) / sum(r)
            cost = sum((p["beta_u"][j] + math.log(math.sqrt(s))) * sum(r) for s in S[j])
            a_out[j] = 0.01 * (1 - 0.95**t) * (p["beta_a"][j] - cost)
        for i in range(I):
            fit = [
                math.prod(
                    math.exp(-((V[i, j, h] - M[j, h]) ** 2) / (2 * S[j, h])) / math.sqrt(2 * math.pi * S[j, h])
                    for h in range(C * H)
                )
                for j in range(J)
            ]
            weighted = [fit[j] / (1 + math.exp(-a_out[j])) for j in range(J)]
            R[i] = np.array(weighted) / sum(weighted)
    return a_out, M


def inverted_attention(a: Array, mu: Array, p: dict[str, Array]) -> tuple[Array, Array]:
    V = votes(mu, p["W"])
    R, pose = np.full((I, J), 1 / J), np.zeros((J, C * H))
    for _ in range(T):
        for j in range(J):
            x = normalise(sum(R[i, j] * V[i, j] for i in range(I)))
            pose[j] = x * p["normalise.weight"] + p["normalise.bias"]
        R = np.array([softmax(np.array([pose[j] @ V[i, j] for j in range(J)])) for i in range(I)])
    return pose @ p["read.weight"][0] + p["read.bias"], pose


def self_attention(a: Array, mu: Array, p: dict[str, Array]) -> tuple[Array, Array]:
    V = votes(np.array([squash_exponentially(m.ravel()).reshape(C, D) for m in mu]), p["W"])
    A = np.array([[[V[i, j] @ V[k, j] / math.sqrt(C * H) for k in range(I)] for i in range(I)] for j in range(J)])
    coupling = np.array([softmax(np.array([A[j, i].sum() for j in range(J)])) for i in range(I)])
    s = [sum((coupling[i, j] + p["prior"][i, j]) * V[i, j] for i in range(I)) for j in range(J)]
    v = np.array([squash_exponentially(x) for x in s])
    return np.array([logit(float(np.linalg.norm(x))) for x in v]), v


def sequence(a: Array, mu: Array, p: dict[str, Array]) -> tuple[Array, Array]:
    V, there = votes(mu, p["W"]), 1 / (1 + np.exp(-a))
    R, pose = np.full((I, J), 1 / J), np.zeros((J, C * H))
    for _ in range(T):
        for j in range(J):
            total = np.zeros(C * H)
            for i in range(I):
                use = there[i] * R[i, j]
                total += (p["beta_use"][i, j] * use - p["beta_ign"][i, j] * (there[i] - use)) * V[i, j]
            pose[j] = normalise(total) * p["normalise.weight"] + p["normalise.bias"]
        predicted = [p["predict.weight"] @ x + p["predict.bias"] for x in pose]
        R = np.array([softmax(np.array([x @ mu[i].ravel() for x in predicted]) / math.sqrt(C * D)) for i in range(I)])
    return pose @ p["read.weight"][0] + p["read.bias"], pose


EQUATIONS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "dynamic": dynamic,
    "em": em,
    "inverted-attention": inverted_attention,
    "self-attention": self_attention,
    "sequence": sequence,
}


def make_layer(name: str, n_inp: int | None) -> Rival:
    """Return a layer in float64 all of whose parameters are random."""
    torch.manual_seed(0)
    layer = RIVALS[name](C, D, H, n_inp, J, n_iters=T).double()
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    return layer


@pytest.mark.parametrize("n_inp", [I, None], ids=["own weights", "shared weights"])
@pytest.mark.parametrize("name", RIVALS)
def test_layer_follows_its_equations(name: str, n_inp: int | None) -> None:
    layer = make_layer(name, n_inp)
    a, mu = torch.randn(4, I, dtype=torch.float64), torch.randn(4, I, C, D, dtype=torch.float64)
    out = layer(a, mu)
    params = {key: value.numpy(force=True) for key, value in layer.state_dict().items()}
    for key in ("W", "prior", "beta_use", "beta_ign"):
        if key in params:
            params[key] = np.broadcast_to(params[key], (I, *params[key].shape[1:]))
    for sample in range(4):
        a_expected, mu_expected = EQUATIONS[name](a[sample].numpy(), mu[sample].numpy(), params)
        torch.testing.assert_close(out.a[sample].detach(), torch.from_numpy(a_expected), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            out.mu[sample].detach().flatten(1), torch.from_numpy(mu_expected), rtol=1e-6, atol=1e-6
        )
