"""The report of a network for one's own data: images, texts or sets of vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.own import list_images
from ..explain import explain, resize_picture
from ..formatting import percent, readable
from ..html import Html, Section, cards, encode_png, image, paragraph, table, text
from ..inference import Predictor
from ..preprocessing.images import open_image
from ..training.own import OwnTask
from .sections import CREDIT, Answers, RunDetails, mistakes_section, write_page

N_MISTAKES = 12
SIDE = 192  # pixels of a picture
NOTE = (
    "The interval (Wilson) takes each of the samples for an independent trial: it says how far the choice of test "
    "samples may have moved the accuracy, not what training with another seed would give."
)
GROUPS = "Samples of one group are correlated; the interval over groups (bootstrap) says what other groups might give."


def write_own_report(folder: Path, details: RunDetails, answers: Answers, task: OwnTask, predictor: Predictor) -> Path:
    """Write `folder/report.html` in place of an earlier report, and return its path."""
    shares = np.bincount(answers.true, minlength=len(answers.names)) / len(answers.true)
    more = {f"always “{readable(answers.names[int(shares.argmax())])}”, the commonest": percent(shares.max())}
    rows, worst = task.rows("test"), answers.worst(N_MISTAKES)
    items = [task.data.items[int(k)] for k in rows]
    places = [task.data.places[int(k)] for k in rows]
    names = list(map(readable, items if task.kind == "texts" else places))
    if task.kind == "images":
        listed = list_images(Path(task.config.data), task.config.group_by)
        files = dict(zip(listed.places, listed.items, strict=True))
        items = [files[place] for place in places]
        shown = cards(_mistaken_image(answers, k, items[k][0], names[k]) for k in worst)
    else:
        cells = [(names[k], *answers.describe(k)) for k in worst]
        shown = table("Mistakes", [task.samples[:-1], "true", "predicted", "probability"], cells, "texts")
    credit = show_credit(answers, predictor, items, names)
    note = f"{NOTE} {GROUPS}" if task.data.groups else NOTE
    return write_page(folder, details, answers, more, note, [mistakes_section(answers, len(worst), shown), credit])


def show_credit(answers: Answers, predictor: Predictor, items: Sequence[Any], names: Sequence[str]) -> Section:
    """Show what spoke for the predicted class in some samples."""
    what = {"images": "places of the image", "texts": "words", "arrays": "vectors"}[predictor.kind]
    told = f"What the {what} did for the odds of the predicted class against all others: blue for it, orange against it"
    parts = [paragraph(f"{told}, the strongest in each sample deepest.")]
    for kind, which in answers.credited().items():
        parts += [paragraph(CREDIT[kind])] if which else []
        for k in which:
            true, predicted, probability = map(readable, answers.describe(k))
            answer = f"{predicted}, {probability}" if answers.hit[k] else f"{predicted}, {probability}; true: {true}"
            caption = f"{answer}." if predictor.kind == "texts" else f"{names[k]}: {answer}."
            parts.append(explain(predictor, items[k], name=names[k]).figure(caption))
    return Section("Credit", parts)


def _mistaken_image(answers: Answers, k: int, file: Path, name: str) -> Html:
    true, predicted, probability = map(readable, answers.describe(k))
    pixels = np.asarray(resize_picture(open_image(file).convert("RGB"), SIDE))
    picture = image(encode_png(pixels), f"{name}: {true}, taken for {predicted}.")
    answer = f"<b>{text(true)}</b> taken for <b>{text(predicted)}</b>, {text(probability)}"
    return Html(f"{picture}{answer}<small>{text(name)}</small>")
