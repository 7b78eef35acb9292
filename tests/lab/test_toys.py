"""Rendered toys: complete, reproducible, distinct, lit and shadowed, and cached safely."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from capsroute.lab.data import CATEGORIES, toys
from capsroute.lab.data.toybox import rays, solids, stage

SIZE = 24


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink splits to two toys seen from two elevations and three azimuths."""
    monkeypatch.setattr(toys, "CATEGORIES", ("airplane", "car"))
    monkeypatch.setattr(toys, "INSTANCES", {"train": (4,), "test": (0,)})
    monkeypatch.setattr(toys, "N_ELEVATIONS", 2)
    monkeypatch.setattr(toys, "N_AZIMUTHS", 3)


def view(category: str, instance: int, elevation: float = 40, azimuth: float = 40, lighting: int = 0, **options):
    options = {"size": SIZE} | options
    return toys.render(category, instance, elevation, azimuth, lighting, **options)[0].float()


def list_files(folder: Path) -> list[Path]:
    """Return all files but locks, which stay for the next process."""
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


def draw_silhouettes(toy: stage.Toy, angles: torch.Tensor, elevation: float) -> torch.Tensor:
    """Return whether the toy covers each pixel, for both eyes of each view."""
    eyes = stage.make_eye_rays(toy, angles, torch.full_like(angles, elevation))
    hits = rays.find_first_hits(toy.solids, eyes, rays.make_grid(SIZE, 1.0, 1, torch.device("cpu")))
    return rays.to_image((hits != rays.MISS).unsqueeze(-1), SIZE)


@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_have_every_combination_once(split: str) -> None:
    category, info = toys.make_labels(split)
    rows = {tuple(row) for row in np.column_stack([category, info]).tolist()}
    instances = {"train": [4, 6, 7, 8, 9], "test": [0, 1, 2, 3, 5]}[split]
    assert len(category) == len(info) == 24_300
    assert rows == set(itertools.product(range(5), instances, range(9), range(0, 36, 2), range(6)))


def test_seed_decides_bytes() -> None:
    first, again = (toys.render("car", 3, [30, 70], [0, 200], [1, 4], size=SIZE) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, toys.render("car", 3, [30, 70], [0, 200], [1, 4], size=SIZE, seed=1))


def test_threads_do_not_change_bytes() -> None:
    threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            found.append(toys.render("truck", 3, 45, range(0, 360, 20), 2, size=48))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize("category", CATEGORIES)
def test_instances_differ(category: str) -> None:
    """Their silhouettes differ, which no paint or lighting changes."""
    angles = torch.tensor([40.0, 160.0, 280.0], dtype=torch.float64)
    silhouettes = [draw_silhouettes(toys.build_toy(category, instance), angles, 40.0) for instance in range(10)]
    for one, other in itertools.combinations(silhouettes, 2):
        assert (one ^ other).sum() > 0.08 * (one | other).sum()


@pytest.mark.parametrize("category", CATEGORIES)
def test_toys_fill_frame(category: str) -> None:
    angles = torch.arange(0, 360, 60).double()
    for instance in range(10):
        toy = toys.build_toy(category, instance)
        for elevation in (30.0, 70.0):
            seen = draw_silhouettes(toy, angles, elevation)
            assert not seen[..., [0, -1], :].any()
            assert not seen[..., [0, -1]].any()
            assert (seen.flatten(1).sum(1) > 0.04 * SIZE**2).all()


def test_eyes_differ() -> None:
    left, right = view("airplane", 0)
    assert (left - right).abs().mean() > 1
    # no shift of one picture gives the other
    assert min((left - right.roll(k, -1)).abs().mean() for k in (-1, 0, 1)) > 1


def test_lightings_differ() -> None:
    six = toys.render("truck", 0, 40, 60, range(6), size=SIZE).float()
    for one, other in itertools.combinations(six, 2):
        assert (one - other).abs().mean() > 2


def test_shadow_falls_away_from_light() -> None:
    toy = toys.build_toy("human", 0)
    thrown = stage.cast_shadows(toy, torch.zeros(1, dtype=torch.float64))[0]
    place = torch.linspace(-stage.SHADOW_HALF, stage.SHADOW_HALF, thrown.shape[-1])
    for light, dark in zip(stage.LIGHTINGS, thrown, strict=False):
        x = (dark * place).sum() / dark.sum()  # to the right
        y = (dark * -place[:, None]).sum() / dark.sum() + stage.SHADOW_AWAY  # away
        a = np.radians(light.azimuth)
        assert dark.max() > 0.9
        assert -x * np.sin(a) + y * np.cos(a) > 0.05
    # the ground beside the toy is darker there
    ground = view("human", 0, lighting=0)[0]
    other = view("human", 0, lighting=1)[0]
    assert ground[:, -6:].min() < 0.7 * ground.max()
    assert other[:, -6:].min() > 0.8 * other.max()


