"""The report of a network that classifies stereo pairs."""

import math
from pathlib import Path

import numpy as np
import torch

from ...credit import for_class, heat_maps, image_credit
from ...nets import SmallNORB
from ..analysis.accuracy import accuracy_by_factor, bootstrap_interval
from ..data import Pairs
from ..formatting import interval, percent
from ..html import Html, Section, cards, encode_png, folded, image, panels, paragraph, table, text
from . import charts
from .charts import embed_chart
from .sections import CREDIT, Answers, RunDetails, mistakes_section, write_page

N_MISTAKES = 12
TILE = 192  # pixels of an enlarged image, about
COLUMNS = ("left image", "used", "not used", "for and against", "for and against by kind of part")
# smallNORB's codes: elevations are steps of five degrees from 30 on, azimuths tens of degrees
FACTORS = {"azimuth": lambda code: f"{10 * code}°", "elevation": lambda code: f"{30 + 5 * code}°", "lighting": str}


def write_image_report(
    folder: Path, details: RunDetails, answers: Answers, pairs: Pairs, network: SmallNORB | None = None
) -> Path:
    """Write `folder/report.html` in place of an earlier report, and return its path.

    The pairs are the test split. With the network the report shows the credit of some answers.
    """
    by_toy, note = toy_interval(answers.hit, pairs)
    worst = answers.worst(N_MISTAKES)
    mistakes = mistakes_section(answers, len(worst), cards(_mistake(answers, pairs, which) for which in worst))
    sections = [_accuracies(answers, pairs), mistakes]
    if network is not None:
        sections.append(show_credit(answers, pairs, network))
    return write_page(folder, details, answers, by_toy, note, sections)


def toy_interval(hit: np.ndarray, pairs: Pairs) -> tuple[dict[str, str], str]:
    """Return the interval over toys as a fact, where there is one, and a sentence on why there are two intervals."""
    why = "Pairs of one toy are correlated, so the interval that takes them for independent is too narrow"
    toys, which = _toys(pairs)
    accuracies = np.bincount(which, weights=hit) / np.bincount(which)
    if (pairs.instance < 0).any() or np.ptp(accuracies) == 0:
        return {}, f"{why}; an interval over toys needs known toys that do not all score alike."
    bounds = bootstrap_interval(hit, pairs.category, pairs.instance)
    return {f"95% interval over the {len(toys)} toys": interval(bounds)}, (
        f"{why}. The interval over toys (bootstrap, 10,000 draws of the {len(toys)} toys with all of their pairs) says "
        "what other toys like these might give."
    )


def show_credit(answers: Answers, pairs: Pairs, network: SmallNORB) -> Section:
    """Show where in the image, and by which kinds of parts, the predicted class was found."""
    parts = [
        paragraph(
            "The first routing layer gets a part of each kind at each location. Used and not used are shares of these "
            "parts' data, followed through both layers to the predicted class, on one scale. They say "
            "where data went, not what decided: for (blue) and against (orange) are what the parts at a location did "
            "for the odds of the class against all others, each picture on its own scale. The last picture is the same "
            "by kind of part, over all locations."
        )
    ]
    for kind, which in answers.credited().items():
        if which:
            parts.append(paragraph(f"{CREDIT[kind]} Heat lies in the middle of the 29 x 29 pixels that a part sees."))
            parts += [_credited_pair(answers, pairs, network, k) for k in which]
    return Section("Credit", parts)


