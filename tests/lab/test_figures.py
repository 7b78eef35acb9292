"""The paper's figures: their numbers by hand, what is drawn, and the kept ones against the files behind them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from capsroute.lab.analysis import poses, records
from capsroute.lab.cli import app
from capsroute.lab.data import Pairs, toys
from capsroute.lab.errors import UserError
from capsroute.lab.report import gallery, paper
from capsroute.lab.report.figures import BLUE
from capsroute.lab.report.figures_command import by_epoch, learning_of, logs_of
from capsroute.lab.training.runs import TRAINING, VALIDATION
from capsroute.nets import SmallNORB
from conftest import ROOT

KEPT = sorted((ROOT / "results" / "figures").glob("*/figures.json"))
runner = CliRunner()


def circle(n_toys: int = 2, n_rings: int = 3) -> np.ndarray:
    """Poses whose four vectors turn with the camera, each in a plane of its own size: `[t, e, s, c, h]`."""
    angle = np.deg2rad(np.arange(0, 360, 20))
    turned = np.stack([np.cos(angle), np.sin(angle), 0 * angle, 0 * angle], -1)  # [s, h]
    return np.broadcast_to(turned[:, None] * np.arange(1, 5)[:, None], (n_toys, n_rings, 18, 4, 4))


def labelled(seed: int | None = None) -> Pairs:
    """The wanted pairs of the test toys with pixels of noise; with a seed in another order."""
    category, info = toys.labels("test")
    rows = poses.wanted(category, info)
    if seed is not None:
        rows = np.random.default_rng(seed).permutation(rows)
    images = np.random.default_rng(0).integers(0, 256, (len(category), 2, 2, 2), dtype=np.uint8)
    return Pairs(images[rows], category[rows], info[rows])


def test_a_rotation_keeps_norms_and_goes_away_as_chords_do() -> None:
    found = poses.change(circle()[:, 0])
    angle = np.deg2rad(np.arange(0, 360, 20))[:, None]
    np.testing.assert_allclose(found.norm, 1, atol=1e-12)
    np.testing.assert_allclose(found.cosine, np.broadcast_to(np.cos(angle), (2, 18, 4)), atol=1e-12)
    np.testing.assert_allclose(found.distance, np.broadcast_to(2 * np.sin(angle / 2), (2, 18, 4)), atol=1e-12)


def test_a_vector_of_zeros_changes_without_warning() -> None:
    found = poses.change(np.zeros((1, 3, 4, 4)))
    assert all(np.isfinite(values).all() for values in found)


def test_a_circle_closes_and_opposite_views_are_farthest() -> None:
    turn = poses.full_turn(circle())
    np.testing.assert_allclose(turn.closing, turn.step)
    np.testing.assert_allclose(turn.closing / turn.opposite, np.sin(np.deg2rad(10)))
    chords = np.sin(np.deg2rad(np.arange(10, 91, 10)))
    np.testing.assert_allclose(poses.by_angle(circle())[0, 0], chords / chords.mean())


def test_a_pose_that_drifts_does_not_close() -> None:
    drift = np.broadcast_to(np.arange(18.0)[:, None], (2, 3, 18, 5))
    facts = poses.turn_facts(drift)
    assert facts["closing step over mean step"]["median"] == pytest.approx(17)
    assert facts["turns"] == 6
    assert facts[poses.NOT_LONGEST] == 0


def test_each_vector_has_its_own_facts() -> None:
    poses_of = np.array(circle())
    poses_of[..., 3, :] = np.arange(18)[:, None]  # the last one drifts
    whole = [poses.turn_facts(poses_of[:, :, :, c])["closing step over mean step"]["median"] for c in range(4)]
    assert whole == pytest.approx([1, 1, 1, 17])


@pytest.mark.parametrize("seed", [None, 1])
def test_views_are_those_of_whole_turns_and_climbs_in_order(seed: int | None) -> None:
    pairs = labelled(seed)
    named = np.concatenate([pairs.category[:, None], pairs.info], 1)
    assert len(pairs.category) == 25 * (3 * 18 + 6)
    turns, climbs = poses.turns(pairs, named), poses.climbs(pairs, named)
    assert turns.shape == (25, 3, 18, 5)
    assert climbs.shape == (25, 9, 5)
    assert (turns[..., 2] == np.array(poses.RINGS)[:, None]).all()
    assert (turns[..., 3] == np.arange(0, 36, 2)).all()
    assert (climbs[..., 2] == np.arange(9)).all()
    assert (climbs[..., 3] == 0).all()
    for values in (turns.reshape(25, -1, 5), climbs):  # each row is one toy under one light
        assert (values[..., 4] == poses.LIGHTING).all()
        assert (values[..., :2] == values[:, :1, :2]).all()
    assert len(np.unique(climbs[:, 0, :2], axis=0)) == 25


@pytest.mark.parametrize("row", [0, 700])
def test_a_missing_view_is_named(row: int) -> None:
    pairs = labelled()
    kept = np.arange(len(pairs.category)) != row
    with pytest.raises(UserError, match="expected every view of each toy"):
        gallery.facts_of(pairs.take(kept), np.zeros((kept.sum(), 4, 4)), kept[kept], [])


def test_poses_are_those_of_the_true_class() -> None:
    network = SmallNORB(n_parts=3, n_channels=4).double().eval()
    rng = np.random.default_rng(0)
    images, category = rng.integers(0, 256, (23, 2, 29, 29), dtype=np.uint8), rng.integers(0, 5, 23)
    seen: list[int] = []
    mu, hit = poses.class_poses(network, Pairs(images, category, np.zeros((23, 4), int)), seen.append)
    with torch.inference_mode():
        capsules = network(torch.from_numpy(images).double() / 255)
    np.testing.assert_allclose(mu, capsules.mu.numpy()[np.arange(23), category], rtol=1e-9)
    assert hit.tolist() == (capsules.a.argmax(1).numpy() == category).tolist()
    assert sum(seen) == 23


def test_a_map_of_a_plane_keeps_all_distances() -> None:
    rng = np.random.default_rng(0)
    plane, _ = np.linalg.qr(rng.normal(size=(4, 2)))
    points = rng.normal(size=(30, 2)) @ plane.T
    found, stress = poses.embed(points)
    apart = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (points, found)]
    assert stress < 0.01
    assert np.abs(apart[0] - apart[1]).max() < 0.05 * apart[0].max()
    np.testing.assert_array_equal(poses.embed(points)[0], found)
    assert poses.embed(rng.normal(size=(30, 4)))[1] > 0.05  # four dimensions do not fit


def test_numbers_need_neither_matplotlib_nor_scikit_learn_and_maps_say_so() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = sys.modules['sklearn'] = sys.modules['sklearn.manifold'] = None\n"
        "import numpy as np; from capsroute.lab.analysis import poses; from capsroute.lab.errors import UserError\n"
        "try: poses.embed(np.eye(4))\nexcept UserError as error: assert 'pip install scikit-learn' in str(error)\n"
        "else: sys.exit(1)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


@pytest.mark.parametrize("table", [records.SMALLNORB, records.SST5, records.SST2])
def test_our_records_are_those_of_the_results(table: tuple[records.Record, ...]) -> None:
    ours = [record for record in table if record.ours]
    assert ours
    for record in ours:
        found = json.loads((ROOT / record.source).read_text())
        accuracy = found["mean"] if "mean" in found else found["right"] / found["total"]
        assert record.accuracy == round(100 * accuracy, 2)
        if record.deviation is not None:
            assert record.deviation == round(100 * found["standard deviation"], 2)
            run = json.loads(((ROOT / record.source).parent / "seed-0/run.json").read_text())
            assert record.parameters == run["parameters"]
    for record in table:
        assert record.source
        assert record.error == pytest.approx(100 - record.accuracy)


def test_twelve_plots_hold_every_toy_and_the_mean() -> None:
    change = poses.change(np.random.default_rng(0).normal(size=(7, 18, 4, 4)))
    figure = paper.pose_change(change, gallery.AZIMUTHS, "azimuth")
    assert len(figure.axes) == 12
    for place, axes in enumerate(figure.axes):
        row, c = divmod(place, 4)
        drawn = np.array([line.get_ydata() for line in axes.lines])
        np.testing.assert_allclose(drawn[:-1], change[row][..., c])
        np.testing.assert_allclose(drawn[-1], change[row][..., c].mean(0))
        low, high = axes.get_ylim()
        assert low <= drawn[-1].min()
        assert drawn[-1].max() <= high


def test_every_record_is_a_point_with_its_words() -> None:
    def said(figure: Any) -> str:
        return " ".join(text.get_text() for text in figure.axes[0].texts)

    words = said(paper.by_parameters(records.SMALLNORB))
    for record in records.SMALLNORB:
        assert record.method in words
    for table in (records.SST5, records.SST2):
        figure = paper.by_year("by year", table)
        assert len(figure.axes[0].lines) == len(table)  # ours is a line
        for record in table:
            assert record.method in said(figure)


def test_words_stay_apart() -> None:
    found = paper._spaced([1.0, 1.1, 1.15, 5.0], 0.5)
    assert np.diff(found).min() >= 0.5 - 1e-12
    assert paper._spaced([1.0, 3.0], 0.5) == [1.0, 3.0]


def test_a_map_joins_four_points_for_each_view() -> None:
    points = np.random.default_rng(0).normal(size=(9, 4, 2))
    figure = paper.trajectories([paper.Walk("truck 0", points)], gallery.ELEVATIONS, paper.CLIMB)
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "truck 0"
    joined = [line for line in axes.lines if line.get_linestyle() == "-"]
    np.testing.assert_array_equal([np.asarray(line.get_xydata()) for line in joined], points)
    rings = [line for line in axes.lines if line.get_markersize() == 8]
    np.testing.assert_array_equal([np.asarray(line.get_xydata())[0] for line in rings], points[[0, -1], 0])


def log(folder: Path, name: str, columns: tuple[str, ...], rows: np.ndarray) -> None:
    lines = [",".join(columns), *(",".join(f"{value:g}" for value in row) for row in rows)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")
    config = {"experiment": "toys", "mixup": 0.2, "batch_size": 20, "toys_seed": 0}
    (folder / "config.json").write_text(json.dumps(config))


def test_curves_of_seeds_are_their_mean_and_deviation(tmp_path: Path) -> None:
    for seed, loss in enumerate((1.0, 3.0)):
        rows = np.array([[10, 1, 0, loss, 9, 0.5, 9], [20, 2, 0, loss / 2, 9, 0.5 + loss / 10, 9]])
        log(tmp_path / f"seed-{seed}", "validation.csv", VALIDATION, rows)
    found = learning_of(tmp_path)
    assert (found.over, found.spread_over, found.epoch.tolist()) == ("held-out toys", "2 seeds", [1, 2])
    np.testing.assert_allclose(found.loss, [2, 1])
    np.testing.assert_allclose(found.loss_sd, np.array([2, 1]) / 2**0.5)
    np.testing.assert_allclose(found.accuracy, [0.5, 0.7])
    one = learning_of(tmp_path / "seed-0")
    assert one.spread_over == "batches of 20"
    assert one.loss_sd.tolist() == [9, 9]
    assert len(paper.learning([found, one]).axes) == 4


def test_without_validation_the_training_log_serves_by_epoch(tmp_path: Path) -> None:
    epoch = np.arange(0.5, 6.1, 0.5)
    rows = np.stack([epoch, epoch, *(0 * epoch for _ in range(3)), epoch, 0 * epoch + 3, epoch / 10, 0 * epoch], 1)
    log(tmp_path, "log.csv", TRAINING, rows)
    found = learning_of(tmp_path)
    assert found.over == "training, mixed-up images"
    assert found.epoch.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(found.loss, np.arange(0.75, 6))  # rows at k + 0.5 and k + 1
    np.testing.assert_allclose(found.loss_sd, np.sqrt(9 + 0.25**2))
    few = {name: column[:4] for name, column in zip(TRAINING, rows.T, strict=True)}
    assert by_epoch(few) is few


def test_a_run_draws_its_own_curves_or_those_of_all_seeds(tmp_path: Path) -> None:
    run = tmp_path / "seed-0"
    run.mkdir()
    (run / "run.json").write_text("{}")
    assert logs_of(str(run)) == [run]
    (tmp_path / "replicate.json").write_text("{}")
    assert logs_of(str(run)) == [tmp_path]
    assert [folder.name for folder in logs_of("toys")] == ["toys96"]
    assert logs_of("elsewhere") == []


def few_pixels(category: int, instance: int, up: np.ndarray, around: np.ndarray, light: np.ndarray, **_: int) -> Any:
    """In place of a toy's pictures noise around a brightness that turns with it."""
    rng = np.random.default_rng([category, instance])
    bright = 120 + 60 * np.cos(np.deg2rad(around)) + 0.2 * up
    images = rng.integers(0, 40, (len(up), 2, 32, 32)) + bright[:, None, None, None]
    return torch.from_numpy(images.astype(np.uint8))


