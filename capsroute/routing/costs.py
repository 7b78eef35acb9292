"""Estimates how long implementations take on a CPU, for `impl="auto"`.

The constants were fitted to the shapes of `benchmarks/shapes.py` on one core, forward and backward.
"""

from typing import NamedTuple

from .case import Case
from .moments import n_features


class Cost(NamedTuple):
    """Milliseconds of a call, and nanoseconds of its parts."""

    call_ms: float
    vote: float  # per number of the votes
    vote_iteration: float  # per number of the votes, and iteration
    weight: float  # per weight that the votes of several kinds take
    product: float  # per multiplication that forms votes, where they are formed more often than once


REFERENCE, BLOCKED = Cost(1.5, 0, 15, 5, 0), Cost(2.5, 8, 7, 15, 0.03)
MOMENTS_CALL_MS = 3.0
FEATURE, MODEL, MODEL_OF_KINDS = 0.7, 25, 60
"""Nanoseconds per feature of a pair and iteration, and per product that models take, of one kind or several."""


def estimate_ms(case: Case) -> dict[str, float]:
    """Return the milliseconds that each implementation takes, by its name."""
    s, several = case, case.n_kinds > 1
    pairs, products = s.n_samples * s.n_inp * s.n_out, s.d_inp * (s.d_inp + 1) // 2
    weights = s.n_out * s.d_inp * s.d_out * several
    models = s.n_samples * s.n_kinds * s.n_out * s.d_cov * s.d_out * products

    def estimate(cost: Cost, n_weights: int) -> float:
        votes = pairs * s.d_cov * s.d_out
        per_vote = cost.vote + cost.vote_iteration * s.n_iters + cost.product * s.d_inp
        return cost.call_ms + 1e-6 * (votes * per_vote + n_weights * cost.weight)

    moments = pairs * n_features(s) * s.n_iters * FEATURE + models * (MODEL_OF_KINDS if several else MODEL)
    return {
        "reference": estimate(REFERENCE, weights * s.n_inp),  # it expands the weights of kinds
        "blocked": estimate(BLOCKED, weights * s.n_kinds),
        "moments": MOMENTS_CALL_MS + 1e-6 * moments,
    }
