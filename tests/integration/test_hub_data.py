"""Data sets of the hub, read from a server in this process by `datasets` itself, and once more when it is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.hub_server import COMMIT, hub_with

CARD = b"""---
configs:
- config_name: main
  data_files:
  - split: train
    path: train.jsonl
  - split: test
    path: test.jsonl
- config_name: other
  data_files: train.jsonl
---
"""
ROWS = {"train": [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(3)], "test": [{"prompt": "9+1=", "answer": 10}]}
READ = """
import json, sys
from oncurve.data import Files, load_eval_rows, load_rows
from oncurve.base.errors import DataError
for settings in json.loads(sys.argv[1]):
    data = Files(path=settings.pop("path", "lab/sums"), **settings)
    try:
        found = [list(load_rows(data).items), list(load_eval_rows(data).items), load_rows(data).place(0)]
        parts = {key: content.parts for key, content in data.content(None).items()}
        print(json.dumps([*found, parts]))
    except DataError as error:
        print(json.dumps(str(error)))
"""


def read(hub: str, home: Path, settings: list[dict[str, Any]]) -> list[Any]:
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "*"}
    environment.pop("HF_HUB_OFFLINE", None)
    words = [sys.executable, "-c", READ, json.dumps(settings)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert ended.stderr == ""  # no bar, no remark
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_read_by_split_and_revision_and_without_the_hub_from_what_was_downloaded(
    tmp_path: Path,
):
    files = {f"{split}.jsonl": "".join(json.dumps(row) + "\n" for row in rows) for split, rows in ROWS.items()}
    main = {"subset": "main"}
    with hub_with("lab/sums", {"README.md": CARD, **{name: text.encode() for name, text in files.items()}}) as hub:
        both, pinned, *wrong = read(
            hub,
            tmp_path,
            [
                {**main, "eval_split": "test"},
                {**main, "revision": COMMIT},
                {},
                {**main, "split": "dev"},
                {"subset": "mian"},
                {**main, "revision": "v9"},
                {"path": "lab/nothing"},
            ],
        )
    assert both[:3] == [ROWS["train"], ROWS["test"], "lab/sums train row 1"]
    assert both[3].keys() == {"data.path", "data.eval_path"}
    assert pinned[0] == ROWS["train"]
    for message, what, fix in zip(
        wrong,
        ("['main', 'other']", "['train', 'test']", "BuilderConfig 'mian' not found", "revision/v9", "lab/nothing"),
        ("data.subset=NAME", "data.split=NAME", "data.subset=NAME", "data.revision=NAME", "check the id"),
        strict=True,
    ):
        assert message.startswith("data.path: the data set lab/")
        assert what in message
        assert fix in message
    offline = [{**main, "eval_split": "test"}, {**main, "revision": "v9"}, {"path": "lab/nothing"}]
    again, other, unknown = read(hub, tmp_path, offline)
    assert again == both
    assert other.startswith("data.revision: the copy of lab/sums on this machine is not v9")
    assert unknown.startswith("data.path: there is no file or folder lab/nothing; as a data set of the hub it was not")
