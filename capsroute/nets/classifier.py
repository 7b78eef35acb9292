"""A classifier of one's own data: a trunk that finds features, and a routing head that makes class capsules of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..credit import Credit
from ..heads import RoutingHead
from ..routing import Capsules
from .hub import Hub
from .trunks import make_trunk

TASKS = {"images": "image-classification", "texts": "text-classification", "arrays": "other"}
"""Kinds of inputs, and their pipeline tags on the hub."""


class Classifier(Hub):
    """Classifies images, texts or sets of vectors.

    Args:
        kind: `"images"`, `"texts"` or `"arrays"`: what inputs are.
        classes: Names of the classes.
        trunk: The name of a trunk in `capsroute.nets.trunks`, and its settings.
        head: Settings of the `RoutingHead`, other than sizes.
        preprocessing: How inputs are made from files, for `capsroute.lab`; the network itself does not use it.
        impl: Implementation of routing, see [`route`][capsroute.route].
    """

    example_inputs = "inputs, mask"

    def __init__(
        self,
        kind: str,
        classes: Sequence[str],
        trunk: Mapping[str, Any],
        head: Mapping[str, Any] | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        impl: str = "auto",
    ):
        if kind not in TASKS:
            raise ValueError(f"kind: expected one of {list(TASKS)}, got {kind!r}")
        settings = {"trunk": dict(trunk), "head": dict(head or {}), "preprocessing": dict(preprocessing or {})}
        super().__init__(kind=kind, classes=list(classes), **settings, impl=impl)
        self.kind, self.classes, self.task = kind, tuple(classes), TASKS[kind]
        self.trunk = make_trunk(**trunk)
        sizes = {"n_kinds": self.trunk.n_kinds, "coordinates": self.trunk.has_maps}
        self.head = RoutingHead(self.trunk.d_out, len(classes), **sizes, **settings["head"], impl=impl)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Capsules:
        """Return the class capsules; a softmax over `a` gives probabilities.

        Args:
            inputs: Images `[b, channels, m, n]` in 0..1, numbers of words `[b, n, pieces]`, vectors `[b, n, d]`, or
                hidden states `[b, kinds, n, d]`.
            mask: 1 for words and vectors that count, 0 for padding, `[b, n]`.
        """
        features, mask = self.trunk(inputs, mask)
        return self.head(features, mask=mask)

    def credit(self, inputs: Tensor, mask: Tensor | None = None) -> Credit:
        """Return how much each class used of each part at each place, as `RoutingHead.credit` does."""
        features, mask = self.trunk(inputs, mask)
        return self.head.credit(features, mask=mask)
