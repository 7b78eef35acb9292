"""Training on one's own data from the command line: images, texts and arrays, to folders that know themselves."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import capsroute
from capsroute.lab.cli import app
from capsroute.lab.preprocessing import make_preprocessing
from capsroute.lab.training.experiments import complete_config, make_task
from capsroute.nets import Classifier
from own_data import draw_shapes, make_points, write_letters

SHORT = ("--set", "epochs=2", "--set", "log_every=2", "--accelerator", "cpu")
SMALL_IMAGES = ("--set", "size=16", "--set", "n_pairs=1", "--set", "d_out=8", "--set", "n_parts=4")


def run(*words: object) -> Result:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result


def refuse(*words: object) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("own")
    np.savez(folder / "sets.npz", **make_points(20))
    return {
        "images": draw_shapes(folder / "shapes", 10, size=16),
        "texts": write_letters(folder / "mail.csv", 12),
        "arrays": folder / "sets.npz",
    }


@pytest.fixture(scope="module")
def runs(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train a network of each kind by one command, with a report."""
    folder = tmp_path_factory.mktemp("runs")
    for kind, data in files.items():
        small = SMALL_IMAGES if kind == "images" else ("--set", "n_parts=4")
        run("train", kind, data, *SHORT, *small, "--out", folder / kind, "--report")
    return {kind: folder / kind for kind in files}


