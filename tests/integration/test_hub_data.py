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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

COMMIT = "5c0c3b1f2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f70"


@contextmanager
def hub_with(name: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """The address of a hub with the data set `name`, whose one commit on `main` has these files."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            asked = self.rfile.read(length).decode()
            if self.path.startswith(f"/api/datasets/{name}/paths-info/"):
                paths = json.loads(asked)["paths"] if asked.startswith("{") else re.findall(r"paths=([^&]+)", asked)
                self.send([entry(path) for path in paths if path in files])
            else:
                self.fail()

        def answer(self) -> None:
            path = self.path.partition("?")[0]
            api = f"/api/datasets/{name}"
            if path == "/":
                self.send({})
            elif re.fullmatch(rf"{api}(/revision/(main|{COMMIT}))?", path):
                self.send({"id": name, "sha": COMMIT, "private": False, "tags": [], "siblings": []})
            elif path.startswith(f"{api}/tree/"):
                folder = path.removeprefix(f"{api}/tree/").partition("/")[2]
                self.send([entry(file) for file in files if file.startswith(folder)])
            elif match := re.fullmatch(rf"/datasets/{name}/resolve/(?:main|{COMMIT})/(.+)", path):
                self.file(match[1])
            else:
                self.fail("RevisionNotFound" if path.startswith(f"{api}/revision/") else "RepoNotFound")

        def file(self, path: str) -> None:
            if path not in files:
                self.fail("EntryNotFound")
                return
            digest = hashlib.sha1(files[path]).hexdigest()
            self.body(200, files[path], {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})

        def send(self, value: object) -> None:
            self.body(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def fail(self, code: str = "RepoNotFound") -> None:
            self.body(404, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

        def body(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    def entry(path: str) -> dict[str, object]:
        content = files[path]
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
