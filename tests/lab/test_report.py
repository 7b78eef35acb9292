"""Reports: their content, safety and behaviour on incomplete runs."""

from base64 import b64decode
from collections.abc import Sequence
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax

from capsroute.lab.analysis.accuracy import GroupAccuracy, bootstrap_interval, wilson_interval
from capsroute.lab.data import CATEGORIES, SENTIMENTS, Pairs
from capsroute.lab.formatting import readable
from capsroute.lab.html import Section
from capsroute.lab.inference import Predictor
from capsroute.lab.report.charts import BLUE, ORANGE, LogTable, axis_floor, draw_accuracies, draw_curves
from capsroute.lab.report.run_report import (
    Answers,
    compare_accuracy,
    describe_view,
    show_accuracy,
    show_confusion,
    show_credit,
    show_learning,
    show_mistakes,
    show_settings,
    show_viewpoints,
    write_page,
)
from capsroute.lab.training.task import Result
from capsroute.nets import SmallNORB

HOSTILE = "\"><script>alert('x')</script><img src=http://example.org/x.png>"
CONTROL = "good \u202emovie\x07 \x1b[31m \ud83d and more"  # text direction, bell, terminal escape, lone surrogate


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


def write_report(
    folder: Path, answers: Answers, more: Sequence[Section], training: LogTable, validation: LogTable
) -> Path:
    """Write a report of the sections that all have, and more."""
    config = {"batch": 20, "rates": (1e-5, 5e-4), "seed": 123_456, "note": HOSTILE}
    versions = {"python": "3.11.0", "packages": {"torch": "2.8.0"}, "commit": "abc123"}
    sections = [
        show_accuracy(answers, {"parameters": "271,688", "training time": "0:03:31", "weights": "final"}),
        show_learning(training, validation, "on things with mixup", "what was not trained on"),
        show_confusion(answers),
        *more,
        show_settings(config, versions),
    ]
    return write_page(folder, "A run", sections)


def make_pairs(size: int = 48, wrong: int = 30) -> tuple[Answers, Pairs]:
    """Return a test split of 5 x 5 toys at 18 azimuths, some pairs of two toys classified wrong."""
    grid = np.mgrid[:5, :5, :2, :18, :1].reshape(5, -1)
    category, info = grid[0], grid[1:].T * [1, 1, 2, 1]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (len(category), 2, size, size), dtype=np.uint8)
    scores = np.eye(5)[category] * 4 + rng.normal(0, 0.1, (len(category), 5))
    scores[:wrong] = np.roll(scores[:wrong], 1, axis=1)
    scores[7] *= 3  # the worst mistake, if there is any
    pairs = Pairs(images, category, info)
    titles = [describe_view(pairs, k) for k in range(len(category))]
    return Answers(category, softmax(scores, 1), CATEGORIES, "pairs", "images", list(map(list, images)), titles), pairs


