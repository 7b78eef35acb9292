"""The generated treebank: sentiments follow the rules, splits are disjoint, sentences are fixed."""

import hashlib
import itertools
import re
from collections import Counter

import numpy as np
import pytest

from capsroute.lab.data import treebank
from capsroute.lab.data.reviews import rules
from capsroute.lab.data.reviews.rules import contrast, exceed, intensify, join, label_bracket, negate, soften
from capsroute.lab.data.trees import Tree, extract_phrases

SPLITS = ("train", "validation", "test")
DIGESTS = {"train": "ed621fc8c034bc77", "validation": "3d969f63f8c664cc", "test": "6b9873899c8cb173"}

# the rules as tables, and a reader of brackets that shares no code with the package
REVERSED = {-2: 0, -1: 1, 0: 0, 1: -1, 2: -1}
WEIGHED = {  # a conceded sentiment: the results for -2, -1, 0, 1, 2
    -2: [-2, -1, -1, 0, 1],
    -1: [-2, -1, 0, 1, 2],
    0: [-2, -1, 0, 1, 2],
    1: [-2, -1, 0, 1, 2],
    2: [-1, 0, 1, 1, 2],
}
WORDS = {
    "reverse": "not never hardly without nobody neither free lack lacks avoid avoids fail fails failed doubt doubts",
    "more": "very really extremely truly deeply thoroughly utterly absolutely simply real total complete absolute",
    "less": "rather somewhat mildly slightly fairly almost nearly",
    "too": "too",
    "keep": ", even",
    "but": "but yet",
    "although": "although though while despite",
}
KINDS = {word: kind for kind, words in WORDS.items() for word in words.split()}


def nested(line: str) -> list:
    """Return `[label, word]` or `[label, left, right]`."""
    return eval(re.sub(r"\(([0-4]) ", r"[\1, ", re.sub(r" ([^\s()]+)\)", r' "\1")', line)).replace(")", "],"))[0]


def recomputed(node: list) -> tuple[int, int, str]:
    """Return sentiment and depth of a node from its leaves, and its side of a contrast."""
    label, *parts = node
    if isinstance(parts[0], str):
        return label - 2, 0, ""
    left, right = parts
    (a, a_depth, a_mark), (b, b_depth, b_mark) = recomputed(left), recomputed(right)
    kind = KINDS.get(left[1].lower()) if isinstance(left[1], str) else None
    depth, mark = max(a_depth, b_depth), ""
    if kind == "reverse":
        value, depth = REVERSED[b], depth + 1
    elif kind == "more":
        value = 2 * np.sign(b)
    elif kind == "less":
        value = np.sign(b)
    elif kind == "too":
        value = -1 if b >= 0 else b
    elif kind == "keep":
        value, mark = b, b_mark
    elif kind in ("but", "although"):
        value, mark = b, kind
    elif b_mark == "but" or a_mark == "although":
        value, depth = WEIGHED[a][b + 2], depth + 1
    elif b_mark == "although":
        value, depth = WEIGHED[b][a + 2], depth + 1
    elif a and b and (a > 0) != (b > 0):
        value = a + b
    else:
        value = a if abs(a) >= abs(b) else b
    assert value + 2 == label, node
    return int(value), depth, mark


@pytest.fixture(scope="module")
def many() -> dict[str, list[Tree]]:
    """Return sentences of the default seed."""
    return {split: list(treebank.generate_sentences(0, split, min(n, 1500))) for split, n in treebank.SIZES.items()}


@pytest.mark.parametrize("split", SPLITS)
def test_labels_follow_rules(many: dict[str, list[Tree]], split: str) -> None:
    for tree in many[split]:
        recomputed(nested(str(tree)))


def test_words_have_one_sentiment(many: dict[str, list[Tree]]) -> None:
    leaves = {
        (tree.words[node.start].lower(), node.label)
        for tree in itertools.chain(*many.values())
        for node in tree.nodes
        if node.end == node.start + 1
    }
    assert max(Counter(word for word, _ in leaves).values()) == 1
    assert 250 <= len(leaves) <= 400
    tables = [rules.ADJECTIVES, rules.NOUNS, rules.QUALITIES, rules.VERBS]
    for (x, words), (y, others) in itertools.combinations([item for table in tables for item in table.items()], 2):
        assert x == y or not set(words.split()) & set(others.split())


def depths(found: list[Tree]) -> list[int]:
    return [recomputed(nested(str(tree)))[1] for tree in found]


def test_every_fifth_test_sentence_is_deeper(many: dict[str, list[Tree]]) -> None:
    for split in ("train", "validation"):
        assert set(depths(many[split])) == {0, 1, 2}
    test = depths(many["test"])
    assert set(test[4::5]) == {3}
    assert max(depth for place, depth in enumerate(test) if place % 5 != 4) == 2
    assert sum(depth == 3 for depth in test) == len(test) / 5


@pytest.mark.parametrize("split", SPLITS)
def test_sentiments_are_balanced(many: dict[str, list[Tree]], split: str) -> None:
    counts = Counter(tree.label for tree in many[split])
    assert min(counts[label] for label in range(5)) > 0.12 * len(many[split])
    if split == "test":
        deep = Counter(tree.label for tree in many[split][4::5])
        assert min(deep[label] for label in range(5)) > 0.1 * len(many[split]) / 5


def bodies(found: list[Tree]) -> set[str]:
    """Return sentences without their full stop."""
    return {tree.text().removesuffix(" .").lower() for tree in found}


