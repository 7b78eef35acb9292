"""What each tab shows, as HTML: from what a visitor chose to pictures with a sentence each."""

from collections.abc import Sequence
from pathlib import Path

from ..data.pairs import CATEGORIES
from ..errors import UserError
from . import algorithm, language, pictures, vision
from .pictures import figure
from .vision import Look

WINNER = "the likeliest class"


def toy(category: str, instance: int, azimuth: float, elevation: float, light: float) -> str:
    """A toy as the sliders turn it."""
    try:
        seen = vision.look_at_toy(category, instance, int(azimuth) % 360, int(elevation), int(light) - 1)
        points, here = vision.walk(category, instance, seen.winner, seen.pose)
    except (UserError, TypeError, ValueError, OverflowError) as error:
        return pictures.message(str(error))
    note = (
        f"The {CATEGORIES[seen.winner]} capsule's 4x4 pose, projected on the two directions in which it moves most "
        f"along a full turn at {vision.TURN_ELEVATION}° under light 1 (the loop). The dot is your view."
    )
    walked = figure("Where its pose stands", pictures.path(points, here, vision.AZIMUTHS), note, "walk")
    return _looked(seen, f"{category} at {azimuth:g}°", walked)


def files(paths: Sequence[str] | None) -> str:
    """An uploaded pair."""
    if not paths:
        return pictures.message("Choose two images, or one with both views side by side.")
    try:
        if len(paths) > 2:
            raise UserError(f"files: expected two images, or one with both views side by side, got {len(paths)}")
        for path in paths:
            if Path(path).stat().st_size > vision.MAX_BYTES:
                raise UserError(f"file: expected at most {vision.MAX_BYTES >> 20} MB, got more")
        seen = vision.look_at_files([Path(path).read_bytes() for path in paths])
    except UserError as error:
        return pictures.message(str(error))
    except OSError:
        return pictures.message("file: expected an uploaded file, it is gone; upload it again")
    return _looked(seen, "your pair", "")


def sentence(text: str, shown: str) -> str:
    """A text as the network reads it."""
    try:
        found = language.read(text)
        if found is None:
            return pictures.message("Type a sentence.")
        if shown not in (WINNER, *found.names):
            raise UserError(f"class: expected one of {', '.join((WINNER, *found.names))}, got {str(shown)[:40]!r}")
    except UserError as error:
        return pictures.message(str(error))
    which = found.winner if shown == WINNER else found.names.index(shown)
    name, use, net = found.names[which], found.use[..., which], found.net[..., which]  # [n, depth] each
    cut = "" if found.whole else f" Only the first {len(found.tokens)} tokens were read."
    least, most = (float(v) for v in use.aminmax())
    return _grid(
        figure("How likely each class is", pictures.chances(found.names, found.chances), "", "answer"),
        figure(
            "What each word did",
            pictures.words(found.tokens, net.sum(1)),
            f"The stronger the blue, the more the word raised the score of “{name}”; orange words lowered it.{cut}",
            "words-figure",
        ),
        figure(
            "Tokens by depth: share used",
            pictures.depths(found.tokens, 100 * use, ".0f", 100 * least, 100 * most),
            f"Per cent of each hidden state that “{name}” used, from the word itself to the encoder's last layer; "
            "coloured from the least to the most used.",
        ),
        figure(
            "Tokens by depth: benefit less cost",
            pictures.depths(found.tokens, net, ".2f", 0.0, float(net.abs().max())),
            f"What each hidden state gave the score of “{name}”. All of them add up to {float(net.sum()):+.2f}.",
        ),
    )


def points(example: str, seed: float, n_iters: float, beta_use: float, beta_ign: float, iteration: float) -> str:
    """Routing of points, at one iteration."""
    try:
        scene = algorithm.scene(example, int(seed), int(n_iters), beta_use, beta_ign)
        k = min(max(int(iteration), 1), len(scene.steps))
    except (UserError, TypeError, ValueError, OverflowError) as error:
        return pictures.message(str(error))
    step = scene.steps[k - 1]
    mu, sig2 = step.mu.squeeze(-2), step.sig2.squeeze(-2)
    drawn = pictures.playground(scene.points, scene.votes, step.R, mu, sig2, algorithm.HOMES)
    most = max(float(s.a.abs().max()) for s in scene.steps) or 1.0
    names = [f"capsule {j + 1}" for j in range(len(algorithm.HOMES))]
    scores = figure(
        "Scores",
        pictures.signed(names, step.a.tolist(), most, pictures.HUES),
        "What a capsule gains from the points it uses, less what it pays for those it ignores.",
    )
    used = step.D_use.sum(0).tolist()
    counts = figure(
        "Points used",
        pictures.bars(names, [u / algorithm.N_POINTS for u in used], [f"{u:.1f}" for u in used], pictures.HUES),
        f"Of {algorithm.N_POINTS} points, each of which offers 95% of itself.",
    )
    return _grid(
        figure(
            f"Iteration {k} of {len(scene.steps)}",
            drawn,
            "Large dots are points, in the colours of the capsules that use them; small dots their votes; diamonds the "
            "capsules' homes; ellipses two standard deviations about each capsule's mean.",
            "big",
        ),
        f"<div>{scores}{counts}</div>",
    )


def _looked(seen: Look, what: str, walked: str) -> str:
    winner = CATEGORIES[seen.winner]
    left, right = seen.images
    views = (
        pictures.grey(left, f"Left view of {what}"),
        pictures.grey(right, f"Right view of {what}"),
        pictures.overlaid(left, seen.heat, f"What {winner} used"),
    )
    n_iters = len(seen.to_classes)
    first = [
        f"<div>{pictures.matrix(m, f'Parts to larger parts, iteration {t}', float(seen.to_parts.max()))}<small>"
        f"iteration {t}</small></div>"
        for t, m in enumerate(seen.to_parts, 1)
    ]
    labels = "".join(f"<span>{name}</span>" for name in CATEGORIES)
    second = [
        f'<div class="strip"><small>iteration {t}</small><div class="labels">{labels}</div>'
        f"{pictures.matrix(m.T, f'Larger parts to classes, iteration {t}', float(seen.to_classes.max()))}</div>"
        for t, m in enumerate(seen.to_classes, 1)
    ]
    return _grid(
        figure("How likely each class is", pictures.chances(CATEGORIES, seen.chances), "", "answer"),
        figure(
            "Left view, right view, and what was used",
            f'<div class="views">{"".join(views)}</div>',
            f"Where the {winner} capsule took its evidence, through both routing layers: the more orange, the more.",
            "seen",
        ),
        walked,
        figure(f"Pose of the {winner} capsule", pictures.pose(seen.pose), "Blue above zero, orange below."),
        figure(
            "Second routing: larger parts to classes",
            "".join(second),
            f"Each column is one of {seen.to_classes.shape[1]} larger parts, each row a class; the bluer, the more of "
            f"the part the class uses. Over {n_iters} iterations parts settle on a class.",
            "wide",
        ),
        figure(
            "First routing: parts to larger parts",
            f'<div class="squares">{"".join(first)}</div>',
            "Each row is one of 64 kinds of parts, over all locations of the image, each column a larger part.",
            "wide",
        ),
    )  # fmt: skip


def _grid(*figures: str) -> str:
    return f'<div class="shown">{"".join(figures)}</div>'
