"""Networks that come trained with the package."""

from pathlib import Path
from typing import NamedTuple

from .nets import SmallNORB

HOME = Path(__file__).parent / "weights"


class Shipped(NamedTuple):
    """A trained network: its class, and the experiment it was trained by."""

    network: type[SmallNORB]
    experiment: str


SHIPPED = {"smallnorb": Shipped(SmallNORB, "smallnorb")}


def load(name: str) -> SmallNORB:
    """A network trained and shipped with capsroute, ready to classify.

    Args:
        name: `"smallnorb"`. The model card beside the weights says more.
    """
    if name not in SHIPPED:
        raise ValueError(f"name: expected one of {list(SHIPPED)}, got {name!r}")
    return SHIPPED[name].network.from_pretrained(HOME / name).eval()
