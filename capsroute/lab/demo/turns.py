"""Writes the poses of every test toy along a full turn; run it again after a change of weights or renderer."""

import torch
from safetensors.torch import save_file

from ..data import toys
from ..data.pairs import CATEGORIES
from .vision import AZIMUTHS, INSTANCES, SIZE, TURN_ELEVATION, TURN_LIGHT, TURNS, load_network


@torch.inference_mode()
def write_turns() -> None:
    poses = []
    for category in CATEGORIES:
        for instance in INSTANCES:
            images = toys.render(category, instance, TURN_ELEVATION, list(AZIMUTHS), TURN_LIGHT - 1, size=SIZE)
            poses.append(torch.cat([load_network()(some / 255).mu for some in images.split(6)]))  # [v, k, c, h]
    stacked = torch.stack(poses).unflatten(0, (len(CATEGORIES), len(INSTANCES)))
    save_file({"poses": stacked.half()}, TURNS)  # half precision is enough for a picture


if __name__ == "__main__":
    write_turns()
