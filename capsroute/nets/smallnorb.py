"""The paper's network for smallNORB: convolutions find parts and their poses, two routing layers find the toy.

Axes: b pairs of images, m rows, n columns; p parts; c, d the rows and columns of a pose.
"""

from os import PathLike
from typing import Self

import torch
from torch import Tensor, nn

from ..layers import Routing
from ..routing import Capsules
from .hub import Hub, fill, read_weights
from .normed import convolve

SMALLEST = 29  # three pairs of unpadded 3x3 convolutions, strides 1 and 2, leave one location of 29 pixels


class SmallNORB(nn.Module, Hub, license="mit", pipeline_tag="image-classification"):
    """Classifies stereo pairs of any size from 29x29 pixels on.

    Args:
        n_classes: Number of classes.
        n_parts: Number of kinds of parts detected at each location, and of larger parts found by the first routing.
        n_channels: Channels of each convolution.
        impl: Implementation of routing, see [`route`][capsroute.route].
    """

    def __init__(self, n_classes: int = 5, n_parts: int = 64, n_channels: int = 64, impl: str = "auto"):
        super().__init__()
        layers: list[nn.Module] = []
        for k in range(6):
            channels = n_channels if k else 4  # two images, two coordinates
            layers += [nn.BatchNorm2d(channels), nn.Conv2d(channels, n_channels, 3, stride=1 + k % 2), nn.SiLU()]
        self.convolve = nn.Sequential(*layers)
        self.compute_a = nn.Sequential(nn.BatchNorm2d(n_channels), nn.Conv2d(n_channels, n_parts, 1))
        self.compute_mu = nn.Sequential(nn.BatchNorm2d(n_channels), nn.Conv2d(n_channels, n_parts * 16, 1))
        self.routings = nn.ModuleList(
            [
                Routing(d_cov=4, d_inp=4, d_out=4, n_out=n_parts, impl=impl),
                Routing(d_cov=4, d_inp=4, d_out=4, n_inp=n_parts, n_out=n_classes, impl=impl),
            ]
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias) if module.bias is not None else None

    def forward(self, images: Tensor) -> Capsules:
        """Class capsules of stereo pairs `[b, 2, m, n]` in 0..1; a softmax over `a` gives probabilities."""
        a, mu = self.parts(images)
        for routing in self.routings:
            a, mu, sig2 = routing(a, mu)
        return Capsules(a, mu, sig2)

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and poses of the parts at every location: what the first routing layer gets."""
        if images.ndim != 4 or images.shape[1] != 2 or min(images.shape[2:]) < SMALLEST:
            expected = f"[b, 2, m, n] with m and n at least {SMALLEST}"
            raise ValueError(f"images: expected {expected}, got shape {list(images.shape)}")
        if not images.is_floating_point():
            raise TypeError(f"images: expected floating point in 0..1, got {images.dtype}")
        x, layers = stack_coordinates(images), list(self.convolve)
        for norm, conv, activation in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
            x = activation(convolve(x, (norm, conv)))  # [b, channels, m', n']
        both = convolve(x, self.compute_a, self.compute_mu)  # [b, p + p * 16, m', n']
        n_parts = both.shape[1] // 17
        a, mu = both[:, :n_parts], both[:, n_parts:].unflatten(1, (-1, 4, 4))  # [b, p, c, d, m', n']
        return a.flatten(1), mu.permute(0, 1, 4, 5, 2, 3).flatten(1, 3)  # [b, p * m' * n'], and c, d

    @classmethod
    def from_official(cls, path: str | PathLike[str]) -> Self:
        """The author's published network, from its file of weights."""
        network = cls()
        fill(network, read_weights(path, cls), path)
        return network


def stack_coordinates(images: Tensor) -> Tensor:
    """Two more channels with the row and the column of each pixel, from -1 to 1: [b, 4, m, n]."""
    b, _, m, n = images.shape
    rows = torch.linspace(-1, 1, m, dtype=images.dtype, device=images.device)[:, None].expand(b, 1, m, n)
    columns = torch.linspace(-1, 1, n, dtype=images.dtype, device=images.device).expand(b, 1, m, n)
    return torch.cat([images, rows, columns], dim=1)
