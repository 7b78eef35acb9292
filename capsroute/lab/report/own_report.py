"""The report of a network for one's own data: images, texts or sets of vectors."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from ...credit import for_class, heat_maps
from ...nets import Classifier
from ..formatting import percent, readable
from ..preprocessing import ImagePreprocessing, WordPreprocessing
from ..training.own import OwnTask
from . import charts
from .html import Html, Section, cards, encode_png, image, join, panels, paragraph, table, text, tinted_words
from .sections import CREDIT, Answers, RunDetails, mistakes_section, write_page
from .text_report import split_spaces

N_MISTAKES = 12
SIDE = 192  # pixels of a picture
N_VECTORS = 12  # of a set, those with the largest credit
NOTE = (
    "The interval (Wilson) takes each of the samples for an independent trial: it says how far the choice of test "
    "samples may have moved the accuracy, not what training with another seed would give."
)
GROUPS = "Samples of one group are correlated; the interval over groups (bootstrap) says what other groups might give."


def write_own_report(folder: Path, details: RunDetails, answers: Answers, task: OwnTask, network: Classifier) -> Path:
    """Write `folder/report.html` in place of an earlier report, and return its path."""
    shares = np.bincount(answers.true, minlength=len(answers.names)) / len(answers.true)
    more = {f"always “{readable(answers.names[int(shares.argmax())])}”, the commonest": percent(shares.max())}
    rows, worst = task.rows("test"), answers.worst(N_MISTAKES)
    if task.kind == "images":
        shown = cards(_mistaken_image(answers, task, rows, k) for k in worst)
    else:
        cells = [(_name(task, rows[k]), *answers.describe(k)) for k in worst]
        shown = table("Mistakes", [task.samples[:-1], "true", "predicted", "probability"], cells, "texts")
    credit = show_credit(answers, task, network, rows)
    note = f"{NOTE} {GROUPS}" if task.data.groups else NOTE
    return write_page(folder, details, answers, more, note, [mistakes_section(answers, len(worst), shown), credit])


def show_credit(answers: Answers, task: OwnTask, network: Classifier, rows: np.ndarray) -> Section:
    """Show what spoke for the predicted class in some samples."""
    what = {"images": "places of the image", "texts": "words", "arrays": "vectors"}[task.kind]
    told = f"What the {what} did for the odds of the predicted class against all others: blue for it, orange against it"
    parts = [paragraph(f"{told}, the strongest in each sample deepest.")]
    draw = {"images": _credited_image, "texts": _credited_text, "arrays": _credited_set}[task.kind]
    for kind, which in answers.credited().items():
        parts += [paragraph(CREDIT[kind])] if which else []
        parts += [draw(task, network, int(rows[k]), int(answers.predicted[k]), _label(answers, k)) for k in which]
    return Section("Credit", parts)


@torch.no_grad()
def find_credit(task: OwnTask, network: Classifier, row: int, target: int) -> np.ndarray:
    """Return the net credit of a sample's places for a class, `[n]`, or `[rows, columns]` where there is a map."""
    device = next(network.parameters()).device
    source = task.make_source([task.data.items[row]], torch.zeros(1, dtype=torch.long, device=device), None)
    found = network.credit(*source.batch(torch.zeros(1, dtype=torch.long, device=device)))
    net = found.net.sum(1 if network.trunk.n_kinds is None else (1, 2))[0]  # [..., classes]
    flat = net.flatten(0, -2)  # [places, classes]
    return for_class(flat, found.scores[0], torch.tensor(target, device=device)).reshape(net.shape[:-1]).cpu().numpy()


def heat_map(credit: np.ndarray, size: tuple[int, int], stride: float) -> np.ndarray:
    """Return credit over the pixels of an image, in -1..1; tokens of a model itself, which come first, are left out."""
    if credit.ndim == 1:
        side = math.isqrt(len(credit))
        credit = credit[len(credit) - side * side :].reshape(side, side)
    places = torch.from_numpy(credit)[None, None].float()
    if stride:  # pixels from one location to the next, of which the first is the first pixel; 0 where unknown
        heat = heat_maps(places.unsqueeze(-1), size, first=0, stride=stride)[0, 0].numpy()
    else:
        heat = F.interpolate(places, size, mode="bilinear")[0, 0].numpy()
    return heat / (np.abs(heat).max() or 1.0)


