"""Pure functions from tensors to numbers and figures; what draws loads matplotlib when it is called."""

from .accuracy import Share, by_factor, by_instance_interval, confusion, probabilities, wilson
from .report import write_report, write_text_report

__all__ = [
    "Share",
    "by_factor",
    "by_instance_interval",
    "confusion",
    "probabilities",
    "wilson",
    "write_report",
    "write_text_report",
]
