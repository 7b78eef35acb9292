"""The report on texts: its counts, its sections, and hostile input."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from capsroute.lab.analysis.accuracy import GroupAccuracy, wilson_interval
from capsroute.lab.formatting import readable
from capsroute.lab.inference import Predictor
from capsroute.lab.report import charts
from capsroute.lab.report.sections import Answers
from capsroute.lab.report.text_report import write_text_report
from capsroute.nets import SST
from test_report import DETAILS, Page

FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
HOSTILE = "<script>alert('x')</script><img src=http://example.org/x.png> & \"so on\""
# right-to-left override, bell, terminal escape and a lone surrogate
CONTROL = "good \u202emovie\x07 \x1b[31m \ud83d and more"


def inputs(classes: int = 5) -> tuple[Answers, list[str]]:
    """Return 600 sentences; the answers to the last 100 and to the first 40 are a class too high."""
    true = np.arange(600) % classes
    predicted = true.copy()
    for some in (slice(500, 600), slice(0, 40)):
        predicted[some] = (true[some] + 1) % classes
    scores = 3 * np.eye(classes)[predicted]
    scores[510] *= 4  # the worst mistake
    scores[0] *= 1.001  # the next: how the same scores round depends on the machine
    names = FIVE if classes == 5 else ("negative", "positive")
    return Answers(true, softmax(scores, 1), names, "sentences"), [f"film {k} ." for k in range(600)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(write_text_report(tmp_path_factory.mktemp("run"), DETAILS, *inputs()))


def test_headline_has_one_interval_over_sentences(page: Page) -> None:
    head = page.text.partition("Learning curves")[0]
    low, high = wilson_interval(460, 600)
    assert "76.67%" in head
    assert "460 of 600 test sentences classified right." in head
    assert f"95% interval, were sentences independent {low:.2%} to {high:.2%}" in head
    assert head.count("95% interval") == 1
    for said in ("always “very negative”, the commonest 20.00%", "chance, 5 classes 20.00%", "true one 95.33%"):
        assert said in head
    for word in ("pair", "toy", "image", "instance"):
        assert not re.search(rf"\b{word}s?\b", page.text.partition("Test accuracy")[2])


def test_page_has_every_section(page: Page) -> None:
    titles = ["Learning curves", "Confusion matrix", "Worst mistakes", "Configuration and versions"]
    assert [f"#{title.lower().replace(' ', '-')}" for title in titles] == [a["href"] for a in page.all("a")]
    assert len(page.all("img")) == 2
    assert all(len(image["alt"] or "") > 20 for image in page.all("img"))


def test_two_classes_have_no_near_misses(tmp_path: Path) -> None:
    page = Page(write_text_report(tmp_path, DETAILS, *inputs(classes=2)))
    assert "at most one class" not in page.text
    assert "always “negative”, the commonest 50.00%" in page.text


def test_worst_mistake_is_first(page: Page) -> None:
    found = page.text.rpartition("Worst mistakes")[2].partition("Configuration")[0]
    assert "Sentences classified wrong: 140. Shown: 20, those with the highest probability" in found
    answer = "very negative negative"
    assert f"probability film 510 . {answer} 100.0% film 0 . {answer} 83.4%" in found
    assert found.count("83.4%") == 19


def test_hostile_texts_are_escaped(tmp_path: Path) -> None:
    answers, texts = inputs()
    texts[:3] = [HOSTILE, CONTROL, "word " * 5000]
    answers.probabilities[:3] = np.eye(5)[answers.predicted[:3]]
    page = Page(write_text_report(tmp_path, DETAILS, answers, texts))
    assert HOSTILE in page.text
    assert "good �movie� �[31m � and more" in page.text
    assert "word word…" in page.text
    assert page.text.count("word") < 200
    assert not page.all("script")
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "onerror"):
            address = attributes.get(name)
            assert address is None or address.startswith(("data:image/png;base64,", "#"))


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


def test_few_sentences_without_mistakes(tmp_path: Path) -> None:
    true = np.array([1, 2, 2])
    page = Page(
        write_text_report(tmp_path, DETAILS, Answers(true, np.eye(5)[true], FIVE, "sentences"), ["", "no", HOSTILE])
    )
    assert "None: all 3 sentences were classified right." in page.text
    assert "very positive 0 0 none none none" in page.text


def test_axis_labels_do_not_overlap() -> None:
    labels = ["≤5", *(f"{k}1-{k + 1}0" for k in range(1, 8)), "101+"]
    rows = {label: GroupAccuracy(k, 1, 2, 0.3, 0.7) for k, label in enumerate(labels)}
    (axes,) = charts.draw_accuracies("Words", rows, 0.5, 0.0).axes
    axes.figure.canvas.draw()
    across = [tick.get_window_extent() for tick in axes.get_xticklabels() if tick.get_text()]
    down = [tick.get_window_extent() for tick in axes.get_yticklabels() if tick.get_text()]
    assert len(across) >= 5
    assert len(down) >= 5
    assert all(left.x1 < right.x0 for left, right in pairwise(sorted(across, key=lambda box: box.x0)))
    assert all(lower.y1 < upper.y0 for upper, lower in pairwise(down))


@pytest.fixture(scope="module")
def credited(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A report with the shipped network and its encoder; one of the sentences shown means harm."""
    judge, (answers, texts) = Predictor("treebank"), inputs()
    texts[510] = f"A bad film {HOSTILE} ."
    folder = tmp_path_factory.mktemp("credited")
    return Page(write_text_report(folder, DETAILS, answers, texts, judge.network, judge.preprocessing.model))


def test_credit_colours_words_of_right_and_wrong_answers(credited: Page) -> None:
    assert credited.text.count("Credit") == 2
    assert "Right answers: up to 3" in credited.text
    assert "Wrong answers: up to 3" in credited.text
    assert credited.text.count("Tokens by depth") == 6
    assert len(list(credited.all("img"))) == 2  # the curves; the rest is text
    colours = [element["style"] or "" for tag in ("span", "td") for element in credited.all(tag) if "style" in element]
    assert all(re.fullmatch(r"background:rgba\(\d+,\d+,\d+,0\.\d\d\)", colour) for colour in colours)
    deepest = [span for span in credited.all("span") if (span["style"] or "").endswith(",0.60)")]
    assert len(deepest) >= 6  # one in each sentence


def test_credit_of_hostile_sentence_is_escaped(credited: Page) -> None:
    assert not credited.all("script")
    assert all((image["src"] or "").startswith("data:") for image in credited.all("img"))


def test_missing_encoder_leaves_credit_out(tmp_path: Path) -> None:
    network = SST(depth=2, d_emb=8, n_classes=5)
    page = Page(write_text_report(tmp_path, DETAILS, *inputs(), network))
    assert "Left out, because the encoder that the network reads is not here." in page.text
