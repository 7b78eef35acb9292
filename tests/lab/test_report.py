"""The report on images: its content, safety and behaviour on incomplete runs."""

from base64 import b64decode
from collections.abc import Iterator
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capsroute.lab.analysis.accuracy import GroupAccuracy, bootstrap_interval, softmax, wilson_interval
from capsroute.lab.data import CATEGORIES, Pairs
from capsroute.lab.formatting import duration, fact
from capsroute.lab.report.charts import axis_floor
from capsroute.lab.report.image_report import show_credit, toy_interval, write_image_report
from capsroute.lab.report.sections import Album, Answers, RunDetails
from capsroute.nets import SmallNORB

HOSTILE = "\"><script>alert('x')</script><img src=http://example.org/x.png>"


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def alts(self) -> str:
        return " ".join(image["alt"] or "" for image in self.all("img"))


def log(rows: int, **columns: np.ndarray) -> dict[str, np.ndarray]:
    epoch = np.linspace(0.2, 4, rows)
    made = {name: np.full(rows, 0.1) for name in ("loss_sd", "accuracy_sd")}
    made |= {"step": 100 * epoch, "epoch": epoch, "seconds": epoch, "lr": 5e-4 / epoch, "beta1": np.full(rows, 0.9)}
    return made | {"loss": 1 / epoch, "accuracy": 1 - 0.2 / epoch} | columns


def inputs(size: int = 48, wrong: int = 30) -> dict[str, Any]:
    """Return a test split of 5 x 5 toys at 18 azimuths, some pairs of two toys classified wrong."""
    grid = np.mgrid[:5, :5, :2, :18, :1].reshape(5, -1)
    category, info = grid[0], grid[1:].T * [1, 1, 2, 1]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (len(category), 2, size, size), dtype=np.uint8)
    scores = np.eye(5)[category] * 4 + rng.normal(0, 0.1, (len(category), 5))
    scores[:wrong] = np.roll(scores[:wrong], 1, axis=1)
    scores[7] *= 3  # the worst mistake, if there is any
    return {
        "title": "A run",
        "config": {"batch": 20, "rates": (1e-5, 5e-4), "seed": 123_456, "note": HOSTILE},
        "versions": {"python": "3.11.0", "packages": {"torch": "2.8.0"}, "commit": "abc123"},
        "training": log(40),
        "validation": log(4),
        "scores": scores,
        "pairs": Pairs(images, category, info),
        "names": CATEGORIES,
        "summary": {"parameters": 271_688, "training_seconds": 211.3, "weights": "final"},
    }


def write(folder: Path, **values: Any) -> Path:
    details = RunDetails(**{name: values.pop(name) for name in RunDetails._fields if name in values})
    return write_image_report(folder, details, **values)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run"), **inputs())


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written)


def pictures(page: Page) -> Iterator[Image.Image]:
    for image in page.all("img"):
        yield Image.open(BytesIO(b64decode((image["src"] or "").partition("base64,")[2])))


def test_headline_has_accuracy_and_both_intervals(page: Page) -> None:
    made = inputs()
    hit = made["scores"].argmax(1) == made["pairs"].category
    assert hit.sum() == 870
    assert "96.67%" in page.text
    assert "870 of 900 test pairs" in page.text
    for low, high in (
        wilson_interval(870, 900),
        bootstrap_interval(hit, made["pairs"].category, made["pairs"].instance),
    ):
        assert f"{low:.2%} to {high:.2%}" in page.text
    for said in ("chance, 5 classes 20.00%", "parameters 271,688", "training time 3 min 31 s", "weights final"):
        assert said in page.text


def test_page_has_every_section(page: Page) -> None:
    for title in ("Learning curves", "Confusion matrix", "Worst mistakes", "Sample images", "Learning rate"):
        assert page.text.count(title) == 2  # the heading and the list of contents
    for said in ("accuracy by azimuth", "accuracy by elevation", "accuracy by lighting", "accuracy by toy"):
        assert said in page.alts
    for said in (
        "on images with mixup and random crops",
        "packages.torch 2.8.0",
        "commit abc123",
        "rates 1e-05, 0.0005 seed 123456",
    ):
        assert said in page.text


def test_page_loads_nothing(page: Page) -> None:
    assert len(page.all("img")) == 10 + 12
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object")
        for name in ("src", "href", "srcset"):
            address = attributes.get(name)
            assert address is None or address.startswith(("data:image/png;base64,", "#"))
    assert "url(" not in (" ".join(page.texts))
    assert "@import" not in " ".join(page.texts)


