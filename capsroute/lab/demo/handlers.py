"""Event handlers of the page: from the inputs of a tab to its HTML."""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...credit import Credit, text_credit
from ..data.pairs import CATEGORIES
from ..encoders import Tokens
from ..errors import UserError
from ..html import Html, figure, number_table, tinted_words
from ..inference import Predictor
from . import algorithm, pictures, vision

WINNER = "the likeliest class"
MAX_CHARACTERS = 400
EXAMPLES = (
    "a fine film with a wonderful cast",
    "the plot is thin and the jokes are dull",
    "it is not a bad film",
    "the acting is superb , but the story is a mess",
)


def explain_errors(show: Callable[..., str]) -> Callable[..., str]:
    """Show the message of a `UserError` instead of raising it."""

    @wraps(show)
    def answer(*args: Any, **kwargs: Any) -> str:
        try:
            return show(*args, **kwargs)
        except UserError as error:
            return pictures.show_message(str(error))

    return answer


@explain_errors
def show_toy(category: str, instance: int, azimuth: float, elevation: float, light: float) -> str:
    """Show a rendered toy."""
    _check_choice("category", category, CATEGORIES)
    _check_choice("instance", instance, vision.INSTANCES)
    _check_choice("azimuth", azimuth, vision.AZIMUTHS)
    _check_choice("elevation", elevation, vision.ELEVATIONS)
    _check_choice("light", light, vision.LIGHTS)
    result = vision.recognise_toy(category, instance, int(azimuth), int(elevation), int(light))
    points, here = vision.project_pose(category, instance, result.winner, result.pose)
    path = f"a full turn at {vision.TURN_ELEVATION}° under light {vision.TURN_LIGHT} (the loop)"
    note = (
        f"The {CATEGORIES[result.winner]} capsule's 4x4 pose, projected on the two directions in which it moves most "
        f"along {path}. The dot is your view."
    )
    turn = figure(pictures.show_turn(points, here, vision.AZIMUTHS), note, title="Where its pose is", kind="walk")
    return _show_pair(result, f"{category} at {azimuth:g}°", turn)


@explain_errors
def show_files(paths: Sequence[str] | None) -> str:
    """Show an uploaded pair, or one image for both eyes."""
    if not paths:
        raise UserError("Choose one image or two.")
    try:
        files = [Path(path).read_bytes() for path in paths]
    except OSError:
        raise UserError("file: expected an uploaded file, it is gone; upload it again") from None
    return _show_pair(vision.recognise_files(files), "your image")


@lru_cache(1)
def load_predictor() -> Predictor:
    return Predictor("treebank")


@torch.inference_mode()
def classify_text(text: str) -> tuple[Tokens, Credit]:
    """Return the tokens of a text that is not empty, and their credit, of a batch of one, with the class scores."""
    if not isinstance(text, str) or not text.strip():
        raise UserError("Type a sentence.")
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"text: expected at most {MAX_CHARACTERS} characters, got {len(text):,}")
    classifier = load_predictor()
    encoder = classifier.preprocessing.model
    (tokens,) = encoder.split_tokens([text])
    return tokens, text_credit(classifier.network, *encoder.encode([tokens.ids]))


@explain_errors
def show_sentence(text: str, shown: str) -> str:
    """Show how a text is classified, and its credit for a class."""
    tokens, credit = classify_text(text)
    names, probabilities = load_predictor().classes, credit.scores[0].softmax(0)
    _check_choice("class", shown, (WINNER, *names))
    which = int(probabilities.argmax()) if shown == WINNER else names.index(shown)
    name, use, net = names[which], credit.use[0, ..., which], credit.net[0, ..., which]  # [n, depth] each
    words = f"The stronger the blue, the more the word raised the score of “{name}”; orange words lowered it."
    if tokens.truncated:
        words += f" Only the first {len(tokens.ids)} tokens were read."
    shares = (
        f"Per cent of each hidden state that “{name}” used, from the word itself to the encoder's last layer; "
        "no colour is 0%, full blue 100%."
    )
    scores = f"What each hidden state gave the score of “{name}”. All of them add up to {float(net.sum()):+.2f}."
    tinted = tinted_words([(" ", piece) for piece in tokens.pieces], net.sum(1).tolist())
    used = number_table((100 * use.numpy()).tolist(), "{:.0f}", 100, "depths", tokens.pieces)
    gave = number_table(net.tolist(), "{:.2f}", float(net.abs().max()), "depths", tokens.pieces)
    return show_grid(
        pictures.show_answer(names, probabilities),
        figure(tinted, words, title="What each word did", kind="words-figure"),
        figure(used, shares, title="Tokens by depth: share used"),
        figure(gave, scores, title="Tokens by depth: benefit less cost"),
    )


