"""Data sets of the hub, read from a server in this process by `datasets` itself, and once more when it is gone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fakes.model_hub import Answering, serving
from fakes.tables import table

COMMIT = "5c0c3b1f2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f70"


@contextmanager
def hub_with(name: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """The address of a hub with the data set `name`, whose one commit on `main` has these files."""

    class Handler(Answering, BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            asked = self.body().decode()
            if self.path.startswith(f"/api/datasets/{name}/paths-info/"):
                paths = json.loads(asked)["paths"] if asked.startswith("{") else re.findall(r"paths=([^&]+)", asked)
                self.answer([entry(path) for path in paths if path in files])
            else:
                self.fail()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            api = f"/api/datasets/{name}"
            if path == "/":
                self.answer({})
            elif re.fullmatch(rf"{api}(/revision/(main|{COMMIT}))?", path):
                self.answer({"id": name, "sha": COMMIT, "private": False, "tags": [], "siblings": []})
            elif path.startswith(f"{api}/tree/"):
                folder = path.removeprefix(f"{api}/tree/").partition("/")[2]
                self.answer([entry(file) for file in files if file.startswith(folder)])
            elif match := re.fullmatch(rf"/datasets/{name}/resolve/(?:main|{COMMIT})/(.+)", path):
                self.file(match[1])
            else:
                self.fail("RevisionNotFound" if path.startswith(f"{api}/revision/") else "RepoNotFound")

        def file(self, path: str) -> None:
            if path not in files:
                self.fail("EntryNotFound")
                return
            digest = hashlib.sha1(files[path]).hexdigest()
            self.answer(files[path], 200, {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})

        def fail(self, code: str = "RepoNotFound") -> None:
            self.answer({}, 404, {"X-Error-Code": code, "X-Error-Message": code})

    def entry(path: str) -> dict[str, object]:
        content = files[path]
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    with serving(Handler) as address:
        yield address


CARD = table("hub_data", "card").encode()
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
