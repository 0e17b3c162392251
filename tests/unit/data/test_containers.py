"""The same rows, whatever container they come in; and what is no container of rows."""

import itertools
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

from oncurve.data import InMemory
from oncurve.data.containers import as_rows
from oncurve.errors import DataError

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


def test_missing_cells_of_a_frame_are_none() -> None:
    frame = pandas.DataFrame(
        {
            "prompt": ["a", None],
            "x": [1.5, None],
            "n": pandas.array([1, None], dtype="Int64"),
            "t": pandas.to_datetime(["2024-01-01", None]),
        }
    )
    assert list(as_rows(frame)[1].values()) == [None] * 4
    assert as_rows(frame)[0]["n"] == 1


def test_an_iterator_that_does_not_end_is_refused() -> None:
    with pytest.raises(DataError, match=r"goes on after 1,000,000 rows.*data.limit"):
        as_rows(itertools.cycle(["a"]))
    with pytest.raises(DataError, match="may be endless"):
        InMemory(rows=itertools.cycle(["a"]), limit=3, eval_fraction=0.5)


WRONG: dict[str, tuple[Any, str]] = {
    "a DatasetDict": (
        datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS)),
        r"splits train, test; pass one of them, like data\['train'\]",
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
