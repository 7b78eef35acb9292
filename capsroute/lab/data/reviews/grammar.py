"""A grammar of film reviews that writes a sentence, as a bracket, for any sentiment."""

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from . import rules
from .rules import ADJECTIVES, FEELINGS, NOUNS, QUALITIES, VERBS, WORDS, Bracket

T = TypeVar("T")
VerbPhrase = tuple[str, list[Bracket]]  # a verb in its base form, and its complements

EVERY = range(-2, 3)
PAIRS = list(itertools.product(EVERY, repeat=2))

# sentiments a and b for which "neither a nor b" has the sentiment
NEITHER = {-1: [(1, 1), (2, 2), (1, 2), (2, 1)], 0: [(1, -1), (-1, 1), (2, -2), (-2, 2)], 1: [(-1, -1)]}
# by sentiment: whose negation it is, like sentiments that "and" joins to it, and unlike ones that "but" contrasts to it
NEGATED = {x: [u for u in EVERY if rules.negate(u) == x] for x in EVERY}
JOINED = {x: [(a, b) for a, b in PAIRS if a * b > 0 and rules.join(a, b) == x] for x in EVERY}
UNLIKE = [(a, b) for a, b in PAIRS if a * b < 0 or (a == 0) != (b == 0)]
CONTRASTED = {x: [(a, b) for a, b in UNLIKE if rules.contrast(a, b) == x] for x in EVERY}
NEAR = [(a, b) for a, b in UNLIKE if b and abs(a) < 2 and abs(a * b) < 2]  # may both hold of a single thing
MILD = {x: [(a, b) for a, b in NEAR if rules.contrast(a, b) == x] for x in EVERY}

FACTS: list[VerbPhrase] = [(verb, [rest]) for verb, rest in (fact.split(maxsplit=1) for fact in WORDS["facts"])]


