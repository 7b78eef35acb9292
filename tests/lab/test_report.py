"""The report on images: its content, safety and behaviour on incomplete runs."""

import re
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax

from capsroute.lab.analysis.accuracy import GroupAccuracy, bootstrap_interval, wilson_interval
from capsroute.lab.data import CATEGORIES, Pairs
from capsroute.lab.formatting import duration
from capsroute.lab.report.charts import BLUE, ORANGE, axis_floor, draw_curves
from capsroute.lab.report.image_report import show_credit, toy_interval, write_image_report
from capsroute.lab.report.sections import Answers, RunDetails
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


def log(rows: int) -> dict[str, np.ndarray]:
    epoch = np.linspace(0.2, 4, rows)
    spread = {name: np.full(rows, 0.1) for name in ("loss_sd", "accuracy_sd")}
    return {"epoch": epoch, "loss": 1 / epoch, "accuracy": 1 - 0.2 / epoch} | spread


DETAILS = RunDetails(
    title="A run",
    config={"batch": 20, "rates": (1e-5, 5e-4), "seed": 123_456, "note": HOSTILE},
    versions={"python": "3.11.0", "packages": {"torch": "2.8.0"}, "commit": "abc123"},
    summary={"parameters": "271,688", "training time": duration(211.3), "weights": "final"},
    training=log(40),
    validation=log(4),
    trained="on things with mixup",
    held_out="what was not trained on",
)