def _toys(pairs: Pairs) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Return category and instance of each toy, and the toy of each pair."""
    toys, which = np.unique(np.stack([pairs.category, pairs.instance]), axis=1, return_inverse=True)
    return [(category, instance) for category, instance in toys.T.tolist()], which.ravel()


def _accuracies(answers: Answers, pairs: Pairs) -> Section:
    """Show the accuracy for each value of each factor on one common axis, and fold the numbers away."""
    toys, which = _toys(pairs)
    names = [f"{answers.names[category]} {instance}" for category, instance in toys]
    values = {"toy": np.where(pairs.instance < 0, -1, which)} | {name: getattr(pairs, name) for name in FACTORS}
    labels = FACTORS | {"toy": names.__getitem__}
    found = {name: accuracy_by_factor(answers.hit, codes) for name, codes in values.items()}
    found = {name: {labels[name](row.value): row for row in rows} for name, rows in found.items() if rows}
    title = "Accuracy by toy and viewpoint"
    if not found:
        return Section(title, [paragraph("Left out, because toys and viewpoints of these pairs are unknown.")])
    floor = charts.axis_floor([row for rows in found.values() for row in rows.values()])
    pictures, tables = [], []
    for name, rows in found.items():
        chart = charts.draw_accuracies(name.capitalize(), rows, float(answers.hit.mean()), floor)
        ends = (pick(rows, key=lambda label: rows[label].accuracy) for pick in (min, max))
        low, high = (f"{percent(rows[label].accuracy)} at {label}" for label in ends)
        pictures.append(embed_chart(chart, f"Dot chart of accuracy by {name}: lowest {low}, highest {high}."))
        headers = [name, answers.samples, "right", "accuracy", "95% interval"]
        cells = (
            (label, f"{r.total:,}", f"{r.right:,}", percent(r.accuracy), interval((r.low, r.high)))
            for label, r in rows.items()
        )
        tables.append(table(f"By {name}", headers, cells))
    caption = (
        f"Accuracy at each known value (dots) with 95% Wilson intervals (bars), and over all {answers.samples} "
        f"(dashed). The axis begins at {floor:g}%. The intervals take pairs for independent; the same toys are behind "
        "every viewpoint, so they compare viewpoints of these toys and do not say how other toys would do."
    )
    return Section(title, [panels(caption, *pictures), folded("Numbers by toy and viewpoint", *tables)])


def _mistake(answers: Answers, pairs: Pairs, which: int) -> Html:
    """Show the left image of a pair, enlarged without smoothing, its answer and its viewpoint."""
    true, predicted, probability = answers.describe(which)
    left = pairs.images[which, 0]
    zoom = max(1, round(TILE / len(left)))
    alt = f"Left image of a pair: {true}, taken for {predicted}."
    picture = image(encode_png(left.repeat(zoom, 0).repeat(zoom, 1)), alt)
    columns = {"instance": str} | FACTORS
    view = {name: int(getattr(pairs, name)[which]) for name in columns}
    known = ", ".join(f"{name} {columns[name](code)}" for name, code in view.items() if code >= 0)
    answer = f"<b>{text(true)}</b> taken for <b>{text(predicted)}</b>, {probability}"
    return Html(f"{picture}{answer}<small>{text(known)}</small>")


def _credited_pair(answers: Answers, pairs: Pairs, network: SmallNORB, which: int) -> Html:
    """Show a pair's answer, and pictures of its credit for the class predicted by the scores."""
    device, predicted = next(network.parameters()).device, int(answers.predicted[which])
    images = torch.from_numpy(pairs.images[which : which + 1].copy()).to(device).float() / 255
    credit, size = image_credit(network, images), (images.shape[2], images.shape[3])
    target = torch.full((1, 1, 1), predicted, device=device)
    net = for_class(credit.net, credit.scores[:, None, None], target).unsqueeze(-1)  # [1, p, rows, columns, 1]
    of_class = slice(predicted, predicted + 1)
    maps = (credit.use[..., of_class], credit.ign[..., of_class], net)
    used, unused, decided = (heat_maps(t, size)[0, 0].cpu().numpy() for t in maps)
    by_part = net.sum((2, 3))[0, :, 0].cpu().numpy()
    side = math.ceil(math.sqrt(len(by_part)))
    by_part = np.pad(by_part, (0, side * side - len(by_part))).reshape(side, side)
    grey = np.repeat(pairs.images[which, 0][..., None] / 255.0, 3, -1)
    faded = 0.45 + 0.55 * grey  # so that colours are visible on it
    data = (used + unused).max() or 1.0
    tiles = [
        grey,
        charts.tint_pixels(faded, 0.85 * used / data),
        charts.mix_colours(faded, "black", 0.85 * unused / data),
        charts.tint_pixels(faded, 0.85 * decided / (np.abs(decided).max() or 1.0)),
        charts.tint_pixels(np.ones(3), by_part / (np.abs(by_part).max() or 1.0)),
    ]
    true, name, probability = answers.describe(which)
    label = f"{true} {probability}" if answers.hit[which] else f"{true} taken for {name} {probability}"
    shown = (encode_png((255 * tile.clip(0, 1)).round().astype(np.uint8)) for tile in tiles)
    pictures = (image(png, f"{label}: {column}") for png, column in zip(shown, COLUMNS, strict=True))
    return panels(f"{label}: {', '.join(COLUMNS)}", *pictures, kind="tiles")