def test_splits_are_disjoint(many: dict[str, list[Tree]]) -> None:
    """Not even as phrases of training sentences, nor with training sentences of other seeds."""
    train = [*many["train"], *treebank.generate_sentences(1, "train", 500)]
    phrases = {tree.text(node).lower() for tree in train for node in tree.nodes}
    validation, test = bodies(many["validation"]), bodies(many["test"])
    assert bodies(train) <= phrases
    assert not phrases & {tree.text().lower() for tree in many["validation"] + many["test"]}
    assert not phrases & (validation | test)
    assert not validation & test
    for split in SPLITS:
        assert len(bodies(many[split])) == len(many[split])


def test_longer_streams_begin_alike(many: dict[str, list[Tree]]) -> None:
    assert list(itertools.islice(treebank.generate_sentences(0, "test"), 50)) == many["test"][:50]
    assert list(treebank.generate_sentences(0, "train", 0)) == []
    assert list(treebank.generate_sentences(0, "train", 30)) == many["train"][:30]
    assert list(treebank.generate_sentences(1, "train", 30)) != many["train"][:30]


def test_reviews_end_with_stars(many: dict[str, list[Tree]]) -> None:
    stars = ("One star .", "Two stars .", "Three stars .", "Four stars .", "Five stars .")
    assert treebank.generate_reviews(0, 30) == [f"{tree.text()} {stars[tree.label]}" for tree in many["train"][:30]]


@pytest.mark.parametrize("split", SPLITS)
def test_sentences_of_version_are_fixed(many: dict[str, list[Tree]], split: str) -> None:
    """Sentences of one version are the same in every process: raise VERSION with these digests."""
    assert treebank.VERSION == 1
    content = "".join(f"{tree}\n" for tree in many[split]).encode()
    assert hashlib.sha256(content).hexdigest()[:16] == DIGESTS[split]
    if split == "train":
        assert [tree.text() for tree in many[split][:3]] == [
            "It is a success .",
            "On the whole , I failed to admire the premise .",
            "Despite the simple scenes , this documentary is charming and dazzles .",
        ]


def test_sentences_are_grammatical(many: dict[str, list[Tree]]) -> None:
    """As far as patterns can tell."""
    singular, plural = (
        words.replace(" ", "|") for words in (f"{rules.WORDS['works']} {rules.WORDS['parts']}", rules.WORDS["plurals"])
    )
    wrong = [
        rf"(?<!of this )\b({singular}) (are|do|have|lack|fail|avoid)\b",
        rf"\b({singular}) of this \w+ (are|do|have|lack|fail|avoid)\b",
        rf"\b({plural}) (of this \w+ )?(is|does|has|lacks|fails|avoids)\b",
        r"\ba [aeiou]",
        r"\ban [^aeiou]",
        r"\b(not|never|hardly) (not|never|hardly)\b",
        r"\bthis \w+ of this\b",
        r"\b(\w+) (\1)\b",
        r"^[a-z]",
        r"\b(but|yet|although|and) \.",
    ]
    for tree in itertools.chain(*many.values()):
        text = tree.text()
        assert not [pattern for pattern in wrong if re.search(pattern, text)], text
        assert text.endswith(" .")
        assert len(tree.words) <= 40


@pytest.mark.parametrize(
    ("bracket", "sentiment", "depth"),
    [
        (("not", "good"), -1, 1),
        (("not", ("very", "good")), -1, 1),
        (("not", "dull"), 1, 1),
        (("not", "terrible"), 0, 1),
        (("not", ("without", "charm")), 1, 2),
        (("very", "good"), 2, 0),
        (("very", "long"), 0, 0),
        (("too", "long"), -1, 0),
        (("almost", "perfect"), 1, 0),
        (("slightly", "dull"), -1, 0),
        ((("the", "plot"), ("is", ("neither", ("good", ("nor", "funny"))))), -1, 1),
        (("neither", ("brilliant", ("nor", "awful"))), 0, 1),
        (("dull", ("but", "brilliant")), 2, 1),
        (("awful", (",", ("but", "good"))), 0, 1),
        (("awful", ("but", "brilliant")), 1, 1),
        ((("although", "dull"), (",", "good")), 1, 1),
        (("good", (",", ("even", ("though", "dull")))), 1, 1),
        (("good", ("despite", ("its", ("dull", "plot")))), 1, 1),
        (("good", ("and", "brilliant")), 2, 0),
        (("good", ("and", "dull")), 0, 0),
        (("I", ("do", ("not", ("think", ("that", ("it", ("never", "drags"))))))), -1, 2),
        (("nobody", ("doubts", ("that", ("it", ("is", "good"))))), 1, 2),
    ],
)
def test_rules_by_example(bracket: rules.Bracket, sentiment: int, depth: int) -> None:
    tree, found = label_bracket(bracket)
    assert (tree.label - 2, found) == (sentiment, depth)


def test_rules_stay_in_range() -> None:
    every = range(-2, 3)
    for rule in (intensify, soften, exceed, negate):
        assert {rule(x) for x in every} <= set(every)
    for x, y in itertools.product(every, repeat=2):
        assert join(x, y) == join(y, x) or abs(x) == abs(y)
        assert join(x, y) in every
        assert contrast(x, y) in every
        assert contrast(x, y) == WEIGHED[x][y + 2]


@pytest.mark.parametrize(("split", "least", "most"), [("train", 15_000, 20_000), ("test", 600, 600)])
def test_load_returns_phrases_of_split(many: dict[str, list[Tree]], split: str, least: int, most: int) -> None:
    phrases, two = treebank.load(split), treebank.load(split, 2)
    assert least <= len(phrases.text) <= most
    assert len(two.text) < len(phrases.text)
    expected = extract_phrases(many[split][:600], roots_only=split == "test").text
    assert phrases.text[: len(expected)] == expected
    assert treebank.load("validation", seed=3).text != treebank.load("validation").text
