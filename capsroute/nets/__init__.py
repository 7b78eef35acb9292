"""Networks: the paper's, and a classifier of one's own data."""

from .classifier import Classifier
from .smallnorb import SmallNORB
from .sst import SST

__all__ = ["SST", "Classifier", "SmallNORB"]
