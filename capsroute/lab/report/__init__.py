"""Reports and figures of finished runs."""

from .report import write_report, write_text_report

__all__ = ["write_report", "write_text_report"]
