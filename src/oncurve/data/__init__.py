"""Prompts: rows from a source, each made into a prompt, in an order that is a function of seed and cursor."""

from oncurve.data.columns import MISSING, template_columns, value_at
from oncurve.data.containers import as_rows
from oncurve.data.demonstrations import (
    TOOLS,
    DemonstrationRows,
    Demonstrations,
    load_demonstrations,
    open_demonstrations,
)
from oncurve.data.files import Files
from oncurve.data.formats import read_file
from oncurve.data.order import Counts, PassRateOrder, PromptOrder, counted, shares
from oncurve.data.prompts import Prompts, check_row, distinct_prompts, filled_prompt, open_prompts, prompt_columns
from oncurve.data.settings import HOLD_OUT_SEED, Content, DataSettings as DataSettings, Rows as Rows, check_data
from oncurve.data.sources import (
    DATA_KINDS,
    InMemory,
    TaskRows,
    load_eval_rows as load_eval_rows,
    load_rows as load_rows,
    read_rows,
)
