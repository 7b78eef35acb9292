"""Routing by agreement for PyTorch."""

from .credit import credit
from .heads import RoutingHead
from .layers import Routing
from .pretrained import load
from .routing import Capsules, route

__version__ = "0.1.0"
__all__ = ["Capsules", "Routing", "RoutingHead", "credit", "load", "route"]
