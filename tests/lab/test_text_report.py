"""The report on texts: its counts, its sections, and hostile input."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsroute.lab.analysis.accuracy import GroupAccuracy, wilson_interval
from capsroute.lab.formatting import readable
from capsroute.lab.predict import TextClassifier
from capsroute.lab.report import charts
from capsroute.lab.report.sections import RunDetails
from capsroute.lab.report.text_report import (
    MIN_BIN,
    count_negations,
    length_bins,
    split_spaces,
    split_words,
    write_text_report,
)
from test_report import Page, log

FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
HOSTILE = "<script>alert('x')</script><img src=http://example.org/x.png> & \"so on\""
# right-to-left override, bell, terminal escape and a lone surrogate
CONTROL = "good \u202emovie\x07 \x1b[31m \ud83d and more"


def inputs(classes: int = 5) -> dict[str, Any]:
    """Return 600 sentences of 3, 8 and 13 words; answers to the last 100 and to one negation are a class too high."""
    lengths = np.repeat([3, 8, 13], 200)
    label = np.arange(600) % classes
    texts = [f"film {k} {'w ' * (n - 2)}." for k, n in enumerate(lengths)]
    predicted = label.copy()
    predicted[500:] = (label[500:] + 1) % classes
    for k in range(40):
        texts[k] = f"not {k} good ."
        predicted[k] = (label[k] + 1) % classes
    for k in range(40, 70):
        texts[k] = f"{k} is n't nothing ."
    scores = 3 * np.eye(classes)[predicted]
    scores[510] *= 4  # the worst mistake
    scores[0] *= 1.001  # the next: how the same scores round depends on the machine
    return {
        "title": "A run",
        "config": {"batch": 20},
        "versions": {"python": "3.11.0"},
        "training": log(40),
        "validation": log(4),
        "scores": scores,
        "texts": texts,
        "label": label,
        "names": FIVE if classes == 5 else ("negative", "positive"),
        "summary": {"parameters": 140_480},
        "trained": "on mixed-up (mixup) phrases",
        "held_out": "sentences of the validation split",
    }


def write(folder: Path, **values: Any) -> Path:
    details = RunDetails(**{name: values.pop(name) for name in RunDetails._fields if name in values})
    return write_text_report(folder, details, **values)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(write(tmp_path_factory.mktemp("run"), **inputs()))


@pytest.mark.parametrize(
    ("treebank", "ordinary", "n"),
    [
        ("It does n't feel like one .", "It doesn't feel like one.", 1),
        ("They ca n't , wo n't and ai n't", "They can\u2019t, won\u2019t and ain\u2019t", 3),
        ("Neither funny nor sad -- just there .", "Neither funny nor sad--just there.", 2),
        ("It 's NEVER dull , and we 'd not leave", "It's NEVER dull, and we'd not leave", 2),
        ("You cannot sit there without hope", "You cannot sit there without hope", 2),
        ("No one , none , nobody , nothing , nowhere", "No one, none, nobody, nothing, nowhere", 5),
        ("Hardly , barely , scarcely a film", "Hardly, barely, scarcely a film", 3),
        ("Knots , notes and a no-frills nonetheless '' ...", "Knots, notes and a no-frills nonetheless\u201d\u2026", 0),
        ("", " \n", 0),
    ],
)
def test_negations_are_counted_in_either_tokenisation(treebank: str, ordinary: str, n: int) -> None:
    assert split_words(treebank) == split_words(ordinary)
    assert count_negations(treebank) == count_negations(ordinary) == n


def test_words_have_no_punctuation() -> None:
    assert split_words("-- Clichés , but that 's ( almost ) so-so ...") == [
        "clichés",
        "but",
        "that's",
        "almost",
        "so-so",
    ]


def test_many_spaces_split_fast() -> None:
    assert split_words("a" + " " * 1_000_000 + "'s b") == ["a's", "b"]


@pytest.mark.parametrize(
    ("lengths", "ends"),
    [
        (np.repeat([7], 500), []),
        (np.arange(20), []),  # too few sentences to tell lengths apart
        (np.repeat(np.arange(1, 21), 50), [2, 4, 6, 8, 10, 12, 14, 16, 18]),
        (np.repeat(np.arange(1, 8), [20, 100, 100, 100, 100, 100, 20]), [2, 3, 4, 5]),  # few at both ends
        (np.append(np.repeat(np.arange(1, 5), 50), 10**9), [1, 2, 3]),
    ],
)
def test_length_bins_match_hand_made_ones(lengths: np.ndarray, ends: list[int]) -> None:
    assert length_bins(lengths) == ends


@pytest.mark.parametrize("seed", range(5))
def test_length_bins_are_round_and_large(seed: int) -> None:
    lengths = np.random.default_rng(seed).lognormal(1 + seed / 2, 0.7, 150 * 2**seed).astype(int)
    ends = length_bins(lengths)
    sizes = np.bincount(np.searchsorted(ends, lengths), minlength=len(ends) + 1)
    assert 3 <= len(sizes) <= 12
    assert sizes.min() >= max(MIN_BIN, len(lengths) / 20)
    step = np.gcd.reduce(ends)
    assert step in (1, 2, 5, 10, 20, 50)
    assert step <= max(1, (np.quantile(lengths, 0.75) - np.quantile(lengths, 0.25)) / 2)


def test_headline_has_one_interval_over_sentences(page: Page) -> None:
    head = page.text.partition("Learning curves")[0]
    low, high = wilson_interval(460, 600)
    assert "76.67%" in head
    assert "460 of 600 test sentences classified right." in head
    assert f"95% interval, sentences as independent trials {low:.2%} to {high:.2%}" in head
    assert head.count("95% interval") == 1
    for said in ("always “very negative”, the commonest 20.00%", "chance, 5 classes 20.00%", "parameters 140,480"):
        assert said in head
    for word in ("pair", "toy", "image", "instance"):
        assert not re.search(rf"\b{word}s?\b", page.text.partition("Test accuracy")[2])


def test_page_has_every_section(page: Page) -> None:
    titles = ["Learning curves", "Confusion matrix", "How far off", "Accuracy by sentence length and negation"]
    titles += ["Worst mistakes", "Sample sentences", "Learning rate and momentum", "Configuration and versions"]
    assert [f"#{title.lower().replace(' ', '-')}" for title in titles] == [a["href"] for a in page.all("a")]
    assert "on mixed-up (mixup) phrases, so it may" in page.text
    assert "Held out: sentences of the validation split." in page.text
    assert len(page.all("img")) == 8
    assert all(len(image["alt"] or "") > 20 for image in page.all("img"))


def row(name: str, right: int, total: int) -> str:
    low, high = wilson_interval(right, total)
    return f"{name} {total} {right} {right / total:.2%} {low:.2%} to {high:.2%}"


def test_accuracy_is_counted_by_length_and_negation(page: Page) -> None:
    for said in (row("≤5", 160, 200), row("6-10", 200, 200), row("11+", 100, 200)):
        assert said in page.text
    for said in (row("0", 430, 530), row("1", 0, 40), row("2 or more", 30, 30)):
        assert said in page.text
    assert "accuracy by number of words: lowest 50.00% at 11+, highest 100.00% at 6-10." in page.alts
    assert "accuracy by negation words: lowest 0.00% at 1, highest 100.00% at 2 or more." in page.alts
    assert "sentences with a negation word have 3.0 words on average, those without 8.7." in page.text


def test_distances_are_counted(page: Page) -> None:
    # one in five mistakes takes the last class for the first
    assert "right 460 76.67% 1 step 112 18.67% 2 steps 0 0.00% 3 steps 0 0.00% 4 steps 28 4.67%" in page.text
    assert "95.33% are at most one step away. The mean is 0.37 steps" in page.text
    assert "always “neutral”, would give 1.20." in page.text


def test_two_classes_have_no_distances(tmp_path: Path) -> None:
    page = Page(write(tmp_path, **inputs(classes=2)))
    assert "How far off" not in page.text
    assert not (tmp_path / "report" / "steps.png").exists()
    assert "always “negative”, the commonest 50.00%" in page.text


def between(page: Page, start: str, end: str) -> str:
    return page.text.rpartition(start)[2].partition(end)[0]


def test_worst_mistake_is_first(page: Page) -> None:
    found = between(page, "Worst mistakes", "Sample sentences")
    assert "Of 140 sentences classified wrong, the 20 with the highest probability" in found
    first = inputs()["texts"][510]
    assert f"probability {first} very negative negative 100.0% not 0 good . very negative negative 83.4%" in found
    assert found.count("83.4%") == 19


def test_samples_of_each_class_are_evenly_spaced(page: Page) -> None:
    found = between(page, "Sample sentences", "Learning rate")
    texts = inputs()["texts"]
    # a fifth of the sentences each, the 20th, 60th and 100th of them
    assert f"{texts[100]} very negative very negative 83.4%" in found
    assert f"{texts[502]} neutral positive 83.4%" in found
    assert found.count("83.4%") == 15


def hostile(tmp_path: Path) -> Page:
    made = inputs()
    made["texts"][:3] = [HOSTILE, CONTROL, "word " * 5000]
    made["scores"][:3] *= 5
    return Page(write(tmp_path, **made))


def test_hostile_texts_are_escaped(tmp_path: Path) -> None:
    page = hostile(tmp_path)
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
    made = inputs()
    some = np.array([1, 2, 7])
    label = made["label"][some]
    made |= {"texts": ["", "no", HOSTILE], "label": label, "scores": np.eye(5)[label], "validation": None}
    page = Page(write(tmp_path, **made))
    assert "None: all 3 sentences were classified right." in page.text
    assert row("all", 3, 3) in page.text
    found = between(page, "Sample sentences", "Learning rate")
    assert "(empty) negative negative" in found
    assert found.count("neutral neutral") == 2
    assert "very positive" not in found


def test_single_mistake_is_named(tmp_path: Path) -> None:
    made = inputs()
    made["scores"] = np.eye(5)[made["label"]]
    made["scores"][9] = [9, 0, 0, 0, 0]
    made["label"] = made["label"].astype(np.uint64)  # which has no differences of its own
    page = Page(write(tmp_path, **made))
    assert "The only sentence classified wrong, with the probability" in page.text
    assert f"{made['texts'][9]} very positive very negative 100.0%" in page.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": ["a"]}, "texts: expected 600, as scores, got 1"),
        ({"label": np.zeros(599, dtype=int)}, r"label: expected \[600\], as scores, got shape \[599\]"),
        ({"label": np.zeros(600)}, "label: expected integers, got float64"),
        ({"label": np.full(600, 5)}, "label: expected 0 to 4, got 5 to 5"),
        ({"scores": np.full((600, 5), np.nan)}, "scores: expected finite numbers, got 3000 that are not"),
        ({"names": ["a", "b"]}, "names: expected 5, one for each column of scores, got 2"),
        ({"validation": {"epoch": np.ones(2)}}, "validation: expected columns"),
    ],
)
def test_invalid_input_is_named_and_nothing_written(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path, **inputs() | change)
    assert not list(tmp_path.iterdir())


def test_axis_labels_do_not_overlap() -> None:
    labels = ["≤5", *(f"{k}1-{k + 1}0" for k in range(1, 8)), "101+"]
    rows = {label: GroupAccuracy(k, 1, 2, 0.3, 0.7) for k, label in enumerate(labels)}
    drawn = [
        charts.draw_accuracies("Words", rows, 0.5, 0.0),
        charts.draw_confusion(np.eye(5, dtype=int), FIVE),
    ]
    for chart in drawn:
        chart.canvas.draw()
        across = [tick.get_window_extent() for tick in chart.axes[0].get_xticklabels() if tick.get_text()]
        down = [tick.get_window_extent() for tick in chart.axes[0].get_yticklabels() if tick.get_text()]
        assert len(across) >= 5
        assert len(down) >= 5
        assert all(left.x1 < right.x0 for left, right in pairwise(sorted(across, key=lambda box: box.x0)))
        assert all(lower.y1 < upper.y0 for upper, lower in pairwise(down))


@pytest.mark.data
def test_sst_test_sentences_have_known_lengths_and_negations(data: Path) -> None:
    lines = (data / "sst" / "trees" / "test.txt").read_text(encoding="utf-8").splitlines()
    texts = [" ".join(re.findall(r"\(\d ([^()]+)\)", line)) for line in lines]
    lengths = np.array([len(split_words(text)) for text in texts])
    assert length_bins(lengths) == [5, 10, 15, 20, 25, 30]
    denied = np.array([count_negations(text) for text in texts])
    assert np.bincount(np.minimum(denied, 2)).tolist() == [1746, 417, 47]


@pytest.fixture(scope="module")
def credited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with the shipped network and its encoder; one of the sentences shown means harm."""
    judge, made = TextClassifier("treebank"), inputs()
    made["texts"][510] = f"A bad film {HOSTILE} ."
    return write(tmp_path_factory.mktemp("credited"), **made, network=judge.network, encoder=judge.encoder)


