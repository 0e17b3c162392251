"""A run as plain values (`group_record`, `read_run`) and as one self-contained page (`write_report`)."""

from oncurve.report.page import render_report, write_report
from oncurve.report.records import RunRecord, group_record, read_run

__all__ = ["RunRecord", "group_record", "read_run", "render_report", "write_report"]