def test_pictures_have_alt_text_and_decode(page: Page, written: Path) -> None:
    assert all(len(image["alt"] or "") > 20 for image in page.all("img"))
    for image in pictures(page):
        image.load()
        assert min(image.size) >= 192
    files = sorted((written.parent / "report").glob("*.png"))
    assert {file.read_bytes() for file in files} == {
        b64decode((image["src"] or "").partition("base64,")[2]) for image in page.all("img")
    }


def test_contents_link_to_headings_in_order(page: Page) -> None:
    ids = [attributes["id"] for attributes in page.all("section")]
    assert [f"#{name}" for name in ids[1:]] == [attributes["href"] for attributes in page.all("a")]
    assert len(page.all("h1")) == 1
    assert len(page.all("h2")) == len(ids) == 9
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.all("th"))


def test_settings_are_escaped(page: Page) -> None:
    assert HOSTILE in page.text
    assert not page.all("script")


def test_worst_mistake_is_first_and_enlarged_without_smoothing(page: Page) -> None:
    made = inputs()
    assert "Of 30 pairs classified wrong, the 12 with the highest probability" in page.text
    # pair 7 is instance 0 at the eighth azimuth
    worst = page.text.partition("highest first")[2]
    assert worst.index("animal taken for human , 100.0% instance 0, azimuth 140°, elevation 30°, lighting 0") < 120
    first = next(image for image in page.all("img") if (image["alt"] or "").startswith("Left image"))
    shown = np.asarray(Image.open(BytesIO(b64decode((first["src"] or "").partition("base64,")[2]))).convert("L"))
    np.testing.assert_array_equal(shown, made["pairs"].images[7, 0].repeat(4, 0).repeat(4, 1))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after one row of its log, with nothing held out, a perfect score and no metadata."""
    made = inputs(wrong=0) | {"training": log(1), "validation": None}
    made["pairs"].info[:] = -1
    folder = tmp_path_factory.mktemp("short")
    (folder / "report").mkdir()
    (folder / "report" / "mistake-01.png").write_bytes(b"of an earlier report")
    return write(folder, **made)


def test_perfect_score_has_no_mistakes(short: Path) -> None:
    page = Page(short)
    assert "100.00%" in page.text
    assert "None: all 900 pairs were classified right." in page.text
    assert "There is no mistake." in page.text
    assert not list((short.parent / "report").glob("mistake-*.png"))


def test_unknown_factors_are_left_out(short: Path) -> None:
    page = Page(short)
    for name in ("azimuth", "elevation", "lighting"):
        assert f"By {name}: left out, because it is unknown" in page.text
        assert f"by {name}" not in page.alts
    assert "the instances of these pairs are unknown" in page.text
    assert "95% interval over" not in page.text
    assert "their viewpoints are unknown" in page.text


def test_log_of_one_row_is_drawn(short: Path) -> None:
    page = Page(short)
    assert "Nothing was held out" in page.text
    assert "training last 5.000, deviation 0.100." in page.alts
    assert "held out last" not in page.alts


def test_run_without_log_says_so(tmp_path: Path) -> None:
    made = inputs(size=29) | {"training": log(0), "validation": None}
    few = np.arange(0, 900, 30)
    made |= {"pairs": made["pairs"].take(few), "scores": made["scores"][few]}
    page = Page(write(tmp_path, **made))
    for title, end in (("Learning curves", "Confusion matrix"), ("Learning rate and momentum", "Configuration")):
        section = page.text.rpartition(title)[2].partition(end)[0]
        assert section.strip() == "The run ended before it logged anything."


@pytest.fixture(scope="module")
def credited(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A report with the network that is said to have given the scores, narrow and untrained."""
    network = SmallNORB(n_parts=5, n_channels=4).eval()
    return Page(write(tmp_path_factory.mktemp("credited"), **inputs(size=40), network=network))


def test_credit_covers_right_and_wrong_answers(credited: Page) -> None:
    assert credited.text.count("Credit") == 2
    assert "Credit of right answers: animal " in credited.alts
    assert "Credit of wrong answers: animal taken for human 100.0%;" in credited.alts
    for image in pictures(credited):
        image.load()