@explain_errors
def show_points(example: str, seed: float, n_iters: float, beta_use: float, beta_ign: float, iteration: float) -> str:
    """Show one iteration of the routing of points."""
    _check_choice("example", example, list(algorithm.GROUPS))
    _check_range("seed", seed, 0, algorithm.MAX_SEED)
    _check_range("n_iters", n_iters, 1, algorithm.MAX_ITERS)
    _check_range("beta_use", beta_use, 0, algorithm.MAX_BETA)
    _check_range("beta_ign", beta_ign, 0, algorithm.MAX_BETA)
    _check_range("iteration", iteration, 1, algorithm.MAX_ITERS)
    scene = algorithm.route_points(example, int(seed), int(n_iters), beta_use, beta_ign)
    k = min(int(iteration), len(scene.steps))
    step = scene.steps[k - 1]
    names = [f"capsule {j + 1}" for j in range(len(algorithm.HOMES))]
    scores, used = step.a.tolist(), step.D_use.sum(0).tolist()
    largest = max(float(s.a.abs().max()) for s in scene.steps)
    score_bars = pictures.show_bars(names, scores, [f"{a:+.2f}" for a in scores], pictures.HUES, largest, signed=True)
    use_bars = pictures.show_bars(names, used, [f"{u:.1f}" for u in used], pictures.HUES, algorithm.N_POINTS)
    legend = (
        "Large dots are points, in the colours of the capsules that use them; small dots their votes; diamonds the "
        "capsules' homes; ellipses two standard deviations about each capsule's mean."
    )
    benefit = "The benefit of the points a capsule uses, less the cost of those it ignores."
    offered = f"Of {algorithm.N_POINTS} points, each of which offers 95% of its data."
    return show_grid(
        figure(pictures.show_scene(scene, step), legend, title=f"Iteration {k} of {len(scene.steps)}", kind="big"),
        f"<div>{figure(score_bars, benefit, title='Scores')}{figure(use_bars, offered, title='Points used')}</div>",
    )


def _show_pair(result: vision.PairResult, what: str, turn: str = "") -> str:
    winner, (left, right) = CATEGORIES[result.winner], result.images
    views = pictures.show_grey(left, f"Left view of {what}") + pictures.show_grey(right, f"Right view of {what}")
    views += pictures.show_heat(left, result.heat, f"What {winner} used")
    evidence = (
        f"Where the {winner} capsule took its evidence, through both routing layers: from the least used place, grey, "
        "to the most used, orange."
    )
    pose = number_table(result.pose.tolist(), "{:z.2f}", float(result.pose.abs().max()), "pose")
    labels = "".join(f"<span>{name}</span>" for name in CATEGORIES)
    strips = "".join(
        f'<div class="strip"><small>iteration {t}</small><div class="labels">{labels}</div>{matrix}</div>'
        for t, matrix in _show_matrices(result.to_classes.mT, "Larger parts to classes")
    )
    settled = (
        f"Each column is one of {result.to_classes.shape[1]} larger parts, each row a class; the bluer, the more of "
        f"the part the class uses. Over {len(result.to_classes)} iterations parts settle on a class."
    )
    squares = "".join(
        f"<div>{matrix}<small>iteration {t}</small></div>"
        for t, matrix in _show_matrices(result.to_parts, "Parts to larger parts")
    )
    kinds = "Each row is one of 64 kinds of parts, over all locations of the image, each column a larger part."
    seen = "Left view, right view, and what was used"
    return show_grid(
        pictures.show_answer(CATEGORIES, result.probabilities),
        figure(f'<div class="views">{views}</div>', evidence, title=seen, kind="seen"),
        turn,
        figure(pose, "Blue above zero, orange below.", title=f"Pose of the {winner} capsule"),
        figure(strips, settled, title="Second routing: larger parts to classes", kind="wide"),
        figure(
            f'<div class="squares">{squares}</div>', kinds, title="First routing: parts to larger parts", kind="wide"
        ),
    )


def _show_matrices(shares: Tensor, what: str) -> list[tuple[int, Html]]:
    """Return each iteration's number and picture of shares `[t, rows, columns]`."""
    largest = float(shares.max())
    return [(t, pictures.show_matrix(m, f"{what}, iteration {t}", largest)) for t, m in enumerate(shares, 1)]


def show_grid(*figures: str) -> str:
    return f'<div class="shown">{"".join(figures)}</div>'


def _check_choice(name: str, value: Any, allowed: Collection[Any]) -> None:
    if value not in allowed:
        raise UserError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {str(value)[:40]!r}")


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"{name}: expected from {low:g} to {high:g}, got {str(value)[:40]!r}")
