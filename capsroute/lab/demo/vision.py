"""What the network makes of a stereo pair: classes, what the winner used, its pose, and every iteration of routing.

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
from torch import Tensor

from ...credit import APART, heat_maps
from ...layers import Routing
from ...nets.smallnorb import SMALLEST
from ...pretrained import load
from ...routing import Capsules, route
from ...routing.agreement import AGREEMENTS
from ...routing.reference import d_step, e_step, votes
from ..data import toys
from ..data.pairs import CATEGORIES
from ..errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

    from ...nets import SmallNORB

SIZE = 96  # pixels along a side, as in training
N_VOTING = 324  # inputs whose votes are looked at together: few enough for a core's cache
INSTANCES = toys.INSTANCES["test"]
ELEVATIONS = range(30, 75, 5)
AZIMUTHS = range(0, 360, 10)
MAX_BYTES, MAX_PIXELS = 4 << 20, 4_000_000  # of an uploaded file
TURNS = Path(__file__).with_name("turns.safetensors")
TURN_ELEVATION, TURN_LIGHTING = 50, 0  # of the views behind that file


class Look(NamedTuple):
    """What came of one pair; nothing in it is changed afterwards, for several requests may share it."""

    images: Tensor  # [2, m, n], in 0..1
    chances: Tensor  # [k]
    winner: int
    heat: Tensor  # [m, n], shares that the winner used
    pose: Tensor  # [c, h], of the winner
    to_parts: Tensor  # [t, p, j], data of each kind of part, over all locations, that each larger part used
    to_classes: Tensor  # [t, j, k], data of each larger part that each class used


@lru_cache(1)
def network() -> "SmallNORB":
    """The shipped network, loaded once."""
    return load("toys")  # pyright: ignore[reportReturnType]


@torch.inference_mode()
def look(images: Tensor) -> Look:
    """Everything the page shows of a pair `[2, m, n]` in 0..1, from one pass through both routing layers."""
    net = network()
    first, second = (layer for layer in net.routings if isinstance(layer, Routing))
    (a_inp, *_), (mu_inp, *_) = net.parts(images[None])
    (a, mu, _), to_parts = routed(first, a_inp, mu_inp)  # [t, p * r * s, j]
    last = second.trace(a, mu)
    winner = int(last[-1].a.argmax())
    rows, columns = ((size - SMALLEST) // APART + 1 for size in images.shape[1:])
    used = (to_parts[-1] @ last[-1].D_use[:, winner]).view(1, -1, rows, columns, 1)  # [1, p, r, s, 1]
    return Look(
        images,
        last[-1].a.softmax(0),
        winner,
        heat_maps(used, (images.shape[1], images.shape[2]))[0, 0],
        last[-1].mu[winner],
        to_parts.unflatten(1, (-1, rows * columns)).sum(2),
        torch.stack([step.D_use for step in last]),
    )


def routed(layer: Routing, a_inp: Tensor, mu_inp: Tensor) -> tuple[Capsules, Tensor]:
    """What a layer shared by all inputs puts out, and `D_use [t, i, j]` of each iteration.

    As `layer.trace`, but several times faster: only the E-step looks at votes, some inputs at a time.
    """
    parameters = (layer.W, layer.B, layer.beta_use, layer.beta_ign)
    outs = [route(a_inp, mu_inp, *parameters, n_iters=t, eps=layer.eps) for t in range(1, layer.n_iters + 1)]
    R = torch.full((layer.n_iters, len(a_inp), len(outs[0].a)), 1 / len(outs[0].a))
    for rows in torch.arange(len(a_inp)).split(N_VOTING):
        V = votes(mu_inp[rows], layer.W, layer.B)
        for t, models in enumerate(outs[:-1], 1):
            R[t, rows] = e_step(V, *models, AGREEMENTS["gaussian"])
    return outs[-1], d_step(a_inp, R)[0]


@lru_cache(64)
def look_at_toy(category: str, instance: int, azimuth: int, elevation: int, lighting: int) -> Look:
    """A rendered toy that the network has never seen in training."""
    for name, value, known in (
        ("category", category, CATEGORIES),
        ("instance", instance, INSTANCES),
        ("azimuth", azimuth, AZIMUTHS),
        ("elevation", elevation, ELEVATIONS),
        ("lighting", lighting, range(toys.N_LIGHTINGS)),
    ):
        if value not in known:
            raise UserError(f"{name}: expected one of {', '.join(map(str, known))}, got {str(value)[:40]!r}")
    return look(toys.render(category, instance, elevation, azimuth, lighting, size=SIZE)[0] / 255)


def look_at_files(files: Sequence[bytes]) -> Look:
    """An uploaded pair: two images, left first, or one with both side by side."""
    if len(files) not in (1, 2):
        raise UserError(f"files: expected two images, or one with both views side by side, got {len(files)}")
    views = [opened(content) for content in files]
    if len(views) == 1:
        (both,) = views
        if both.width < 2:
            raise UserError("files: expected both views side by side, got an image one pixel wide")
        half = both.width // 2
        views = [both.crop((0, 0, half, both.height)), both.crop((both.width - half, 0, both.width, both.height))]
    grey = [np.asarray(squared(view), dtype=np.float32) / 255 for view in views]
    return look(torch.from_numpy(np.stack(grey)))


def opened(content: bytes) -> "Image":
    """A PNG or JPEG in grey, on white where it is transparent."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(content) > MAX_BYTES:
        raise UserError(f"file: expected at most {MAX_BYTES >> 20} MB, got {len(content) / 2**20:.1f} MB")
    try:
        with Image.open(BytesIO(content), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > MAX_PIXELS:  # known before anything is unpacked
                limit = f"{MAX_PIXELS // 1_000_000} million pixels"
                raise UserError(f"file: expected at most {limit}, got {image.width} by {image.height}")
            colours = ImageOps.exif_transpose(image).convert("RGBA")
    except UserError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise UserError("file: expected a PNG or JPEG image, got something else") from None
    except Exception:  # decoders raise all sorts
        raise UserError("file: expected a PNG or JPEG image, got a damaged one") from None
    return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours).convert("L")


