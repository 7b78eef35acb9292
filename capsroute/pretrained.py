"""Networks that come trained with the package."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nets import SmallNORB

HOME = Path(__file__).parent / "weights"
SHIPPED = {"smallnorb": "smallnorb"}  # name, and the experiment it was trained by


def load(name: str) -> "SmallNORB":
    """A network trained and shipped with capsroute, ready to classify.

    Args:
        name: `"smallnorb"`. The model card beside the weights says more.
    """
    from .nets import SmallNORB  # imported here, for it asks for the hub's package, which takes its time

    if name not in SHIPPED:
        raise ValueError(f"name: expected one of {list(SHIPPED)}, got {name!r}")
    return SmallNORB.from_pretrained(HOME / name).eval()
