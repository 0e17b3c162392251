"""Prompts: rows from a source, each made into a prompt, in an order that is a function of seed and cursor."""

from oncurve.data.judgements import JUDGEMENT_KINDS, Judgements, example_from_json, example_to_json
from oncurve.data.prompts import Prompts, check_row, open_prompts, prompt_columns
from oncurve.data.settings import DataSettings, Rows
from oncurve.data.sources import DATA_KINDS, InMemory, Jsonl, Task, load_eval_rows, load_rows
from oncurve.data.stream import PromptStream

__all__ = [
    "DATA_KINDS",
    "JUDGEMENT_KINDS",
    "DataSettings",
    "InMemory",
    "Jsonl",
    "Judgements",
    "PromptStream",
    "Prompts",
    "Rows",
    "Task",
    "check_row",
    "example_from_json",
    "example_to_json",
    "load_eval_rows",
    "load_rows",
    "open_prompts",
    "prompt_columns",
]