@pytest.mark.parametrize("kind", ["images", "texts", "arrays"])
def test_trained_folder_knows_itself(runs: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """It is moved away before it is loaded, and no file in it says where its data or its run were."""
    folder = shutil.copytree(runs[kind] / "model", tmp_path / "elsewhere")
    network = capsroute.load(folder)
    assert isinstance(network, Classifier)
    assert network.kind == kind
    preprocessing = make_preprocessing(network.config["preprocessing"])
    item = {"images": torch.zeros(9, 7, 3).byte().numpy(), "texts": "a text", "arrays": np.zeros((3, 2))}[kind]
    inputs = (t for t in preprocessing.collate([preprocessing.prepare(item)]) if t is not None)
    assert network(*inputs).a.shape == (1, len(network.classes))
    known = json.loads((folder / "training.json").read_text())
    assert known["metrics"]["test"]["total"] == known["data"]["samples by split"]["test"] > 0
    assert sum(known["data"]["samples by class"].values()) == sum(known["data"]["samples by split"].values())
    card = (folder / "README.md").read_text()
    for needed in ("## Results", "| test |", *network.classes, "| `command` |", "| `torch` |", "`seed`", "## Limits"):
        assert needed in card, needed
    assert str(runs[kind].parent) not in json.dumps(network.config)
    assert "report.html" in {path.name for path in runs[kind].iterdir()}


@pytest.mark.parametrize("kind", ["images", "texts", "arrays"])
def test_eval_of_run_and_of_new_data(runs: dict[str, Path], files: dict[str, Path], kind: str) -> None:
    of_run = json.loads(run("eval", runs[kind], "--json").output.splitlines()[-1])
    assert of_run["total"] == json.loads((runs[kind] / "test.json").read_text())["total"]
    everything = json.loads(run("eval", runs[kind] / "model", files[kind], "--json").output.splitlines()[-1])
    assert everything["total"] == sum(row["support"] for row in everything["classes"].values()) > of_run["total"]


def test_eval_of_data_with_other_columns(runs: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "other.jsonl"
    data.write_text(
        '{"body": "where is the parcel with the game?", "to": "shipping"}\n' * 2
        + '{"body": "I love it", "to": "praise"}\n'
    )
    assert json.loads(run("eval", runs["texts"], data, "--json").output.splitlines()[-1])["total"] == 3


def test_report_shows_pictures_and_words(runs: dict[str, Path]) -> None:
    pages = {kind: (folder / "report.html").read_text() for kind, folder in runs.items()}
    assert all("Confusion matrix" in page and "blue for it" in page for page in pages.values())
    assert 'class="tinted"' in pages["texts"]
    assert pages["images"].count("<img") > 6


def test_other_classes_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("message,department\nhello,sales\nbye,billing\n")
    expected = "other.csv, row 1: its class 'sales' is none of the network's: billing, praise, shipping, technical"
    assert expected in refuse("eval", runs["texts"], other)


def test_resumed_run_ends_as_another(files: dict[str, Path], runs: dict[str, Path], tmp_path: Path) -> None:
    """A finished run goes on with nothing left to do; with other data it does not go on."""
    data = shutil.copy(files["texts"], tmp_path)
    run("train", "texts", data, *SHORT, "--set", "n_parts=4", "--out", tmp_path / "run")
    run("train", "--resume", tmp_path / "run", "--accelerator", "cpu")
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (tmp_path / "run", runs["texts"])]
    assert weights[0] == weights[1]
    Path(data).write_text("message,department\n" + "a,x\nb,y\n" * 40)
    assert "has changed since the run began" in refuse("train", "--resume", tmp_path / "run", "--accelerator", "cpu")


def test_corrupt_image_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = draw_shapes(tmp_path, 4, size=8)
    (folder / "circle" / "000.png").write_text("this is text")
    Image.new("L", (8, 8)).save(folder / "circle" / "001.png", "GIF")  # decoders of other formats are not trusted
    task = make_task(complete_config("images", [f"data={folder}"]))
    assert len(task.labels) == 10  # pyright: ignore
    message = capsys.readouterr().err
    assert "2 of 12 images cannot be read and are left out" in message
    for name in ("000.png", "001.png"):
        assert f"{name}: expected an image (PNG, JPEG, WEBP, BMP), it is something else, or damaged" in message


def test_settings_follow_from_data_unless_given(files: dict[str, Path]) -> None:
    config: Any = complete_config("images", [f"data={files['images']}", "rows=24", "batch_size=4"])
    assert (config.rows, config.columns, config.channels, config.batch_size) == (24, 32, 3, 4)
    texts: Any = complete_config("texts", [f"data={files['texts']}"])
    assert (texts.text, texts.label) == ("message", "department")


@pytest.mark.parametrize("each", [2, 3, 4, 7])
def test_few_samples_are_trained(tmp_path: Path, each: int) -> None:
    """Batches are no larger than what the split leaves to train, of which an image may turn out to be corrupt."""
    folder = draw_shapes(tmp_path / "shapes", each + 1, size=8)
    (folder / "circle" / "000.png").write_text("this is text")
    run("train", "images", folder, *SHORT, *SMALL_IMAGES, "--out", tmp_path / "run")
    table = tmp_path / f"few{each}.csv"
    table.write_text("text,label\n" + "good,a\nbad,b\n" * each + ",b\n")
    output = run("train", "texts", table, *SHORT, "--set", "n_parts=4", "--out", tmp_path / "texts").output
    assert output.count("left out") == output.count("texts from the column") == 1  # however often the file is read


def test_balanced_weights_count_classes_alike(tmp_path: Path) -> None:
    data = tmp_path / "x.csv"
    data.write_text("text,label\n" + "a,common\n" * 30 + "b,rare\n" * 10)
    task: Any = make_task(complete_config("texts", [f"data={data}", "test_share=0.5", "validation_share=0"]))
    source = task.source("train", torch.device("cpu"))
    counts = torch.bincount(source.target).float()
    assert torch.allclose(source.class_weights * counts, counts.sum() / 2)
    assert task.source("validation", torch.device("cpu")) is None


def test_augmented_images_stay_images(files: dict[str, Path]) -> None:
    """Without noise in the middle of its range nothing moves; with it, values stay in 0..1."""
    task: Any = make_task(complete_config("images", [f"data={files['images']}", "flip=true"]))
    source, rows = task.source("train", torch.device("cpu")), torch.arange(4)
    (plain,) = source.batch(rows)
    (same,) = source.augmented_batch(rows, torch.full((4, source.n_noise), 0.5))
    torch.testing.assert_close(same, plain)
    (moved,) = source.augmented_batch(rows, torch.rand(4, source.n_noise))
    assert moved.shape == plain.shape
    assert not torch.equal(moved, plain)


def test_vectors_are_standardised_by_training_sets(files: dict[str, Path]) -> None:
    task: Any = make_task(complete_config("arrays", [f"data={files['arrays']}"]))
    vectors = np.concatenate([task.data.items[k] for k in task.rows("train")])
    trunk = task.network().trunk
    np.testing.assert_allclose(trunk.mean.numpy(), vectors.mean(0), rtol=1e-5)
    np.testing.assert_allclose(trunk.std.numpy(), vectors.std(0), rtol=1e-5)


def test_data_are_needed_and_named() -> None:
    assert "expected a folder with one folder for each class" in refuse("train", "images")
    assert "expected a file" in refuse("train", "texts", "absent.csv")
