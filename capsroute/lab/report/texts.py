"""The sections of a report that are about texts: how long they are, what they deny, and which went wrong."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...credit import for_class, text_credit
from ..analysis.accuracy import accuracy_by_factor as by_factor
from ..formatting import percent, readable
from . import figures
from .credit_figures import MOST_TOKENS, text_credits, tint
from .page import Album, Html, Section, figure, folded, join, paragraph, table, text
from .sections import CREDIT, Answers, Breakdown, breakdowns, right_and_wrong, worst_mistakes

if TYPE_CHECKING:
    from ...nets import SST
    from ..encoders import Encoder

N_MISTAKES = 20
N_SAMPLES = 3
"""Of each class."""
LEAST = 25
"""Sentences in a bin of lengths: fewer say nothing."""
NEGATIONS = (
    *("not", "cannot", "no", "nor", "neither", "never", "none", "nobody", "nothing", "nowhere"),
    *("without", "hardly", "barely", "scarcely"),
)
"""Beside all words that end in n't. They count as words, whatever they deny: `not only` counts too."""

# the Penn Treebank cuts them off the word before, so that one text would have two lengths
CUT_OFF = re.compile(r" (?=(?:n't|'(?:s|re|ve|ll|d|m))(?!\w))")
WORD = re.compile(r"\w+(?:['-]\w+)*")


def words(text: str) -> list[str]:
    """The words, in small letters and without punctuation; `does n't`, as treebanks write it, is `doesn't`."""
    line = " ".join(text.casefold().replace("\u2019", "'").split())
    return WORD.findall(CUT_OFF.sub("", line))


def negations(text: str) -> int:
    """How many negation words there are."""
    return sum(word in NEGATIONS or word.endswith("n't") for word in words(text))


def length_bins(lengths: np.ndarray) -> list[int]:
    """The largest length of each bin but the last: round numbers, at least a twentieth of the texts in each bin.

    Round means multiples of the largest of 1, 2, 5, 10, 20, ... that cuts the middle half of the lengths in two.
    """
    quarter, three = np.quantile(lengths, [0.25, 0.75])
    sizes = [digit * 10**power for power in range(9) for digit in (1, 2, 5)]
    step = max([size for size in sizes if 2 * size <= three - quarter], default=1)
    least = max(len(lengths) / 20, LEAST)
    ends, below = [], 0
    for end in range(step, int(lengths.max()), step):
        n = int((lengths <= end).sum())
        if len(lengths) - n < least:
            break
        if n - below >= least:
            ends.append(end)
            below = n
    return ends


def as_trials(answers: Answers) -> tuple[dict[str, str], str]:
    """The interval and what to hold the accuracy against, as facts, and a sentence on what the interval says."""
    counts = np.bincount(answers.true)
    common = int(counts.argmax())
    shown = {
        "95% interval, sentences as independent trials": answers.interval,
        f"always “{answers.names[common]}”, the commonest": percent(counts[common] / len(answers.true)),
    }
    return shown, (
        "The interval (Wilson) takes each sentence for one independent trial: it says how far the choice of test "
        "sentences may have moved the accuracy, not what training again with another seed would give."
    )


def by_length_and_negation(answers: Answers, texts: Sequence[str], album: Album) -> Section:
    """Accuracy by the number of words and of negation words, on one common axis."""
    lengths = np.array([len(words(text)) for text in texts])
    denied = np.minimum([negations(text) for text in texts], 2)
    ends = length_bins(lengths)
    names = _bin_names(ends)
    by_length = by_factor(answers.hit, np.searchsorted(ends, lengths))
    by_negation = by_factor(answers.hit, denied)
    found = [
        Breakdown("number of words", by_length, [names[row.value] for row in by_length]),
        Breakdown("negation words", by_negation, [("0", "1", "2 or more")[row.value] for row in by_negation]),
    ]
    note = "Each sentence counts as one independent trial."
    if denied.any() and not denied.all():
        with_any, without = (lengths[denied > 0].mean(), lengths[denied == 0].mean())
        note += (
            f" The panels are not independent of each other: sentences with a negation word have {with_any:.1f} words "
            f"on average, those without {without:.1f}."
        )
    listed = (
        f"Negation words are {', '.join(NEGATIONS)} and all words in n't. They are counted, not understood: "
        "“not only” counts, “lacks” and “fails to” do not. Punctuation is no word."
    )
    charts, numbers = breakdowns(answers, found, note, "Numbers by sentence length and negation", album)
    return Section("Accuracy by sentence length and negation", [charts, paragraph(listed), numbers])


def steps_off(answers: Answers, album: Album) -> Section:
    """How far answers lie from the truth, where classes stand in order."""
    n_classes, total = len(answers.names), len(answers.true)
    counts = np.bincount(np.abs(answers.predicted - answers.true), minlength=n_classes)
    labels = ["right", "1 step", *(f"{k} steps" for k in range(2, n_classes))]
    constant = np.abs(answers.true[:, None] - np.arange(n_classes)).mean(0)  # had all been given one class
    near, best = (counts[0] + counts[1]) / total, int(constant.argmin())
    caption = (
        f"Share of test sentences by how many classes the answer lies from the truth, in the order "
        f"{', '.join(answers.names)}. {percent(near)} are at most one step away. The mean is "
        f"{counts @ np.arange(n_classes) / total:.2f} steps; the best fixed answer, always “{answers.names[best]}”, "
        f"would give {constant[best]:.2f}."
    )
    alt = "Bar chart of sentences by distance from the truth: " + ", ".join(
        f"{label} {percent(count / total)}" for label, count in zip(labels, counts, strict=True)
    )
    drawing = figures.steps(counts, labels)
    rows = [(label, f"{count:,}", percent(count / total)) for label, count in zip(labels, counts, strict=True)]
    return Section(
        "How far off",
        [
            figure([album.add("steps", figures.png(drawing), f"{alt}.", "chart")], caption),
            folded("Numbers by distance", table("By distance", ["answer is", "sentences", "share"], rows)),
        ],
    )


