"""Prompts: rows from a source, each made into a prompt, in an order that is a function of seed and cursor."""

from oncurve.data.columns import MISSING as MISSING, template_columns as template_columns, value_at as value_at
from oncurve.data.containers import as_rows as as_rows
from oncurve.data.demonstrations import (
    TOOLS as TOOLS,
    DemonstrationRows as DemonstrationRows,
    Demonstrations as Demonstrations,
    load_demonstrations as load_demonstrations,
    open_demonstrations as open_demonstrations,
)
from oncurve.data.files import Files as Files
from oncurve.data.formats import read_file as read_file
from oncurve.data.order import (
    Counts as Counts,
    PassRateOrder as PassRateOrder,
    PromptOrder as PromptOrder,
    counted as counted,
    shares as shares,
)
from oncurve.data.prompts import (
    Prompts as Prompts,
    check_row as check_row,
    distinct_prompts as distinct_prompts,
    filled_prompt as filled_prompt,
    open_prompts as open_prompts,
    prompt_columns as prompt_columns,
)
from oncurve.data.settings import (
    HOLD_OUT_SEED as HOLD_OUT_SEED,
    Content as Content,
    DataSettings as DataSettings,
    Rows as Rows,
    check_data as check_data,
)
from oncurve.data.sources import (
    DATA_KINDS as DATA_KINDS,
    InMemory as InMemory,
    TaskRows as TaskRows,
    load_eval_rows as load_eval_rows,
    load_rows as load_rows,
    read_rows as read_rows,
)