def make_sentences() -> Answers:
    """Return 600 sentences; the answers to the last 100 and to the first 40 are a class too high."""
    true = np.arange(600) % 5
    predicted = true.copy()
    for some in (slice(500, 600), slice(0, 40)):
        predicted[some] = (true[some] + 1) % 5
    scores = 3 * np.eye(5)[predicted]
    scores[510] *= 4  # the worst mistake
    scores[0] *= 1.001  # the next: how the same scores round depends on the machine
    texts = [f"film {k} ." for k in range(600)]
    return Answers(true, softmax(scores, 1), SENTIMENTS, "sentences", "texts", texts, texts)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A report on pairs, with the credit of a narrow and untrained network."""
    answers, pairs = make_pairs()
    predictor = Predictor(SmallNORB(n_parts=5, n_channels=4).eval())
    sections = [show_viewpoints(answers, pairs), show_mistakes(answers), show_credit(answers, predictor)]
    return Page(write_report(tmp_path_factory.mktemp("run"), answers, sections, log(40), log(4)))


@pytest.fixture(scope="module")
def judge() -> Predictor:
    return Predictor("treebank")


@pytest.fixture(scope="module")
def text_page(tmp_path_factory: pytest.TempPathFactory, judge: Predictor) -> Page:
    """A report on sentences, some of which mean harm."""
    answers = make_sentences()
    texts: Any = answers.items
    texts[510] = f"A bad film {HOSTILE} ."
    texts[:3] = [HOSTILE, CONTROL, "word " * 5000]
    answers.probabilities[:3] = np.eye(5)[answers.predicted[:3]]
    sections = [show_mistakes(answers), show_credit(answers, judge)]
    return Page(write_report(tmp_path_factory.mktemp("run"), answers, sections, log(40), log(4)))


def decode(image: dict[str, str | None]) -> Image.Image:
    return Image.open(BytesIO(b64decode((image["src"] or "").partition("base64,")[2])))


def test_headline_has_accuracy_and_facts(page: Page) -> None:
    assert make_pairs()[0].hit.sum() == 870
    for said in ("96.67% 870 of 900 test pairs", "parameters 271,688", "training time 0:03:31", "weights final"):
        assert said in page.text


def test_accuracy_is_compared_with_intervals_and_guesses() -> None:
    answers, pairs = make_pairs()
    over = {
        "images": wilson_interval(870, 900),
        "instances": bootstrap_interval(answers.hit, pairs.category, pairs.instance),
    }
    facts = compare_accuracy(answers, Result(870, 900, over), ordered=False)
    for unit, (low, high) in over.items():
        assert facts[f"95% interval over {unit}"] == f"{low:.2%} to {high:.2%}"
    assert facts["chance, 5 classes"] == "20.00%"
    answers = make_sentences()
    facts = compare_accuracy(answers, Result(460, 600, {}), ordered=True)
    assert facts["always “very negative”, the commonest"] == "20.00%"
    assert facts["at most one class from the true one"] == "95.33%"
    two = Answers(answers.true % 2, answers.probabilities[:, :2], ("negative", "positive"), "sentences")
    assert len(compare_accuracy(two, Result(1, 2, {}), ordered=True)) == 2


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
    assert len(page.all("img")) == 2 + 4 + 12 + 6 * 2
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
        assert len(alt) >= 9
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


def test_worst_mistake_is_first(page: Page, text_page: Page) -> None:
    assert "Pairs classified wrong: 30. Shown: 12, those with the highest probability" in page.text
    # pair 7 is instance 0 at the eighth azimuth
    worst = page.text.partition("highest first")[2]
    view = "instance 0, azimuth 140°, elevation 30°, lighting 0"
    assert worst.index(f"animal taken for human , 100.0% {view}") < 120
    assert next(image for image in page.all("img") if "taken for" in (image["alt"] or ""))["alt"] == (
        f"{view}: animal, taken for human."
    )
    assert "Sentences classified wrong: 140. Shown: 12, those with the highest probability" in text_page.text
    rows = text_page.text.partition("predicted probability")[2].partition("Credit")[0]
    assert rows.index("very negative negative 100.0%") < rows.index("A bad film") < rows.index("film 5 .")
    assert rows.count("83.4%") == 8


def test_credit_covers_right_and_wrong_answers(page: Page, text_page: Page) -> None:
    for shown in (page, text_page):
        assert "Right answers: up to 3" in shown.text
        assert "Wrong answers: up to 3" in shown.text
        assert shown.text.count("; true:") == 3
    assert page.alts.count("The image") == page.alts.count("Net credit") == 6
    words = text_page.all("span")
    assert len([span for span in words if (span["style"] or "").endswith(",0.60)")]) >= 6  # one in each sentence


def test_hostile_texts_are_escaped(text_page: Page) -> None:
    assert HOSTILE in text_page.text
    assert "good �movie� �[31m � and more" in text_page.text
    assert "word word…" in text_page.text
    assert not text_page.all("script")
    assert len(text_page.all("img")) == 2  # the curves; the rest is text
    for _, attributes in text_page.tags:
        assert "onerror" not in attributes


def test_confusion_is_counted_and_tinted(page: Page) -> None:
    matrix = page.text.partition("animal human airplane truck car")[2]
    assert matrix.lstrip().startswith("animal 150 83.33% 30 16.67% 0 0.00%")
    tinted = [cell["style"] or "" for cell in page.all("td") if "style" in cell][:25]
    assert tinted[0].startswith("background:rgba(47,")  # right in blue
    assert tinted[1].startswith("background:rgba(224,")  # wrong in orange
    assert all(style.endswith(",0.00)") for style in tinted[2:5])


def test_short_run_with_perfect_score_and_unknown_views(tmp_path: Path) -> None:
    """A run stopped after one row of its log, with nothing held out."""
    answers, pairs = make_pairs(wrong=0)
    pairs.info[:] = -1
    sections = [show_viewpoints(answers, pairs), show_mistakes(answers)]
    page = Page(write_report(tmp_path, answers, sections, log(1), {}))
    assert "100.00%" in page.text
    assert "None: all 900 pairs were classified right." in page.text
    assert "There is no mistake." in page.text
    assert "toys and viewpoints of these pairs are unknown" in page.text
    assert "accuracy by azimuth" not in page.alts
    assert "Nothing was held out" in page.text
    assert "training last 5.000." in page.alts
    assert "held out last" not in page.alts


def test_missing_class_and_log_leave_their_places_empty(tmp_path: Path) -> None:
    answers, pairs = make_pairs(size=29)
    there = pairs.category != 2
    pairs.info[:90, 2] = -1
    some = answers._replace(true=answers.true[there], probabilities=answers.probabilities[there])
    page = Page(write_report(tmp_path, some, [show_viewpoints(some, pairs.take(there))], {}, {}))
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
    answers, _ = make_pairs(size=29, wrong=0)
    network = SmallNORB(n_parts=2, n_channels=2).eval()
    words = " ".join(show_credit(answers, Predictor(network)).parts)
    assert "Right answers" in words
    assert "Wrong answers" not in words


@pytest.mark.parametrize(("low", "floor"), [(0.999, 98.0), (0.971, 97.0), (0.93, 92.0), (0.823, 80.0), (0.0, 0.0)])
def test_axis_floor_is_round_and_below_all_intervals(low: float, floor: float) -> None:
    assert axis_floor([GroupAccuracy(0, 1, 1, low, 1.0), GroupAccuracy(1, 1, 1, 0.9995, 1.0)]) == floor


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a film", "a film"),
        ("  a\n\nb\tc \u2028 d\x1fe ", "a b c d e"),
        ("", "(empty)"),
        (" \r\n ", "(empty)"),
        ("one two three four", "one two…"),
        ("one two three,", "one two…"),
        ("a" * 30, "a" * 11 + "…"),
        (" " * 90 + "b " * 50, "b b b b b b…"),
        (" " * 500 + "far", "far"),
        ("x\x00y\u202ez\ud800\ufffe", "x�y�z��"),
        ("👩\u200d👧 é", "👩\u200d👧 é"),
    ],
)
def test_readable_truncates_and_replaces_control_characters(text: str, shown: str) -> None:
    assert readable(text, limit=12) == shown


def test_axis_labels_do_not_overlap() -> None:
    labels = ["≤5", *(f"{k}1-{k + 1}0" for k in range(1, 8)), "101+"]
    rows = {label: GroupAccuracy(k, 1, 2, 0.3, 0.7) for k, label in enumerate(labels)}
    (axes,) = draw_accuracies("Words", rows, 0.5, 0.0).axes
    axes.figure.canvas.draw()
    across = [tick.get_window_extent() for tick in axes.get_xticklabels() if tick.get_text()]
    down = [tick.get_window_extent() for tick in axes.get_yticklabels() if tick.get_text()]
    assert len(across) >= 5
    assert len(down) >= 5
    assert all(left.x1 < right.x0 for left, right in pairwise(sorted(across, key=lambda box: box.x0)))
    assert all(lower.y1 < upper.y0 for upper, lower in pairwise(down))
