"""The algorithm: `api` checks arguments and picks an implementation; implementations do not import each other."""

from .agreement import Agreement, Quadratic, resolve_agreement
from .api import IMPLS, pick, route, route_packed, trace
from .capsules import Capsules, Step
from .case import Case

__all__ = [
    "IMPLS",
    "Agreement",
    "Capsules",
    "Case",
    "Quadratic",
    "Step",
    "pick",
    "resolve_agreement",
    "route",
    "route_packed",
    "trace",
]