class Grammar:
    """Write one sentence from the top down: each method returns a part that has the sentiment `x`."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.used: set[str] = set()  # content words, none of which comes twice
        self.film_named = False  # whether the sentence has named the film
        self.facts = True  # whether neutral facts fit here
        self.clauses: set[Bracket] = set()  # parts that could be sentences of their own

    def draw(self, *options: T) -> T:
        return pick(self.rng, options)

    def word(self, words: str) -> str:
        every = words.split()
        word = self.draw(*([word for word in every if word not in self.used] or every))
        self.used.add(word)
        return word

    def choose(self, *every: tuple[float, Callable[[], T]]) -> T:
        """Run one of the options, drawn by weight; those of weight 0 do not count."""
        options = [option for option in every if option[0]]
        left = self.rng.random() * sum(weight for weight, _ in options)
        for weight, write in options[:-1]:
            left -= weight
            if left < 0:
                return write()
        return options[-1][1]()

    def add_clause(self, part: Bracket) -> Bracket:
        self.clauses.add(part)
        return part

    def sentence(self, x: int, depth: int) -> Bracket:
        sentence = self.choose(
            (4, lambda: self.simple(x, depth)),
            (0.5, lambda: phrase(phrase(self.draw(*WORDS["fillers"])), ",", self.simple(x, depth))),
            (1 if JOINED[x] else 0, lambda: self.joined(x, depth)),
            (3 if depth else 0, lambda: self.contrasted(x, depth - 1)),
        )
        return self.add_clause(sentence)

    def joined(self, x: int, depth: int) -> Bracket:
        a, b = self.draw(*JOINED[x])
        return self.choose(
            (2, lambda: phrase(self.clause(a, depth), ",", "and", self.simple(b, depth))),
            (1, lambda: phrase(self.statement(a, depth), ",", "with", self.described(b))),
        )

    def contrasted(self, x: int, depth: int) -> Bracket:
        a, b = self.draw(*CONTRASTED[x])
        self.facts = b != 0
        although = self.draw("although", "though", "while", "even though")
        return self.choose(
            (3, lambda: phrase(self.clause(a, depth), ",", self.word("but yet"), self.simple(b, depth))),
            (2, lambda: phrase(phrase(although, self.simple(a, depth)), ",", self.simple(b, depth))),
            (2, lambda: phrase(self.clause(b, depth), ",", although, self.simple(a, depth))),
            (1, lambda: phrase(phrase("despite", self.feature(a)), ",", self.simple(b, depth))),
            (1, lambda: phrase(self.clause(b, depth), "despite", self.feature(a))),
        )

    def simple(self, x: int, depth: int) -> Bracket:
        """Write a clause, or somebody's opinion that it holds."""
        clause = self.choose(
            (6, lambda: self.clause(x, depth)),
            (0.5, lambda: phrase(self.people(), self.draw("think that", "believe that"), self.statement(x, depth))),
            (0.5, lambda: phrase(self.draw("it seems that", "everyone thinks that"), self.statement(x, depth))),
            (1 if depth and NEGATED[x] else 0, lambda: self.denied(x, depth)),
        )
        return self.add_clause(clause)

    def denied(self, x: int, depth: int) -> Bracket:
        u, left = self.negate(x, depth)
        if left and NEGATED[u] and self.rng.random() < 0.3:  # twice
            u, left = self.negate(u, left)
            theirs, its = ("do not doubt that",), ("nobody doubts that",)
        else:
            theirs = ("do not think that", "do not believe that", "would not say that", "doubt that")
            its = ("nobody thinks that", "nobody would say that", "it is not true that")
        opening = [self.people(), self.draw(*theirs)] if self.rng.random() < 0.5 else [self.draw(*its)]
        again = left > 1 and u and NEGATED[u] and self.rng.random() < 0.5
        return phrase(*opening, self.add_clause(self.denied(u, left)) if again else self.statement(u, left))

    def negate(self, x: int, depth: int) -> tuple[int, int]:
        """Choose the sentiment to negate, and the depth left; 0 allows no negation inside ("not not terrible")."""
        u = self.draw(*NEGATED[x])
        self.facts = False
        return u, depth - 1 if u else 0

    def clause(self, x: int, depth: int) -> Bracket:
        return self.choose((4, lambda: self.statement(x, depth)), (1, lambda: self.reaction(x, depth)))

    def statement(self, x: int, depth: int) -> Bracket:
        """Write a subject with its predicate."""
        kind = self.draw("part", "plural") if self.film_named else self.draw("work", "work", "part", "plural")
        return self.add_clause(phrase(self.subject(kind), self.predicate(x, depth, kind)))

    def subject(self, kind: str) -> Bracket:
        if kind == "work":
            self.film_named = True
            start = self.draw("the", "this", "it")
            return start if start == "it" else phrase(start, self.word(WORDS["works"]))
        noun = self.word(WORDS["parts"] if kind == "part" else WORDS["plurals"])
        if self.film_named:
            return phrase(self.draw("the", "its"), noun)
        if self.rng.random() < 0.4:
            self.film_named = True
            return phrase(phrase("the", noun), "of this", self.word(WORDS["works"]))
        return phrase("the", noun)

    def predicate(self, x: int, depth: int, kind: str) -> Bracket:
        return self.choose(
            (6, lambda: self.verbal(x, depth, kind)),
            (0.5 if JOINED[x] else 0, lambda: self.two_verbs(JOINED[x], depth, kind, "and")),
            (0.5 if depth and x else 0, lambda: self.two_verbs(MILD[x], depth - 1, kind, "but yet")),
        )

    def two_verbs(self, pairs: list[tuple[int, int]], depth: int, kind: str, word: str) -> Bracket:
        """Write two verbs; a negation of the first could be read as one of both, so it has none."""
        a, b = self.draw(*pairs)
        first = self.finite(self.verb_phrase(a, 0, kind), kind)
        return phrase(first, self.word(word), self.verbal(b, depth, kind))

    def verbal(self, x: int, depth: int, kind: str) -> Bracket:
        return self.choose(
            (4, lambda: self.finite(self.verb_phrase(x, depth, kind), kind)),
            (3 if depth and NEGATED[x] else 0, lambda: self.negated(x, depth, kind)),
        )

    def negated(self, x: int, depth: int, kind: str) -> Bracket:
        u, left = self.negate(x, depth)
        verb, rest = verb_phrase = self.verb_phrase(u, left, kind, plain=True)
        if verb == "be":
            return phrase("are" if kind == "plural" else "is", self.draw("not", "not", "never", "hardly"), *rest)
        if self.rng.random() < 0.5:
            return phrase("do" if kind == "plural" else "does", "not", verb, *rest)
        return phrase(self.draw("never", "hardly"), self.finite(verb_phrase, kind))

    def finite(self, verb_phrase: VerbPhrase, kind: str) -> Bracket:
        verb, rest = verb_phrase
        return phrase({"be": "are"}.get(verb, verb) if kind == "plural" else rules.inflect(verb), *rest)

    def verb_phrase(self, x: int, depth: int, kind: str, plain: bool = False) -> VerbPhrase:
        return self.choose(
            (4, lambda: ("be", [self.adjective(x, depth, plain)])),
            (2 if x else 0, lambda: (self.word(VERBS[x]), [])),
            (1 if x else 0, lambda: ("be", [phrase("full of", self.word(QUALITIES[x]))])),
            (1 if x > 0 else 0, lambda: ("have", [self.word(QUALITIES[x])])),
            (3 if x and kind == "work" else 0, lambda: ("be", [self.noun(x, depth, plain)])),
            (4 if not x and kind == "work" and self.facts else 0, lambda: self.draw(*FACTS)),
            (2 if depth and NEGATED[x] else 0, lambda: self.lacking(x)),
        )

    def lacking(self, x: int) -> VerbPhrase:
        """Negate by a content word: lacks charm, free of padding."""
        u = self.draw(*(u for u in NEGATED[x] if u))
        quality = self.word(QUALITIES[u])
        verb = self.draw("lack", "without", "fail") if u > 0 else self.draw("avoid", "without", "free of")
        if verb == "fail":
            return verb, [phrase("to", self.word(VERBS[u]))]
        return (verb, [quality]) if verb in ("lack", "avoid") else ("be", [phrase(verb, quality)])

    def reaction(self, x: int, depth: int) -> Bracket:
        """Write what people did: loved the plot."""
        someone, thing = self.people(), self.thing(x)
        if not depth or not NEGATED[x] or self.rng.random() < 0.4:
            return self.add_clause(phrase(someone, self.draw(*FEELINGS[x].values()), thing))
        u, left = self.negate(x, depth)
        if left and u == -1 and self.rng.random() < 0.5:
            u, left = self.negate(u, left)
            negations = self.draw("did not fail to", "never failed to")
            return self.add_clause(phrase(someone, negations, self.draw(*FEELINGS[u]), thing))
        base, past = self.draw(*FEELINGS[u].items())
        negations = ["did not " + base, "never " + past, *(["failed to " + base] if u > 0 else [])]
        return self.add_clause(phrase(someone, self.draw(*negations), thing))

    def people(self) -> Bracket:
        return phrase(self.draw(*WORDS["people"]))

    def thing(self, x: int) -> Bracket:
        """Name the film or a part of it; people without an opinion just see films."""
        if not self.film_named and (not x or self.rng.random() < 0.5):
            self.film_named = True
            return phrase(self.draw("the", "this"), self.word(WORDS["works"]))
        return phrase("the", self.word(f"{WORDS['parts']} {WORDS['plurals']}"))

    def feature(self, x: int) -> Bracket:
        """Write a part or a quality of the film, with a definite article."""
        start = self.draw("the", "its") if self.film_named else "the"
        if x and self.rng.random() < 0.3:
            return phrase(start, self.word(QUALITIES[x]))
        return phrase(start, phrase(self.adjective(x, 0), self.word(f"{WORDS['parts']} {WORDS['plurals']}")))

    def described(self, x: int) -> Bracket:
        """Write a part of the film, with an indefinite article."""
        if self.rng.random() < 0.5:
            return phrase(self.adjective(x, 0), self.word(WORDS["plurals"]))
        parts = "plot story script cast ending opening premise finale"
        return _add_article(phrase(self.adjective(x, 0), self.word(parts)))

    def noun(self, x: int, depth: int, plain: bool) -> Bracket:
        """Write what kind of film it is, with an indefinite article."""
        return _add_article(
            self.choose(
                (1, lambda: self.word(NOUNS[x])),
                (1, lambda: phrase(self.adjective(x, depth, plain), self.word("film movie picture"))),
                (1 if abs(x) == 2 else 0, lambda: phrase(self.word(WORDS["emphases"]), self.word(NOUNS[x // 2]))),
            )
        )

    def adjective(self, x: int, depth: int, plain: bool = False) -> Bracket:
        """Write an adjective with its adverbs; a `plain` one can be negated without ambiguity."""
        words, gradable, softeners = ADJECTIVES[x], WORDS["gradable"], WORDS["softeners"]
        intensifiers = {"mild": "very really"} if plain else WORDS["intensifiers"]
        free, strong, mild = not plain, abs(x) == 2, abs(x) == 1
        return self.choose(
            (4, lambda: self.word(words)),
            (3 if strong else 0, lambda: phrase(self.word(intensifiers["mild"]), self.word(ADJECTIVES[x // 2]))),
            (1 if x == -1 else 0, lambda: phrase("too", self.word(gradable))),
            (1 if free and strong else 0, lambda: phrase(self.word(intensifiers["extreme"]), self.word(words))),
            (1 if free and mild else 0, lambda: phrase(self.word(softeners["mild"]), self.word(words))),
            (2 if free and mild else 0, lambda: phrase(self.word(softeners["extreme"]), self.word(ADJECTIVES[2 * x]))),
            (2 if free and x == 0 else 0, lambda: phrase(self.draw("very", "extremely"), self.word(gradable))),
            (1 if free and JOINED[x] else 0, lambda: self.pair(JOINED[x], "and")),
            (1 if free and depth and x else 0, lambda: self.pair(MILD[x], "but")),
            (1 if free and depth and x in NEITHER else 0, lambda: phrase("neither", self.pair(NEITHER[x], "nor"))),
        )

    def pair(self, pairs: list[tuple[int, int]], word: str) -> Bracket:
        first, second = (self.word(ADJECTIVES[x]) for x in self.draw(*pairs))
        return phrase(first, word, second)


def join_words(part: Bracket) -> str:
    return part if isinstance(part, str) else f"{join_words(part[0])} {join_words(part[1])}"


def phrase(*parts: Bracket) -> Bracket:
    """Nest parts from the last to the first; a string of several words is several parts."""
    *rest, last = [word for part in parts for word in (part.split() if isinstance(part, str) else [part])]
    return functools.reduce(lambda right, left: (left, right), reversed(rest), last)


def _add_article(part: Bracket) -> Bracket:
    return phrase("an" if join_words(part)[0] in "aeiou" else "a", part)


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """Draw an option; `random` is the only method of an rng that is the same in every version of Python."""
    return options[int(rng.random() * len(options))]
