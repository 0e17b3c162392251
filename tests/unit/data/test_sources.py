from __future__ import annotations

import itertools
import json
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy
import pandas
import pyarrow
import pytest
import torch

from fakes.messages import message_of
from fakes.project import words_tokenizer
from fakes.tables import table
from oncurve.base.errors import ConfigError, DataError
from oncurve.components import build
from oncurve.data import (
    DATA_KINDS,
    DataSettings,
    Files,
    InMemory,
    PromptOrder,
    TaskRows,
    load_eval_rows,
    load_rows,
    open_prompts,
)
from oncurve.data.containers import as_rows

QUESTIONS = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(10)]


def jsonl(tmp_path: Path, rows: list[Any], name: str = "data.jsonl") -> Path:
    file = tmp_path / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def complaint(settings: DataSettings) -> str:
    return message_of(DataError, load_rows, settings)


def test_rows_of_a_file_beside_the_recipe(tmp_path: Path):
    jsonl(tmp_path, QUESTIONS)
    rows = load_rows(Files(path="data.jsonl", prompt_column="question"), base=tmp_path)
    assert list(rows.items) == QUESTIONS
    assert list(rows.numbers) == list(range(10))
    assert rows.place(4) == f"{tmp_path / 'data.jsonl'} line 5"


def test_a_missing_column_is_named_with_line_and_what_there_is(tmp_path: Path):
    file = jsonl(tmp_path, [{"prompt": "a"}, {"question": "b", "answer": "c"}])
    assert complaint(Files(path=str(file))) == (
        f"{file} line 2: column 'prompt' is missing; it has: question, answer; set data.prompt_column=question or "
        'data.template (data.template = "" where an environment asks)'
    )
    said = complaint(Files(path=str(file), template="{qestion}"))
    assert "line 1: column 'qestion' is missing; it has: prompt; correct data.template" in said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        *table("sources", "no_prompt"),
        ({"prompt": None}, "data row 0: column 'prompt' is empty (null); a prompt needs a value"),
    ],
)
def test_a_row_that_makes_no_prompt_is_refused(row: dict[str, Any], said: str):
    assert said in complaint(InMemory(rows=(row,)))


def test_a_fraction_is_held_out_and_keeps_its_numbers():
    settings = InMemory(rows=tuple(str(n + 1) for n in range(40)), eval_fraction=0.25)
    train, held = load_rows(settings), load_eval_rows(settings)
    assert len(held) == 10
    assert sorted([*train.numbers, *held.numbers]) == list(range(40))
    assert list(train.numbers) == sorted(train.numbers)
    assert [row["prompt"] for row in held.items] == [str(n + 1) for n in held.numbers]
    limited = InMemory(rows=settings.rows, eval_fraction=0.25, limit=3)
    assert list(load_eval_rows(limited).numbers) == list(held.numbers)
    assert len(load_eval_rows(settings).first(4)) == 4


def test_held_out_rows_may_come_from_their_own_file(tmp_path: Path):
    train, held = jsonl(tmp_path, QUESTIONS), jsonl(tmp_path, QUESTIONS[:2], "eval.jsonl")
    settings = Files(path=str(train), eval_path=str(held), prompt_column="question")
    assert len(load_rows(settings)) == 10
    assert len(load_eval_rows(settings)) == 2
    assert not load_eval_rows(Files(path=str(train), prompt_column="question"))


def test_the_built_in_task_makes_its_problems_on_demand():
    settings = TaskRows(size=1_000_000, eval_size=3)
    rows, held = load_rows(settings), load_eval_rows(settings)
    assert len(rows) == 1_000_000
    assert rows.items[999_999].keys() == {"prompt", "question", "answer"}
    assert rows.items[5] == load_rows(settings).items[5] != load_rows(TaskRows(seed=1)).items[5]
    assert [held.items[i] for i in range(3)] == [
        load_eval_rows(TaskRows(seed=1, eval_size=3)).items[i] for i in range(3)
    ]
    assert len(load_rows(TaskRows(size=10, limit=4))) == 4
    with pytest.raises(IndexError):
        rows.items[1_000_000]
    assert rows.items[0:2] == [rows.items[0], rows.items[1]]


