"""Trunks of classifiers: what turns images, words or vectors into the features that a routing head takes.

Each is called with inputs and a mask, and returns features and a mask. Axes: b samples, n places, d features.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .hub import import_extra

Features = tuple[Tensor, Tensor | None]


class Vectors(nn.Module):
    """Standardises vectors that are features already: points, frames, hidden states of a frozen encoder.

    Args:
        d_inp: Size of a vector.
        n_kinds: Number of vectors at each place, if inputs are `[b, n_kinds, n, d_inp]` and not `[b, n, d_inp]`.
    """

    has_maps = False
    mean: Tensor
    std: Tensor

    def __init__(self, d_inp: int, n_kinds: int | None = None):
        super().__init__()
        self.d_out, self.n_kinds = d_inp, n_kinds
        shape = (d_inp,) if n_kinds is None else (n_kinds, 1, d_inp)
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Features:
        return (x - self.mean) / self.std, mask


class Convolutions(nn.Module):
    """Finds features in images by pairs of 3x3 convolutions, the second of each halving rows and columns.

    They see each image as it is, and with every channel standardised. There colours say little and shapes much, so that
    few images are enough to learn from.

    Args:
        n_channels: Channels of an image; those of several images of one thing come one after the other.
        n_pairs: Number of pairs.
        d_out: Channels of the feature map.
    """

    n_kinds, has_maps = None, True

    def __init__(self, n_channels: int, n_pairs: int = 3, d_out: int = 64):
        super().__init__()
        self.d_out, self.stride = d_out, 2**n_pairs  # the middle of the first location is the first pixel
        self.standardise = nn.InstanceNorm2d(n_channels)
        layers: list[nn.Module] = []
        for k in range(2 * n_pairs):
            inner = d_out if k > 1 else d_out // 2
            before = 2 * n_channels if k == 0 else d_out if k > 2 else d_out // 2
            layers += [nn.BatchNorm2d(before), nn.Conv2d(before, inner, 3, stride=1 + k % 2, padding=1), nn.SiLU()]
        if n_pairs == 1:
            layers += [nn.Conv2d(d_out // 2, d_out, 1), nn.SiLU()]
        self.convolve = nn.Sequential(*layers)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Features:
        """Return the feature map `[b, d_out, rows, columns]` of images `[b, n_channels, m, n]` in 0..1."""
        return self.convolve(torch.cat([x, self.standardise(x)], 1)), None


class Words(nn.Module):
    """Looks up vectors of words and of their pieces, and mixes those of neighbouring words.

    Args:
        n_buckets: Number of vectors; words and pieces are hashed to their numbers, from 1 on, and 0 stands for none.
        d_out: Size of a vector.
    """

    n_kinds, has_maps = None, False

    def __init__(self, n_buckets: int = 2**15, d_out: int = 64):
        super().__init__()
        self.d_out = d_out
        self.vectors = nn.Embedding(n_buckets, d_out, padding_idx=0)
        self.mix = nn.Conv1d(d_out, d_out, 3, padding=1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Features:
        """Return features `[b, n, d_out]` of the numbers `[b, n, pieces]` of words."""
        words = self.vectors(x).sum(-2) / (x != 0).sum(-1, keepdim=True).clamp(min=1).sqrt()
        if mask is not None:
            words = words * mask[..., None].to(words.dtype)  # or padding would reach its neighbours
        return words + nn.functional.silu(self.mix(words.movedim(1, 2)).movedim(1, 2)), mask


class Backbone(nn.Module):
    """Finds features in images by a pretrained vision model, trained further.

    Args:
        library: `"transformers"` or `"timm"`.
        config: What the library makes the model from: its configuration, or for timm `{"name": ...}`.
        d_out: Size of its features.
        has_maps: Whether they are feature maps `[b, d_out, rows, columns]` and not tokens `[b, n, d_out]`.
        mean: Mean of each channel of the images it was trained on, values from 0 to 1.
        std: Their standard deviation.
    """

    n_kinds = None
    mean: Tensor
    std: Tensor

    def __init__(
        self, library: str, config: dict[str, Any], d_out: int, has_maps: bool, mean: list[float], std: list[float]
    ):
        super().__init__()
        self.library, self.d_out, self.has_maps = library, d_out, has_maps
        self.model = make_backbone(library, config)
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Features:
        """Return the features of images `[b, channels, m, n]` in 0..1."""
        return find_features(self.model, (x - self.mean) / self.std), None


TRUNKS: dict[str, type[nn.Module]] = {
    "vectors": Vectors,
    "convolutions": Convolutions,
    "words": Words,
    "backbone": Backbone,
}


def make_trunk(name: str, **settings: Any) -> Any:
    """Return a trunk by its name."""
    if name not in TRUNKS:
        raise ValueError(f"trunk: expected one of {list(TRUNKS)}, got {name!r}")
    return TRUNKS[name](**settings)


def make_backbone(library: str, config: dict[str, Any]) -> nn.Module:
    """Return a vision model with random weights, from its configuration."""
    if library == "timm":
        with torch.device("cpu"):  # even where others are made on meta: timm computes with tensors as it makes models
            return import_extra("timm", "timm").create_model(config["name"], pretrained=False, num_classes=0)
    if library != "transformers":
        raise ValueError(f"library: expected 'transformers' or 'timm', got {library!r}")
    transformers = import_extra("transformers", "text")
    values = {name: value for name, value in config.items() if name != "model_type"}
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(config["model_type"], **values))


def find_features(model: nn.Module, images: Tensor) -> Tensor:
    """Return the last features of a vision model of either library."""
    if hasattr(model, "forward_features"):
        return model.forward_features(images)  # pyright: ignore[reportCallIssue]
    return model(pixel_values=images).last_hidden_state
