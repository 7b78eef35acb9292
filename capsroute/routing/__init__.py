"""The algorithm: one implementation per file, none imports another; `api` checks and picks."""

from .agreement import Agreement, Quadratic
from .api import IMPLS, pick, route, trace
from .capsules import Capsules, Step
from .case import Case

__all__ = ["IMPLS", "Agreement", "Capsules", "Case", "Quadratic", "Step", "pick", "route", "trace"]
