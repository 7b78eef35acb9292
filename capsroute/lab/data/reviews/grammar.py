"""The sentences of generated reviews: a grammar that writes a bracket for any sentiment."""

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from . import rules
from .rules import (
    ADJECTIVES,
    FEELINGS,
    GRADABLE,
    NOUNS,
    PARTS,
    PEOPLE,
    PLURALS,
    QUALITIES,
    VERBS,
    WORKS,
    Bracket,
    contrast,
    inflected,
    join,
    reverse,
)

T = TypeVar("T")
Ways = list[tuple[float, Callable[[], T]]]  # of writing something, each with its weight
Core = tuple[str, list[Bracket]]  # a verb in its base form, and what follows it

# what one says something is neither of
NEITHER = {-1: [(1, 1), (2, 2), (1, 2), (2, 1)], 0: [(1, -1), (-1, 1), (2, -2), (-2, 2)], 1: [(-1, -1)]}


class Grammar:
    """Writes one sentence from the top down: each method gives a part of the sentiment that it is asked for."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.used: set[str] = set()  # words of content, none of which comes twice
        self.whole = False  # whether something is said of the film as a whole
        self.facts = True  # whether one would state bare facts here
        self.clauses: set[Bracket] = set()  # what could be a sentence of its own

    def draw(self, *options: T) -> T:
        return drawn(self.rng, options)

    def word(self, words: str) -> str:
        every = _split(words)
        word = self.draw(*([word for word in every if word not in self.used] or every))
        self.used.add(word)
        return word

    def choose(self, ways: Ways[T]) -> T:
        """What one of the ways gives, each with its weight."""
        left = self.rng.random() * sum(weight for weight, _ in ways)
        for weight, way in ways[:-1]:
            left -= weight
            if left < 0:
                return way()
        return ways[-1][1]()

    def noted(self, part: Bracket) -> Bracket:
        self.clauses.add(part)
        return part

    def sentence(self, x: int, depth: int) -> Bracket:
        ways: Ways[Bracket] = [
            (4, lambda: self.simple(x, depth)),
            (0.5, lambda: phrase(phrase(self.draw(*rules.FILLERS)), ",", self.simple(x, depth))),
        ]
        if _alike(x):
            ways.append((1, lambda: self.joined(x, depth)))
        if depth:
            ways.append((3, lambda: self.contrasted(x, depth - 1)))
        return self.noted(self.choose(ways))

    def joined(self, x: int, depth: int) -> Bracket:
        a, b = self.draw(*_alike(x))
        ways: Ways[Bracket] = [
            (2, lambda: phrase(self.clause(a, depth), ",", "and", self.simple(b, depth))),
            (1, lambda: phrase(self.told(a, depth), ",", "with", self.described(b))),
        ]
        return self.choose(ways)

    def contrasted(self, x: int, depth: int) -> Bracket:
        a, b = self.draw(*_unlike(x))
        self.facts = b != 0
        although = self.draw("although", "though", "while", "even though")
        ways: Ways[Bracket] = [
            (3, lambda: phrase(self.clause(a, depth), ",", self.word("but yet"), self.simple(b, depth))),
            (2, lambda: phrase(phrase(although, self.simple(a, depth)), ",", self.simple(b, depth))),
            (2, lambda: phrase(self.clause(b, depth), ",", although, self.simple(a, depth))),
            (1, lambda: phrase(phrase("despite", self.feature(a)), ",", self.simple(b, depth))),
            (1, lambda: phrase(self.clause(b, depth), "despite", self.feature(a))),
        ]
        return self.choose(ways)

    def simple(self, x: int, depth: int) -> Bracket:
        """A clause, or what somebody thinks of one."""
        ways: Ways[Bracket] = [
            (6, lambda: self.clause(x, depth)),
            (0.5, lambda: phrase(self.people(), self.draw("think that", "believe that"), self.told(x, depth))),
            (0.5, lambda: phrase(self.draw("it seems that", "everyone thinks that"), self.told(x, depth))),
        ]
        if depth and _arguments(x):
            ways.append((1, lambda: self.denied(x, depth)))
        return self.noted(self.choose(ways))

    def denied(self, x: int, depth: int) -> Bracket:
        u, left = self.reversed(x, depth)
        if left and _arguments(u) and self.rng.random() < 0.3:  # twice
            u, left = self.reversed(u, left)
            theirs, its = ("do not doubt that",), ("nobody doubts that",)
        else:
            theirs = ("do not think that", "do not believe that", "would not say that", "doubt that")
            its = ("nobody thinks that", "nobody would say that", "it is not true that")
        opening = [self.people(), self.draw(*theirs)] if self.rng.random() < 0.5 else [self.draw(*its)]
        again = left > 1 and u and _arguments(u) and self.rng.random() < 0.5
        return phrase(*opening, self.noted(self.denied(u, left)) if again else self.told(u, left))

    def reversed(self, x: int, depth: int) -> tuple[int, int]:
        """What a negation is about, and the depth left to it; "not not terrible" would be neutral to nobody."""
        u = self.draw(*_arguments(x))
        self.facts = False
        return u, depth - 1 if u else 0

    def clause(self, x: int, depth: int) -> Bracket:
        ways: Ways[Bracket] = [(4, lambda: self.told(x, depth)), (1, lambda: self.felt(x, depth))]
        return self.choose(ways)

    def told(self, x: int, depth: int) -> Bracket:
        """A subject and what is said of it."""
        kind = self.draw("part", "plural") if self.whole else self.draw("work", "work", "part", "plural")
        subject = self.work() if kind == "work" else self.part(kind)
        return self.noted(phrase(subject, self.predicate(x, depth, kind)))

    def work(self) -> Bracket:
        self.whole = True
        start = self.draw("the", "this", "it")
        return start if start == "it" else phrase(start, self.word(WORKS))

    def part(self, kind: str) -> Bracket:
        noun = self.word(PARTS if kind == "part" else PLURALS)
        if self.whole:
            return phrase(self.draw("the", "its"), noun)
        if self.rng.random() < 0.4:
            self.whole = True
            return phrase(phrase("the", noun), "of this", self.word(WORKS))
        return phrase("the", noun)

    def predicate(self, x: int, depth: int, kind: str) -> Bracket:
        ways: Ways[Bracket] = [(6, lambda: self.verbal(x, depth, kind))]
        if _alike(x):
            ways.append((0.5, lambda: self.two(self.draw(*_alike(x)), depth, kind, "and")))
        if depth and x:
            ways.append((0.5, lambda: self.two(self.draw(*_unlike(x, mild=True)), depth - 1, kind, "but yet")))
        return self.choose(ways)

    def two(self, pair: tuple[int, int], depth: int, kind: str, word: str) -> Bracket:
        """Two verbs; were the first one negated, the second might seem to be too."""
        first = self.finite(self.core(pair[0], 0, kind), kind)
        return phrase(first, self.word(word), self.verbal(pair[1], depth, kind))

    def verbal(self, x: int, depth: int, kind: str) -> Bracket:
        ways: Ways[Bracket] = [(4, lambda: self.finite(self.core(x, depth, kind), kind))]
        if depth and _arguments(x):
            ways.append((3, lambda: self.negated(x, depth, kind)))
        return self.choose(ways)

    def negated(self, x: int, depth: int, kind: str) -> Bracket:
        u, left = self.reversed(x, depth)
        verb, rest = core = self.core(u, left, kind, plain=True)
        if verb == "be":
            return phrase("are" if kind == "plural" else "is", self.draw("not", "not", "never", "hardly"), *rest)
        if self.rng.random() < 0.5:
            return phrase("do" if kind == "plural" else "does", "not", verb, *rest)
        return phrase(self.draw("never", "hardly"), self.finite(core, kind))

    def finite(self, core: Core, kind: str) -> Bracket:
        verb, rest = core
        return phrase({"be": "are"}.get(verb, verb) if kind == "plural" else inflected(verb), *rest)

    def core(self, x: int, depth: int, kind: str, plain: bool = False) -> Core:
        ways: Ways[Core] = [(4, lambda: ("be", [self.adjective(x, depth, plain)]))]
        if x:
            ways.append((2, lambda: (self.word(VERBS[x]), [])))
            ways.append((1, lambda: ("be", [phrase("full of", self.word(QUALITIES[x]))])))
        if x > 0:
            ways.append((1, lambda: ("have", [self.word(QUALITIES[x])])))
        if x and kind == "work":
            ways.append((3, lambda: ("be", [self.noun(x, depth, plain)])))
        if not x and kind == "work" and self.facts:
            ways.append((4, lambda: self.fact()))
        if depth and _arguments(x):
            ways.append((2, lambda: self.lacking(x)))
        return self.choose(ways)

    def fact(self) -> Core:
        verb, *rest = self.draw(*rules.FACTS).split()
        return verb, [*rest]

    def lacking(self, x: int) -> Core:
        """Negation by a word of content."""
        u = self.draw(*(u for u in _arguments(x) if u))
        quality = self.word(QUALITIES[u])
        verb = self.draw("lack", "without", "fail") if u > 0 else self.draw("avoid", "without", "free of")
        if verb == "fail":
            return verb, [phrase("to", self.word(VERBS[u]))]
        return (verb, [quality]) if verb in ("lack", "avoid") else ("be", [phrase(verb, quality)])

    def felt(self, x: int, depth: int) -> Bracket:
        """What people did with something."""
        someone, thing = self.people(), self.thing(x)
        if not depth or not _arguments(x) or self.rng.random() < 0.4:
            return self.noted(phrase(someone, self.draw(*FEELINGS[x].values()), thing))
        u, left = self.reversed(x, depth)
        if left and u == -1 and self.rng.random() < 0.5:
            u, left = self.reversed(u, left)
            negations = self.draw("did not fail to", "never failed to")
            return self.noted(phrase(someone, negations, self.draw(*FEELINGS[u]), thing))
        base, past = self.draw(*FEELINGS[u].items())
        negations = ["did not " + base, "never " + past, *(["failed to " + base] if u > 0 else [])]
        return self.noted(phrase(someone, self.draw(*negations), thing))

    def people(self) -> Bracket:
        return phrase(self.draw(*PEOPLE))

    def thing(self, x: int) -> Bracket:
        """What people have an opinion of; without one they just see films."""
        if not self.whole and (not x or self.rng.random() < 0.5):
            self.whole = True
            return phrase(self.draw("the", "this"), self.word(WORKS))
        return phrase("the", self.word(f"{PARTS} {PLURALS}"))

    def feature(self, x: int) -> Bracket:
        """A part or a quality of the film, known already."""
        start = self.draw("the", "its") if self.whole else "the"
        if x and self.rng.random() < 0.3:
            return phrase(start, self.word(QUALITIES[x]))
        return phrase(start, phrase(self.adjective(x, 0), self.word(f"{PARTS} {PLURALS}")))

    def described(self, x: int) -> Bracket:
        """A part of the film, not known yet."""
        if self.rng.random() < 0.5:
            return phrase(self.adjective(x, 0), self.word(PLURALS))
        return _article(phrase(self.adjective(x, 0), self.word("plot story script cast ending opening premise finale")))

    def noun(self, x: int, depth: int, plain: bool) -> Bracket:
        ways: Ways[Bracket] = [
            (1, lambda: _article(self.word(NOUNS[x]))),
            (1, lambda: _article(phrase(self.adjective(x, depth, plain), self.word("film movie picture")))),
        ]
        if abs(x) == 2:
            ways.append((1, lambda: _article(phrase(self.word(rules.EMPHASES), self.word(NOUNS[x // 2])))))
        return self.choose(ways)

    def adjective(self, x: int, depth: int, plain: bool = False) -> Bracket:
        """A plain one can be negated without a doubt about what is."""
        words, mild, extreme = ADJECTIVES[x], rules.INTENSIFIERS["mild"], rules.INTENSIFIERS["extreme"]
        ways: Ways[Bracket] = [(4, lambda: self.word(words))]
        if abs(x) == 2:
            often = "very really" if plain else mild
            ways.append((3, lambda: phrase(self.word(often), self.word(ADJECTIVES[x // 2]))))
        if x == -1:
            ways.append((1, lambda: phrase("too", self.word(GRADABLE))))
        if plain:
            return self.choose(ways)
        if abs(x) == 2:
            ways.append((1, lambda: phrase(self.word(extreme), self.word(words))))
        if abs(x) == 1:
            ways.append((1, lambda: phrase(self.word(rules.SOFTENERS["mild"]), self.word(words))))
            ways.append((2, lambda: phrase(self.word(rules.SOFTENERS["extreme"]), self.word(ADJECTIVES[2 * x]))))
        if x == 0:
            ways.append((2, lambda: phrase(self.draw("very", "extremely"), self.word(GRADABLE))))
        if _alike(x):
            ways.append((1, lambda: self.both(self.draw(*_alike(x)), "and")))
        if depth and x:
            ways.append((1, lambda: self.both(self.draw(*_unlike(x, mild=True)), "but")))
        if depth and x in NEITHER:
            ways.append((1, lambda: phrase("neither", self.both(self.draw(*NEITHER[x]), "nor"))))
        return self.choose(ways)

    def both(self, pair: tuple[int, int], word: str) -> Bracket:
        first, second = (self.word(ADJECTIVES[x]) for x in pair)
        return phrase(first, word, second)


def text(part: Bracket) -> str:
    return part if isinstance(part, str) else f"{text(part[0])} {text(part[1])}"


def phrase(*parts: Bracket) -> Bracket:
    """Parts put together from the last to the first; strings of several words are several parts."""
    *rest, last = [word for part in parts for word in (part.split() if isinstance(part, str) else [part])]
    return functools.reduce(lambda right, left: (left, right), reversed(rest), last)


_split = functools.cache(str.split)


def _article(part: Bracket) -> Bracket:
    return phrase("an" if text(part)[0] in "aeiou" else "a", part)


def drawn(rng: random.Random, options: Sequence[T]) -> T:
    """One of them; of an rng's methods only `random` is sure to give the same in every version of Python."""
    return options[int(rng.random() * len(options))]


@functools.cache
def _arguments(x: int) -> list[int]:
    """What reverses to a sentiment."""
    return [u for u in range(-2, 3) if reverse(u) == x]


@functools.cache
def _alike(x: int) -> list[tuple[int, int]]:
    """What joins to a sentiment, as far as one would join it by `and`."""
    return [(a, b) for a, b in itertools.product(range(-2, 3), repeat=2) if a * b > 0 and join(a, b) == x]


@functools.cache
def _unlike(x: int, mild: bool = False) -> list[tuple[int, int]]:
    """What contrasts to a sentiment, as far as one would contrast it; mild, where one thing is said to be both."""
    pairs = [(a, b) for a, b in itertools.product(range(-2, 3), repeat=2) if a * b < 0 or (a == 0) != (b == 0)]
    return [(a, b) for a, b in pairs if contrast(a, b) == x and (not mild or (b and abs(a) < 2 and abs(a * b) < 2))]
