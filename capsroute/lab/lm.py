"""A small GPT whose last layer may route a token's capsules to subwords, with routing between blocks if asked for.

Axes: `b` texts, `n` positions, `k` depths, `d` the width, `i` input capsules, `j` subwords.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .. import Routing

OUTPUTS = ("softmax", "tied", "softmax_depths", "depths", "slices")
N_SLICES = 4
EPS = 0.1
"""Least variance and data of a subword, times their number: at first each has an equal share of an input's data."""


class Block(nn.Module):
    """Causal self-attention and a perceptron, each after a normalisation and added to its input, `[b, n, d]`."""

    def __init__(self, d: int, n_heads: int, hidden: int):
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.qkv, self.project = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm_2, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [b, heads, n, d / heads]
        x = x + self.project(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class RoutedPast(nn.Module):
    """Adds to each position what its last `window` positions, itself included, agree on, `[b, n, d]` to `[b, n, d]`."""

    def __init__(self, d: int, window: int, d_inp: int = 8, n_out: int = 4):
        super().__init__()
        self.describe = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 1 + d_inp))  # a score and a capsule
        self.distance = nn.Embedding(window, 1 + d_inp)  # inputs share parameters, so they have to say where they are
        self.routing = Routing(1, d_inp, d_inp, n_out=n_out, n_iters=2, init="random")
        self.read = nn.Linear(n_out * d_inp, d)

    def forward(self, x: Tensor) -> Tensor:
        window = self.distance.num_embeddings
        found = F.pad(self.describe(x), (0, 0, window - 1, 0)).unfold(1, window, 1).mT  # [b, n, window, 1 + d_inp]
        found = found + self.distance.weight
        there = torch.arange(x.shape[1], device=x.device)[:, None] > window - 2 - torch.arange(window, device=x.device)
        mu = self.routing(found[..., 0], found[..., None, 1:], mask=there.expand(found.shape[:-1])).mu
        return x + self.read(mu.flatten(2))