def test_credit_of_perfect_score_has_right_answers_only(tmp_path: Path) -> None:
    made, network = inputs(size=29, wrong=0), SmallNORB(n_parts=2, n_channels=2).eval()
    answers = Answers(made["pairs"].category, softmax(made["scores"]), CATEGORIES, "pairs")
    words = " ".join(show_credit(answers, made["pairs"], network, Album(tmp_path)).parts)
    assert "Credit of right answers" in words
    assert "Credit of wrong answers" not in words
    assert [path.name for path in tmp_path.iterdir()] == ["credit-right.png"]


def test_equal_toys_have_no_interval() -> None:
    found, sentence = toy_interval(np.ones(900, dtype=bool), inputs()["pairs"])
    assert not found
    assert "all 25 toys score alike" in sentence


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Large images, a class and some azimuths missing, and logs that are not all finite."""
    made = inputs(size=96)
    there = made["pairs"].category != 2
    made |= {"pairs": made["pairs"].take(there), "scores": made["scores"][there]}
    made["pairs"].info[:90, 2] = -1
    loss, never = np.ones(40), np.full(4, np.nan)
    loss[[3, 4, 9]] = np.nan, np.inf, -np.inf
    made["training"] = log(40, loss=loss, lr=np.full(40, np.nan))
    made["validation"] = log(4, loss=never, accuracy=never, loss_sd=never, accuracy_sd=never)
    return Page(write(tmp_path_factory.mktemp("ragged"), **made))


def test_partly_unknown_factors_are_counted(ragged: Page) -> None:
    assert "By azimuth: without 90 pairs for which it is unknown." in ragged.text
    assert "accuracy by azimuth" in ragged.alts


def test_values_not_finite_are_left_out_and_counted(ragged: Page) -> None:
    assert "Left out as not finite: 3 of 40 rows of the training log." in ragged.text
    assert "Left out as not finite: 4 of 4 rows of the held out log." in ragged.text
    assert "learning rate by epoch, no finite value" in ragged.alts
    assert "held out last no finite value" in ragged.alts
    assert "nan" not in ragged.alts


def test_class_without_images_has_no_numbers(ragged: Page) -> None:
    assert "airplane 0 0 none none none" in ragged.text
    assert "Rows of images, one for each of animal, human, truck, car." in ragged.alts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.zeros(3)}, r"scores: expected \[n, k\], got shape \[3\]"),
        ({"scores": np.zeros((899, 5))}, r"pairs\.category: expected \[899\], as scores, got shape \[900\]"),
        ({"scores": np.full((900, 5), np.nan)}, "scores: expected finite numbers, got 4500 that are not"),
        ({"names": ["a", "b"]}, "names: expected 5, one for each column of scores, got 2"),
        ({"training": {"epoch": np.ones(2)}}, r"training: expected columns .* got none for \['step'"),
        ({"training": log(3, lr=np.ones(2))}, r"training\['lr'\]: expected \[3\], got shape \[2\]"),
    ],
)
def test_invalid_input_is_named_and_nothing_written(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path, **inputs() | change)
    assert not list(tmp_path.iterdir())


def test_pairs_unlike_scores_are_refused(tmp_path: Path) -> None:
    pairs = inputs()["pairs"]
    fewer = pairs._replace(images=pairs.images[1:])
    beyond = pairs._replace(category=np.where(np.arange(900) == 0, 5, pairs.category))
    for wrong, message in (
        (fewer, r"pairs\.images: expected \[900, 2, 48, 48\], as scores, got shape \[899"),
        (beyond, r"pairs\.category: expected 0 to 4, got 0 to 5"),
    ):
        with pytest.raises(ValueError, match=message):
            write(tmp_path, **inputs() | {"pairs": wrong})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("low", "floor"), [(0.999, 98.0), (0.971, 97.0), (0.93, 92.0), (0.823, 80.0), (0.0, 0.0)])
def test_axis_floor_is_round_and_below_all_intervals(low: float, floor: float) -> None:
    assert axis_floor([GroupAccuracy(0, 1, 1, low, 1.0), GroupAccuracy(1, 1, 1, 0.9995, 1.0)]) == floor


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "0.25 s"), (42.4, "42 s"), (59.7, "1 min 0 s"), (211.3, "3 min 31 s"), (7_140, "1 h 59 min")],
)
def test_duration_has_two_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said
    assert fact("seconds", seconds) == ("time", said)
