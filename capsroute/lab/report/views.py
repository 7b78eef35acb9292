"""The sections of a report that are about stereo pairs: toys, viewpoints, and pictures of both."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ...credit import for_class, heat_maps, image_credit
from ..analysis.accuracy import accuracy_by_factor as by_factor, bootstrap_interval
from ..data import Pairs
from ..formatting import interval, percent
from . import figures
from .credit_figures import Row, image_credits
from .page import Album, Html, Section, cards, figure, folded, paragraph, text
from .sections import CREDIT, Answers, Breakdown, breakdowns, right_and_wrong, shares_table, worst_mistakes

if TYPE_CHECKING:
    from ...nets import SmallNORB

N_MISTAKES = 12
N_SAMPLES = 18


class Factor(NamedTuple):
    """A column of the pairs' metadata and how its values are written."""

    name: str
    values: Callable[[Pairs], np.ndarray]
    label: Callable[[int], str]


# as in smallNORB: azimuths count tens of degrees, elevations steps of five degrees from 30 on
AZIMUTH = Factor("azimuth", lambda pairs: pairs.azimuth, lambda value: f"{10 * value}°")
FACTORS = (
    AZIMUTH,
    Factor("elevation", lambda pairs: pairs.elevation, lambda value: f"{30 + 5 * value}°"),
    Factor("lighting", lambda pairs: pairs.lighting, str),
)


def by_toys(hit: np.ndarray, pairs: Pairs) -> tuple[dict[str, str], str]:
    """The interval that takes toys, not pairs, for independent, as a fact, and a sentence on why there are two."""
    why = "Pairs of one toy succeed and fail together, so the interval that takes them for independent is too narrow"
    n_toys = len(_toys(pairs))
    if (pairs.instance < 0).any() or n_toys < 2:
        return {}, f"{why}; the instances that would give an honest one are unknown or too few."
    low, high = bootstrap_interval(hit, pairs.category, pairs.instance)
    if low == high:
        return {}, f"{why}; all {n_toys} toys score alike, which leaves nothing to draw an honest one from."
    explained = (
        f"{why}. The one over toys draws the {n_toys} toys 10,000 times with replacement, each with all of its pairs "
        "(bootstrap, 2.5% and 97.5% quantiles): it says what other toys like these might give."
    )
    if n_toys < 10:
        explained += " With so few toys it is rough itself."
    return {f"95% interval over the {n_toys} toys": interval((low, high))}, explained


def by_viewpoint(answers: Answers, pairs: Pairs, album: Album) -> Section:
    """Accuracy by azimuth, elevation and lighting on one common axis."""
    found = [(factor, by_factor(answers.hit, factor.values(pairs))) for factor in FACTORS]
    known = [Breakdown(factor.name, rows, [factor.label(row.value) for row in rows]) for factor, rows in found if rows]
    note = (
        "The intervals take pairs for independent; the same toys stand behind every value, so they serve to compare "
        "values on these toys, not to tell how other toys would do."
    )
    parts = breakdowns(answers, known, note, "Numbers by viewpoint and lighting", album) if known else []
    for factor, rows in found:
        n_unknown = int((factor.values(pairs) < 0).sum())
        if not rows:
            parts.append(paragraph(f"By {factor.name}: left out, because it is unknown for these pairs."))
        elif n_unknown:
            parts.append(paragraph(f"By {factor.name}: without {n_unknown:,} pairs for which it is unknown."))
    return Section("Accuracy by viewpoint and lighting", parts)


def by_instance(answers: Answers, pairs: Pairs, album: Album) -> Section:
    """Accuracy for each toy."""
    title, hit = "Accuracy by instance", answers.hit
    found = [
        (name, by_factor(hit[pairs.category == k], pairs.instance[pairs.category == k]))
        for k, name in enumerate(answers.names)
    ]
    groups = [(name, rows) for name, rows in found if rows]
    n_unknown = int((pairs.instance < 0).sum())
    if not groups:
        return Section(title, [paragraph("Left out, because the instances of these pairs are unknown.")])
    toys = [(f"{name} {row.value}", row) for name, rows in groups for row in rows]
    worst, row = min(toys, key=lambda toy: toy[1].accuracy)
    best = max(row.accuracy for _, row in toys)
    lowest = f"lowest is {worst} with {percent(row.accuracy)}" if row.accuracy < best else "all are alike"
    floor = figures.floor_of([row for _, row in toys])
    drawing = figures.instances(groups, hit.mean(), floor)
    alt = f"Dot chart of the accuracy on each of {len(toys)} toys; {lowest}."
    caption = (
        f"Share of the pairs of each toy classified right, with 95% Wilson intervals; dashed, over all pairs. The axis "
        f"begins at {floor:g}%; {lowest}."
    )
    parts = [
        figure([album.add("instances", figures.png(drawing), alt, "chart")], caption),
        folded("Numbers by instance", shares_table("By instance", "toy", toys, "pairs")),
    ]
    if n_unknown:
        parts.append(paragraph(f"Without {n_unknown:,} pairs of unknown instance."))
    return Section(title, parts)


