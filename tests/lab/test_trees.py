"""Bracketed trees: parsing, error messages and the phrases taken from them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from capsroute.lab.data import sst
from capsroute.lab.data.published import DataError
from capsroute.lab.data.trees import Node, Phrases, TreeError, extract_phrases, parse_tree, read_trees

LINE = "(3 (2 It) (4 (2 's) (4 fun)))"


def test_parse_tree_returns_words_and_nodes() -> None:
    tree = parse_tree(LINE)
    assert tree.words == ("It", "'s", "fun")
    assert tree.nodes == (Node(3, 0, 3), Node(2, 0, 1), Node(4, 1, 3), Node(2, 1, 2), Node(4, 2, 3))
    assert tree.label == 3
    assert [tree.text(node) for node in tree.nodes] == ["It 's fun", "It", "'s fun", "'s", "fun"]
    assert tree.text() == "It 's fun"


@pytest.mark.parametrize("wrap", ["(2 {})", "(2 (2 x) {})"], ids=["one word", "nested"])
def test_long_phrases_in_many_trees_are_refused(wrap: str) -> None:
    """A line of 0.5 MB must not become half a billion characters of phrases."""
    line = f"(2 {'w' * 490_000})"
    for _ in range(990):
        line = wrap.format(line)
    with pytest.raises(TreeError, match="expected phrases of at most 100,000 characters together, got more"):
        parse_tree(line)


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        "(0 no)",
        "(1 (2 (3 one)))",
        "(1 (2 (3 (4 a) (0 b)) (1 c)) (2 (2 (2 d))) (3 e))",
        r"(2 (2 -LRB-) (2 and\/or) (2 \*\*\*) (2 -RRB-))",
        "(2 (2 été) (2 8\u00a01\\/2))",
    ],
)
def test_tree_round_trips(line: str) -> None:
    assert str(parse_tree(line)) == line


def test_spaces_are_ignored() -> None:
    assert parse_tree(" ( 3(2 It)\t(4 ( 2 's )(4 fun)) ) \r") == parse_tree(LINE)


def test_escapes_are_decoded() -> None:
    tree = parse_tree(r"(2 (2 -LRB-) (2 writer\/director) (2 \*\*) (2 -RRB-) (2 --) (2 ``))")
    assert tree.text() == "( writer/director ** ) -- ``"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "expected a tree, which begins with (, got an empty line"),
        ("   ", "expected a tree, which begins with (, got an empty line"),
        ("word", "expected a tree, which begins with (, got 'word'"),
        (")", "expected a tree, which begins with (, got ')'"),
        ("(", "expected a label from 0 to 4, got the end of the line"),
        ("()", "expected a label from 0 to 4, got ')'"),
        ("(5 a)", "expected a label from 0 to 4, got '5'"),
        ("(-1 a)", "expected a label from 0 to 4, got '-1'"),
        ("(03 a)", "expected a label from 0 to 4, got '03'"),
        ("(\u0663 a)", "expected a label from 0 to 4, got '\u0663'"),
        ("(S (2 a))", "expected a label from 0 to 4, got 'S'"),
        ("((2 a))", "expected a label from 0 to 4, got '('"),
        ("(2", "expected a word or (, got the end of the line"),
        ("(2)", "expected a word or (, got ')'"),
        ("(2 a", "expected ), got the end of the line"),
        ("(2 a b)", "expected ) after the only word of a leaf, got 'b'"),
        ("(2 a (2 b))", "expected ) after the only word of a leaf, got '('"),
        ("(2 (2 a) b)", "expected ( or ), got 'b'"),
        ("(2 (2 a)", "expected ), got the end of the line"),
        ("(2 a))", "expected nothing after the tree, got ')'"),
        ("(2 a) (2 b)", "expected nothing after the tree, got '('"),
        ("(2 a) b", "expected nothing after the tree, got 'b'"),
        (f"(2 a) {'b' * 500}", f"expected nothing after the tree, got '{'b' * 40}…'"),
    ],
)
def test_malformed_line_is_refused(line: str, words: str) -> None:
    with pytest.raises(TreeError) as raised:
        parse_tree(line)
    assert str(raised.value) == words


@pytest.mark.parametrize("n", [1001, 100_000])
@pytest.mark.parametrize("closed", [False, True])
def test_too_deep_line_is_refused(n: int, closed: bool) -> None:
    with pytest.raises(TreeError, match="expected at most 1,000 nested brackets, got more"):
        parse_tree("(2 " * n + "a" + ")" * n * closed)


def test_deep_line_round_trips() -> None:
    line = "(2 (3 a) " * 300 + "(2 b)" + ")" * 300
    tree = parse_tree(line)
    assert parse_tree(str(tree)) == tree
    assert len(tree.words) == 301


def test_read_trees_accepts_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "few.txt"
    for end in ("", "\n", "\r\n"):
        path.write_bytes(f"{LINE}\n(1 été){end}".encode())
        assert [tree.text() for tree in read_trees(path)] == ["It 's fun", "été"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ": expected trees, got an empty file"),
        (b"\n", ", line 1: expected a tree, which begins with (, got an empty line"),
        (b"(2 a)\n\n(2 a)\n", ", line 2: expected a tree, which begins with (, got an empty line"),
        (b"(2 a)\n(2 \xff)\n", ", line 2: expected text in UTF-8, got byte 0xff at place 4"),
        ("(2 été)\n".encode("latin-1"), ", line 1: expected text in UTF-8, got byte 0xe9 at place 4"),
        (LINE.encode("utf-16"), ", line 1: expected text in UTF-8, got byte 0xff at place 1"),
        (b"(2 a)\n" * 16 + LINE.encode()[:-5], ", line 17: expected ), got the end of the line"),
        (b"<!doctype html>", ", line 1: expected a tree, which begins with (, got '<!doctype'"),
        (b"PK\x03\x04(2 a)", ", line 1: expected a tree, which begins with (, got 'PK\\x03\\x04'"),
    ],
)
def test_malformed_file_names_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "test.txt"
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        read_trees(path)
    assert str(raised.value) == f"{path}{words}"


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt cannot be read: No such file"):
        read_trees(tmp_path / "none.txt")


def listed(phrases: Phrases) -> list[tuple[str, int]]:
    assert phrases.label.dtype == np.int64
    return list(zip(phrases.text, phrases.label.tolist(), strict=True))


def test_phrases_have_most_frequent_label() -> None:
    lines = ["(4 (1 so) (3 good))", "(0 (2 so) (3 bad))", "(2 (2 so) (1 good))", "(4 (1 so) (3 good))"]
    found = [parse_tree(line) for line in lines]
    # "so" is 1, 2, 2, 1: of equals the first seen; "good" is 3, 1, 3
    assert listed(extract_phrases(found)) == [("so good", 4), ("so", 1), ("good", 3), ("so bad", 0), ("bad", 3)]
    assert listed(extract_phrases(found, roots_only=True)) == [
        ("so good", 4),
        ("so bad", 0),
        ("so good", 2),
        ("so good", 4),
    ]


def test_two_classes_skip_neutral() -> None:
    lines = ["(4 (2 so) (3 good))", "(2 (2 so) (2 good))", "(0 (2 so) (1 bad))", "(2 (2 so) (2 good))"]
    found = [parse_tree(line) for line in lines]
    # "good" is neutral twice and positive once, but what is neutral does not count
    assert listed(extract_phrases(found, 2)) == [("so good", 1), ("good", 1), ("so bad", 0), ("bad", 0)]
    assert listed(extract_phrases(found, 2, roots_only=True)) == [("so good", 1), ("so bad", 0)]


def test_no_trees_give_no_phrases() -> None:
    assert listed(extract_phrases([])) == []


def test_take_selects_phrases() -> None:
    every = Phrases(["a", "b", "c"], np.array([0, 1, 2]))
    assert listed(every.take(np.array([2, 0]))) == [("c", 2), ("a", 0)]
    assert listed(every.take(np.array([False, True, False]))) == [("b", 1)]
    assert listed(every.take(np.array([], dtype=np.int64))) == []


@pytest.mark.data
@pytest.mark.parametrize(
    ("split", "five", "two"),
    [("train", 159_274, 77_616), ("validation", 1_101, 872), ("test", 2_210, 1_821)],
)
def test_real_files_have_published_counts(data: Path, split: str, five: int, two: int) -> None:
    path = data / "sst" / "trees" / sst.FILES[split]
    found, lines = read_trees(path), path.read_text(encoding="utf-8").split("\n")
    assert [str(tree) for tree in found] == lines[:-1]
    for classes, n in ((5, five), (2, two)):
        phrases = extract_phrases(found, classes, roots_only=split != "train")
        assert len(phrases.text) == len(phrases.label) == n
        assert set(phrases.label.tolist()) == set(range(classes))
        if split == "train":
            assert max(Counter(phrases.text).values()) == 1
        assert not [text for text in phrases.text if "-LRB-" in text or "\\" in text]