@pytest.mark.parametrize(("settings", "said"), table("sources", "refused"))
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str):
    assert said in message_of(ConfigError, build, settings, DATA_KINDS, "data", "files")


ROWS = [{"prompt": f"w{index}", "answer": index, "share": index / 7, "tags": [index, 1]} for index in range(3, 9)]


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


CONTAINERS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "a tuple": tuple,
    "a generator": lambda rows: (row for row in rows),
    "an iterator": iter,
    "the values of a mapping": lambda rows: dict(enumerate(rows)).values(),
    "columns": columns,
    "columns of arrays": lambda rows: {
        name: numpy.array(cells) if name != "tags" else cells for name, cells in columns(rows).items()
    },
    "columns of Series": lambda rows: {name: pandas.Series(cells) for name, cells in columns(rows).items()},
    "a mapping of columns": lambda rows: UserDict(columns(rows)),
    "a DataFrame": pandas.DataFrame,
    "a DataFrame with an index": lambda rows: pandas.DataFrame(rows, index=[f"i{n}" for n in range(len(rows))]),
    "a Dataset": datasets.Dataset.from_list,
    "a Dataset of arrays": lambda rows: datasets.Dataset.from_list(rows).with_format("numpy"),
    "a Dataset of tensors": lambda rows: datasets.Dataset.from_list(rows).with_format("torch"),
    "a Dataset of frames": lambda rows: datasets.Dataset.from_list(rows).with_format("pandas"),
    "a streamed Dataset": lambda rows: datasets.Dataset.from_list(rows).to_iterable_dataset(),
    "an Arrow table": pyarrow.Table.from_pylist,
    "rows of NumPy's scalars": lambda rows: [
        {**row, "answer": numpy.int64(row["answer"]), "tags": numpy.array(row["tags"])} for row in rows
    ],
}


def types(value: Any) -> Any:
    return [types(item) for item in value] if isinstance(value, list) else type(value)


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_the_rows_that_a_list_gives(container: str) -> None:
    rows = as_rows(CONTAINERS[container](ROWS))
    assert rows == as_rows(ROWS) == tuple(ROWS)
    assert [[types(value) for value in row.values()] for row in rows] == [
        [types(v) for v in row.values()] for row in ROWS
    ]
    assert as_rows(rows) == rows


