"""Reports and figures of finished runs."""

from .report import write_report, write_text_report
from .run_report import write_run_report

__all__ = ["write_report", "write_run_report", "write_text_report"]
