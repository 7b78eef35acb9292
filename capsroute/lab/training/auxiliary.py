"""A shortcut for short runs: linear readouts tell the layers below what to look for, and are thrown away afterwards.

Class scores start at zero and depend on inputs only through agreement, so that a network learns little in its first
thousand steps. A readout of what each routing layer but the last puts out gives the layers below a direct gradient.
"""

from typing import Any

from torch import Tensor, nn

from ...layers import Routing
from ...routing import Capsules


class Guided(nn.Module):
    """A network with a linear readout of the capsules of each routing layer but the last."""

    def __init__(self, network: nn.Module, n_classes: int):
        super().__init__()
        self.network = network
        *inner, _ = (layer for layer in network.modules() if isinstance(layer, Routing))
        sizes = [(layer.n_out or 1) * layer.d_cov * layer.d_out for layer in inner]
        self.readouts = nn.ModuleList([nn.Linear(size, n_classes) for size in sizes])
        self.scores: list[Tensor] = []  # of the readouts, at the last call
        for layer, readout in zip(inner, self.readouts, strict=True):
            layer.register_forward_hook(self._reader(readout))

    def forward(self, *inputs: Tensor) -> Capsules:
        self.scores.clear()
        return self.network(*inputs)

    def _reader(self, readout: nn.Module) -> Any:
        def read(_: nn.Module, inputs: tuple[Tensor, ...], out: Capsules) -> None:
            if self.training:
                self.scores.append(readout(out.mu.flatten(1)))

        return read
