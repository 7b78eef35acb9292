"""What the phrases of generated reviews mean: words with a sentiment, and rules that put parts together.

A sentence is a bracket of two parts, which are brackets or words. Sentiments run from -2, very negative, to 2, very
positive. A word has the one in `LEXICON`, or is neutral; that of a bracket follows from its two parts:

| rule | applies to | result |
|---|---|---|
| `intensify` | what follows very, utterly, real, ... | one step away from neutral: very good is 2 |
| `soften` | what follows almost, somewhat, ... | an extreme becomes mild, all else stays: almost perfect is 1 |
| `exceed` | what follows too | negative: too long is -1 |
| `reverse` | what follows not, lacks, nobody, ... | positive becomes -1, mildly negative 1, the rest neutral |
| `contrast` | X but Y; although X, Y; Y despite X | Y, but an extreme X that does not agree pulls it one step |
| `join` | any other two parts | the stronger one; opposites add up |

So "not good" is -1, "not dull" 1, "not terrible" 0 and "not without charm" 1.
"""

from collections.abc import Callable
from typing import NamedTuple

from ..trees import NEUTRAL, Node, Tree

Bracket = str | tuple["Bracket", "Bracket"]

ADJECTIVES = {
    2: "brilliant superb wonderful magnificent outstanding dazzling exquisite sublime stunning perfect unforgettable",
    1: "good funny clever charming engaging enjoyable amusing likeable fresh lively touching pleasant witty warm smart",
    0: "ordinary long short slow quiet loud dark simple serious familiar modern traditional",
    -1: "bad dull bland clumsy flat predictable tedious weak silly shallow forgettable stale messy confusing lifeless",
    -2: "awful terrible dreadful horrible atrocious unbearable appalling abysmal wretched unwatchable insufferable",
}
NOUNS = {  # what a film may be
    2: "masterpiece triumph marvel",
    1: "treat delight pleasure success",
    -1: "disappointment bore mess misfire chore",
    -2: "disaster travesty catastrophe abomination",
}
QUALITIES = {  # what it may have
    2: "genius brilliance greatness",
    1: "charm wit warmth energy heart style humour imagination grace suspense",
    -1: "flaws padding nonsense clichés clutter",
    -2: "idiocy incompetence misery",
}
VERBS = {  # what it may do
    2: "dazzle soar enthrall astonish",
    1: "work succeed entertain amuse please impress",
    -1: "drag stumble disappoint bore annoy falter",
    -2: "stink infuriate disgust repel",
}
FEELINGS = {  # what people may do to it
    2: {"love": "loved", "adore": "adored", "treasure": "treasured"},
    1: {"enjoy": "enjoyed", "like": "liked", "admire": "admired"},
    0: {"watch": "watched", "see": "saw", "discuss": "discussed", "finish": "finished"},
    -1: {"dislike": "disliked", "regret": "regretted", "resent": "resented"},
    -2: {"hate": "hated", "loathe": "loathed", "detest": "detested", "despise": "despised"},
}
FACTS = (
    "run for two hours",
    "open in Paris",
    "take place in Berlin",
    "follow a young detective",
    "follow two sisters",
    "begin with a wedding",
    "end at a railway station",
    "last ninety minutes",
)
GRADABLE = "long short slow quiet loud dark simple serious familiar"
WORKS = "film movie comedy drama thriller sequel remake documentary western musical"
PARTS = "plot story script acting cast dialogue direction photography editing ending opening premise finale soundtrack"
PLURALS = "performances jokes characters effects scenes actors costumes images"
PEOPLE = ("I", "we", "most critics", "my friends", "many viewers")
FILLERS = ("on the whole", "in the end", "of course", "to be fair", "this time", "as it happens")
INTENSIFIERS = {"mild": "very really extremely truly deeply thoroughly", "extreme": "truly utterly absolutely simply"}
SOFTENERS = {"mild": "rather somewhat mildly slightly fairly", "extreme": "almost nearly"}
EMPHASES = "real total complete absolute"
REVERSERS = "not never hardly without nobody neither free lack lacks avoid avoids fail fails failed doubt doubts"


