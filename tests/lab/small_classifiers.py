"""Small classifiers with random weights, one of each kind, saved as training saves them; and inputs for them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from capsroute.nets import Classifier

CLASSES = {"images": ["cat", "dog", "owl"], "texts": ["ham", "spam"], "arrays": ["ring", "ball"]}
TEXTS = ["buy now, it is cheap", "see you at lunch", "a"]


def make_classifier(kind: str) -> Classifier:
    """Make a classifier; the same one each time."""
    trunk: dict[str, Any]
    match kind:
        case "images":
            trunk = {"name": "convolutions", "n_channels": 3, "n_pairs": 2, "d_out": 8}
            preprocessing = {"name": "images", "rows": 16, "columns": 24, "channels": 3, "views": 1}
        case "texts":
            trunk = {"name": "words", "n_buckets": 64, "d_out": 8}
            preprocessing = {"name": "words", "n_buckets": 64, "max_words": 12}
        case _:
            trunk = {"name": "vectors", "d_inp": 3}
            preprocessing = {"name": "sets", "d": 3}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = Classifier(kind, CLASSES[kind], trunk, {"n_parts": 8, "d_hidden": 8}, preprocessing)
        with torch.no_grad():
            for p in network.parameters():
                p.add_(0.3 * torch.randn_like(p))
    return network.eval()


def draw_image(k: int, size: tuple[int, int] = (40, 20)) -> Image.Image:
    """Return an image, width by height, that differs for each k."""
    pixels = np.random.default_rng(k).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def make_inputs(kind: str, folder: Path, n: int = 3) -> list[Any]:
    """Return inputs of a kind: files of images, texts, or sets of different sizes."""
    if kind == "texts":
        return [f"{TEXTS[k % 3]} {k}" for k in range(n)]
    if kind == "arrays":
        return [np.random.default_rng(k).standard_normal((2 + k, 3)).astype(np.float32) for k in range(n)]
    files = [folder / f"{k}.png" for k in range(n)]
    for k, file in enumerate(files):
        draw_image(k, (40 + k, 20)).save(file)
    return [str(file) for file in files]
