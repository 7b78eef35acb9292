"""The sentiment of a phrase: a lexicon of words, and rules that combine the sentiments of two parts.

A sentence is a bracket of two parts, which are brackets or words. Sentiments run from -2, very negative, to 2, very
positive. `LEXICON` has those of words, others are neutral; that of a bracket follows from its two parts:

| rule | applies to | result |
|---|---|---|
| `intensify` | very, utterly, real, ... X | one step away from neutral: very good is 2 |
| `soften` | almost, somewhat, ... X | an extreme becomes mild, all else stays: almost perfect is 1 |
| `exceed` | too X | negative: too long is -1 |
| `negate` | not, lacks, nobody, ... X | positive becomes -1, mildly negative 1, the rest neutral |
| `contrast` | X but Y; although X, Y; Y despite X | Y, but an extreme X that does not agree pulls it one step |
| `join` | any other two parts | the stronger one; opposites add up |

So "not good" is -1, "not dull" 1, "not terrible" 0 and "not without charm" 1.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..trees import NEUTRAL, Node, Tree

Bracket = str | tuple["Bracket", "Bracket"]

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
ADJECTIVES, NOUNS, QUALITIES, VERBS, FEELINGS = (
    {int(x): words for x, words in WORDS[kind].items()}
    for kind in ("adjectives", "nouns", "qualities", "verbs", "feelings")
)


def intensify(x: int) -> int:
    return max(-2, min(2, 2 * x))


def soften(x: int) -> int:
    return max(-1, min(1, x))


def exceed(x: int) -> int:
    return min(x, -1)


def negate(x: int) -> int:
    return {2: -1, 1: -1, 0: 0, -1: 1, -2: 0}[x]


def join(x: int, y: int) -> int:
    return x + y if x * y < 0 else max(x, y, key=abs)


def contrast(x: int, y: int) -> int:
    """Combine the conceded `x` with the `y` that outweighs it."""
    return y + x // 2 if abs(x) == 2 and x * y <= 0 else y


UNARY: dict[str, Callable[[int], int]] = {
    "too": exceed,
    **dict.fromkeys(" ".join([*WORDS["intensifiers"].values(), WORDS["emphases"]]).split(), intensify),
    **dict.fromkeys(" ".join(WORDS["softeners"].values()).split(), soften),
    **dict.fromkeys(WORDS["negations"].split(), negate),
}
MARKS: dict[str, str] = {  # the side of a contrast that the words after these are
    **dict.fromkeys(("but", "yet"), "outweighs"),
    **dict.fromkeys(("although", "though", "while", "despite"), "conceded"),
}
TRANSPARENT = (",", "even")  # leave the mark of the part after them as it is


def inflect(verb: str) -> str:
    """Return the third person singular of a verb."""
    irregular = {"be": "is", "have": "has"}
    return irregular.get(verb, verb + ("es" if verb.endswith(("s", "sh", "ch")) else "s"))


LEXICON = {word: x for kind in (ADJECTIVES, NOUNS, QUALITIES) for x, words in kind.items() for word in words.split()}
LEXICON |= {form: x for x, words in VERBS.items() for word in words.split() for form in (word, inflect(word))}
LEXICON |= {form: x for x, verbs in FEELINGS.items() for pair in verbs.items() for form in pair}
LEXICON |= dict.fromkeys(("lack", "lacks", "fail", "fails", "failed", "doubt", "doubts"), -1)


class Meaning(NamedTuple):
    """Hold what the rules use of a part."""

    sentiment: int
    depth: int = 0  # negations and contrasts inside
    mark: str | None = None  # its side of a contrast


def compose(left: Bracket, a: Meaning, b: Meaning) -> Meaning:
    """Return the meaning of a bracket from its left part and the meanings `a` and `b` of both."""
    depth = max(a.depth, b.depth)
    if isinstance(left, str):
        if left in MARKS:
            return b._replace(mark=MARKS[left])
        if left in TRANSPARENT:
            return b
        if rule := UNARY.get(left):
            return Meaning(rule(b.sentiment), depth + (rule is negate))
    if a.mark == "conceded" or b.mark == "outweighs":
        return Meaning(contrast(a.sentiment, b.sentiment), depth + 1)
    if b.mark == "conceded":
        return Meaning(contrast(b.sentiment, a.sentiment), depth + 1)
    return Meaning(join(a.sentiment, b.sentiment), depth)


def label_bracket(bracket: Bracket) -> tuple[Tree, int]:
    """Return the tree of a bracket, with the sentiments of all parts, and its depth."""
    words: list[str] = []
    nodes: list[Node] = []

    def visit(part: Bracket) -> Meaning:
        k, start = len(nodes), len(words)
        nodes.append(Node(NEUTRAL, start, start))
        if isinstance(part, str):
            words.append(part)
            meaning = Meaning(LEXICON.get(part, 0))
        else:
            left, right = part
            meaning = compose(left, visit(left), visit(right))
        nodes[k] = Node(meaning.sentiment + NEUTRAL, start, len(words))
        return meaning

    depth = visit(bracket).depth
    words[0] = words[0][0].upper() + words[0][1:]
    return Tree(tuple(words), tuple(nodes)), depth
