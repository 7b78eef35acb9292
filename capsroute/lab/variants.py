"""The paper's network for smallNORB with parts of it changed, left out, or replaced by other algorithms.

Axes as in `SmallNORB`: b pairs of images, p parts, l locations, c, d rows and columns of a pose; q queries, v values.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..layers import Routing
from ..nets import SmallNORB
from ..nets.smallnorb import stack_coordinates
from .rivals import RIVALS, OutputCapsules

Algorithm = Literal[
    "agreement", "dynamic", "em", "inverted-attention", "self-attention", "sequence", "mean", "attention"
]
ON_CLASSES: dict[str, dict[str, Any]] = {"em": {"rate": 1.0}}  # costs of few inputs are low
N_QUERIES, D_VALUE, D_HIDDEN = 4, 8, 12  # with these, 64 parts give pooling as many parameters as routing has


@dataclass(frozen=True, kw_only=True)
class Variation:
    """What differs from the paper's network; by default nothing does."""

    routing: Algorithm = "agreement"
    n_parts: int = 64
    n_channels: int = 64  # of the convolutions
    n_layers: int = 2  # of routing by agreement
    kinds: bool = False  # whether each part has weights of its own in the first routing
    n_iters: int = 3
    tie_betas: bool = False
    beta_scale: float = 1.0  # factor of benefits and costs
    agreement: Literal["gaussian", "kmeans"] = "gaussian"
    ignore_costs: bool = True  # whether outputs pay for the data they ignore
    coordinates: bool = True  # whether the convolutions see where a pixel is

    def variation(self) -> dict[str, Any]:
        """Return what differs from the paper's network."""
        values = {field.name: getattr(self, field.name) for field in fields(Variation)}
        return {name: value for name, value in values.items() if value != getattr(Variation, name)}


class Variant(SmallNORB):
    """The paper's network for smallNORB with some variation."""

    def __init__(self, n_classes: int = 5, **variation: Any):
        v = Variation(**variation)
        super().__init__(n_classes, v.n_parts, v.n_channels, v.kinds)
        self.config = {"n_classes": n_classes, **v.variation()}
        self.has_coordinates = v.coordinates
        if v.routing in RIVALS:
            make, on_classes = RIVALS[v.routing], ON_CLASSES.get(v.routing, {})
            first = make(4, 4, 4, None, v.n_parts, n_iters=v.n_iters)
            last = make(4, 4, 4, v.n_parts, n_classes, n_iters=v.n_iters, **on_classes)
            self.routings = nn.ModuleList([first, last])
        elif v.routing == "agreement":
            settings: dict[str, Any] = {"n_iters": v.n_iters, "tie_betas": v.tie_betas, "beta_scale": v.beta_scale}
            settings["agreement"] = v.agreement
            sizes = [(None, v.n_parts), (v.n_parts, n_classes)] if v.n_layers == 2 else [(None, n_classes)]
            layers = [Routing(4, 4, 4, n_inp, n_out, **settings) for n_inp, n_out in sizes]
            if v.kinds:
                layers[0] = Routing(4, 4, 4, None, layers[0].n_out, n_kinds=v.n_parts, **settings)
            for layer in layers if not v.ignore_costs else ():
                layer.beta_ign.requires_grad_(False)  # it is zero, and stays so
            self.routings = nn.ModuleList(layers)
        else:
            self.routings = nn.ModuleList([Pooling(17 * v.n_parts, n_classes, v.n_parts, v.routing == "attention")])

    def forward(self, images: Tensor) -> OutputCapsules:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return scores and poses of the classes."""
        a, mu = self.parts(images)
        for routing in self.routings:
            a, mu, *_ = routing(a, mu)
        return OutputCapsules(a, mu)

    def embed(self, images: Tensor) -> Tensor:
        x = stack_coordinates(images)
        return x if self.has_coordinates else torch.cat([x[:, :2], torch.zeros_like(x[:, 2:])], 1)


class Pooling(nn.Module):
    """Pools what the parts of all locations are, by their mean or by attention with learned queries, and classifies."""

    def __init__(self, d_inp: int, n_classes: int, n_parts: int, attention: bool):
        super().__init__()
        self.n_parts = n_parts
        self.attend = nn.Linear(d_inp, N_QUERIES, bias=False) if attention else None
        self.value = nn.Linear(d_inp, D_VALUE if attention else D_HIDDEN)
        self.read = nn.Linear(N_QUERIES * D_VALUE if attention else D_HIDDEN, n_classes)

    def forward(self, a_inp: Tensor, mu_inp: Tensor) -> tuple[Tensor, Tensor]:
        parts = torch.cat([a_inp.unsqueeze(-1), mu_inp.flatten(-2)], -1)  # [b, p * l, 17]
        x = parts.unflatten(1, (self.n_parts, -1)).movedim(1, 2).flatten(2)  # [b, l, p * 17]
        if self.attend is None:
            pooled = self.value(x.mean(1))
        else:
            pooled = torch.einsum("blq,blv->bqv", self.attend(x).softmax(1), self.value(x)).flatten(1)
        return self.read(nn.functional.silu(pooled)), pooled
