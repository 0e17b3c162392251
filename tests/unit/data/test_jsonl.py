from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncurve.data.jsonl import first_twice, read_jsonl
from oncurve.errors import DataError


def written(tmp_path: Path, content: bytes, name: str = "data.jsonl") -> Path:
    file = tmp_path / name
    file.write_bytes(content)
    return file


def complaint(file: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_jsonl(file)
    return str(caught.value)


def test_rows_keep_their_line_over_blank_lines_a_bom_and_windows_ends(tmp_path: Path):
    rows, lines, _ = read_jsonl(written(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \n{"prompt": "\xc3\xa9"}'))
    assert rows == [{"prompt": "a"}, {"prompt": "é"}]
    assert list(lines) == [1, 4]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": }', "data.jsonl line 3, column 12: not JSON: Expecting value"),
        (b"{", "the line ends inside it: an object must be on one line"),
        (b'"just text"', 'line 3: expected an object like {"prompt": ...}, got "just text"'),
        (b'[{"prompt": "a"}]', "one a line, got a JSON array"),
        (b'{"prompt": "\xe9"}', "line 3, byte 13: not UTF-8"),
        (b'{"a": 1, "b": 2, "a": 3}', "line 3: column 'a' occurs twice in one object"),
        (b'{"score": NaN}', "line 3: NaN is not JSON; write null, or leave the column out"),
        (b"[" * 100_000, "line 3"),
        (b'{"a":' * 100_000, "line 3"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: bytes, said: str):
    assert said in complaint(written(tmp_path, b'{"prompt": "a"}\n\n' + line + b"\n"))


def test_equal_keys_are_found_in_one_pass(tmp_path: Path):
    looked_at = 0

    def names() -> Iterator[str]:
        nonlocal looked_at
        for name in (*map(str, range(16_000)), "a", "a"):
            looked_at += 1
            yield name

    assert first_twice(names()) == "a"
    assert looked_at == 16_002
    assert "column 'k' occurs twice" in complaint(written(tmp_path, b'{"x": 1' + b', "k": 0' * 100_000 + b"}"))


def test_a_missing_file_is_named_with_its_neighbour(tmp_path: Path):
    written(tmp_path, b"{}", "train.jsonl")
    assert "there is no file" in complaint(tmp_path / "trian.jsonl")
    assert "did you mean 'train.jsonl'?" in complaint(tmp_path / "trian.jsonl")
    assert "there is no file" in complaint(tmp_path / "nowhere" / "train.jsonl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_said(tmp_path: Path):
    file = written(tmp_path, b"{}")
    file.chmod(0)
    assert "cannot be read" in complaint(file)
