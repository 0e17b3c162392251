"""A hub on this machine, with the routes by which huggingface_hub's client makes a repository and uploads to it."""

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class ModelHub:
    """What was uploaded: files by name; `made`: the requests for repositories; `denies`: nobody may write."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    denies: bool = False


class Answering(BaseHTTPRequestHandler):
    """A handler that answers with JSON or bytes, and prints nothing."""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, content: object, code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port until the end of the block: the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def model_hub() -> Iterator[ModelHub]:
    """Serve a hub on a free port until the end of the block."""
    hub = ModelHub()

    class Handler(Answering):
        def do_GET(self) -> None:
            self.answer({"id": "me/policy", "sha": "0" * 40, "siblings": []})

        def do_PUT(self) -> None:
            hub.stored[self.path.rpartition("/")[2]] = self.body()
            self.answer({})

        def do_POST(self) -> None:
            body = self.body()
            if hub.denies:
                self.answer({"error": "You have no right to do this"}, 403)
            elif self.path == "/api/repos/create":
                hub.made.append(json.loads(body))
                self.answer({"url": f"{hub.url}/me/policy", "name": "me/policy"})
            elif "/preupload/" in self.path:
                names = [each["path"] for each in json.loads(body)["files"]]
                mode = lambda name: "lfs" if name.endswith(".safetensors") else "regular"  # noqa: E731
                self.answer({"files": [{"path": n, "uploadMode": mode(n), "shouldIgnore": False} for n in names]})
            elif self.path.endswith("/info/lfs/objects/batch"):
                objects = json.loads(body)["objects"]
                for each in objects:
                    each["actions"] = {"upload": {"href": f"{hub.url}/store/{each['oid']}", "header": {}}}
                self.answer({"transfer": "basic", "objects": objects})
            elif "/commit/" in self.path:
                for line in body.splitlines():
                    entry = json.loads(line)
                    value = entry["value"]
                    if entry["key"] == "file":
                        hub.files[value["path"]] = base64.b64decode(value["content"])
                    elif entry["key"] == "lfsFile":
                        hub.files[value["path"]] = hub.stored[value["oid"]]
                self.answer({"success": True, "commitUrl": f"{hub.url}/me/policy/commit/0", "commitOid": "0" * 40})
            else:
                self.answer({})

    with serving(Handler) as hub.url:
        yield hub
