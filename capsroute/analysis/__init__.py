"""Pure functions from tensors to numbers and figures; what draws loads matplotlib when it is called."""

from .accuracy import Share, by_factor, by_instance_interval, confusion, probabilities, wilson
from .credit import Credit, ImageCredit, TextCredit, credit, for_class, heat_maps, image_credit, text_credit
from .deletion import Deletion, deletion
from .report import write_report, write_text_report

__all__ = [
    "Credit",
    "Deletion",
    "ImageCredit",
    "Share",
    "TextCredit",
    "by_factor",
    "by_instance_interval",
    "confusion",
    "credit",
    "deletion",
    "for_class",
    "heat_maps",
    "image_credit",
    "probabilities",
    "text_credit",
    "wilson",
    "write_report",
    "write_text_report",
]
