"""Trained networks that are installed with the package."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nets import SST, SmallNORB

HOME = Path(__file__).parent / "weights"
SHIPPED = {  # name, and the experiment that trained it
    "smallnorb": "smallnorb",
    "toys": "toys96",
    "sst5-minilm": "sst5",
    "sst2-minilm": "sst2",
    "treebank": "treebank",
}
ALIASES = {"sst5": "sst5-minilm", "sst2": "sst2-minilm"}


def load(name: str) -> "SmallNORB | SST":
    """Load a network trained and shipped with capsroute, ready to classify.

    Args:
        name: `"smallnorb"` or `"toys"`, which take stereo pairs of images; `"sst5-minilm"` (or `"sst5"`),
            `"sst2-minilm"` (or `"sst2"`) or `"treebank"`, which take the hidden states of texts. The model card beside
            the weights says more.
    """
    from .nets import SST, SmallNORB

    name = ALIASES.get(name, name)
    if name not in SHIPPED:
        raise ValueError(f"name: expected one of {[*SHIPPED, *ALIASES]}, got {name!r}")
    kind = SST if SHIPPED[name] in ("treebank", "sst5", "sst2") else SmallNORB
    return kind.from_pretrained(HOME / name).eval()