def test_credit_colours_words_of_right_and_wrong_answers(credited: Path) -> None:
    page = Page(credited)
    assert page.text.count("Credit") == 2
    assert "Right answers: up to 3" in page.text
    assert "Wrong answers: up to 3" in page.text
    colours = [span["style"] for span in page.all("span")]
    assert all(re.fullmatch(r"background:rgba\(\d+,\d+,\d+,0\.\d\d\)", colour or "") for colour in colours)
    deepest = [colour for colour in colours if (colour or "").endswith(",0.60)")]
    assert len(deepest) >= 6  # one in each sentence
    assert len(list((credited.parent / "report").glob("credit-*.png"))) == 6


def test_credit_of_hostile_sentence_is_escaped(credited: Path) -> None:
    page = Page(credited)
    assert not page.all("script")
    assert all((image["src"] or "").startswith("data:") for image in page.all("img"))


@pytest.mark.parametrize(
    ("sentence", "pieces", "shown"),
    [
        ("Not bad", ["Not", "bad"], "Not bad"),
        ("unbelievable !", ["un", "believ", "able", "!"], "unbelievable !"),
        ("It 's", ["[CLS]", "It", "'", "s", "[SEP]"], "[CLS] It 's [SEP]"),
        ("a\x07b", ["a", "\ufffd", "b"], "a \ufffd b"),
    ],
)
def test_tokens_keep_the_spaces_of_the_text(sentence: str, pieces: list[str], shown: str) -> None:
    found = split_spaces(sentence, pieces)
    assert "".join(space + piece for space, piece in found) == shown
