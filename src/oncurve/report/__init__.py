"""A run as plain values (`read_run`, `RolloutIndex`), and as one self-contained page.

Loaded lazily: a process that only reads groups needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.report.groups import answer_column as answer_column, answer_of_row as answer_of_row
    from oncurve.report.index import RolloutIndex as RolloutIndex
    from oncurve.report.page import (
        Page as Page,
        ShownGroups as ShownGroups,
        charts_page as charts_page,
        render_report as render_report,
        report_page as report_page,
        write_report as write_report,
    )
    from oncurve.report.records import (
        RunRecord as RunRecord,
        group_record as group_record,
        plain as plain,
        read_run as read_run,
    )
    from oncurve.report.rollouts import (
        TOKENS as TOKENS,
        EvaluationFiles as EvaluationFiles,
        RolloutFiles as RolloutFiles,
        steps_in_words as steps_in_words,
    )
    from oncurve.report.show import (
        link as link,
        look_at as look_at,
        look_at_flips as look_at_flips,
        most_changed as most_changed,
        show_text as show_text,
        table as table,
    )
    from oncurve.report.templates import rendered as rendered
    from oncurve.report.tokens import Pieces as Pieces, packed_tokens as packed_tokens

__getattr__, __all__ = lazily(__name__)