def squared(view: "Image") -> "Image":
    """The middle of a view, in the network's size."""
    from PIL import Image, ImageOps

    return ImageOps.fit(view, (SIZE, SIZE), Image.Resampling.BOX if view.width > SIZE else Image.Resampling.BICUBIC)


def walk(category: str, instance: int, winner: int, pose: Tensor) -> tuple[Tensor, Tensor]:
    """A full turn's poses of a class in their two main directions, `[v, 2]`, and where a pose lies there, `[2]`."""
    poses = turns()[CATEGORIES.index(category), INSTANCES.index(instance), :, winner].flatten(1)  # [v, c * h]
    centre = poses.mean(0)
    axes = torch.linalg.svd(poses - centre, full_matrices=False).Vh[:2].T  # [c * h, 2]
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()  # the same way round wherever it runs
    return (poses - centre) @ axes, (pose.flatten() - centre) @ axes


@lru_cache(1)
def turns() -> Tensor:
    """Poses of all classes along a turn of each test toy, `[categories, instances, v, k, c, h]`.

    Made by `python -m capsroute.lab.demo.turns`: a turn takes too long to wait for.
    """
    from safetensors.torch import load_file

    return load_file(TURNS)["poses"].float()


@torch.inference_mode()
def turned(category: str, instance: int) -> Tensor:
    """Poses of all classes along a turn, `[v, k, c, h]`, computed."""
    images = toys.render(category, instance, TURN_ELEVATION, list(AZIMUTHS), TURN_LIGHTING, size=SIZE)
    return torch.cat([network()(some / 255).mu for some in images.split(6)])
