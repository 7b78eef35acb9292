"""Networks that come trained with the package."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nets import SST, SmallNORB

HOME = Path(__file__).parent / "weights"
SHIPPED = {  # name, and the experiment it was trained by
    "smallnorb": "smallnorb",
    "toys": "toys96",
    "sst5-minilm": "sst5",
    "sst2-minilm": "sst2",
    "treebank": "treebank",
}


def load(name: str) -> "SmallNORB | SST":
    """A network trained and shipped with capsroute, ready to classify.

    Args:
        name: `"smallnorb"` or `"toys"`, which see stereo pairs of images; `"sst5-minilm"`, `"sst2-minilm"` or
            `"treebank"`, which see the hidden states of texts. The model card beside the weights says more.
    """
    from .nets import SST, SmallNORB  # imported here, for they ask for the hub's package, which takes its time

    if name not in SHIPPED:
        raise ValueError(f"name: expected one of {list(SHIPPED)}, got {name!r}")
    kind = SST if SHIPPED[name] in ("treebank", "sst5", "sst2") else SmallNORB
    return kind.from_pretrained(HOME / name).eval()


def encoder_of(folder: Path, named: str) -> str:
    """The encoder a network needs: the one that lies beside its weights, or else the one it names."""
    beside = folder / "encoder"
    return str(beside) if beside.is_dir() else named
