"""Trained networks: those that are installed with the package, and those in folders."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nets.hub import Hub

NETWORKS = ("Classifier", "SST", "SmallNORB")

HOME = Path(__file__).parent / "weights"
SHIPPED = {  # name, and the experiment that trained it
    "smallnorb": "smallnorb",
    "toys": "toys96",
    "sst5-minilm": "sst5",
    "sst2-minilm": "sst2",
    "treebank": "treebank",
}
ALIASES = {"sst5": "sst5-minilm", "sst2": "sst2-minilm"}


def load(name: str | PathLike[str]) -> "Hub":
    """Load a trained network, ready to classify.

    Args:
        name: A folder that `save_pretrained` or `capsroute train` wrote, the folder of a run, or the name of a network
            that comes with the package: `"smallnorb"` or `"toys"`, which take stereo pairs of images; `"sst5-minilm"`
            (or `"sst5"`), `"sst2-minilm"` (or `"sst2"`) or `"treebank"`, which take the hidden states of texts. The
            model card beside the weights says more.
    """
    from . import nets
    from .nets.hub import CONFIG, read_settings

    found = find_folder(name)
    config = found / CONFIG
    kind = read_settings(config).get("network")
    if kind not in NETWORKS:
        raise ValueError(f"{config}: network: expected one of {list(NETWORKS)}, got {kind!r}")
    return getattr(nets, kind).from_pretrained(found).eval()


def find_folder(name: str | PathLike[str]) -> Path:
    """Return the folder of a network's weights, by any name that `load` takes; a run keeps them in `model`."""
    folder = Path(name)
    for place in (folder / "model", folder):
        if (place / "model.safetensors").is_file():
            return place
    shipped = ALIASES.get(str(name), str(name))
    if shipped in SHIPPED:
        return HOME / shipped
    expected = f"the folder of a run, a folder of weights, or one of {', '.join([*SHIPPED, *ALIASES])}"
    raise ValueError(f"name: expected {expected}, got {str(name)!r}")