def test_azimuth_and_elevation_change_view() -> None:
    ahead, turned, above = view("car", 0), view("car", 0, azimuth=130), view("car", 0, elevation=70)
    assert (ahead - turned).abs().mean() > 5
    assert (ahead - above).abs().mean() > 5
    torch.testing.assert_close(view("car", 0, azimuth=400), ahead, rtol=0, atol=1)


@pytest.mark.usefixtures("few")
def test_render_equals_cache(tmp_path: Path) -> None:
    pairs = toys.load(tmp_path, "test", SIZE)
    assert pairs.images.shape == (2 * 2 * 3 * 6, 2, SIZE, SIZE)
    for row in range(0, len(pairs.images), 7):
        instance, elevation, azimuth, lighting = pairs.info[row].tolist()
        again = toys.render(int(pairs.category[row]), instance, 30 + 5 * elevation, 10 * azimuth, lighting, size=SIZE)
        assert np.array_equal(again[0].numpy(), pairs.images[row])


@pytest.mark.usefixtures("few")
def test_cache_is_not_rendered_again(tmp_path: Path) -> None:
    first = toys.load(tmp_path, "train", 8)
    (file,) = list_files(tmp_path)
    before = file.stat()
    assert np.array_equal(first.images, toys.load(tmp_path, "train", 8).images)
    assert file.stat() == before
    for options in ({"size": 9}, {"size": 8, "seed": 1}):
        toys.load(tmp_path, "train", **options)
    assert len(list(tmp_path.rglob("*.npy"))) == 3


class TestSolids:
    """Compare closed forms with small steps along each ray."""

    SHAPES = (
        solids.ball((0.1, 0, 0.4), (0.5, 0.2, 0.3), 1.0, solids.turn(30, 20, 10)),
        solids.rod((-0.3, 0.1, 0.2), (0.4, -0.2, 0.7), 0.25, 1.0),
        solids.rod((0, 0, 0), (0, 0.1, 0.8), 0.5, 1.0, 0.05),
        solids.rod((0, 0, 0), (0.05, 0, 0.2), 0.05, 1.0, 0.6),
        solids.box((0, 0, 0.3), (0.6, 0.3, 0.5), 1.0, solids.turn(25, 0, 40)),
    )

    @pytest.mark.parametrize("shape", range(len(SHAPES)))
    def test_first_hits(self, shape: int) -> None:
        solid = self.SHAPES[shape].moved(1.1, np.array([0.05, -0.1, 0.0]))
        toy = stage.Toy([solid], 0.4, rays.list_faces([solid]))
        angles = torch.tensor([0.0, 77.0, 190.0], dtype=torch.float64)
        eyes = stage.make_eye_rays(toy, angles, torch.tensor([30.0, 85.0, 60.0], dtype=torch.float64))
        grid = rays.make_grid(16, 1.0, 1, torch.device("cpu"))
        hits = rays.find_first_hits([solid], eyes, grid)
        xy = grid.centres[:, None] + grid.inner.double()  # [tiles, samples, 2]
        o, u, v, d = (axis[:, None, None, None] for axis in eyes)
        t = torch.linspace(2.5, 5.5, 1501, dtype=torch.float64)
        at = o + xy[..., :1, None].mT * u + xy[..., 1:, None].mT * v + t[:, None] * d  # [n, tiles, samples, steps, 3]
        q = at - torch.as_tensor(solid.centre)
        inside = torch.ones(q.shape[:-1], dtype=torch.bool)
        for *normal, h in solid.planes:
            inside &= q @ torch.tensor(normal) <= h
        if solid.quadric:
            Q, b = torch.as_tensor(solid.quadric.Q), torch.as_tensor(solid.quadric.b)
            inside &= ((q @ Q) * q).sum(-1) + 2 * (q @ b) + solid.quadric.c <= 0
        walked = torch.where(inside.any(-1), t[inside.int().argmax(-1)], torch.inf)
        found = torch.where(hits == rays.MISS, torch.inf, (hits & -(2**rays.FACE_BITS)).view(torch.float32))
        both = walked.isfinite() & found.isfinite()
        # a grazing ray may pass between two steps
        assert (walked.isfinite() ^ found.isfinite()).sum() <= 0.005 * both.numel()
        assert both.sum() > 50
        assert (walked - found)[both].abs().max() < 0.0025
