from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oncurve.base.errors import ConfigError, DataError
from oncurve.components import build
from oncurve.data import DATA_KINDS, DataSettings, Files, InMemory, TaskRows, load_eval_rows, load_rows

QUESTIONS = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(10)]


def jsonl(tmp_path: Path, rows: list[Any], name: str = "data.jsonl") -> Path:
    file = tmp_path / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def complaint(settings: DataSettings) -> str:
    with pytest.raises(DataError) as caught:
        load_rows(settings)
    return str(caught.value)


def test_rows_of_a_file_beside_the_recipe(tmp_path: Path):
    jsonl(tmp_path, QUESTIONS)
    rows = load_rows(Files(path="data.jsonl", prompt_column="question"), base=tmp_path)
    assert list(rows.items) == QUESTIONS
    assert list(rows.numbers) == list(range(10))
    assert rows.place(4) == f"{tmp_path / 'data.jsonl'} line 5"


def test_a_missing_column_is_named_with_line_and_what_there_is(tmp_path: Path):
    file = jsonl(tmp_path, [{"prompt": "a"}, {"question": "b", "answer": "c"}])
    assert complaint(Files(path=str(file))) == (
        f"{file} line 2: column 'prompt' is missing; it has: question, answer; set data.prompt_column or data.template"
    )
    said = complaint(Files(path=str(file), template="{qestion}"))
    assert "line 1: column 'qestion' is missing; it has: prompt; set data.template" in said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": None}, "data row 0: column 'prompt' is empty (null); a prompt needs a value"),
        ({"prompt": ""}, "data row 0: column 'prompt' is an empty string; there is nothing to ask"),
        ({"prompt": 5}, "expected a string or a list of {role, content} messages, got 5"),
        ({"prompt": []}, "expected a string or a list of {role, content} messages, got []"),
        ({"prompt": [{"content": "a"}]}, 'column \'prompt\', message 0: expected {"role": ..., "content": ...}'),
        ({"prompt": [{"role": "user", "content": 3}]}, "column 'prompt', message 0: 'content' must be a string, got 3"),
        ({"prompt": ["a", "b"]}, "column 'prompt', message 0: expected {\"role\""),
        ({"promt": "a"}, "did you mean 'promt'?"),
    ],
)
def test_a_row_that_makes_no_prompt_is_refused(row: dict[str, Any], said: str):
    assert said in complaint(InMemory(rows=(row,)))


def test_a_system_message_is_not_put_before_another_or_before_token_ids():
    two = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert "has a system message of its own" in complaint(InMemory(rows=({"prompt": two},), system="Be brief."))
    assert "holds token ids" in complaint(InMemory(rows=([1, 2],), system="Be brief."))


def test_bare_prompts_in_memory_are_rows_of_the_prompt_column():
    assert list(load_rows(InMemory(rows=("a", "b"), prompt_column="q")).items) == [{"q": "a"}, {"q": "b"}]
    assert list(load_rows(InMemory(rows=([1, 2], [3]), prompt_column="q")).items) == [{"q": [1, 2]}, {"q": [3]}]
    assert list(load_rows(InMemory(rows=({"q": "a"},), prompt_column="q")).items) == [{"q": "a"}]


def test_the_limit_takes_the_first_rows():
    assert list(load_rows(InMemory(rows=("a", "b", "c"), limit=2)).numbers) == [0, 1]


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


def test_a_tiny_fraction_holds_out_one_row_and_a_large_one_leaves_an_error():
    assert len(load_eval_rows(InMemory(rows=("a", "b"), eval_fraction=0.01))) == 1
    assert "there is no row to train on" in complaint(InMemory(rows=("a", "b"), eval_fraction=0.99))
    assert "there is no row to train on" in complaint(InMemory())


def test_held_out_rows_may_come_from_their_own_file(tmp_path: Path):
    train, held = jsonl(tmp_path, QUESTIONS), jsonl(tmp_path, QUESTIONS[:2], "eval.jsonl")
    settings = Files(path=str(train), eval_path=str(held), prompt_column="question")
    assert len(load_rows(settings)) == 10
    assert len(load_eval_rows(settings)) == 2
    assert not load_eval_rows(Files(path=str(train), prompt_column="question"))


def test_a_bad_held_out_row_is_refused_too(tmp_path: Path):
    train, held = jsonl(tmp_path, [{"prompt": "a"}]), jsonl(tmp_path, [{"prompt": ""}], "eval.jsonl")
    with pytest.raises(DataError, match=r"eval\.jsonl line 1: column 'prompt' is an empty string"):
        load_eval_rows(Files(path=str(train), eval_path=str(held)))


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


def test_rows_in_memory_can_be_kept_in_a_file(tmp_path: Path):
    settings = InMemory(rows=({"prompt": "a"}, {"prompt": "é", "answer": None}), limit=2, eval_fraction=0.5)
    kept = settings.kept_as(tmp_path / "data.jsonl")
    assert kept.path == "data.jsonl"  # next to the run's config.toml
    assert kept.limit == 2
    assert kept.eval_fraction == 0.5
    assert [dict(row) for row in load_rows(kept, tmp_path).items] == [dict(row) for row in load_rows(settings).items]
    with pytest.raises(DataError, match="cannot be kept"):
        InMemory(rows=({"prompt": object()},)).kept_as(tmp_path / "bad.jsonl")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": "a", "template": "no column"}, "data.template: a template must name a column"),
        ({"kind": "task", "task": "chess"}, "data.task: unknown task; the built-in tasks are: arithmetic"),
        ({"kind": "parquet"}, "data.kind: unknown kind 'parquet'"),
        ({"path": "a", "eval_fraction": 1.0}, "data.eval_fraction: should be less than 1"),
        ({"path": ""}, "data.path: should have at least 1 character"),
        ({"kind": "task", "path": "a"}, "data.path: unknown key"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as caught:
        build(settings, DATA_KINDS, "data", "files")
    assert said in str(caught.value)


def test_a_file_is_asked_for_where_there_is_none():
    assert complaint(Files()) == "data.path: missing; name a file of rows: JSONL, parquet or CSV"


def test_the_questions_of_gsm8k_are_rows(test_data: Path):
    rows = load_rows(Files(path=str(test_data / "gsm8k" / "train.jsonl"), template="{question}\nEnd with ####."))
    assert len(rows) == 7473
    assert rows.items[0]["answer"].endswith("#### 72")