def test_the_command_writes_every_picture_and_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsroute.lab.data.toys.render", few_pixels)
    monkeypatch.setattr(paper, "DPI", 50)
    SmallNORB(n_parts=3, n_channels=4).save_pretrained(tmp_path / "weights")
    rows = np.array([[10, 1, 0, 1.5, 0.1, 0.5, 0.1], [20, 2, 0, 1, 0.1, 0.7, 0.1]])
    log(tmp_path / "run", "validation.csv", VALIDATION, rows)
    words = ["figures", str(tmp_path / "weights"), "--on", "debug", "--out", str(tmp_path / "out")]
    result = runner.invoke(app, [*words, "--logs", str(tmp_path / "run"), "--accelerator", "cpu", "--note", "noise"])
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "out" / "figures.json").read_text())
    names = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert names == set(facts["figures"]) == set(gallery.captions(facts))
    assert len(names) == 10
    assert facts["views"]["pairs"] == 1500
    assert facts["made"]["note"] == "noise"
    assert "toys: held-out" not in facts["figures"]["curves"]
    assert "toys, 48x48: held-out toys, over batches of 20" in facts["figures"]["curves"]
    for path in (tmp_path / "out").glob("*.png"):
        with Image.open(path) as picture:
            assert min(picture.size) > 100


