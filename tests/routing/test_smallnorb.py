"""The network for smallNORB: sizes, parts, and trained weights."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import capsroute
from capsroute import Capsules
from capsroute.nets import SmallNORB
from capsroute.nets.smallnorb import stack_coordinates

OFFICIAL = "official_checkpoints/smallNORB_pretrained_model_state_dict.pt"


def test_number_of_parameters() -> None:
    assert sum(p.numel() for p in SmallNORB().parameters()) == 271_688


@pytest.mark.parametrize(("m", "n"), [(29, 29), (48, 48), (41, 60)])
def test_outputs_for_any_image_size(m: int, n: int) -> None:
    out = SmallNORB(n_parts=6, n_channels=4)(torch.rand(2, 2, m, n))
    assert isinstance(out, Capsules)
    assert out.a.shape == (2, 5)
    assert out.mu.shape == out.sig2.shape == (2, 5, 4, 4)


def test_parts_of_96_pixels() -> None:
    with torch.no_grad():
        a, mu = SmallNORB().eval().parts(torch.rand(1, 2, 96, 96))
    assert a.shape == (1, 64 * 9 * 9)
    assert mu.shape == (1, 64 * 9 * 9, 4, 4)


def test_score_and_pose_of_a_part_match() -> None:
    """The score and the pose of a capsule come from the same location and channel."""
    network = SmallNORB(n_parts=3, n_channels=4).eval()
    with torch.no_grad():
        images = torch.rand(1, 2, 48, 48)
        a, mu = network.parts(images)
        x = network.convolve(stack_coordinates(images))
        scores, poses = network.compute_a(x)[0], network.compute_mu(x)[0]  # [p, 3, 3] and [p * 16, 3, 3]
        part, row, column = 1, 2, 0
        place = part * 9 + row * 3 + column
        assert a[0, place] == scores[part, row, column]
        assert torch.equal(mu[0, place].flatten(), poses[part * 16 : part * 16 + 16, row, column])


def test_stack_coordinates() -> None:
    stacked = stack_coordinates(torch.zeros(1, 2, 3, 5))
    assert stacked[0, 2, :, 0].tolist() == [-1, 0, 1]
    assert stacked[0, 3, 0].tolist() == [-1, -0.5, 0, 0.5, 1]


@pytest.mark.parametrize("shape", [(2, 48, 48), (1, 3, 48, 48), (1, 2, 28, 48), (1, 2, 48, 28)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="images: expected"):
        SmallNORB(n_parts=2, n_channels=2)(torch.rand(shape))


def test_bytes_are_refused() -> None:
    with pytest.raises(TypeError, match="images: expected floating point"):
        SmallNORB(n_parts=2, n_channels=2)(torch.zeros(1, 2, 48, 48, dtype=torch.uint8))


def read_test_pairs(data: Path, which: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """Read test pairs of the JPEG copy, `[n, 2, 96, 96]` in 0..1, and their categories."""
    from PIL import Image

    with np.load(data / "smallnorb/test.npz") as pack:
        jpeg, offsets, category = pack["jpeg"], pack["offsets"], pack["category"]

    def decode(k: int) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(jpeg[offsets[k] : offsets[k + 1]].tobytes())))

    images = np.stack([np.stack([decode(2 * k), decode(2 * k + 1)]) for k in which])
    return torch.from_numpy(images).float() / 255, category[which]


@pytest.mark.data
@pytest.mark.parametrize(("weights", "least"), [("official", 193), ("shipped", 189)])
def test_trained_weights_classify_smallnorb(data: Path, weights: str, least: int) -> None:
    """200 test pairs: 98.8% and 97.7% of all are right, so fewer than this would have a chance below 1 in 100."""
    network = SmallNORB.from_official(data / OFFICIAL).eval() if weights == "official" else capsroute.load("smallnorb")
    images, category = read_test_pairs(data, np.random.default_rng(0).permutation(24_300)[:200])
    with torch.no_grad():
        right = sum(
            (network(images[k : k + 20]).a.argmax(1).numpy() == category[k : k + 20]).sum() for k in range(0, 200, 20)
        )
    assert right >= least