def mistakes(answers: Answers, texts: Sequence[str]) -> Section:
    """The sentences for which the network was surest of a wrong class."""
    worst, sentence = worst_mistakes(answers, N_MISTAKES)
    shown = [_with_answers("Mistakes", answers, texts, worst.tolist())] if len(worst) else []
    return Section("Worst mistakes", [paragraph(sentence), *shown])


def samples(answers: Answers, texts: Sequence[str]) -> Section:
    """Some sentences of each class, chosen without a look at the answers."""
    places = (np.arange(N_SAMPLES) + 0.5) / N_SAMPLES
    chosen = []
    for k in range(len(answers.names)):
        members = np.flatnonzero(answers.true == k)
        chosen += members[np.unique((places * len(members)).astype(int))].tolist() if len(members) else []
    sentence = (
        f"{N_SAMPLES} of each class, evenly spaced through the test split whatever the answer, with the class "
        "predicted and its probability (softmax of the scores)."
    )
    return Section("Sample sentences", [paragraph(sentence), _with_answers("Samples", answers, texts, chosen)])


def credits(answers: Answers, texts: Sequence[str], network: "SST", encoder: "Encoder | None", album: Album) -> Section:
    """Which tokens, at which depth, spoke for the class predicted: right answers and wrong ones."""
    title = "What answers rest on"
    if encoder is None:
        return Section(title, [paragraph("Left out, because the encoder of this network could not be loaded.")])
    parts = [
        paragraph(
            "Words are coloured by what their hidden states, of all depths together, did for the odds of the class "
            "predicted against all others: blue for it, orange against it, the strongest in each sentence deepest. "
            "Below, the same by depth, where 0 is the embedding and each further one a layer of the transformer, "
            "beside the share of each hidden state that the class used. What was used says where data went, not what "
            "decided."
        )
    ]
    for kind, chosen in right_and_wrong(answers).items():
        shown = [
            _credited(answers, texts[k], network, encoder, album, f"credit-{kind}-{place}", k)
            for place, k in enumerate(chosen, 1)
        ]
        parts += [paragraph(CREDIT[kind]), *shown] if shown else []
    return Section(title, parts)


def _credited(
    answers: Answers, sentence: str, network: "SST", encoder: "Encoder", album: Album, name: str, which: int
) -> Html:
    """One sentence in colours, its answer, and its tokens by depth."""
    device, taken = network.depth_emb.device, int(answers.predicted[which])
    mask, embs = (t.float().to(device) for t in encoder.encode(encoder.tokenize([sentence])))
    pieces, cut = encoder.tokens(sentence)
    found = text_credit(network, mask, embs)
    owed = for_class(found.net, found.scores[:, None], torch.full((1, 1), taken, device=device))[0].cpu().numpy()
    used = found.use[0, ..., taken].cpu().numpy()  # [n, depth]
    true, predicted, sureness = answers.said(which)
    answer = f"{predicted}, {sureness}" + ("" if answers.hit[which] else f"; true: {true}")
    if cut:
        answer += "; the text goes on, but only these tokens were read"
    by_token = owed.sum(1)
    best = readable(pieces[int(by_token.argmax())])
    alt = f"Heat map of {len(pieces)} tokens by {used.shape[1]} depths; “{best}” speaks most for {predicted}."
    image = album.add(name, figures.png(text_credits(pieces, used, owed)), alt, "chart")
    cut_off = f", the first {MOST_TOKENS} of {len(pieces)}" if len(pieces) > MOST_TOKENS else ""
    by_depth = folded("Tokens by depth", figure([image], f"Tokens from top to bottom{cut_off}."))
    return join([coloured(spaced(sentence, pieces), by_token), paragraph(f"{answer}."), by_depth])


def coloured(pieces: Sequence[tuple[str, str]], worths: np.ndarray) -> Html:
    """A sentence in pieces, each with the space before it; the farther from zero, the deeper a piece's colour."""
    most = float(np.abs(worths).max()) or 1.0
    spans = (
        f'{space}<span style="background:{tint(worth / most)}">{text(piece)}</span>'
        for (space, piece), worth in zip(pieces, worths.tolist(), strict=True)
    )
    return Html(f'<p class="tinted">{"".join(spans)}</p>')


def spaced(sentence: str, pieces: Sequence[str]) -> list[tuple[str, str]]:
    """The tokens, each with a space before it unless the text has it right behind the one before."""
    shown, end = [], None
    for piece in pieces:
        start = sentence.find(piece, end or 0)  # below 0 for tokens that the encoder adds
        shown.append(("" if start == end or not shown else " ", readable(piece)))
        end = start + len(piece) if start >= 0 else end
    return shown


def _with_answers(caption: str, answers: Answers, texts: Sequence[str], which: Sequence[int]) -> Html:
    rows = [(readable(texts[k]), *answers.said(k)) for k in which]
    return table(caption, ["sentence", "true", "predicted", "probability"], rows, "texts")


def _bin_names(ends: Sequence[int]) -> list[str]:
    """Such as `≤10, 11-20, 21+`; bins of one length have its number alone."""
    if not ends:
        return ["all"]
    inner = [f"{low + 1}" if high == low + 1 else f"{low + 1}-{high}" for low, high in pairwise(ends)]
    return [f"≤{ends[0]}", *inner, f"{ends[-1] + 1}+"]