def inputs(size: int = 48, wrong: int = 30) -> tuple[Answers, Pairs]:
    """Return a test split of 5 x 5 toys at 18 azimuths, some pairs of two toys classified wrong."""
    grid = np.mgrid[:5, :5, :2, :18, :1].reshape(5, -1)
    category, info = grid[0], grid[1:].T * [1, 1, 2, 1]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (len(category), 2, size, size), dtype=np.uint8)
    scores = np.eye(5)[category] * 4 + rng.normal(0, 0.1, (len(category), 5))
    scores[:wrong] = np.roll(scores[:wrong], 1, axis=1)
    scores[7] *= 3  # the worst mistake, if there is any
    return Answers(category, softmax(scores, 1), CATEGORIES, "pairs"), Pairs(images, category, info)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A report with the credit of a narrow and untrained network."""
    network = SmallNORB(n_parts=5, n_channels=4).eval()
    return Page(write_image_report(tmp_path_factory.mktemp("run"), DETAILS, *inputs(), network))


def decode(image: dict[str, str | None]) -> Image.Image:
    return Image.open(BytesIO(b64decode((image["src"] or "").partition("base64,")[2])))


def test_headline_has_accuracy_and_both_intervals(page: Page) -> None:
    answers, pairs = inputs()
    assert answers.hit.sum() == 870
    assert "96.67%" in page.text
    assert "870 of 900 test pairs" in page.text
    bootstrapped = bootstrap_interval(answers.hit, pairs.category, pairs.instance)
    for low, high in (wilson_interval(870, 900), bootstrapped):
        assert f"{low:.2%} to {high:.2%}" in page.text
    for said in ("chance, 5 classes 20.00%", "parameters 271,688", "training time 3 min 31 s", "weights final"):
        assert said in page.text


def test_page_has_every_section(page: Page) -> None:
    for title in ("Learning curves", "Confusion matrix", "Worst mistakes", "Credit", "Accuracy by toy"):
        assert page.text.count(title) == 2  # the heading and the list of contents
    for factor in ("toy", "azimuth", "elevation", "lighting"):
        assert f"accuracy by {factor}" in page.alts
    for said in (
        "on things with mixup, so it may",
        "Held out: what was not trained on.",
        "packages.torch 2.8.0",
        "commit abc123",
        "rates 1e-05, 0.0005 seed 123456",
    ):
        assert said in page.text


def test_page_loads_nothing(page: Page) -> None:
    assert len(page.all("img")) == 2 + 4 + 12 + 6 * 5
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object")
        for name in ("src", "href", "srcset"):
            address = attributes.get(name)
            assert address is None or address.startswith(("data:image/png;base64,", "#"))
    assert "url(" not in (" ".join(page.texts))
    assert "@import" not in " ".join(page.texts)


def test_pictures_have_alt_text_and_decode(page: Page) -> None:
    for image in page.all("img"):
        alt, picture = image["alt"] or "", decode(image)
        picture.load()
        assert len(alt) > 10
        if image["class"] == "chart" or alt.startswith("Left image"):
            assert min(picture.size) >= 192


def test_contents_link_to_headings_in_order(page: Page) -> None:
    ids = [attributes["id"] for attributes in page.all("section")]
    assert [f"#{name}" for name in ids[1:]] == [attributes["href"] for attributes in page.all("a")]
    assert len(page.all("h1")) == 1
    assert len(page.all("h2")) == len(ids) == 7
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.all("th"))


def test_settings_are_escaped(page: Page) -> None:
    assert HOSTILE in page.text
    assert not page.all("script")


def test_worst_mistake_is_first_and_enlarged_without_smoothing(page: Page) -> None:
    assert "Pairs classified wrong: 30. Shown: 12, those with the highest probability" in page.text
    # pair 7 is instance 0 at the eighth azimuth
    worst = page.text.partition("highest first")[2]
    assert worst.index("animal taken for human , 100.0% instance 0, azimuth 140°, elevation 30°, lighting 0") < 120
    first = next(image for image in page.all("img") if (image["alt"] or "").startswith("Left image"))
    shown = np.asarray(decode(first).convert("L"))
    np.testing.assert_array_equal(shown, inputs()[1].images[7, 0].repeat(4, 0).repeat(4, 1))


def test_credit_covers_right_and_wrong_answers(page: Page) -> None:
    for column in ("left image", "used", "not used", "for and against", "for and against by kind of part"):
        assert len(re.findall(rf"[a-z]+ \d\d\.\d%: {column}(?! by)\b", page.alts)) >= 3
        assert f"animal taken for human 100.0%: {column}" in page.alts


def test_confusion_is_counted_and_tinted(page: Page) -> None:
    matrix = page.text.partition("animal human airplane truck car")[2]
    assert matrix.lstrip().startswith("animal 150 83.33% 30 16.67% 0 0.00%")
    tinted = [cell["style"] or "" for cell in page.all("td") if "style" in cell][:25]
    assert tinted[0].startswith("background:rgba(47,")  # right in blue
    assert tinted[1].startswith("background:rgba(224,")  # wrong in orange
    assert all(style.endswith(",0.00)") for style in tinted[2:5])


def test_short_run_with_perfect_score_and_unknown_views(tmp_path: Path) -> None:
    """A run stopped after one row of its log, with nothing held out."""
    answers, pairs = inputs(wrong=0)
    pairs.info[:] = -1
    page = Page(write_image_report(tmp_path, DETAILS._replace(training=log(1), validation={}), answers, pairs))
    assert "100.00%" in page.text
    assert "None: all 900 pairs were classified right." in page.text
    assert "There is no mistake." in page.text
    assert "toys and viewpoints of these pairs are unknown" in page.text
    assert "accuracy by azimuth" not in page.alts
    assert "95% interval over" not in page.text
    assert "Nothing was held out" in page.text
    assert "training last 5.000." in page.alts
    assert "held out last" not in page.alts


def test_missing_class_and_log_leave_their_places_empty(tmp_path: Path) -> None:
    answers, pairs = inputs(size=29)
    there = pairs.category != 2
    pairs.info[:90, 2] = -1
    some = answers._replace(true=answers.true[there], probabilities=answers.probabilities[there])
    details = DETAILS._replace(training={}, validation={})
    page = Page(write_image_report(tmp_path, details, some, pairs.take(there)))
    section = page.text.rpartition("Learning curves")[2].partition("Confusion matrix")[0]
    assert section.strip() == "The run ended before it logged anything."
    assert "airplane 0 0 none none none" in page.text
    assert "accuracy by azimuth" in page.alts  # without the pairs for which it is unknown


def test_values_not_finite_leave_gaps() -> None:
    curves = log(40)
    curves["loss"][[3, 4, 9]] = np.nan, np.inf, -np.inf
    never = log(4) | {"loss": np.full(4, np.nan)}
    (axes,) = draw_curves("loss", [("training", BLUE, curves), ("held out", ORANGE, never)]).axes
    assert [np.ma.masked_invalid(line.get_ydata()).count() for line in axes.lines] == [37, 0]


def test_credit_of_perfect_score_has_right_answers_only() -> None:
    words = " ".join(show_credit(*inputs(size=29, wrong=0), SmallNORB(n_parts=2, n_channels=2).eval()).parts)
    assert "Right answers" in words
    assert "Wrong answers" not in words


def test_equal_toys_have_no_interval() -> None:
    found, sentence = toy_interval(np.ones(900, dtype=bool), inputs()[1])
    assert not found
    assert "toys that do not all score alike" in sentence


@pytest.mark.parametrize(("low", "floor"), [(0.999, 98.0), (0.971, 97.0), (0.93, 92.0), (0.823, 80.0), (0.0, 0.0)])
def test_axis_floor_is_round_and_below_all_intervals(low: float, floor: float) -> None:
    assert axis_floor([GroupAccuracy(0, 1, 1, low, 1.0), GroupAccuracy(1, 1, 1, 0.9995, 1.0)]) == floor


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "0.25 s"), (42.4, "42 s"), (59.7, "1 min 0 s"), (211.3, "3 min 31 s"), (7_140, "1 h 59 min")],
)
def test_duration_has_two_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said
