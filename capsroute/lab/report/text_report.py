"""The report of a network that classifies sentences into ordered classes."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from ...credit import for_class, text_credit
from ...nets import SST
from ..analysis.accuracy import accuracy_by_factor
from ..encoders import Encoder
from ..formatting import percent, readable
from . import charts
from .html import Html, Section, folded, join, panels, paragraph, table, tinted_words
from .sections import (
    CREDIT,
    Album,
    Answers,
    RunDetails,
    describe_mistakes,
    make_answers,
    show_breakdowns,
    spread,
    write_page,
)

N_MISTAKES = 20
N_SAMPLES = 3  # of each class
MIN_BIN = 25  # sentences in a bin of lengths
NEGATIONS = (
    *("not", "cannot", "no", "nor", "neither", "never", "none", "nobody", "nothing", "nowhere"),
    *("without", "hardly", "barely", "scarcely"),
)
# the Penn Treebank separates them from the word before, so that one text would have two lengths
CLITIC = re.compile(r" (?=(?:n't|'(?:s|re|ve|ll|d|m))(?!\w))")
WORD = re.compile(r"\w+(?:['-]\w+)*")


def write_text_report(
    folder: Path,
    details: RunDetails,
    texts: Sequence[str],
    label: np.ndarray,
    network: SST | None = None,
    encoder: Encoder | None = None,
) -> Path:
    """Write `folder/report.html` and its pictures in place of an earlier report, and return the page's path.

    The texts, from any origin because they are escaped, and their classes `label [n]` are the test split; the classes
    are named in the order of their scale. With the network the report shows the credit of some answers, or says why it
    does not if the encoder is missing.
    """
    answers, names = make_answers(details, label, "sentences", "label"), details.names
    if len(texts) != len(answers.true):
        raise ValueError(f"texts: expected {len(answers.true)}, as scores, got {len(texts)}")
    counts = np.bincount(answers.true)
    intervals = {
        "95% interval, sentences as independent trials": answers.interval,
        f"always “{names[int(counts.argmax())]}”, the commonest": percent(counts.max() / len(answers.true)),
    }
    note = (
        "The interval (Wilson) takes each sentence for an independent trial: it says how far the choice of test "
        "sentences may have moved the accuracy, not what training with another seed would give."
    )

    def make_sections(album: Album) -> list[Section]:
        return [
            *([_distances(answers, album)] if len(names) > 2 else []),
            _by_length_and_negation(answers, texts, album),
            _mistakes(answers, texts),
            *([_credit(answers, texts, network, encoder, album)] if network is not None else []),
            _samples(answers, texts),
        ]

    return write_page(folder, details, answers, intervals, note, make_sections)


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation; a treebank's `does n't` is one word, `doesn't`."""
    line = " ".join(text.casefold().replace("\u2019", "'").split())
    return WORD.findall(CLITIC.sub("", line))


def count_negations(text: str) -> int:
    return sum(word in NEGATIONS or word.endswith("n't") for word in split_words(text))


def length_bins(lengths: np.ndarray) -> list[int]:
    """Return the largest length of each bin but the last: round numbers, a twentieth of the texts or more in each bin.

    They are multiples of the largest of 1, 2, 5, 10, 20, ... that divides the middle half of the lengths in two.
    """
    low, high = np.quantile(lengths, [0.25, 0.75])
    sizes = [digit * 10**power for power in range(9) for digit in (1, 2, 5)]
    step = max([size for size in sizes if 2 * size <= high - low], default=1)
    fewest = max(len(lengths) / 20, MIN_BIN)
    ends, below = [], 0
    for end in range(step, int(lengths.max()), step):
        n = int((lengths <= end).sum())
        if len(lengths) - n < fewest:
            break
        if n - below >= fewest:
            ends.append(end)
            below = n
    return ends


