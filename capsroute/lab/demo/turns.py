"""Writes the poses of every test toy along a full turn; to be run again when the weights or the renderer change."""

import torch
from safetensors.torch import save_file

from ..data.pairs import CATEGORIES
from .vision import INSTANCES, TURNS, turned


def main() -> None:
    rows = [torch.stack([turned(category, instance) for instance in INSTANCES]) for category in CATEGORIES]
    save_file({"poses": torch.stack(rows).half()}, TURNS)  # half: it is for a picture


if __name__ == "__main__":
    main()
