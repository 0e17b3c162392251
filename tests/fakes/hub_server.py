"""A server with the part of the hub's interface that `datasets` uses to read one public data set."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

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
