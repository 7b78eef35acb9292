"""Whole networks, one file each."""

from .pooling import AttentionPooling, LinearProbe
from .smallnorb import SmallNORB
from .sst import SST

__all__ = ["SST", "AttentionPooling", "LinearProbe", "SmallNORB"]
