"""Sections of a report that show single test samples: the worst mistakes, and what some answers rest on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..explain import explain, resize_picture
from ..formatting import readable
from ..html import Html, Section, cards, encode_png, image, paragraph, table, text
from ..inference import Predictor
from ..preprocessing.images import open_image
from .sections import Answers

N_MISTAKES = 12
N_CREDITED = 3
SIDE = 192  # pixels of a picture
WHAT = {"images": "places of the image", "texts": "words", "arrays": "vectors"}


class Samples(NamedTuple):
    """The test samples of a run."""

    kind: str  # images, texts or arrays
    items: Sequence[Any]  # as `Predictor` takes them; an image as a list of its views
    names: Sequence[str]  # what each is called; a text is its own name


def show_mistakes(answers: Answers, samples: Samples) -> Section:
    """Show the wrong answers with the highest probability."""
    worst, n_wrong = answers.worst(N_MISTAKES), int((~answers.hit).sum())
    if not n_wrong:
        sentence = f"None: all {len(answers.hit):,} {answers.samples} were classified right."
        return Section("Worst mistakes", [paragraph(sentence)])
    sentence = (
        f"{answers.samples.capitalize()} classified wrong: {n_wrong:,}. Shown: {len(worst)}, those with the highest "
        "probability (softmax of the scores) on the wrong class, highest first."
    )
    if samples.kind == "images":
        shown = cards(_mistaken_image(answers, samples, k) for k in worst)
    else:
        rows = [(readable(samples.names[k]), *answers.describe(k)) for k in worst]
        shown = table("Mistakes", [answers.samples[:-1], "true", "predicted", "probability"], rows, "texts")
    return Section("Worst mistakes", [paragraph(sentence), shown])


def show_credit(answers: Answers, samples: Samples, predictor: Predictor) -> Section:
    """Show what spoke for the predicted class in right answers, evenly spaced, and in the worst wrong ones."""
    right = np.flatnonzero(answers.hit)
    spaced = np.unique(((np.arange(N_CREDITED) + 0.5) / N_CREDITED * len(right)).astype(int))[: len(right)]
    chosen: list[tuple[str, list[int]]] = [
        (f"Right answers: up to {N_CREDITED}, evenly spaced through the test split.", right[spaced].tolist()),
        (f"Wrong answers: up to {N_CREDITED}, those with the highest probability.", answers.worst(N_CREDITED)),
    ]
    parts = [
        paragraph(
            f"What the {WHAT[samples.kind]} did for the odds of the predicted class against all others: blue for it, "
            "orange against it, the strongest in each sample deepest."
        )
    ]
    for title, which in chosen:
        parts += [paragraph(title)] if which else []
        for k in which:
            true, predicted, probability = answers.describe(k)
            answer = f"{predicted}, {probability}" + ("." if answers.hit[k] else f"; true: {true}.")
            caption = answer if samples.kind == "texts" else f"{readable(samples.names[k])}: {answer}"
            parts.append(explain(predictor, samples.items[k], name=samples.names[k]).figure(caption))
    return Section("Credit", parts)


def _mistaken_image(answers: Answers, samples: Samples, k: int) -> Html:
    true, predicted, probability = answers.describe(k)
    name = readable(samples.names[k])
    pixels = np.asarray(resize_picture(open_image(samples.items[k][0]).convert("RGB"), SIDE))
    picture = image(encode_png(pixels), f"{name}: {true}, taken for {predicted}.")
    answer = f"<b>{text(true)}</b> taken for <b>{text(predicted)}</b>, {probability}"
    return Html(f"{picture}{answer}<small>{text(name)}</small>")
