"""Whole networks, one file each."""

from .smallnorb import SmallNORB

__all__ = ["SmallNORB"]
