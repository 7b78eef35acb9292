"""The paper's figures: their numbers by hand, and what is drawn."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from capsroute.lab.analysis import poses
from capsroute.lab.cli import app
from capsroute.lab.data import Pairs, toys
from capsroute.lab.errors import UserError
from capsroute.lab.report import paper_charts, paper_figures
from capsroute.lab.report.charts import BLUE
from capsroute.lab.report.paper_charts import read_records
from capsroute.lab.report.paper_figures import find_logs, read_learning_curves
from capsroute.lab.training.runs import TRAINING, VALIDATION
from capsroute.nets import SmallNORB
from conftest import ROOT

COMMITTED = sorted((ROOT / "results" / "figures").glob("*/figures.json"))
TASKS = ("smallnorb", "sst5", "sst2")
runner = CliRunner()


def circle(n_toys: int = 2, n_rings: int = 3) -> np.ndarray:
    """Poses whose four vectors turn with the camera, each in a plane of its own size: `[t, e, s, c, h]`."""
    angle = np.deg2rad(np.arange(0, 360, 20))
    turned = np.stack([np.cos(angle), np.sin(angle), 0 * angle, 0 * angle], -1)  # [s, h]
    return np.broadcast_to(turned[:, None] * np.arange(1, 5)[:, None], (n_toys, n_rings, 18, 4, 4))


def labelled(seed: int | None = None) -> Pairs:
    """The wanted pairs of the test toys with pixels of noise; with a seed in another order."""
    category, info = toys.make_labels("test")
    rows = poses.select_views(category, info)
    if seed is not None:
        rows = np.random.default_rng(seed).permutation(rows)
    images = np.random.default_rng(0).integers(0, 256, (len(category), 2, 2, 2), dtype=np.uint8)
    return Pairs(images[rows], category[rows], info[rows])


def test_rotation_keeps_norms_and_moves_by_chords() -> None:
    found = poses.measure_change(circle()[:, 0])
    angle = np.deg2rad(np.arange(0, 360, 20))[:, None]
    np.testing.assert_allclose(found.norm, 1, atol=1e-12)
    np.testing.assert_allclose(found.cosine, np.broadcast_to(np.cos(angle), (2, 18, 4)), atol=1e-12)
    np.testing.assert_allclose(found.distance, np.broadcast_to(2 * np.sin(angle / 2), (2, 18, 4)), atol=1e-12)


def test_zero_vector_changes_are_finite() -> None:
    found = poses.measure_change(np.zeros((1, 3, 4, 4)))
    assert all(np.isfinite(values).all() for values in found)


def test_circle_closes_and_opposite_views_are_farthest() -> None:
    turn = poses.summarise_turns(circle())
    assert list(turn["closing step over mean step"].values()) == pytest.approx([1, 1, 1])
    assert turn[poses.OVER_OPPOSITE] == pytest.approx(np.sin(np.deg2rad(10)))
    chords = np.sin(np.deg2rad(np.arange(10, 91, 10)))
    np.testing.assert_allclose(poses.distance_by_angle(circle())[0, 0], chords / chords.mean())


def test_drifting_pose_does_not_close() -> None:
    drift = np.broadcast_to(np.arange(18.0)[:, None], (2, 3, 18, 5))
    facts = poses.summarise_turns(drift)
    assert facts["closing step over mean step"]["median"] == pytest.approx(17)
    assert facts["turns"] == 6
    assert facts[poses.NOT_LONGEST] == 0


def test_each_vector_is_summarised() -> None:
    poses_of = np.array(circle())
    poses_of[..., 3, :] = np.arange(18)[:, None]  # the last one drifts
    whole = [poses.summarise_turns(poses_of[:, :, :, c])["closing step over mean step"]["median"] for c in range(4)]
    assert whole == pytest.approx([1, 1, 1, 17])


@pytest.mark.parametrize("seed", [None, 1])
def test_views_are_arranged_along_turns_and_climbs(seed: int | None) -> None:
    pairs = labelled(seed)
    named = np.concatenate([pairs.category[:, None], pairs.info], 1)
    assert len(pairs.category) == 25 * (3 * 18 + 6)
    turns, climbs = poses.arrange_turns(pairs, named), poses.arrange_climbs(pairs, named)
    assert turns.shape == (25, 3, 18, 5)
    assert climbs.shape == (25, 9, 5)
    assert (turns[..., 2] == np.array(poses.TURN_ELEVATIONS)[:, None]).all()
    assert (turns[..., 3] == np.arange(0, 36, 2)).all()
    assert (climbs[..., 2] == np.arange(9)).all()
    assert (climbs[..., 3] == 0).all()
    for values in (turns.reshape(25, -1, 5), climbs):  # each row is one toy under one light
        assert (values[..., 4] == poses.LIGHTING).all()
        assert (values[..., :2] == values[:, :1, :2]).all()
    assert len(np.unique(climbs[:, 0, :2], axis=0)) == 25


@pytest.mark.parametrize("row", [0, 700])
def test_missing_view_is_refused(row: int) -> None:
    pairs = labelled()
    kept = np.arange(len(pairs.category)) != row
    with pytest.raises(UserError, match="expected every view of each toy"):
        paper_figures.summarise(pairs.take(kept), np.zeros((kept.sum(), 4, 4)), kept[kept], [])


def test_poses_are_of_the_true_class() -> None:
    network = SmallNORB(n_parts=3, n_channels=4).double().eval()
    rng = np.random.default_rng(0)
    images, category = rng.integers(0, 256, (23, 2, 29, 29), dtype=np.uint8), rng.integers(0, 5, 23)
    seen: list[int] = []
    mu, hit = poses.compute_poses(network, Pairs(images, category, np.zeros((23, 4), int)), seen.append)
    with torch.inference_mode():
        capsules = network(torch.from_numpy(images).double() / 255)
    np.testing.assert_allclose(mu, capsules.mu.numpy()[np.arange(23), category], rtol=1e-9)
    assert hit.tolist() == (capsules.a.argmax(1).numpy() == category).tolist()
    assert sum(seen) == 23


def test_embedding_of_a_plane_keeps_distances() -> None:
    rng = np.random.default_rng(0)
    plane, _ = np.linalg.qr(rng.normal(size=(4, 2)))
    points = rng.normal(size=(30, 2)) @ plane.T
    found, stress = poses.embed_in_plane(points)
    apart = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (points, found)]
    assert stress < 0.01
    assert np.abs(apart[0] - apart[1]).max() < 0.05 * apart[0].max()
    np.testing.assert_array_equal(poses.embed_in_plane(points)[0], found)
    assert poses.embed_in_plane(rng.normal(size=(30, 4)))[1] > 0.05  # four dimensions do not fit


@pytest.mark.parametrize("task", TASKS)
def test_our_records_match_results(task: str) -> None:
    table = read_records(task)
    assert all(record.source for record in table)
    ours = [record for record in table if record.ours]
    assert ours
    for record in ours:
        text = (ROOT / record.source).read_text()
        if record.deviation is None:
            values = json.loads(text)
            assert record.accuracy == round(100 * values["right"] / values["total"], 2)
            continue
        rows = list(csv.DictReader(text.splitlines()))
        rows = [row for row in rows if row["group"] == rows[0]["group"]]
        accuracies = [100 * int(row["right"]) / int(row["total"]) for row in rows]
        assert len(rows) == 5
        assert record.accuracy == round(statistics.mean(accuracies), 2)
        assert record.deviation == round(statistics.stdev(accuracies), 2)
        assert {row["parameters"] for row in rows} == {str(record.parameters)}


def test_pose_change_draws_every_toy_and_the_mean() -> None:
    change = poses.measure_change(np.random.default_rng(0).normal(size=(7, 18, 4, 4)))
    figure = paper_charts.draw_pose_change(change, paper_figures.AZIMUTHS, "azimuth")
    assert len(figure.axes) == 12
    for place, axes in enumerate(figure.axes):
        row, c = divmod(place, 4)
        drawn = np.array([line.get_ydata() for line in axes.lines])
        np.testing.assert_allclose(drawn[:-1], change[row][..., c])
        np.testing.assert_allclose(drawn[-1], change[row][..., c].mean(0))
        low, high = axes.get_ylim()
        assert low <= drawn[-1].min()
        assert drawn[-1].max() <= high


def test_every_record_is_drawn_and_labelled() -> None:
    def said(figure: Any) -> str:
        return " ".join(text.get_text() for text in figure.axes[0].texts)

    smallnorb, *by_year = map(read_records, TASKS)
    words = said(paper_charts.draw_by_parameters(smallnorb))
    for record in smallnorb:
        assert record.method in words
    for table in by_year:
        figure = paper_charts.draw_by_year("by year", table)
        assert len(figure.axes[0].lines) == len(table)  # ours is a line
        for record in table:
            assert record.method in said(figure)


def test_labels_are_spaced() -> None:
    found = paper_charts.space_labels([1.0, 1.1, 1.15, 5.0], 0.5)
    assert np.diff(found).min() >= 0.5 - 1e-12
    assert paper_charts.space_labels([1.0, 3.0], 0.5) == [1.0, 3.0]


def test_trajectories_join_four_points_of_each_view() -> None:
    points = np.random.default_rng(0).normal(size=(9, 4, 2))
    figure = paper_charts.draw_trajectories([("truck 0", points)], paper_figures.ELEVATIONS, paper_charts.CLIMB_COLOURS)
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


def test_learning_curves_average_seeds(tmp_path: Path) -> None:
    for seed, loss in enumerate((1.0, 3.0)):
        rows = np.array([[10, 1, 0, loss, 9, 0.5, 9], [20, 2, 0, loss / 2, 9, 0.5 + loss / 10, 9]])
        log(tmp_path / f"seed-{seed}", "validation.csv", VALIDATION, rows)
    found = read_learning_curves(tmp_path)
    assert (found.over, found.spread_over, found.log["epoch"].tolist()) == ("held-out toys", "2 seeds", [1, 2])
    np.testing.assert_allclose(found.log["loss"], [2, 1])
    np.testing.assert_allclose(found.log["loss_sd"], np.array([2, 1]) / 2**0.5)
    np.testing.assert_allclose(found.log["accuracy"], [0.5, 0.7])
    one = read_learning_curves(tmp_path / "seed-0")
    assert one.spread_over == "batches of 20"
    assert one.log["loss_sd"].tolist() == [9, 9]
    assert len(paper_charts.draw_learning([found, one]).axes) == 4


def test_without_validation_the_training_log_is_read(tmp_path: Path) -> None:
    log(tmp_path, "log.csv", TRAINING, np.arange(18.0).reshape(2, 9))
    found = read_learning_curves(tmp_path)
    assert found.over == "training, mixed-up images"
    assert found.log["loss"].tolist() == [5, 14]


def test_logs_are_of_the_run_or_of_all_seeds(tmp_path: Path) -> None:
    run = tmp_path / "seed-0"
    run.mkdir()
    (run / "run.json").write_text("{}")
    assert find_logs(str(run)) == [run]
    (tmp_path / "replicate.json").write_text("{}")
    assert find_logs(str(run)) == [tmp_path]
    assert [folder.name for folder in find_logs("toys")] == ["toys96"]
    assert find_logs("elsewhere") == []


def few_pixels(category: int, instance: int, up: np.ndarray, around: np.ndarray, light: np.ndarray, **_: int) -> Any:
    """In place of a toy's pictures noise around a brightness that turns with it."""
    rng = np.random.default_rng([category, instance])
    bright = 120 + 60 * np.cos(np.deg2rad(around)) + 0.2 * up
    images = rng.integers(0, 40, (len(up), 2, 32, 32)) + bright[:, None, None, None]
    return torch.from_numpy(images.astype(np.uint8))


