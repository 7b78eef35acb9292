"""Event handlers of the page: from the inputs of a tab to its HTML."""

from collections.abc import Sequence
from pathlib import Path

from ..data.pairs import CATEGORIES
from ..errors import UserError
from ..report.html import figure, tinted_words
from . import algorithm, language, pictures, vision
from .vision import PairResult

WINNER = "the likeliest class"
NOT_NUMBERS = (UserError, TypeError, ValueError, OverflowError)  # what int() and the checks raise


def show_toy(category: str, instance: int, azimuth: float, elevation: float, light: float) -> str:
    """Show a rendered toy."""
    try:
        result = vision.recognise_toy(category, instance, int(azimuth) % 360, int(elevation), int(light) - 1)
    except NOT_NUMBERS as error:
        return pictures.show_message(str(error))
    points, here = vision.project_pose(category, instance, result.winner, result.pose)
    note = (
        f"The {CATEGORIES[result.winner]} capsule's 4x4 pose, projected on the two directions in which it moves most "
        f"along a full turn at {vision.TURN_ELEVATION}° under light 1 (the loop). The dot is your view."
    )
    turn = figure(pictures.show_turn(points, here, vision.AZIMUTHS), note, title="Where its pose is", kind="walk")
    return _show_pair(result, f"{category} at {azimuth:g}°", turn)


def show_files(paths: Sequence[str] | None) -> str:
    """Show an uploaded pair, or one image for both eyes."""
    if not paths:
        return pictures.show_message("Choose one image or two.")
    try:
        for path in paths:
            if Path(path).stat().st_size > vision.MAX_BYTES:
                raise UserError(f"file: expected at most {vision.MAX_BYTES >> 20} MB, got more")
        result = vision.recognise_files([Path(path).read_bytes() for path in paths])
    except UserError as error:
        return pictures.show_message(str(error))
    except OSError:
        return pictures.show_message("file: expected an uploaded file, it is gone; upload it again")
    return _show_pair(result, "your image")


def show_sentence(text: str, shown: str) -> str:
    """Show how a text is classified, and its credit for a class."""
    try:
        result = language.classify_text(text)
        if result is None:
            return pictures.show_message("Type a sentence.")
        if shown not in (WINNER, *result.names):
            raise UserError(f"class: expected one of {', '.join((WINNER, *result.names))}, got {str(shown)[:40]!r}")
    except UserError as error:
        return pictures.show_message(str(error))
    which = result.winner if shown == WINNER else result.names.index(shown)
    name, use, net = result.names[which], result.use[..., which], result.net[..., which]  # [n, depth] each
    cut = f" Only the first {len(result.tokens)} tokens were read." if result.truncated else ""
    return _grid(
        figure(
            pictures.show_probabilities(result.names, result.probabilities),
            title="How likely each class is",
            kind="answer",
        ),
        figure(
            tinted_words([(" ", token) for token in result.tokens], net.sum(1).tolist()),
            f"The stronger the blue, the more the word raised the score of “{name}”; orange words lowered it.{cut}",
            title="What each word did",
            kind="words-figure",
        ),
        figure(
            pictures.show_table(100 * use, ".0f", 100, "depths", result.tokens),
            f"Per cent of each hidden state that “{name}” used, from the word itself to the encoder's last layer; "
            "no colour is 0%, full blue 100%.",
            title="Tokens by depth: share used",
        ),
        figure(
            pictures.show_table(net, ".2f", float(net.abs().max()), "depths", result.tokens),
            f"What each hidden state gave the score of “{name}”. All of them add up to {float(net.sum()):+.2f}.",
            title="Tokens by depth: benefit less cost",
        ),
    )


def show_points(example: str, seed: float, n_iters: float, beta_use: float, beta_ign: float, iteration: float) -> str:
    """Show one iteration of the routing of points."""
    try:
        scene = algorithm.route_points(example, int(seed), int(n_iters), beta_use, beta_ign)
        k = min(max(int(iteration), 1), len(scene.steps))
    except NOT_NUMBERS as error:
        return pictures.show_message(str(error))
    step = scene.steps[k - 1]
    mu, sig2 = step.mu.squeeze(-2), step.sig2.squeeze(-2)
    drawn = pictures.show_scene(scene.points, scene.votes, step.R, mu, sig2, algorithm.HOMES)
    largest = max(float(s.a.abs().max()) for s in scene.steps)
    names = [f"capsule {j + 1}" for j in range(len(algorithm.HOMES))]
    scores, used = step.a.tolist(), step.D_use.sum(0).tolist()
    score_bars = pictures.show_bars(names, scores, [f"{a:+.2f}" for a in scores], pictures.HUES, largest, signed=True)
    use_bars = pictures.show_bars(names, used, [f"{u:.1f}" for u in used], pictures.HUES, algorithm.N_POINTS)
    benefit = "The benefit of the points a capsule uses, less the cost of those it ignores."
    offered = f"Of {algorithm.N_POINTS} points, each of which offers 95% of its data."
    return _grid(
        figure(
            drawn,
            "Large dots are points, in the colours of the capsules that use them; small dots their votes; diamonds the "
            "capsules' homes; ellipses two standard deviations about each capsule's mean.",
            title=f"Iteration {k} of {len(scene.steps)}",
            kind="big",
        ),
        f"<div>{figure(score_bars, benefit, title='Scores')}{figure(use_bars, offered, title='Points used')}</div>",
    )


def _show_pair(result: PairResult, what: str, turn: str = "") -> str:
    winner = CATEGORIES[result.winner]
    left, right = result.images
    views = (
        pictures.show_grey(left, f"Left view of {what}"),
        pictures.show_grey(right, f"Right view of {what}"),
        pictures.show_heat(left, result.heat, f"What {winner} used"),
    )
    first = [
        f"<div>{pictures.show_matrix(m, f'Parts to larger parts, iteration {t}', float(result.to_parts.max()))}"
        f"<small>iteration {t}</small></div>"
        for t, m in enumerate(result.to_parts, 1)
    ]
    labels = "".join(f"<span>{name}</span>" for name in CATEGORIES)
    second = [
        f'<div class="strip"><small>iteration {t}</small><div class="labels">{labels}</div>'
        f"{pictures.show_matrix(m.T, f'Larger parts to classes, iteration {t}', float(result.to_classes.max()))}</div>"
        for t, m in enumerate(result.to_classes, 1)
    ]
    return _grid(
        figure(
            pictures.show_probabilities(CATEGORIES, result.probabilities),
            title="How likely each class is",
            kind="answer",
        ),
        figure(
            f'<div class="views">{"".join(views)}</div>',
            f"Where the {winner} capsule took its evidence, through both routing layers: from the least used place, "
            "grey, to the most used, orange.",
            title="Left view, right view, and what was used",
            kind="seen",
        ),
        turn,
        figure(
            pictures.show_table(result.pose, "z.2f", float(result.pose.abs().max()), "pose"),
            "Blue above zero, orange below.",
            title=f"Pose of the {winner} capsule",
        ),
        figure(
            "".join(second),
            f"Each column is one of {result.to_classes.shape[1]} larger parts, each row a class; the bluer, the more "
            f"of the part the class uses. Over {len(second)} iterations parts settle on a class.",
            title="Second routing: larger parts to classes",
            kind="wide",
        ),
        figure(
            f'<div class="squares">{"".join(first)}</div>',
            "Each row is one of 64 kinds of parts, over all locations of the image, each column a larger part.",
            title="First routing: parts to larger parts",
            kind="wide",
        ),
    )


def _grid(*figures: str) -> str:
    return f'<div class="shown">{"".join(figures)}</div>'
