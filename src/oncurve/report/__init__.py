"""A run as plain values (`RolloutFiles`, `read_run`), and as one self-contained page."""

from oncurve.report.groups import answer_column as answer_column, answer_of_row as answer_of_row
from oncurve.report.page import render_report as render_report, write_report as write_report
from oncurve.report.records import RunRecord as RunRecord, group_record as group_record, read_run as read_run
from oncurve.report.rollouts import RolloutFiles as RolloutFiles, steps_in_words as steps_in_words
from oncurve.report.shown import (
    Groups as Groups,
    Page as Page,
    charts_page as charts_page,
    report_page as report_page,
)
