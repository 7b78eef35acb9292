"""The functions behind the page: what they show is what the networks compute, and bad input gets a message."""

import re
import sys
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from capsroute.credit import heat_maps, image_credit
from capsroute.lab.cli import app
from capsroute.lab.data import toys
from capsroute.lab.data.pairs import CATEGORIES
from capsroute.lab.demo import algorithm, language, pictures, vision
from capsroute.lab.demo import handlers as shows
from capsroute.lab.errors import UserError
from capsroute.layers import Routing

VIEW = {"category": "car", "instance": 0, "azimuth": 20, "elevation": 50, "lighting": 0}
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
def seen() -> vision.Look:
    return vision.look_at_toy(**VIEW)


def test_a_look_is_what_the_network_computes(seen: vision.Look) -> None:
    images = rendered()[None] / 255
    net = vision.network()
    with torch.no_grad():
        out = net(images)
    credit = image_credit(net, images)
    assert seen.winner == int(out.a.argmax()) == CATEGORIES.index("car")
    torch.testing.assert_close(seen.chances, out.a[0].softmax(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(seen.pose, out.mu[0, seen.winner], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen.heat, heat_maps(credit.maps, (96, 96))[0, seen.winner], rtol=1e-4, atol=1e-4)


def test_every_iteration_is_the_traces() -> None:
    net = vision.network()
    layer = net.routings[0]
    assert isinstance(layer, Routing)
    with torch.inference_mode():
        (a, *_), (mu, *_) = net.parts(rendered()[None] / 255)
        out, D_use = vision.routed(layer, a, mu)
        steps = layer.trace(a, mu)
    torch.testing.assert_close(out.mu, steps[-1].mu, rtol=1e-4, atol=1e-5)
    for mine, step in zip(D_use, steps, strict=True):
        torch.testing.assert_close(mine, step.D_use, rtol=1e-3, atol=1e-4)


def test_the_turns_that_ship_are_those_of_the_weights(seen: vision.Look) -> None:
    """If this fails after a change of weights or renderer, run `python -m capsroute.lab.demo.turns`."""
    shipped = vision.turns()
    assert shipped.shape == (len(CATEGORIES), len(vision.INSTANCES), len(vision.AZIMUTHS), len(CATEGORIES), 4, 4)
    for k in (0, 13):  # azimuths: all would take seconds
        image = toys.render("truck", vision.INSTANCES[4], vision.TURN_ELEVATION, 10 * k, vision.TURN_LIGHTING)
        with torch.no_grad():
            mu = vision.network()(image / 255).mu[0]
        torch.testing.assert_close(shipped[CATEGORIES.index("truck"), 4, k], mu, rtol=2e-3, atol=2e-3)  # kept in half
    points, here = vision.walk("car", 0, seen.winner, seen.pose)
    torch.testing.assert_close(here, points[2], rtol=0, atol=2e-3)  # a view of the turn lies on it
    assert (points[2] - points[20]).norm() > 0.02


@pytest.mark.parametrize(
    "wrong", [{"category": "cat"}, {"instance": 4}, {"azimuth": 5}, {"elevation": 90}, {"lighting": 6}], ids=str
)
def test_other_toys_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=f"{next(iter(wrong))}: expected one of"):
        vision.look_at_toy(**(VIEW | wrong))
    arguments = VIEW | wrong
    assert 'role="alert"' in shows.toy(*list(arguments.values())[:4], arguments["lighting"] + 1)


def test_uploads_are_seen_as_the_rendered_pair_is(seen: vision.Look) -> None:
    views = pair()
    both = Image.new("L", (192, 96))
    both.paste(views[0], (0, 0))
    both.paste(views[1], (96, 0))
    for files in ([saved(view) for view in views], [saved(both)], [saved(both.convert("RGBA"))]):
        torch.testing.assert_close(vision.look_at_files(files).chances, seen.chances, rtol=1e-5, atol=1e-6)
    jpeg = vision.look_at_files([saved(view.resize((300, 240)).convert("RGB"), "JPEG") for view in views])
    assert jpeg.images.shape == (2, 96, 96)
    assert int(jpeg.chances.argmax()) == seen.winner


def huge() -> bytes:
    """A small file of a large white image."""
    return saved(Image.new("1", (2001, 2000)))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([b""], "got something else"),
        ([b"<svg onload=alert(1)>"], "got something else"),
        ([saved(Image.new("L", (90, 90)), "GIF")], "got something else"),
        ([saved(Image.effect_noise((90, 90), 9))[:900]], "got a damaged one"),
        ([huge()], "at most 4 million pixels, got 2001 by 2000"),
        ([bytes(vision.MAX_BYTES + 1)], "at most 4 MB, got 4.0 MB"),
        ([saved(Image.new("L", (1, 50)))], "one pixel wide"),
        ([b"", b"", b""], "expected two images"),
        ([], "expected two images"),
    ],
    ids=["empty", "no image", "gif", "cut", "pixels", "bytes", "narrow", "three", "none"],
)
def test_bad_uploads_get_a_message(files: list[bytes], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        vision.look_at_files(files)
    paths = [tmp_path / f"{k}.png" for k in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    assert 'role="alert"' in shows.files([str(path) for path in paths])
    assert 'role="alert"' in shows.files([str(tmp_path / "gone.png")])


def test_a_transparent_image_lies_on_white() -> None:
    assert vision.opened(saved(Image.new("RGBA", (40, 40), (0, 0, 0, 0)))).getextrema() == (255, 255)


def test_a_reading_is_what_the_judge_says() -> None:
    found = language.read(TEXT)
    assert found is not None
    (answer,) = language.judge()([TEXT])
    assert found.names[found.winner] == answer.label
    assert found.chances.tolist() == pytest.approx(list(answer.probabilities.values()), abs=1e-5)
    assert found.tokens == TEXT.split()
    mask, embs = language.judge().encoder.encode(language.judge().encoder.tokenize([TEXT]))
    with torch.no_grad():
        scores = language.judge().network(mask, embs).a[0]
    assert found.net.sum((0, 1)).tolist() == pytest.approx(scores.tolist(), abs=1e-4)


def test_sentences_change_what_is_shown() -> None:
    good, bad = (shows.sentence(text, shows.WINNER) for text in language.EXAMPLES[:2])
    assert good != bad
    assert shows.sentence(TEXT, "very negative") != shows.sentence(TEXT, "positive")
    for text, which, words in (
        (" ", shows.WINNER, "Type a sentence"),
        ("x" * 401, shows.WINNER, "at most 400 characters, got 401"),
        (TEXT, "great", "class: expected one of"),
    ):
        assert re.search(f'role="alert">.*{words}', shows.sentence(text, which))


def test_words_of_visitors_are_escaped() -> None:
    for shown in (
        shows.sentence("<script>alert(1)</script> & \u202e", shows.WINNER),
        pictures.message("<b>"),
        pictures.figure("<b>", "", "<b>", '"><b>'),
        shows.sentence(TEXT, "<b>"),
        shows.toy("<b>", 0, 0, 50, 1),
    ):
        assert "<script" not in shown.lower()
        assert "<b>" not in shown.replace("</span><b>", "")  # of the page's own bars


def test_groups_of_points_are_found() -> None:
    scene = algorithm.scene("Three groups", 0, 8, 0.2, 0.05)
    assert len(scene.steps) == 8
    home = torch.arange(3).repeat_interleave(algorithm.N_POINTS // 3)
    assert (scene.steps[0].R - 1 / 3).abs().max() < 1e-6
    assert (scene.steps[-1].R.argmax(1) == home).float().mean() > 0.95
    torch.testing.assert_close(scene.steps[-1].R.sum(1), torch.ones(algorithm.N_POINTS))
    two = algorithm.scene("Two groups", 0, 8, 0.2, 0.05).steps[-1].a
    assert two[2] < two[:2].min() - 1  # nobody is at the third home


def test_a_vote_lies_as_far_from_home_as_its_point() -> None:
    scene = algorithm.scene("Noise", 3, 1, 0.2, 0.05)
    homes = torch.tensor(algorithm.HOMES)
    torch.testing.assert_close((scene.votes - homes).norm(dim=-1), (scene.points[:, None] - homes).norm(dim=-1))


def test_every_slider_of_the_playground_changes_it() -> None:
    usual = ["Two groups", 0, 5, 0.2, 0.05, 3]
    shown = shows.points(*usual)
    assert shown == shows.points(*usual)
    for place, value in enumerate(["Noise", 1, 4, 0.3, 0.1, 2]):
        assert shows.points(*[*usual[:place], value, *usual[place + 1 :]]) != shown
    assert "Iteration 5 of 5" in shows.points(*usual[:5], 8)
    wrong = ["Four", -1, 9, 2.0, float("nan"), None]
    for place, value in enumerate(wrong):
        assert 'role="alert"' in shows.points(*[*usual[:place], value, *usual[place + 1 :]])


def test_without_gradio_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    result = CliRunner().invoke(app, ["demo", "--no-open", "--port", "0"])
    assert result.exit_code == 1
    assert "pip install 'capsroute[demo]'" in result.stderr