class SoftmaxOutput(nn.Module):
    """Scores subwords by the last state of a token, `[..., k, d]` to `[..., j]`."""

    def __init__(self, d: int, n_subwords: int):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(d), nn.Linear(d, n_subwords, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.linear(self.norm(states[..., -1, :]))


class SoftmaxDepths(nn.Module):
    """Scores subwords by the states of a token at all depths, each projected to its share of the width."""

    def __init__(self, depth: int, d: int, n_subwords: int):
        super().__init__()
        self.norm, self.describe = nn.LayerNorm(d), nn.Parameter(torch.randn(depth, d, d // depth) / d**0.5)
        self.linear = nn.Linear(depth * (d // depth), n_subwords, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.linear(torch.einsum("...kd,kdv->...kv", self.norm(states), self.describe).flatten(-2))


class RoutedDepths(nn.Module):
    """Routes the states of a token at all depths to subwords, `[..., k, d]` to scores `[..., j]`.

    Each depth votes with a number of its own for each subword. As many parameters as in a softmax layer: a vote of a
    depth takes the weights of its capsule, a bias, a benefit and a cost.
    """

    def __init__(self, depth: int, d: int, n_subwords: int, n_iters: int = 2):
        super().__init__()
        d_inp = d // depth - 3
        self.norm = nn.LayerNorm(d)
        self.describe = nn.Parameter(torch.randn(depth, d, 1 + d_inp) / d**0.5)  # a score and a capsule of each depth
        settings = {"n_iters": n_iters, "eps": EPS / n_subwords, "init": "random"}
        self.routing = Routing(1, d_inp, 1, depth, n_subwords, **settings)

    def forward(self, states: Tensor) -> Tensor:
        found = torch.einsum("...kd,kdv->...kv", self.norm(states), self.describe)
        return score(self.routing, found[..., 0], found[..., 1:])


class RoutedSlices(nn.Module):
    """Routes slices of a token's last state to subwords, `[..., k, d]` to scores `[..., j]`."""

    def __init__(self, n_slices: int, d: int, n_subwords: int, n_iters: int = 2):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(d), nn.Linear(d, n_slices)
        settings = {"n_iters": n_iters, "eps": EPS / n_subwords, "init": "random"}
        self.routing = Routing(1, d // n_slices, 1, n_slices, n_subwords, **settings)

    def forward(self, states: Tensor) -> Tensor:
        x = self.norm(states[..., -1, :])
        return score(self.routing, self.gate(x), x.unflatten(-1, (self.gate.out_features, -1)))


def score(routing: Routing, a_inp: Tensor, x: Tensor) -> Tensor:
    """Route scores `[..., i]` and capsules `[..., i, d]` to subwords of one number each, and return scores `[..., j]`.

    Benefit less cost says little where thousands of subwords share the data of few inputs. So the number of a subword
    is added, which is the mean of the votes of the inputs that belong to it.
    """
    out = routing(a_inp, x.unsqueeze(-2))
    return out.a + out.mu[..., 0, 0]


class GPT(nn.Module):
    """Predicts the next subword.

    Args:
        n_subwords: Size of the vocabulary.
        n_blocks: Number of blocks of self-attention.
        d: Width.
        n_heads: Heads of self-attention.
        length: Most positions of a text.
        output: `"softmax"`, a linear layer; `"tied"`, the same with the weights of the embedding; `"softmax_depths"`,
            one over the states at all depths; `"depths"` or `"slices"`, routing. All have as many parameters within a
            tenth: blocks are wider where weights are tied.
        past: Window of a `RoutedPast` after half of the blocks, if any.
        n_iters: Iterations of routing in the last layer.
    """

    def __init__(
        self,
        n_subwords: int,
        n_blocks: int,
        d: int,
        n_heads: int,
        length: int,
        output: str = "softmax",
        past: int | None = None,
        n_iters: int = 2,
    ):
        super().__init__()
        if output not in OUTPUTS:
            raise ValueError(f"output: expected one of {list(OUTPUTS)}, got {output!r}")
        tied = output == "tied"
        hidden = 4 * d + (n_subwords // (2 * n_blocks) if tied else 0)  # 2 d parameters for each
        self.embedding, self.position = nn.Embedding(n_subwords, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList(Block(d, n_heads, hidden) for _ in range(n_blocks))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        if past is not None:
            self.blocks.insert(n_blocks // 2, RoutedPast(d, past))
        depth = len(self.blocks) + 1
        if output in ("softmax", "tied", "softmax_depths"):
            single = output != "softmax_depths"
            self.output = SoftmaxOutput(d, n_subwords) if single else SoftmaxDepths(depth, d, n_subwords)
            nn.init.normal_(self.output.linear.weight, std=0.02)
            if tied:
                self.output.linear.weight = self.embedding.weight
        elif output == "depths":
            self.output = RoutedDepths(depth, d, n_subwords, n_iters)
        else:
            self.output = RoutedSlices(N_SLICES, d, n_subwords, n_iters)

    def states(self, ids: Tensor) -> Tensor:
        """Return the states of subwords `[b, n]` at all depths, `[b, n, k, d]`."""
        states = [self.embedding(ids) + self.position.weight[: ids.shape[1]]]
        for block in self.blocks:
            states.append(block(states[-1]))
        return torch.stack(states, -2)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of all subwords to come after each position, `[b, n, j]`."""
        return self.output(self.states(ids))

    def nats(self, ids: Tensor, targets: Tensor, chunk: int | None = None) -> Tensor:
        """Return the cross entropy of subwords to come, `[b, n]`, summed.

        With `chunk` no more than so many positions have scores and votes in memory at once: they are formed again in
        the backward pass.
        """
        states, targets = self.states(ids).flatten(0, 1), targets.flatten()
        if chunk is None:
            return self.score(states, targets)
        pairs = zip(states.split(chunk), targets.split(chunk), strict=True)
        return torch.stack([checkpoint(self.score, *pair, use_reentrant=False) for pair in pairs]).sum()

    def score(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of the subwords `[n]` that follow states `[n, k, d]`, summed."""
        return F.cross_entropy(self.output(states).float(), targets, reduction="sum")
