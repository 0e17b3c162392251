from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError, DataError
from oncurve.config import load_config
from oncurve.data import Files, InMemory, load_eval_rows, load_rows
from oncurve.data.formats import first_twice, read_jsonl

CHAT = [{"role": "user", "content": "Wie groß ist 2+2? 🙂"}]
VERL = [
    {
        "data_source": "openai/gsm8k",
        "prompt": CHAT,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(n)},
        "extra_info": {"split": "train", "index": n},
    }
    for n in range(3)
]


ROWS_IN_GZIP = gzip.compress(b'{"prompt": "a"}\n' * 99, mtime=0)


def jsonl(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def in_parquet(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


def rows_of(**settings: Any) -> list[Any]:
    return list(load_rows(Files(**settings)).items)


def complaint(**settings: Any) -> str:
    return message_of(DataError, load_rows, Files(**settings))


def test_the_same_rows_in_every_format_are_the_same(tmp_path: Path):
    rows = [{"prompt": 'a, "b"\nc é🙂', "answer": "007"}, {"prompt": "d", "answer": ""}]
    pandas.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    pandas.DataFrame(rows).to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    files = [jsonl(tmp_path / "a.jsonl", rows), in_parquet(tmp_path / "a.parquet", rows)]
    files += [tmp_path / "a.csv", tmp_path / "a.tsv"]
    files += [tmp_path / "a.json", tmp_path / "pretty.json"]
    files[-2].write_text(json.dumps(rows))
    files[-1].write_text(json.dumps(rows, indent=2))
    for file in list(files):
        files.append(file.with_name(f"{file.name}.gz"))
        files[-1].write_bytes(gzip.compress(file.read_bytes()))
    assert [rows_of(path=str(file)) for file in files] == [rows] * 12
    assert len(rows_of(path=str(tmp_path))) == 2 * 8  # a folder's .json may be no rows


def test_places_are_lines_of_text_and_rows_of_parquet(tmp_path: Path):
    (tmp_path / "a.csv").write_text('prompt\n"two\nlines"\n\nx\n')
    assert load_rows(Files(path=str(tmp_path / "a.csv"))).place(1) == f"{tmp_path / 'a.csv'} line 5"
    file = in_parquet(tmp_path / "a.parquet", [{"prompt": "a"}, {"prompt": ""}])
    assert complaint(path=str(file)) == f"{file} row 2: column 'prompt' is an empty string; there is nothing to ask"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        *((name, content.encode("latin-1"), said) for name, content, said in table("files", "bad_files")),
        ("a.jsonl.gz", ROWS_IN_GZIP[:-20], "a.jsonl.gz ends early"),
        ("a.jsonl.gz", ROWS_IN_GZIP[:-4] + b"\0\0\0\0", "is damaged, or not compressed by gzip"),
        ("a.jsonl.gz", gzip.compress(bytes(65 << 20), 9, mtime=0), "expands to more than 100 times its size"),
    ],
)
def test_a_bad_file_is_named_with_the_place(tmp_path: Path, name: str, content: bytes, said: str):
    (tmp_path / name).write_bytes(content)
    assert said in complaint(path=str(tmp_path / name))


def test_a_folder_is_its_files_in_order_and_a_pattern_some_of_them(tmp_path: Path):
    in_parquet(tmp_path / "rows" / "b-1.parquet", [{"prompt": "c"}])
    jsonl(tmp_path / "rows" / "a.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    jsonl(tmp_path / "rows" / ".hidden.jsonl", [{"prompt": "x"}])
    (tmp_path / "rows" / "README.md").write_text("no rows")
    rows = load_rows(Files(path="rows"), tmp_path)
    assert [row["prompt"] for row in rows.items] == ["a", "b", "c"]
    assert rows.place(2) == f"{tmp_path / 'rows' / 'b-1.parquet'} row 1"
    assert list(load_rows(Files(path="rows/*.parquet"), tmp_path).items) == [{"prompt": "c"}]
    both = Files(path=("rows/b-1.parquet", "rows/a.jsonl"))
    assert [row["prompt"] for row in load_rows(both, tmp_path).items] == ["c", "a", "b"]
    assert f"data.path: no file fits the pattern {tmp_path}" in complaint(path=str(tmp_path / "rows" / "*.txt"))
    assert "has no file of rows (.jsonl, .parquet, .csv, .tsv); it has: README.md" in complaint(
        path=str(tmp_path / "rows" / "*.md")
    )
    (tmp_path / "empty").mkdir()
    assert "empty has no file of rows" in complaint(path=str(tmp_path / "empty"))


def test_the_splits_of_a_folder_are_chosen_by_name(tmp_path: Path):
    for name, prompt in (("train", "a"), ("test", "b")):
        jsonl(tmp_path / "by_file" / f"{name}.jsonl", [{"prompt": prompt}])
        in_parquet(tmp_path / "by_folder" / name / "part-0.parquet", [{"prompt": prompt}])
        in_parquet(tmp_path / "shards" / "data" / f"{name}-00000-of-00001.parquet", [{"prompt": prompt}])
    for folder in ("by_file", "by_folder", "shards"):
        path = str(tmp_path / folder)
        assert "has the splits test, train; choose one, like data.split=train" in complaint(path=path)
        assert rows_of(path=path, split="train") == [{"prompt": "a"}]
        settings = Files(path=path, eval_split="test")
        assert list(load_rows(settings).items) == [{"prompt": "a"}]
        assert list(load_eval_rows(settings).items) == [{"prompt": "b"}]
        assert "has no files of the split 'dev'; its files are: " in complaint(path=path, split="dev")
    file = str(tmp_path / "by_file" / "train.jsonl")
    assert "is one file, which has no splits" in complaint(path=file, split="train")


@pytest.mark.parametrize(("settings", "said"), table("files", "settings_that_make_no_sense_are_refused"))
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str):
    assert said in message_of(ConfigError, load_config, None, settings={"data": settings})


