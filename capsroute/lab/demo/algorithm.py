"""Routing of points in the plane: each of 48 points votes for three capsules.

Each capsule has a home. A point's vote for a capsule is the point rotated about the home by a random angle, so votes
of points near a home agree and those of distant points scatter.

Axes: `i` points, `j` capsules, `d` and `h` the two coordinates; the covector axis has size 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...layers import Routing
from ...routing import Step

N_POINTS = 48
HOMES = ((-1.0, 0.65), (1.0, 0.65), (0.0, -0.9))
GROUPS = {"Three groups": (0, 1, 2), "Two groups": (0, 1), "One group": (2,), "Noise": ()}  # homes of the points
GROUP_SPREAD, NOISE_RANGE = 0.25, 1.7
SCORE = 3.0  # of every point, before the logistic function
MAX_ITERS, MAX_BETA, MAX_SEED = 8, 1.0, 99


class Scene(NamedTuple):
    """Points, their votes, and every iteration of their routing."""

    points: Tensor  # [i, 2]
    votes: Tensor  # [i, j, 2]
    steps: list[Step]


@torch.inference_mode()
def route_points(example: str, seed: int, n_iters: int, beta_use: float, beta_ign: float) -> Scene:
    """Route the points of an example."""
    generator = torch.Generator().manual_seed(seed)
    homes, near = torch.tensor(HOMES), GROUPS[example]
    if near:
        centres = homes[list(near)].repeat_interleave(N_POINTS // len(near), 0)
        points = centres + GROUP_SPREAD * torch.randn(N_POINTS, 2, generator=generator)
    else:
        points = NOISE_RANGE * (2 * torch.rand(N_POINTS, 2, generator=generator) - 1)
    angle = 2 * math.pi * torch.rand(N_POINTS, len(homes), generator=generator)  # [i, j]
    cos, sin = angle.cos(), angle.sin()
    layer = Routing(1, 2, 2, n_inp=N_POINTS, n_out=len(homes), n_iters=n_iters)
    layer.W.copy_(torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2))
    layer.B.copy_((homes - torch.einsum("jd,ijdh->ijh", homes, layer.W)).unsqueeze(-2))  # rotation about the home
    layer.beta_use.fill_(beta_use)
    layer.beta_ign.fill_(beta_ign)
    votes = torch.einsum("id,ijdh->ijh", points, layer.W) + layer.B.squeeze(-2)
    return Scene(points, votes, layer.trace(torch.full((N_POINTS,), SCORE), points.unsqueeze(-2)))
