"""The paper's networks, one file each."""

from .smallnorb import SmallNORB
from .sst import SST

__all__ = ["SST", "SmallNORB"]