def test_figures_command_writes_pictures_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsroute.lab.data.toys.render", few_pixels)
    monkeypatch.setattr(paper_figures, "DPI", 50)
    SmallNORB(n_parts=3, n_channels=4).save_pretrained(tmp_path / "weights")
    rows = np.array([[10, 1, 0, 1.5, 0.1, 0.5, 0.1], [20, 2, 0, 1, 0.1, 0.7, 0.1]])
    log(tmp_path / "run", "validation.csv", VALIDATION, rows)
    words = ["figures", str(tmp_path / "weights"), "--on", "debug", "--out", str(tmp_path / "out")]
    result = runner.invoke(app, [*words, "--logs", str(tmp_path / "run"), "--accelerator", "cpu", "--note", "noise"])
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "out" / "figures.json").read_text())
    names = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert names == set(facts["figures"]) == set(paper_figures.write_captions(facts))
    assert len(names) == 10
    assert facts["views"]["pairs"] == 1500
    assert facts["made"]["note"] == "noise"
    assert "toys: held-out toys, over batches of 20" in facts["figures"]["curves"]
    for path in (tmp_path / "out").glob("*.png"):
        with Image.open(path) as picture:
            assert min(picture.size) > 100


def test_figures_command_refuses_texts_and_empty_folders(tmp_path: Path) -> None:
    result = runner.invoke(app, ["figures", "treebank", "--accelerator", "cpu"])
    assert result.exit_code == 1
    assert "expected a network that sees stereo pairs, got one that reads sentences" in result.output
    result = runner.invoke(app, ["figures", str(tmp_path)])
    assert "expected the folder of a run" in " ".join(result.output.split())


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_captions_match_their_numbers(path: Path) -> None:
    facts = json.loads(path.read_text())
    captions = paper_figures.write_captions(facts)
    assert facts["figures"] == {name: captions[name] for name in facts["figures"]}
    assert {picture.stem for picture in path.parent.glob("*.png")} <= set(facts["figures"])


def test_turn_distance_is_drawn_by_angle() -> None:
    values = np.random.default_rng(0).random((6, 9))
    axes = paper_charts.draw_turn_distance([("poses", BLUE, values)]).axes[0]
    curve = next(line for line in axes.lines if len(np.asarray(line.get_xdata())) == 9)
    np.testing.assert_allclose(np.asarray(curve.get_xdata(), float), np.arange(20, 181, 20))
    np.testing.assert_allclose(np.asarray(curve.get_ydata(), float), values.mean(0))