def split_spaces(sentence: str, tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each token with the space before it, none where the text has it right behind the token before."""
    pairs, end = [], None
    for token in tokens:
        start = sentence.find(token, end or 0)  # -1 for tokens that the encoder adds
        pairs.append(("" if start == end or not pairs else " ", readable(token)))
        end = start + len(token) if start >= 0 else end
    return pairs


def _by_length_and_negation(answers: Answers, texts: Sequence[str], album: Album) -> Section:
    lengths = np.array([len(split_words(text)) for text in texts])
    negations = np.minimum([count_negations(text) for text in texts], 2)
    ends = length_bins(lengths)
    bins = [f"{low + 1}" if high == low + 1 else f"{low + 1}-{high}" for low, high in pairwise(ends)]
    bins = [f"≤{ends[0]}", *bins, f"{ends[-1] + 1}+"] if ends else ["all"]
    by_length = accuracy_by_factor(answers.hit, np.searchsorted(ends, lengths))
    by_negation = accuracy_by_factor(answers.hit, negations)
    found = {
        "number of words": {bins[row.value]: row for row in by_length},
        "negation words": {("0", "1", "2 or more")[row.value]: row for row in by_negation},
    }
    note = "Each sentence counts as one independent trial."
    if negations.any() and not negations.all():
        with_any, without = lengths[negations > 0].mean(), lengths[negations == 0].mean()
        note += (
            f" The panels are not independent: sentences with a negation word have {with_any:.1f} words on average, "
            f"those without {without:.1f}."
        )
    definition = (
        f"Negation words are {', '.join(NEGATIONS)} and all words in n't. They are counted, not understood: "
        "“not only” counts, “lacks” and “fails to” do not."
    )
    chart, numbers = show_breakdowns(answers, found, note, "Numbers by sentence length and negation", album)
    return Section("Accuracy by sentence length and negation", [chart, paragraph(definition), numbers])


def _distances(answers: Answers, album: Album) -> Section:
    """Show how many classes lie between an answer and the true class."""
    n_classes, total = len(answers.names), len(answers.true)
    counts = np.bincount(np.abs(answers.predicted - answers.true), minlength=n_classes)
    labels = ["right", "1 step", *(f"{k} steps" for k in range(2, n_classes))]
    shares = [percent(count / total) for count in counts]
    constant = np.abs(answers.true[:, None] - np.arange(n_classes)).mean(0)  # if one class were always predicted
    best = int(constant.argmin())
    caption = (
        f"Share of test sentences by how many classes the answer lies from the true class, in the order "
        f"{', '.join(answers.names)}. {percent((counts[0] + counts[1]) / total)} are at most one step away. The mean "
        f"is {counts @ np.arange(n_classes) / total:.2f} steps; the best constant answer, always "
        f"“{answers.names[best]}”, would give {constant[best]:.2f}."
    )
    alt = ", ".join(f"{label} {share}" for label, share in zip(labels, shares, strict=True))
    chart = album.add("steps", charts.draw_steps(counts, labels), f"Bar chart of distances from the true class: {alt}.")
    rows = [(label, f"{count:,}", share) for label, count, share in zip(labels, counts, shares, strict=True)]
    numbers = table("By distance", ["answer is", "sentences", "share"], rows)
    return Section("How far off", [panels(caption, chart), folded("Numbers by distance", numbers)])


def _mistakes(answers: Answers, texts: Sequence[str]) -> Section:
    worst = answers.worst(N_MISTAKES)
    parts = [paragraph(describe_mistakes(answers, len(worst)))]
    return Section("Worst mistakes", parts + ([_answer_table("Mistakes", answers, texts, worst)] if worst else []))


def _samples(answers: Answers, texts: Sequence[str]) -> Section:
    which = [row for k in range(len(answers.names)) for row in spread(np.flatnonzero(answers.true == k), N_SAMPLES)]
    sentence = (
        f"{N_SAMPLES} of each class, evenly spaced through the test split, with the predicted class and its "
        "probability (softmax of the scores)."
    )
    return Section("Sample sentences", [paragraph(sentence), _answer_table("Samples", answers, texts, which)])


def _credit(answers: Answers, texts: Sequence[str], network: SST, encoder: Encoder | None, album: Album) -> Section:
    """Show which tokens, at which depth, spoke for the predicted class."""
    if encoder is None:
        return Section("Credit", [paragraph("Left out, because the encoder that the network reads is not here.")])
    parts = [
        paragraph(
            "What each token, over all depths, did for the odds of the predicted class against all others: blue for "
            "it, orange against it, the strongest in each sentence deepest. Below, the same by depth, where 0 is the "
            "embedding and each further one a layer of the transformer, beside the share of each hidden state that "
            "the class used. What was used says where data went, not what decided."
        )
    ]
    for kind, which in answers.credited().items():
        shown = [
            _credited_sentence(answers, texts[k], network, encoder, album, f"credit-{kind}-{place}", k)
            for place, k in enumerate(which, 1)
        ]
        parts += [paragraph(CREDIT[kind]), *shown] if shown else []
    return Section("Credit", parts)


def _credited_sentence(
    answers: Answers, sentence: str, network: SST, encoder: Encoder, album: Album, name: str, which: int
) -> Html:
    """Show a sentence in colours, its answer, and its tokens by depth."""
    device, target = network.depth_emb.device, int(answers.predicted[which])
    ((ids, tokens, truncated),) = encoder.split_tokens([sentence])
    mask, embs = (t.float().to(device) for t in encoder.encode([ids]))
    credit = text_credit(network, mask, embs)
    net = for_class(credit.net, credit.scores[:, None], torch.full((1, 1), target, device=device))[0].cpu().numpy()
    used = credit.use[0, ..., target].cpu().numpy()  # [n, depth]
    true, predicted, probability = answers.describe(which)
    answer = f"{predicted}, {probability}" + ("" if answers.hit[which] else f"; true: {true}")
    answer += "; the text was truncated to these tokens" if truncated else ""
    by_token = net.sum(1)
    best = readable(tokens[int(by_token.argmax())])
    alt = f"Heat map of {len(tokens)} tokens by {used.shape[1]} depths; “{best}” speaks most for {predicted}."
    picture = album.add(name, charts.draw_text_credit(tokens, used, net), alt)
    first = f", the first {charts.MAX_TOKENS} of {len(tokens)}" if len(tokens) > charts.MAX_TOKENS else ""
    by_depth = folded("Tokens by depth", panels(f"Tokens from top to bottom{first}.", picture))
    words = tinted_words(split_spaces(sentence, tokens), by_token.tolist())
    return join([words, paragraph(f"{answer}."), by_depth])


def _answer_table(caption: str, answers: Answers, texts: Sequence[str], which: Sequence[int]) -> Html:
    rows = [(readable(texts[k]), *answers.describe(k)) for k in which]
    return table(caption, ["sentence", "true", "predicted", "probability"], rows, "texts")