def intensify(x: int) -> int:
    return max(-2, min(2, 2 * x))


def soften(x: int) -> int:
    return max(-1, min(1, x))


def exceed(x: int) -> int:
    return min(x, -1)


def reverse(x: int) -> int:
    return {2: -1, 1: -1, 0: 0, -1: 1, -2: 0}[x]


def join(x: int, y: int) -> int:
    return x + y if x * y < 0 else max(x, y, key=abs)


def contrast(x: int, y: int) -> int:
    """What is conceded first, then what outweighs it."""
    return y + x // 2 if abs(x) == 2 and x * y <= 0 else y


UNARY: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(" ".join([*INTENSIFIERS.values(), EMPHASES]).split(), intensify),
    **dict.fromkeys(" ".join(SOFTENERS.values()).split(), soften),
    "too": exceed,
    **dict.fromkeys(REVERSERS.split(), reverse),
}
MARKS = {  # words that say which side of a contrast the words after them are
    **dict.fromkeys(("but", "yet"), "outweighs"),
    **dict.fromkeys(("although", "though", "while", "despite"), "conceded"),
}
SILENT = (",", "even")  # before a marked part, they leave its mark on it


def inflected(verb: str) -> str:
    """Third person singular."""
    irregular = {"be": "is", "have": "has"}
    return irregular.get(verb, verb + ("es" if verb.endswith(("s", "sh", "ch")) else "s"))


def _lexicon() -> dict[str, int]:
    table = {word: x for kind in (ADJECTIVES, NOUNS, QUALITIES) for x, words in kind.items() for word in words.split()}
    table |= {form: x for x, words in VERBS.items() for word in words.split() for form in (word, inflected(word))}
    table |= {form: x for x, words in FEELINGS.items() for pair in words.items() for form in pair}
    return table | dict.fromkeys(("lack", "lacks", "fail", "fails", "failed", "doubt", "doubts"), -1)


LEXICON = _lexicon()


class Meaning(NamedTuple):
    """What the rules need to know of a part."""

    sentiment: int
    depth: int = 0  # reversals and contrasts inside
    mark: str | None = None  # which side of a contrast it is


def compose(left: Bracket, a: Meaning, b: Meaning) -> Meaning:
    """The meaning of a bracket from its left part and what both parts mean."""
    depth = max(a.depth, b.depth)
    if isinstance(left, str):
        if left in MARKS:
            return b._replace(mark=MARKS[left])
        if left in SILENT:
            return b
        if left in UNARY:
            rule = UNARY[left]
            return Meaning(rule(b.sentiment), depth + (rule is reverse))
    if a.mark == "conceded" or b.mark == "outweighs":
        return Meaning(contrast(a.sentiment, b.sentiment), depth + 1)
    if b.mark == "conceded":
        return Meaning(contrast(b.sentiment, a.sentiment), depth + 1)
    return Meaning(join(a.sentiment, b.sentiment), depth)


def labelled(bracket: Bracket) -> tuple[Tree, int]:
    """A bracket with the sentiments of all parts, and its depth."""
    words: list[str] = []
    nodes: list[Node] = []

    def visit(part: Bracket) -> Meaning:
        place, start = len(nodes), len(words)
        nodes.append(Node(NEUTRAL, start, start))
        if isinstance(part, str):
            words.append(part)
            meaning = Meaning(LEXICON.get(part, 0))
        else:
            left, right = part
            meaning = compose(left, visit(left), visit(right))
        nodes[place] = Node(meaning.sentiment + NEUTRAL, start, len(words))
        return meaning

    depth = visit(bracket).depth
    words[0] = words[0][0].upper() + words[0][1:]
    return Tree(tuple(words), tuple(nodes)), depth
