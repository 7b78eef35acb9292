"""The report of a network that classifies stereo pairs."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ...credit import for_class, heat_maps, image_credit
from ...nets import SmallNORB
from ..analysis.accuracy import accuracy_by_factor, bootstrap_interval
from ..data import Pairs
from ..formatting import interval, percent
from . import charts
from .html import Html, Section, cards, encode_png, panels, paragraph, text
from .sections import (
    CREDIT,
    Album,
    Answers,
    RunDetails,
    check_shape,
    describe_mistakes,
    lowest_and_highest,
    make_answers,
    show_breakdowns,
    write_page,
)

N_MISTAKES, N_SAMPLES = 12, 18
COLUMNS = ("left\nimage", "used", "not\nused", "for,\nagainst", "by kind\nof part")
# smallNORB's codes: elevations are steps of five degrees from 30 on, azimuths tens of degrees
FACTORS = {"azimuth": lambda code: f"{10 * code}°", "elevation": lambda code: f"{30 + 5 * code}°", "lighting": str}


def write_image_report(folder: Path, details: RunDetails, pairs: Pairs, network: SmallNORB | None = None) -> Path:
    """Write `folder/report.html` and its pictures in place of an earlier report, and return the page's path.

    The pairs are the test split. With the network the report shows the credit of some answers.
    """
    answers = make_answers(details, pairs.category, "pairs", "pairs.category")
    n, m = len(answers.true), pairs.images.shape[-1]
    check_shape("pairs.images", pairs.images, n, 2, m, m)
    check_shape("pairs.info", pairs.info, n, 4)
    by_toy, note = toy_interval(answers.hit, pairs)

    def make_sections(album: Album) -> list[Section]:
        return [
            _by_viewpoint(answers, pairs, album),
            _by_toy(answers, pairs, album),
            _mistakes(answers, pairs, album),
            *([show_credit(answers, pairs, network, album)] if network is not None else []),
            _samples(pairs, details.names, album),
        ]

    intervals = {"95% interval, were pairs independent": answers.interval} | by_toy
    return write_page(folder, details, answers, intervals, note, make_sections)


def toy_interval(hit: np.ndarray, pairs: Pairs) -> tuple[dict[str, str], str]:
    """Return the interval over toys as a fact, where there is one, and a sentence on why there are two intervals."""
    why = "Pairs of one toy are correlated, so the interval that takes them for independent is too narrow"
    n_toys = len(np.unique(np.stack([pairs.category, pairs.instance]), axis=1).T)
    if (pairs.instance < 0).any() or n_toys < 2:
        return {}, f"{why}; the instances that an interval over toys needs are unknown or too few."
    low, high = bootstrap_interval(hit, pairs.category, pairs.instance)
    if low == high:
        return {}, f"{why}; all {n_toys} toys score alike, so there is no interval over toys."
    return {f"95% interval over the {n_toys} toys": interval((low, high))}, (
        f"{why}. The interval over toys (bootstrap, 10,000 draws of the {n_toys} toys with all of their pairs) says "
        f"what other toys like these might give{'; with so few toys it is rough' if n_toys < 10 else ''}."
    )


def show_credit(answers: Answers, pairs: Pairs, network: SmallNORB, album: Album) -> Section:
    """Show where in the image, and by which kinds of parts, the predicted class was found."""
    parts = [
        paragraph(
            "The first routing layer gets a part of each kind at each location. Used and not used are shares of these "
            "parts' data, followed through both layers to the predicted class, on one scale in each row. They say "
            "where data went, not what decided: for (blue) and against (orange) are what the parts at a location did "
            "for the odds of the class against all others, each picture on its own scale. The last column is the same "
            "by kind of part, over all locations."
        )
    ]
    for kind, which in answers.credited().items():
        if which:
            rows = [_credit_row(answers, pairs, network, k) for k in which]
            alt = f"Credit of {kind} answers: {'; '.join(label for label, _ in rows)}."
            picture = album.add(f"credit-{kind}", charts.draw_mosaic(rows, COLUMNS), alt, "RGBA")
            caption = f"{CREDIT[kind]} Heat lies in the middle of the 29 x 29 pixels that a part sees."
            parts.append(panels(caption, picture))
    return Section("Credit", parts)


def _by_viewpoint(answers: Answers, pairs: Pairs, album: Album) -> Section:
    found, sentences = {}, []
    for name, label in FACTORS.items():
        values = getattr(pairs, name)
        rows = {label(row.value): row for row in accuracy_by_factor(answers.hit, values)}
        n_unknown = int((values < 0).sum())
        if not rows:
            sentences.append(f"By {name}: left out, because it is unknown for these pairs.")
            continue
        found[name] = rows
        if n_unknown:
            sentences.append(f"By {name}: without {n_unknown:,} pairs for which it is unknown.")
    note = (
        "The intervals take pairs for independent; the same toys are behind every value, so they compare values on "
        "these toys and do not say how other toys would do."
    )
    parts = show_breakdowns(answers, found, note, "Numbers by viewpoint and lighting", album) if found else []
    return Section("Accuracy by viewpoint and lighting", [*parts, *map(paragraph, sentences)])


def _by_toy(answers: Answers, pairs: Pairs, album: Album) -> Section:
    title, known = "Accuracy by toy", pairs.instance >= 0
    if not known.any():
        return Section(title, [paragraph("Left out, because the instances of these pairs are unknown.")])
    toys, which = np.unique(np.stack([pairs.category, pairs.instance])[:, known], axis=1, return_inverse=True)
    labels = [f"{answers.names[category]} {instance}" for category, instance in toys.T]
    rows = {labels[row.value]: row for row in accuracy_by_factor(answers.hit[known], which)}
    lowest, highest = lowest_and_highest(rows)
    alike = rows[lowest].accuracy == rows[highest].accuracy
    note = "All are alike." if alike else f"Lowest: {lowest}, {percent(rows[lowest].accuracy)}."
    parts = show_breakdowns(answers, {"toy": rows}, note, "Numbers by toy", album)
    if not known.all():
        parts.append(paragraph(f"Without {(~known).sum():,} pairs of unknown instance."))
    return Section(title, parts)


def _mistakes(answers: Answers, pairs: Pairs, album: Album) -> Section:
    worst = answers.worst(N_MISTAKES)
    items = []
    for place, which in enumerate(worst, 1):
        true, predicted, probability = answers.describe(which)
        left = pairs.images[which, 0]
        zoom = max(1, round(charts.TILE / len(left)))
        alt = f"Left image of a pair: {true}, taken for {predicted}."
        picture = album.add(f"mistake-{place:02}", encode_png(left.repeat(zoom, 0).repeat(zoom, 1)), alt)
        answer = f"<b>{text(true)}</b> taken for <b>{text(predicted)}</b>, {probability}"
        items.append(Html(f"{picture}{answer}<small>{text(_describe_viewpoint(pairs, which))}</small>"))
    sentence = describe_mistakes(answers, len(worst), ": left images, enlarged without smoothing")
    return Section("Worst mistakes", [paragraph(sentence), *([cards(items)] if items else [])])


def _samples(pairs: Pairs, names: Sequence[str], album: Album) -> Section:
    """Show a toy of each category by azimuth, or its first images where viewpoints are unknown."""
    known = (pairs.info >= 0).all(1)
    azimuths = np.unique(pairs.azimuth[known])[:N_SAMPLES]
    rows = []
    for k, name in enumerate(names):
        members = np.flatnonzero((pairs.category == k) & (known if known.any() else True))
        if not len(members):
            continue
        if not known.any():
            rows.append((name, list(pairs.images[members[:N_SAMPLES], 0])))
            continue
        # the instance, elevation and lighting seen from the most azimuths
        _, group = np.unique(pairs.info[members][:, [0, 1, 3]], axis=0, return_inverse=True)
        mine = members[group.ravel() == np.bincount(group.ravel()).argmax()]
        by_azimuth = {pairs.azimuth[row]: pairs.images[row, 0] for row in mine[::-1]}
        blank = np.full_like(pairs.images[0, 0], 255)
        rows.append((name, [by_azimuth.get(azimuth, blank) for azimuth in azimuths]))
    caption = "Left images of the first test pairs of each category; their viewpoints are unknown."
    if known.any():
        caption = "Left images of one test toy of each category by azimuth, at constant elevation and lighting."
    chart = charts.draw_mosaic(rows, [FACTORS["azimuth"](code) for code in azimuths], tile=96)
    alt = f"Rows of images, one for each of {', '.join(name for name, _ in rows)}."
    picture = album.add("samples", chart, alt, "LA")
    return Section("Sample images", [panels(caption, picture, scroll=True)])


def _credit_row(answers: Answers, pairs: Pairs, network: SmallNORB, which: int) -> tuple[str, list[np.ndarray]]:
    """Return a pair's label and pictures of its credit for the class predicted by the scores."""
    device, predicted = next(network.parameters()).device, int(answers.predicted[which])
    images = torch.from_numpy(pairs.images[which : which + 1].copy()).to(device).float() / 255
    credit, (m, n) = image_credit(network, images), images.shape[2:]
    target = torch.full((1, 1, 1), predicted, device=device)
    net = for_class(credit.net, credit.scores[:, None, None], target).unsqueeze(-1)  # [1, p, rows, columns, 1]
    of_class = slice(predicted, predicted + 1)
    maps = (credit.use[..., of_class], credit.ign[..., of_class], net)
    used, unused, decided = (heat_maps(t, (m, n))[0, 0].cpu().numpy() for t in maps)
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
    return f"{true} {probability}" if answers.hit[which] else f"{true} taken for {name} {probability}", tiles


def _describe_viewpoint(pairs: Pairs, which: int) -> str:
    columns = {"instance": str} | FACTORS
    values = {name: int(getattr(pairs, name)[which]) for name in columns}
    return ", ".join(f"{name} {columns[name](value)}" for name, value in values.items() if value >= 0) or "unknown"