def test_columns_get_other_names_and_parts_of_a_table_become_columns(tmp_path: Path):
    file = jsonl(tmp_path / "a.jsonl", [{"question": "a", "meta": {"truth": 4}, "level": 1}])
    columns = {"prompt": "question", "answer": "meta.truth"}
    assert rows_of(path=str(file), columns=columns) == [{"meta": {"truth": 4}, "level": 1, "prompt": "a", "answer": 4}]
    said = complaint(path=str(file), columns={"prompt": "qestion"})
    assert said == (
        f"{file} line 1: column 'qestion' (data.columns) is missing; it has question, meta, level; "
        "did you mean 'question'?"
    )
    assert "there is one of that name" in complaint(path=str(file), columns={"level": "question"})
    swapped = InMemory(rows=({"prompt": "b", "answer": "a"},), columns={"prompt": "answer", "answer": "prompt"})
    assert list(load_rows(swapped).items) == [{"prompt": "a", "answer": "b"}]


def test_rows_of_verl_are_read_from_parquet_and_a_frame_with_their_answer(tmp_path: Path):
    file = in_parquet(tmp_path / "train.parquet", VERL)
    wanted = [{**row, "answer": str(n)} for n, row in enumerate(VERL)]
    assert rows_of(path=str(file)) == wanted
    frame = pandas.read_parquet(file)
    assert isinstance(frame["prompt"][0], numpy.ndarray)
    assert list(load_rows(InMemory(rows=frame)).items) == wanted


def written(tmp_path: Path, content: bytes, name: str = "data.jsonl") -> Path:
    file = tmp_path / name
    file.write_bytes(content)
    return file


def jsonl_complaint(file: Path) -> str:
    return message_of(DataError, read_jsonl, file)


def test_rows_keep_their_line_over_blank_lines_a_bom_and_windows_ends(tmp_path: Path):
    rows = read_jsonl(written(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \n{"prompt": "\xc3\xa9"}'))
    assert rows.items == [{"prompt": "a"}, {"prompt": "é"}]
    assert list(rows.numbers) == [1, 4]


@pytest.mark.parametrize(
    ("line", "said"), [*table("files", "bad_lines"), ("[" * 100_000, "line 3"), ('{"a":' * 100_000, "line 3")]
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: str, said: str):
    assert said in jsonl_complaint(written(tmp_path, b'{"prompt": "a"}\n\n' + line.encode("latin-1") + b"\n"))


def test_equal_keys_are_found_in_one_pass(tmp_path: Path):
    looked_at = 0

    def names() -> Iterator[str]:
        nonlocal looked_at
        for name in (*map(str, range(16_000)), "a", "a"):
            looked_at += 1
            yield name

    assert first_twice(names()) == "a"
    assert looked_at == 16_002
    assert "column 'k' occurs twice" in jsonl_complaint(written(tmp_path, b'{"x": 1' + b', "k": 0' * 100_000 + b"}"))


def test_a_missing_file_is_named_with_its_neighbour(tmp_path: Path):
    written(tmp_path, b"{}", "train.jsonl")
    assert "there is no file" in jsonl_complaint(tmp_path / "trian.jsonl")
    assert "did you mean 'train.jsonl'?" in jsonl_complaint(tmp_path / "trian.jsonl")
    assert "there is no file" in jsonl_complaint(tmp_path / "nowhere" / "train.jsonl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_said(tmp_path: Path):
    file = written(tmp_path, b"{}")
    file.chmod(0)
    assert "cannot be read" in jsonl_complaint(file)