def mistakes(answers: Answers, pairs: Pairs, album: Album) -> Section:
    """The pairs for which the network was surest of a wrong class."""
    worst, sentence = worst_mistakes(answers, N_MISTAKES, ": left images, enlarged without smoothing")
    items = []
    for place, which in enumerate(worst.tolist(), 1):
        true, taken, sureness = answers.said(which)
        alt = f"Left image of a pair: {true}, taken for {taken}."
        image = album.add(f"mistake-{place:02}", figures.picture(pairs.images[which, 0]), alt)
        said = f"<b>{text(true)}</b> taken for <b>{text(taken)}</b>, {sureness}"
        items.append(Html(f"{image}{said}<small>{text(_viewpoint(pairs, which))}</small>"))
    if len(worst) > 1 and (pairs.instance[worst] >= 0).all():
        n_toys = len(_toys(pairs.take(np.sort(worst))))
        sentence += f" They show {n_toys} {'toys' if n_toys > 1 else 'toy'}."
    return Section("Worst mistakes", [paragraph(sentence), *([cards(items)] if items else [])])


def sample_images(pairs: Pairs, names: Sequence[str], album: Album) -> Section:
    """One toy of each category, turned, with elevation and lighting constant where they are known."""
    known = bool((pairs.info >= 0).all(1).any())
    azimuths = np.unique(pairs.azimuth[pairs.azimuth >= 0])[:N_SAMPLES] if known else np.array([], dtype=np.int64)
    rows = []
    for k, name in enumerate(names):
        first = np.flatnonzero(pairs.category == k)[:N_SAMPLES]
        images = _turned(pairs, k, azimuths) if known else pairs.images[first, 0]
        if len(images):
            rows.append((name, images))
    labels = [AZIMUTH.label(value) for value in azimuths]
    drawing = figures.samples(rows, labels)
    caption = (
        "Left images of one test toy of each category by azimuth, at constant elevation and lighting."
        if known
        else "Left images of the first test pairs of each category; their viewpoints are unknown."
    )
    alt = f"Rows of images, one for each of {', '.join(name for name, _ in rows)}."
    return Section("Sample images", [figure([album.add("samples", figures.png(drawing), alt)], caption, wide=True)])


def credits(answers: Answers, pairs: Pairs, network: "SmallNORB", album: Album) -> Section:
    """Where in the image, and by which kinds of parts, the class predicted was found: right answers and wrong ones."""
    parts = [
        paragraph(
            "The first routing layer gets a part of each kind at each location. Used and not used are shares of these "
            "parts' data, followed through both layers to the class predicted, on one scale in each row. What was used "
            "says where data went, not what decided: for and against are what the parts at a location did for the "
            "odds of the class against all others, blue for it and orange against it, each picture on a scale of its "
            "own. The last column is the same by kind of part, over all locations."
        )
    ]
    for kind, chosen in right_and_wrong(answers).items():
        rows = [_credited(answers, pairs, network, which) for which in chosen]
        if not rows:
            continue
        said = "; ".join(row.label for row in rows)
        image = album.add(f"credit-{kind}", figures.png(image_credits(rows)), f"Credit of {kind} answers: {said}.")
        where = "Heat lies in the middle of the 29 x 29 pixels in which a part is found."
        parts.append(figure([image], f"{CREDIT[kind]} {where}"))
    return Section("What answers rest on", parts)


def _credited(answers: Answers, pairs: Pairs, network: "SmallNORB", which: int) -> Row:
    """One pair's credit for the class predicted in the report, which other hardware may have computed."""
    device, taken = next(network.parameters()).device, int(answers.predicted[which])
    images = torch.from_numpy(pairs.images[which : which + 1].copy()).to(device).float() / 255
    found, (m, n) = image_credit(network, images), images.shape[2:]
    for_it = torch.full((1, 1, 1), taken, device=device)
    owed = for_class(found.net, found.scores[:, None, None], for_it).unsqueeze(-1)  # [1, p, rows, columns, 1]
    by_part = owed.sum((2, 3))[0, :, 0].cpu().numpy()
    maps = (found.maps[..., taken : taken + 1], found.ign[..., taken : taken + 1], owed)
    used, unused, for_and_against = (heat_maps(t, (m, n))[0, 0].cpu().numpy() for t in maps)
    return Row(_said(answers, which), pairs.images[which, 0], used, unused, for_and_against, by_part)


def _said(answers: Answers, which: int) -> str:
    true, taken, sureness = answers.said(which)
    return f"{true} {sureness}" if answers.hit[which] else f"{true} taken for {taken} {sureness}"


def _turned(pairs: Pairs, category: int, azimuths: np.ndarray) -> np.ndarray:
    """Left images of one toy at these azimuths, `[k, m, m]`, white where there is none; empty without any toy."""
    known = np.flatnonzero((pairs.category == category) & (pairs.info >= 0).all(1))
    if not len(known):
        return np.empty((0, *pairs.images.shape[2:]), np.uint8)
    # the instance, elevation and lighting seen from most sides, the first of them where several are
    _, which, sizes = np.unique(pairs.info[known][:, [0, 1, 3]], axis=0, return_inverse=True, return_counts=True)
    chosen = known[which.ravel() == sizes.argmax()]
    images = np.full((len(azimuths), *pairs.images.shape[2:]), 255, np.uint8)
    for column, azimuth in enumerate(azimuths):
        for one in chosen[pairs.azimuth[chosen] == azimuth][:1]:
            images[column] = pairs.images[one, 0]
    return images


def _toys(pairs: Pairs) -> np.ndarray:
    """Each pair of category and instance that occurs, `[k, 2]`."""
    return np.unique(np.stack([pairs.category, pairs.instance], 1), axis=0)


def _viewpoint(pairs: Pairs, which: int) -> str:
    """What is known of where and how a pair was taken."""
    said = [("instance", int(pairs.instance[which]), str)]
    said += [(factor.name, int(factor.values(pairs)[which]), factor.label) for factor in FACTORS]
    known = [f"{name} {label(value)}" for name, value, label in said if value >= 0]
    return ", ".join(known) or "viewpoint unknown"
