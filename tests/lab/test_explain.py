"""Explanations: credit is that of the network, and every kind of input becomes a picture and a page."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from capsroute.credit import for_class, heat_maps
from capsroute.lab.cli import app
from capsroute.lab.errors import UserError
from capsroute.lab.explain import ImageExplanation, TextExplanation, explain, find_grid
from capsroute.lab.inference import Predictor
from capsroute.nets import Classifier
from small_classifiers import CLASSES, draw_image, make_classifier, make_inputs

KINDS = tuple(CLASSES)


@pytest.mark.parametrize("kind", KINDS)
def test_credit_is_the_networks(kind: str, tmp_path: Path) -> None:
    network, value = make_classifier(kind), make_inputs(kind, tmp_path)[2]
    predictor = Predictor(network)
    found = explain(network, value)
    assert found.prediction.probabilities == predictor([value])[0].probabilities
    arguments = predictor.arguments([predictor.prepare(value)])
    credit = network.credit(*arguments)
    net = credit.net.sum(1).flatten(1, -2)  # [1, places, k]
    expected = for_class(net, credit.scores)[0].detach().numpy()
    if kind == "images":
        assert found.credit.max() <= expected.max() + 1e-5
        assert found.credit.min() >= expected.min() - 1e-5
        assert np.abs(found.credit).max() > 0.3 * np.abs(expected).max()
    else:
        np.testing.assert_allclose(found.credit, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["png", "html"])
def test_command_writes_picture_and_page(kind: str, suffix: str, tmp_path: Path) -> None:
    make_classifier(kind).save_pretrained(tmp_path / "network")
    value = make_inputs(kind, tmp_path, 1)[0]
    if kind == "arrays":
        np.save(tmp_path / "set.npy", value)
        value = tmp_path / "set.npy"
    out = tmp_path / f"out.{suffix}"
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "network"), str(value), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "net credit for the predicted class" in " ".join(result.stdout.split())
    if suffix == "png":
        with Image.open(out) as picture:
            assert np.asarray(picture.convert("L")).std() > 5
    else:
        page = out.read_text()
        assert all(name in page for name in CLASSES[kind])
        assert ("<img" in page) == (kind == "images")
    wrong = CliRunner().invoke(app, ["explain", str(tmp_path / "network"), str(value), "-o", "out.gif"])
    assert (wrong.exit_code, wrong.stderr) == (1, "out.gif: expected a name that ends with .png or .html\n")


def test_stereo_pair_is_explained_by_its_left_image(tmp_path: Path) -> None:
    left, right = tmp_path / "a-left.png", tmp_path / "a-right.png"
    for k, file in enumerate((left, right)):
        draw_image(k).save(file)
    words = ["explain", "toys", str(right), str(left), "-o", str(tmp_path / "out.html")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    pair, single = explain("toys", [left, right]), explain("toys", left)
    assert pair.caption in " ".join(result.stdout.split())
    assert isinstance(pair, ImageExplanation)
    assert isinstance(single, ImageExplanation)
    np.testing.assert_array_equal(pair.image, single.image)
    assert not np.allclose(pair.credit, single.credit)
    draw_image(2).save(tmp_path / "b.png")
    wrong = CliRunner().invoke(app, [*words, str(tmp_path / "b.png")])
    assert (wrong.exit_code, "expected one input alone" in wrong.stderr) == (1, True)


def test_heat_follows_the_image_and_not_its_frame(tmp_path: Path) -> None:
    """The network fits a tall image between repeated edges; the picture shows the image alone."""
    draw_image(0, (20, 90)).save(tmp_path / "tall.png")
    found = explain(make_classifier("images"), tmp_path / "tall.png")
    assert isinstance(found, ImageExplanation)
    assert found.credit.shape == found.image.shape[:2] == (480, 107)
    assert found.overlay().shape == found.image.shape


def test_heat_is_where_the_convolutions_look(tmp_path: Path) -> None:
    """What a location sees is centred where its credit is drawn."""
    network = make_classifier("images").eval()
    images = torch.rand(1, 3, 64, 64, requires_grad=True)
    features, _ = network.trunk(images)
    row, column = 3, 5
    (seen,) = torch.autograd.grad(features[0, :, row, column].square().sum(), images)
    weight = seen[0].abs().sum(0)
    weight = weight * (weight > weight.max() / 100)  # standardisation sees all of the image a little
    rows, columns = weight.sum(1).nonzero().flatten().double(), weight.sum(0).nonzero().flatten().double()
    credit = torch.zeros(1, 1, *features.shape[2:], 1)
    credit[0, 0, row, column] = 1
    heat = heat_maps(credit, (64, 64), first=0, stride=network.trunk.stride)[0, 0]
    assert divmod(int(heat.argmax()), 64) == ((rows.min() + rows.max()) / 2, (columns.min() + columns.max()) / 2)


def test_tokens_of_a_transformer_keep_their_spaces() -> None:
    found = explain("treebank", "it is not, a bad film")
    assert isinstance(found, TextExplanation)
    text = "".join(space + piece for space, piece in found.pieces)
    assert "it is not, a bad film" in " ".join(text.split())
    assert len(found.credit) == len(found.pieces)


def test_hostile_text_is_escaped_and_drawn(tmp_path: Path) -> None:
    text = "<script>alert(1)</script> $x$ {y} \x1b[31m 日本 " + "long" * 99
    found = explain(make_classifier("texts"), text)
    assert "<script" not in found.to_html()
    found.save(tmp_path / "text.png")
    assert (tmp_path / "text.png").stat().st_size > 1000
    with pytest.raises(UserError, match="expected some words"):
        explain(make_classifier("texts"), " ")


def test_tokens_of_patches_form_a_grid() -> None:
    """Of a vision transformer the last tokens are patches; the first stand for the whole image."""
    assert find_grid(197, (224, 224)) == (14, 14)
    assert find_grid(49, (224, 224)) == (7, 7)
    assert find_grid(2 + 3 * 4, (48, 64)) == (3, 4)
    trunk = {
        "name": "backbone", "library": "transformers", "d_out": 8, "has_maps": False,
        "mean": [0.5] * 3, "std": [0.5] * 3,
        "config": {
            "model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 8, "image_size": 32, "patch_size": 8,
        },
    }  # fmt: skip
    preprocessing = {"name": "images", "rows": 32, "columns": 32, "channels": 3, "views": 1}
    with torch.random.fork_rng():
        network = Classifier("images", ["a", "b"], trunk, {"n_parts": 4}, preprocessing)
    found = explain(network, draw_image(3, (32, 32)))
    assert found.credit.shape == (480, 480)