WRONG: dict[str, tuple[Any, str]] = {
    "a DatasetDict": (
        datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS)),
        r"splits train, test; pass one, like data\['train'\]",
    ),
    "streamed splits": (
        datasets.IterableDatasetDict(train=datasets.Dataset.from_list(ROWS).to_iterable_dataset()),
        r"data\['train'\]",
    ),
    "splits of rows": ({"train": ROWS, "test": ROWS}, r"data\['train'\]"),
    "splits of frames": ({"a": pandas.DataFrame(ROWS)}, r"data\['a'\]"),
    "a string": ("w3 w4", "for a file give its path"),
    "bytes": (b"w3", "for a file give its path"),
    "a set": ({"a", "b"}, "no order"),
    "a number": (3, "expected rows"),
    "an object": (object(), "expected rows"),
    "a class": (list, "expected rows"),
    "an array of nothing": (numpy.array(3), "a single number"),
    "one row": (ROWS[0], r"a single row is given in a list, data=\[row\]"),
    "settings": ({"kind": "task"}, r"settings=\{'data'"),
    "nested settings": ({"a": {"b": 1}}, "not a list of values"),
    "a column that is a number": ({"prompt": ["a"], "n": 3}, "column 'n' is int 3"),
    "columns of other lengths": ({"prompt": ["a"], "n": [1, 2]}, "differ in length: prompt 1, n 2"),
    "columns without names": ({1: ["a"]}, "column names must be strings"),
    "a frame without names": (pandas.DataFrame([["a"]]), "column names must be strings"),
    "a column twice": (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "twice"),
    "a row without names": ([{1: "a"}], "data row 0: column 1: column names must be strings"),
    "rows and prompts": ([ROWS[0], "a"], "row 0 is a mapping, row 1 is a str"),
    "words and numbers": (["a", 3], "mixed types"),
    "words and token ids": (["a", [1]], "mixed types"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_container_of_rows_is_refused(what: str) -> None:
    given, words = WRONG[what]
    with pytest.raises(DataError, match=words):
        as_rows(given)


def test_rows_that_json_cannot_hold_are_named() -> None:
    for value in (float("nan"), object(), {1, 2}, b"x", "\ud800"):
        with pytest.raises(DataError, match="data row 1: column 'answer' cannot be kept"):
            InMemory(rows=[{"prompt": "a"}, {"prompt": "b", "answer": value}]).check_keepable()
    InMemory(rows=[{"prompt": numpy.str_("a"), "answer": numpy.float32(0.5), "w": torch.tensor([1])}]).check_keepable()


def test_held_out_rows_may_be_given_next_to_those_that_are_trained_on(tmp_path: Path) -> None:
    given = InMemory(rows=["a", "b"], eval_rows=[{"prompt": "c", "answer": 1}])
    train, held_out = given.read(None)
    assert given.holds_out
    assert [row["prompt"] for row in train.items] == ["a", "b"]
    assert (held_out.items, held_out.place(0)) == ([{"prompt": "c", "answer": 1}], "held-out row 0")
    again, held_out_again = given.kept_as(tmp_path / "data.jsonl").read(tmp_path)
    assert [row["prompt"] for row in again.items] == ["a", "b"]
    assert [dict(row) for row in held_out_again.items] == held_out.items
    with pytest.raises(DataError, match="held-out row 0: column 'x' cannot be kept"):
        InMemory(rows=["a"], eval_rows=[{"prompt": "c", "x": 1j}]).check_keepable()


def weighted(tmp_path: Path, weights: list[float] | None, **more: Any) -> PromptOrder:
    jsonl(tmp_path, [{"prompt": f"a{n}"} for n in range(30)], "a.jsonl")
    jsonl(tmp_path, [{"prompt": f"b{n}"} for n in range(10)], "b.jsonl")
    settings = Files(path=("a.jsonl", "b.jsonl"), weights=weights, **more)
    prompts = open_prompts(load_rows(settings, tmp_path), settings, words_tokenizer())
    return PromptOrder(prompts, seed=3, shuffle=settings.shuffle, mixture=prompts.mixture)


def test_sources_give_prompts_by_their_weights_in_every_epoch_and_go_through_their_rows_evenly(tmp_path: Path):
    order = weighted(tmp_path, [1, 1])
    taken = [prompt.text for prompt in order.take(0, 40 * 3)[0]]
    for epoch in range(3):
        assert sum(text.startswith("a") for text in taken[40 * epoch : 40 * (epoch + 1)]) == 20
    counts = {text: taken.count(text) for text in taken}
    assert {counts[f"a{n}"] for n in range(30)} == {2}
    assert {counts[f"b{n}"] for n in range(10)} == {6}
    assert [prompt.text for prompt in order.take(57, 30)[0]] == taken[57:87]  # a resumed run goes on with the same
    assert taken[:40] != taken[40:80]


def test_a_source_that_gives_no_prompt_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"source 2 of data\.path gives less than one prompt an epoch"):
        weighted(tmp_path, [1000, 1])
    with pytest.raises(DataError, match=r"source 2 of data\.path has no prompt left"):
        weighted(tmp_path, [1, 1], limit=5)


def test_an_iterator_is_read_as_far_as_is_said() -> None:
    endless = ({"prompt": str(index)} for index in itertools.count())
    assert InMemory(rows=endless, limit=3).rows == ({"prompt": "0"}, {"prompt": "1"}, {"prompt": "2"})
    assert next(endless) == {"prompt": "3"}
    whole = InMemory(rows=iter(ROWS), limit=3, eval_fraction=0.5)
    assert whole.rows == tuple(ROWS)  # what is held out is some of all rows, as of a list's


def test_an_iterator_that_does_not_end_is_refused() -> None:
    with pytest.raises(DataError, match=r"goes on after 1,000,000 rows.*data.limit"):
        as_rows(itertools.cycle(["a"]))
    with pytest.raises(DataError, match="may be endless"):
        InMemory(rows=itertools.cycle(["a"]), limit=3, eval_fraction=0.5)