def test_the_command_refuses_what_has_no_poses(tmp_path: Path) -> None:
    result = runner.invoke(app, ["figures", "treebank", "--accelerator", "cpu"])
    assert result.exit_code == 1
    assert "expected a network that sees stereo pairs, got one that reads sentences" in result.output
    result = runner.invoke(app, ["figures", str(tmp_path)])
    assert "expected the folder of a run" in " ".join(result.output.split())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_kept_figures_are_small_and_said_what_their_numbers_say(path: Path) -> None:
    facts = json.loads(path.read_text())
    page = " ".join((ROOT / "docs" / "gallery.md").read_text().split())
    said = gallery.captions(facts)
    pictures = list(path.parent.glob("*.png"))
    for picture in pictures:
        assert picture.stat().st_size < 400_000
        assert facts["figures"][picture.stem] == said[picture.stem]
        assert f"figures/{path.parent.name}/{picture.name}" in page
    assert said["full-turn"] in page
    assert {"torch", "command", "commit", "seconds"} <= facts["made"].keys()


def test_distances_are_drawn_by_angle() -> None:
    values = np.random.default_rng(0).random((6, 9))
    axes = paper.turn_distance([("poses", BLUE, values)]).axes[0]
    curve = next(line for line in axes.lines if len(np.asarray(line.get_xdata())) == 9)
    np.testing.assert_allclose(np.asarray(curve.get_xdata(), float), np.arange(20, 181, 20))
    np.testing.assert_allclose(np.asarray(curve.get_ydata(), float), values.mean(0))
