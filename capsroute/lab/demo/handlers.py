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
from ..formatting import readable
from ..html import Html, number_table, tinted_words
from ..inference import Predictor
from . import algorithm, pictures, vision
from .pictures import ANSWERS

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
            return str(show(*args, **kwargs))
        except UserError as error:
            return str(ANSWERS.message(readable(str(error))))

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
    picture = pictures.show_turn(points, here, vision.AZIMUTHS)
    turn = ANSWERS.turn(picture, CATEGORIES[result.winner], vision.TURN_ELEVATION, vision.TURN_LIGHT)
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
    tinted = tinted_words([(" ", piece) for piece in tokens.pieces], net.sum(1).tolist())
    used = number_table((100 * use.numpy()).tolist(), "{:.0f}", 100, "depths", tokens.pieces)
    gave = number_table(net.tolist(), "{:.2f}", float(net.abs().max()), "depths", tokens.pieces)
    n_read = len(tokens.ids) if tokens.truncated else None
    answer = pictures.show_answer(names, probabilities)
    return ANSWERS.sentence(answer, tinted, used, gave, name, float(net.sum()), n_read)


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
    score_bars = ANSWERS.bars(names, scores, [f"{a:+.2f}" for a in scores], pictures.HUES, largest, signed=True)
    use_bars = ANSWERS.bars(names, used, [f"{u:.1f}" for u in used], pictures.HUES, algorithm.N_POINTS)
    drawn = pictures.show_scene(scene, step)
    return ANSWERS.points(drawn, score_bars, use_bars, k, len(scene.steps), algorithm.N_POINTS)


def _show_pair(result: vision.PairResult, what: str, turn: str = "") -> str:
    winner, (left, right) = CATEGORIES[result.winner], result.images
    views = [
        pictures.show_grey(left, f"Left view of {what}"),
        pictures.show_grey(right, f"Right view of {what}"),
        pictures.show_heat(left, result.heat, f"What {winner} used"),
    ]
    answer = pictures.show_answer(CATEGORIES, result.probabilities)
    pose = number_table(result.pose.tolist(), "{:z.2f}", float(result.pose.abs().max()), "pose")
    to_classes = _show_matrices(result.to_classes.mT, "Larger parts to classes")
    to_parts = _show_matrices(result.to_parts, "Parts to larger parts")
    n_parts = result.to_classes.shape[1]
    return ANSWERS.pair(answer, views, turn, pose, winner, CATEGORIES, to_classes, to_parts, n_parts)


def _show_matrices(shares: Tensor, what: str) -> list[Html]:
    """Return the picture of the shares `[t, rows, columns]` of each iteration."""
    largest = float(shares.max())
    return [pictures.show_matrix(m, f"{what}, iteration {t}", largest) for t, m in enumerate(shares, 1)]


def _check_choice(name: str, value: Any, allowed: Collection[Any]) -> None:
    if value not in allowed:
        raise UserError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {str(value)[:40]!r}")


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"{name}: expected from {low:g} to {high:g}, got {str(value)[:40]!r}")
