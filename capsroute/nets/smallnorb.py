"""The paper's network for smallNORB: convolutions find parts and their poses, two routing layers find the toy.

Axes: b pairs of images, m rows, n columns; p parts; c, d the rows and columns of a pose.
"""

from os import PathLike
from typing import Self

from torch import Tensor, nn

from ..heads import stack_coordinates
from ..layers import Routing
from ..routing import Capsules
from .hub import Hub, load_official, read_weights

MIN_SIZE = 29  # three pairs of unpadded 3x3 convolutions, strides 1 and 2, leave one location of 29 pixels


class SmallNORB(Hub):
    """Classifies stereo pairs of images of at least 29x29 pixels.

    Args:
        n_classes: Number of classes.
        n_parts: Number of parts detected at each location, and of capsules between the two routing layers.
        n_channels: Channels of each convolution.
        kinds: Give each of the parts weights of its own in the first routing, which all its locations share. In the
            paper's network all parts share them.
        impl: Implementation of routing, see [`route`][capsroute.route].
    """

    task, example_inputs = "image-classification", "images"

    def __init__(
        self, n_classes: int = 5, n_parts: int = 64, n_channels: int = 64, kinds: bool = False, impl: str = "auto"
    ):
        super().__init__(n_classes=n_classes, n_parts=n_parts, n_channels=n_channels, kinds=kinds, impl=impl)
        layers: list[nn.Module] = []
        for k in range(6):
            channels = n_channels if k else 4  # two images, two coordinates
            layers += [nn.BatchNorm2d(channels), nn.Conv2d(channels, n_channels, 3, stride=1 + k % 2), nn.SiLU()]
        self.convolve = nn.Sequential(*layers)
        self.compute_a = nn.Sequential(nn.BatchNorm2d(n_channels), nn.Conv2d(n_channels, n_parts, 1))
        self.compute_mu = nn.Sequential(nn.BatchNorm2d(n_channels), nn.Conv2d(n_channels, n_parts * 16, 1))
        first = Routing(d_cov=4, d_inp=4, d_out=4, n_out=n_parts, n_kinds=n_parts if kinds else 1, impl=impl)
        second = Routing(d_cov=4, d_inp=4, d_out=4, n_inp=n_parts, n_out=n_classes, impl=impl)
        self.routings = nn.ModuleList([first, second])
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Capsules:
        """Return the class capsules of stereo pairs `[b, 2, m, n]` in 0..1; a softmax over `a` gives probabilities."""
        a, mu = self.parts(images)
        for routing in self.routings:
            a, mu, sig2 = routing(a, mu)
        return Capsules(a, mu, sig2)

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores and poses of the parts at every location: the inputs of the first routing layer."""
        if images.ndim != 4 or images.shape[1] != 2 or min(images.shape[2:]) < MIN_SIZE:
            expected = f"[b, 2, m, n] with m and n at least {MIN_SIZE}"
            raise ValueError(f"images: expected {expected}, got shape {list(images.shape)}")
        if not images.is_floating_point():
            raise TypeError(f"images: expected floating point in 0..1, got {images.dtype}")
        x = self.convolve(self.embed(images))  # [b, channels, m', n']
        a, mu = self.compute_a(x), self.compute_mu(x).unflatten(1, (-1, 4, 4))  # [b, p, m', n'], [b, p, c, d, m', n']
        return a.flatten(1), mu.permute(0, 1, 4, 5, 2, 3).flatten(1, 3)  # [b, p * m' * n'], and c, d

    def embed(self, images: Tensor) -> Tensor:
        """Return what the convolutions see, `[b, 4, m, n]`: two images and two coordinates."""
        return stack_coordinates(images)

    @classmethod
    def from_official(cls, path: str | PathLike[str]) -> Self:
        """Load the author's published network from its file of weights."""
        network = cls()
        load_official(network, read_weights(path, cls), path)
        return network
