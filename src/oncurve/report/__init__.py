"""A run as plain values (`read_run`, `RolloutIndex`), and as one self-contained page.

Loaded lazily: a process that only reads groups needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.report.index import Pieces, RolloutIndex as RolloutIndex, packed_tokens
    from oncurve.report.page import Page, ShownGroups, charts_page, render_report, report_page, write_report
    from oncurve.report.records import RunRecord, group_record, plain, read_run
    from oncurve.report.rollouts import TOKENS, EvaluationFiles, RolloutFiles, steps_in_words
    from oncurve.report.show import (
        answer_column,
        answer_of_row,
        link,
        look_at,
        look_at_flips,
        most_changed,
        show_text,
        table,
    )
    from oncurve.report.templates import rendered

__getattr__, __all__ = lazily(__name__)
