"""The functions behind the demo page: they show what the networks compute, and answer bad input with a message."""

import re
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from capsroute.credit import heat_maps, image_credit
from capsroute.lab.cli import app
from capsroute.lab.data import toys
from capsroute.lab.data.pairs import CATEGORIES
from capsroute.lab.demo import algorithm, handlers, pictures, vision
from capsroute.lab.demo.page import OwnNetwork
from capsroute.lab.errors import UserError
from capsroute.lab.html import figure, tint
from capsroute.layers import Routing
from small_classifiers import CLASSES, make_classifier, make_inputs

VIEW = {"category": "car", "instance": 0, "azimuth": 20, "elevation": 50, "light": 1}
TEXT = "a fine film with a dull plot"


def rendered() -> torch.Tensor:
    return toys.render("car", 0, 50, 20, 0)[0]  # [2, 96, 96]


def saved(image: Image.Image, kind: str = "PNG") -> bytes:
    file = BytesIO()
    image.save(file, kind)
    return file.getvalue()


def pair() -> list[Image.Image]:
    return [Image.fromarray(view.numpy()) for view in rendered()]


@pytest.fixture(scope="module")
def seen() -> vision.PairResult:
    return vision.recognise_toy(**VIEW)


def test_recognition_matches_network_and_credit(seen: vision.PairResult) -> None:
    images = rendered()[None] / 255
    net = vision.load_toy_network()
    with torch.no_grad():
        out = net(images)
    credit = image_credit(net, images)
    assert seen.winner == int(out.a.argmax()) == CATEGORIES.index("car")
    torch.testing.assert_close(seen.probabilities, out.a[0].softmax(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(seen.pose, out.mu[0, seen.winner], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen.heat, heat_maps(credit.use, (96, 96))[0, seen.winner], rtol=1e-4, atol=1e-4)


def test_shares_match_trace() -> None:
    net = vision.load_toy_network()
    layer = net.routings[0]
    assert isinstance(layer, Routing)
    with torch.inference_mode():
        (a, *_), (mu, *_) = net.parts(rendered()[None] / 255)
        out, D_use = vision.trace_shares(layer, a, mu)
        steps = layer.trace(a, mu)
    torch.testing.assert_close(out.mu, steps[-1].mu, rtol=1e-4, atol=1e-5)
    for mine, step in zip(D_use, steps, strict=True):
        torch.testing.assert_close(mine, step.D_use, rtol=1e-3, atol=1e-4)


def test_shipped_turns_match_weights(seen: vision.PairResult) -> None:
    """If this fails after a change of weights or renderer, run `python -m capsroute.lab.demo.vision`."""
    shipped = vision.load_turns()
    assert shipped.shape == (len(CATEGORIES), len(vision.INSTANCES), len(vision.AZIMUTHS), len(CATEGORIES), 4, 4)
    for k in (0, 13):  # azimuths: all would take seconds
        image = toys.render("truck", vision.INSTANCES[4], vision.TURN_ELEVATION, 10 * k, vision.TURN_LIGHT - 1)
        with torch.no_grad():
            mu = vision.load_toy_network()(image / 255).mu[0]
        torch.testing.assert_close(shipped[CATEGORIES.index("truck"), 4, k], mu, rtol=2e-3, atol=2e-3)  # kept in half
    points, here = vision.project_pose("car", 0, seen.winner, seen.pose)
    torch.testing.assert_close(here, points[2], rtol=0, atol=2e-3)  # a view of the turn lies on it
    assert (points[2] - points[20]).norm() > 0.02


@pytest.mark.parametrize(
    "wrong",
    [{"category": "cat"}, {"instance": 4}, {"azimuth": 5}, {"azimuth": None}, {"elevation": 90}, {"light": 0}],
    ids=str,
)
def test_unknown_toys_are_refused(wrong: dict) -> None:
    assert f'role="alert">{next(iter(wrong))}: expected one of' in handlers.show_toy(**VIEW | wrong)


def test_uploads_match_rendered_pair(seen: vision.PairResult) -> None:
    views = pair()
    both = Image.new("L", (192, 96))
    both.paste(views[0], (0, 0))
    both.paste(views[1], (96, 0))
    for files in ([saved(view) for view in views], [saved(both)], [saved(both.convert("RGBA"))]):
        torch.testing.assert_close(
            vision.recognise_files(files).probabilities, seen.probabilities, rtol=1e-5, atol=1e-6
        )
    jpeg = vision.recognise_files([saved(view.resize((300, 240)).convert("RGB"), "JPEG") for view in views])
    assert jpeg.images.shape == (2, 96, 96)
    assert int(jpeg.probabilities.argmax()) == seen.winner


@pytest.mark.parametrize(("width", "height"), [(120, 80), (80, 120), (96, 96), (191, 96), (1, 50)])
def test_single_image_is_used_for_both_eyes(width: int, height: int) -> None:
    image = Image.effect_noise((width, height), 60).convert("L")
    left, right = vision.recognise_files([saved(image)]).images
    assert torch.equal(left, right)
    expected = np.asarray(vision.crop_square(image), dtype=np.float32) / 255
    np.testing.assert_array_equal(left.numpy(), expected)


@pytest.mark.parametrize("width", [160, 161, 220])
def test_image_two_images_wide_is_cut_in_two(width: int) -> None:
    image = Image.new("L", (width, 80), 255)
    image.paste(40, (0, 0, width // 2, 80))
    left, right = vision.recognise_files([saved(image)]).images
    assert left.unique().tolist() == [pytest.approx(40 / 255)]
    assert right.unique().tolist() == [1.0]


def test_share_used_is_coloured_from_zero_to_one_hundred_per_cent() -> None:
    _, credit = handlers.classify_text(TEXT)
    html = handlers.show_sentence(TEXT, handlers.WINNER)
    table = html.partition("Tokens by depth: share used")[2].partition("<table>")[2].partition("</table>")[0]
    cells = re.findall(r'<td style="([^"]+)">(\d+)</td>', table)
    shares = credit.use[0, ..., int(credit.scores.argmax())].flatten().tolist()
    assert [style for style, _ in cells] == [tint(share) for share in shares]
    assert [number for _, number in cells] == [f"{100 * share:.0f}" for share in shares]
    assert tint(0.6).endswith(",0.36)")  # the colour of 60% is 60% of the deepest one
    assert "no colour is 0%, full blue 100%" in html


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([b""], r"an image \(PNG, JPEG\)"),
        ([b"<svg onload=alert(1)>"], r"an image \(PNG, JPEG\)"),
        ([saved(Image.new("L", (90, 90)), "GIF")], r"an image \(PNG, JPEG\)"),
        ([saved(Image.effect_noise((90, 90), 9))[:900]], r"an image \(PNG, JPEG\)"),
        ([saved(Image.new("1", (2001, 2000)))], "at most 4 million pixels, got 2,001 by 2,000"),
        ([bytes(vision.MAX_BYTES + 1)], "at most 4 MB, got 4.0 MB"),
        ([b"", b"", b""], "expected one image or two"),
        ([], "expected one image or two"),
    ],
    ids=["empty", "no image", "gif", "cut", "pixels", "bytes", "three", "none"],
)
def test_bad_uploads_get_a_message(files: list[bytes], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        vision.recognise_files(files)
    paths = [tmp_path / f"{k}.png" for k in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    assert 'role="alert"' in handlers.show_files([str(path) for path in paths])
    assert 'role="alert"' in handlers.show_files([str(tmp_path / "gone.png")])


def test_transparent_image_has_white_background() -> None:
    assert vision.open_upload(saved(Image.new("RGBA", (40, 40), (0, 0, 0, 0)))).getextrema() == (255, 255)


def test_text_result_matches_classifier() -> None:
    tokens, credit = handlers.classify_text(TEXT)
    (answer,) = handlers.load_predictor()([TEXT])
    probabilities = credit.scores[0].softmax(0).tolist()
    assert handlers.load_predictor().classes[int(credit.scores.argmax())] == answer.label
    assert probabilities == pytest.approx(list(answer.probabilities.values()), abs=1e-5)
    assert tokens.pieces == TEXT.split()
    classifier = handlers.load_predictor()
    with torch.no_grad():
        scores = classifier.network(
            *classifier.preprocessing.model.encode(classifier.preprocessing.model.tokenize([TEXT]))
        ).a[0]
    assert credit.net.sum((0, 1, 2)).tolist() == pytest.approx(scores.tolist(), abs=1e-4)


def test_sentences_change_the_page_or_get_a_message() -> None:
    good, bad = (handlers.show_sentence(text, handlers.WINNER) for text in handlers.EXAMPLES[:2])
    assert good != bad
    assert handlers.show_sentence(TEXT, "very negative") != handlers.show_sentence(TEXT, "positive")
    for text, which, words in (
        (" ", handlers.WINNER, "Type a sentence"),
        ("x" * 401, handlers.WINNER, "at most 400 characters, got 401"),
        (TEXT, "great", "class: expected one of"),
    ):
        assert re.search(f'role="alert">.*{words}', handlers.show_sentence(text, which))


def test_input_of_visitors_is_escaped() -> None:
    for shown in (
        handlers.show_sentence("<script>alert(1)</script> & \u202e", handlers.WINNER),
        pictures.ANSWERS.message("<b>"),
        figure("", "<b>", title="<b>", kind='"><b>'),
        handlers.show_sentence(TEXT, "<b>"),
        handlers.show_toy("<b>", 0, 0, 50, 1),
    ):
        assert "<script" not in shown.lower()
        assert "<b>" not in shown.replace("</span><b>", "")  # of the page's own bars


def test_groups_of_points_are_found() -> None:
    scene = algorithm.route_points("Three groups", 0, 8, 0.2, 0.05)
    assert len(scene.steps) == 8
    home = torch.arange(3).repeat_interleave(algorithm.N_POINTS // 3)
    assert (scene.steps[0].R - 1 / 3).abs().max() < 1e-6
    assert (scene.steps[-1].R.argmax(1) == home).float().mean() > 0.95
    torch.testing.assert_close(scene.steps[-1].R.sum(1), torch.ones(algorithm.N_POINTS))
    two = algorithm.route_points("Two groups", 0, 8, 0.2, 0.05).steps[-1].a
    assert two[2] < two[:2].min() - 1  # nobody is at the third home


def test_votes_keep_distance_from_home() -> None:
    scene = algorithm.route_points("Noise", 3, 1, 0.2, 0.05)
    homes = torch.tensor(algorithm.HOMES)
    torch.testing.assert_close((scene.votes - homes).norm(dim=-1), (scene.points[:, None] - homes).norm(dim=-1))


def test_every_slider_changes_the_points() -> None:
    defaults = ["Two groups", 0, 5, 0.2, 0.05, 3]
    shown = handlers.show_points(*defaults)
    assert shown == handlers.show_points(*defaults)
    for place, value in enumerate(["Noise", 1, 4, 0.3, 0.1, 2]):
        assert handlers.show_points(*[*defaults[:place], value, *defaults[place + 1 :]]) != shown
    assert "Iteration 5 of 5" in handlers.show_points(*defaults[:5], 8)
    wrong = ["Four", -1, 9, 2.0, float("nan"), None]
    for place, value in enumerate(wrong):
        assert 'role="alert"' in handlers.show_points(*[*defaults[:place], value, *defaults[place + 1 :]])


def test_missing_gradio_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    result = CliRunner().invoke(app, ["demo", "--no-open", "--port", "0"])
    assert result.exit_code == 1
    assert "pip install 'capsroute[demo]'" in result.stderr


def test_own_network_shows_classes_and_credit_or_a_message(tmp_path: Path) -> None:
    for kind, value in (("texts", "buy <b>now</b>"), ("images", str(tmp_path / "0.png"))):
        make_classifier(kind).save_pretrained(tmp_path / kind)
        make_inputs("images", tmp_path, 1)
        own = OwnNetwork(str(tmp_path / kind), "cpu")
        shown = own.show(value)
        assert all(name in shown for name in CLASSES[kind])
        assert "net credit for the predicted class" in shown
        assert shown.count("<img") == (2 if kind == "images" else 0)
        assert "<b>now" not in shown
        (tmp_path / "bad.png").write_text("no image")
        for bad in (None, " ", "x" * 5001 if kind == "texts" else str(tmp_path / "bad.png")):
            assert 'role="alert"' in own.show(bad)
    make_classifier("arrays").save_pretrained(tmp_path / "arrays")
    with pytest.raises(UserError, match="this one takes sets; try capsroute serve"):
        OwnNetwork(str(tmp_path / "arrays"), "cpu")
