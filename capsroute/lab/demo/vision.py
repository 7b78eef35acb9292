"""Recognising a stereo pair: probabilities, what the winner used, its pose, and every iteration of routing.

Axes: p kinds of parts, r and s rows and columns of the grid of locations, j larger parts, k classes, t iterations,
v views of a turn; c, h the rows and columns of a pose.
"""

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...credit import heat_maps
from ...layers import Routing
from ...pretrained import load
from ...routing import Capsules, resolve_agreement, route
from ...routing.reference import d_step, e_step, votes
from ..data import toys
from ..data.pairs import CATEGORIES
from ..errors import UserError
from ..preprocessing import open_image

if TYPE_CHECKING:
    from ...nets import SmallNORB

SIZE, GRID = 96, 9  # pixels and locations along a side, as in training
VOTING_BLOCK = 324  # inputs whose votes are formed at a time: few enough for a core's cache
INSTANCES = toys.INSTANCES["test"]
ELEVATIONS, AZIMUTHS, LIGHTS = range(30, 75, 5), range(0, 360, 10), range(1, toys.N_LIGHTINGS + 1)
MAX_BYTES, MAX_PIXELS = 4 << 20, 4_000_000  # of an uploaded file
TURNS = Path(__file__).with_name("turns.safetensors")
TURN_ELEVATION, TURN_LIGHT = 50, 1  # of the views in that file


class PairResult(NamedTuple):
    """The answer for a pair, and what it rests on; requests share it, so nothing may be changed in place."""

    images: Tensor  # [2, m, n], in 0..1
    probabilities: Tensor  # [k]
    winner: int
    heat: Tensor  # [m, n], shares that the winner used
    pose: Tensor  # [c, h], of the winner
    to_parts: Tensor  # [t, p, j], data of each kind of part, over all locations, that each larger part used
    to_classes: Tensor  # [t, j, k], data of each larger part that each class used


@lru_cache(1)
def load_toy_network() -> "SmallNORB":
    return load("toys")  # pyright: ignore[reportReturnType]


@torch.inference_mode()
def recognise_pair(images: Tensor) -> PairResult:
    """Run a pair `[2, 96, 96]` in 0..1 once through both routing layers."""
    network = load_toy_network()
    first, second = (layer for layer in network.routings if isinstance(layer, Routing))
    (a_inp, *_), (mu_inp, *_) = network.parts(images[None])
    (a, mu, _), to_parts = trace_shares(first, a_inp, mu_inp)  # [t, p * r * s, j]
    steps = second.trace(a, mu)
    winner = int(steps[-1].a.argmax())
    used = (to_parts[-1] @ steps[-1].D_use[:, winner]).view(1, -1, GRID, GRID, 1)  # [1, p, r, s, 1]
    return PairResult(
        images,
        steps[-1].a.softmax(0),
        winner,
        heat_maps(used, (SIZE, SIZE))[0, 0],
        steps[-1].mu[winner],
        to_parts.unflatten(1, (-1, GRID * GRID)).sum(2),
        torch.stack([step.D_use for step in steps]),
    )


def trace_shares(layer: Routing, a_inp: Tensor, mu_inp: Tensor) -> tuple[Capsules, Tensor]:
    """Return a layer's output and `D_use [t, i, j]` of each iteration.

    Same as `layer.trace` where inputs share their parameters, and several times faster: only the E-step forms votes.
    """
    parameters = (layer.W, layer.B, layer.beta_use, layer.beta_ign)
    outs = [route(a_inp, mu_inp, *parameters, n_iters=t, eps=layer.eps) for t in range(1, layer.n_iters + 1)]
    R = torch.full((layer.n_iters, len(a_inp), len(outs[0].a)), 1 / len(outs[0].a))
    for rows in torch.arange(len(a_inp)).split(VOTING_BLOCK):
        V = votes(mu_inp[rows], layer.W, layer.B)
        for t, out in enumerate(outs[:-1], 1):
            R[t, rows] = e_step(V, *out, resolve_agreement("gaussian"))
    return outs[-1], d_step(a_inp, R)[0]


@lru_cache(64)
def recognise_toy(category: str, instance: int, azimuth: int, elevation: int, light: int) -> PairResult:
    """Render a test toy and recognise it."""
    return recognise_pair(toys.render(category, instance, elevation, azimuth, light - 1, size=SIZE)[0] / 255)


def recognise_files(files: Sequence[bytes]) -> PairResult:
    """Recognise two uploaded images, left first, or one: for both eyes, or cut in two if it is two images wide."""
    if len(files) not in (1, 2):
        raise UserError(f"files: expected one image or two, got {len(files)}")
    left, *others = map(open_upload, files)
    right = others[0] if others else left
    width, height = left.size
    if not others and width >= 2 * height:
        left, right = left.crop((0, 0, width // 2, height)), left.crop((width - width // 2, 0, width, height))
    views = np.stack([np.asarray(crop_square(view)) for view in (left, right)])
    return recognise_pair(torch.from_numpy(views).float() / 255)


def open_upload(content: bytes) -> Image.Image:
    """Decode a PNG or JPEG in grey, on white where it is transparent."""
    if len(content) > MAX_BYTES:
        raise UserError(f"file: expected at most {MAX_BYTES >> 20} MB, got {len(content) / 2**20:.1f} MB")
    return open_image(BytesIO(content), ("PNG", "JPEG"), MAX_PIXELS).convert("L")


def crop_square(view: Image.Image) -> Image.Image:
    """Crop the middle of a view and resize it to the network's size."""
    return ImageOps.fit(view, (SIZE, SIZE), Image.Resampling.BOX if view.width > SIZE else Image.Resampling.BICUBIC)


def project_pose(category: str, instance: int, winner: int, pose: Tensor) -> tuple[Tensor, Tensor]:
    """Project a class's poses along a toy's full turn on their two main directions, `[v, 2]`, and a pose, `[2]`."""
    poses = load_turns()[CATEGORIES.index(category), INSTANCES.index(instance), :, winner].flatten(1)  # [v, c * h]
    centre = poses.mean(0)
    axes = torch.linalg.svd(poses - centre, full_matrices=False).Vh[:2].T  # [c * h, 2]
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()  # the same sign on every machine
    return (poses - centre) @ axes, (pose.flatten() - centre) @ axes


@lru_cache(1)
def load_turns() -> Tensor:
    """Load the poses of all classes along a turn of each test toy, `[categories, instances, v, k, c, h]`.

    `python -m capsroute.lab.demo.vision` writes them: computing a turn takes too long for a page.
    """
    return load_file(TURNS)["poses"].float()


@torch.inference_mode()
def write_turns() -> None:
    """Write the poses of every test toy along a full turn; to be repeated after a change of weights or renderer."""
    poses = []
    for category in CATEGORIES:
        for instance in INSTANCES:
            images = toys.render(category, instance, TURN_ELEVATION, list(AZIMUTHS), TURN_LIGHT - 1, size=SIZE)
            poses.append(torch.cat([load_toy_network()(some / 255).mu for some in images.split(6)]))  # [v, k, c, h]
    stacked = torch.stack(poses).unflatten(0, (len(CATEGORIES), len(INSTANCES)))
    save_file({"poses": stacked.half()}, TURNS)  # half precision is enough for a picture


if __name__ == "__main__":
    write_turns()