def _label(answers: Answers, k: int) -> str:
    true, predicted, probability = map(readable, answers.describe(k))
    return f"{predicted}, {probability}" if answers.hit[k] else f"{predicted}, {probability}; true: {true}"


def _name(task: OwnTask, row: int) -> str:
    return readable(task.data.items[row] if task.kind == "texts" else task.data.places[row])


def _pixels(task: OwnTask, row: int) -> np.ndarray:
    """Return an image as the network gets it, the first view of several, enlarged: `[m, n, 3]` in 0..1."""
    fitted = task.preprocessing
    channels = fitted.channels
    view = ImagePreprocessing(fitted.rows, fitted.columns, channels)
    pixels = view.prepare(Path(task.config.data) / task.data.places[row])
    picture = Image.fromarray(pixels.transpose(1, 2, 0).repeat(3 // channels, -1))
    scale = SIDE / max(picture.size)
    size = (round(scale * picture.width), round(scale * picture.height))
    return np.asarray(picture.resize(size, Image.Resampling.NEAREST)) / 255.0


def _png(pixels: np.ndarray) -> bytes:
    return encode_png((255 * pixels.clip(0, 1)).round().astype(np.uint8))


def _mistaken_image(answers: Answers, task: OwnTask, rows: np.ndarray, k: int) -> Html:
    true, predicted, probability = map(readable, answers.describe(k))
    name = _name(task, rows[k])
    picture = image(_png(_pixels(task, rows[k])), f"{name}: {true}, taken for {predicted}.")
    answer = f"<b>{text(true)}</b> taken for <b>{text(predicted)}</b>, {text(probability)}"
    return Html(f"{picture}{answer}<small>{text(name)}</small>")


def _credited_image(task: OwnTask, network: Classifier, row: int, target: int, label: str) -> Html:
    pixels = _pixels(task, row)
    stride = getattr(network.trunk, "stride", 0) * pixels.shape[0] / task.preprocessing.rows
    heat = heat_map(find_credit(task, network, row, target), (pixels.shape[0], pixels.shape[1]), stride)
    faded = 0.45 + 0.55 * pixels.mean(-1, keepdims=True).repeat(3, -1)  # so that colours are visible on it
    tiles = {"image": pixels, "for and against": charts.tint_pixels(faded, 0.85 * heat)}
    pictures = (image(_png(tile), f"{label}: {name}") for name, tile in tiles.items())
    return panels(f"{_name(task, row)}: {label}", *pictures, kind="tiles")


def _credited_text(task: OwnTask, network: Classifier, row: int, target: int, label: str) -> Html:
    content, preprocessing = task.data.items[row], task.preprocessing
    if isinstance(preprocessing, WordPreprocessing):
        pieces: Sequence[tuple[str, str]] = [(word.space, word.text) for word in preprocessing.split(content)]
    else:
        (tokens,) = preprocessing.model.split_tokens([content])
        pieces = split_spaces(content, tokens.pieces)
    credit = find_credit(task, network, row, target).tolist()
    return join([tinted_words(pieces, credit[: len(pieces)]) if pieces else Html(""), paragraph(f"{label}.")])


def _credited_set(task: OwnTask, network: Classifier, row: int, target: int, label: str) -> Html:
    credit = find_credit(task, network, row, target)
    strongest = np.argsort(-np.abs(credit), kind="stable")[:N_VECTORS]
    vectors = task.data.items[row]
    cells = [(int(k), f"{credit[k]:+.3f}", ", ".join(f"{v:.3g}" for v in vectors[k][:8])) for k in strongest]
    return table(f"{_name(task, row)}: {label}", ["vector", "for or against", "its first numbers"], cells)
