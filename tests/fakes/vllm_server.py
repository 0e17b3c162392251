"""`vllm serve FOLDER --port PORT ...` for tests: vLLM's routes over oncurve's engine, and orders to misbehave.

A real process, HTTP server, model, sampling and update from disk. Run as `python vllm_server.py serve FOLDER ...`; the
folder of the environment variable `ONCURVE_TEST_ORDERS` may hold a file `ACTION-NUMBER`, which one request obeys.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from oncurve.models import CausalModel, LocalWeights
from oncurve.models.loading.weights import loaded_from
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Prompt


class Served:
    """The model, its version, and what the routes do."""

    def __init__(self, folder: str) -> None:
        self.version, self.paused = "default", False
        self.lock = threading.Lock()
        self.model = load(folder)

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = body["sampling_params"]
        sampling = Sampling(
            group_size=asked["n"],
            max_new_tokens=asked["max_tokens"],
            temperature=asked["temperature"],
            eos_ids=tuple(asked["stop_token_ids"]),
            max_concurrent=1,
        )
        engine = InProcessEngine(sampling, seed=asked["seed"])
        with self.lock:
            engine.follow(LocalWeights(self.model, 0))
            ((row,),) = (
                group.completions for group in engine.generate([Prompt(0, "", tuple(body["token_ids"]))], draw=0)
            )
        reason = "stop" if row.ended == "eos" else "length"
        content = [{"token_id": token, "logprob": value} for token, value in zip(row.ids, row.logprobs, strict=True)]
        span = {"version": self.version, "start": 0, "end": len(row.ids)}
        choice = {"index": 0, "token_ids": list(row.ids), "finish_reason": reason, "weight_versions": [span]}
        return {"request_id": body["request_id"], "choices": [{**choice, "logprobs": {"content": content}}]}

    def answer(self, route: str, body: Any) -> Any:
        match route.partition("?")[0]:
            case "/inference/v1/generate":
                return self.generate(body)
            case "/pause" | "/resume" as word:
                self.paused = word == "/pause"
                return {"status": "paused" if self.paused else "resumed"}
            case "/collective_rpc":
                assert self.paused, "an update while it samples"
                assert body["method"] == "reload_weights"
                with self.lock:
                    self.model = load(body["kwargs"]["weights_path"])
                return {"results": [None]}
            case "/reset_prefix_cache":
                return {"success": True}
            case "/update_weight_version":
                self.version = body["new_version"]
                return {"success": True, "new_version": self.version}
        raise LookupError(route)


def load(folder: str) -> CausalModel:
    return loaded_from(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()).model


def obey(answer: Any) -> Any:
    """The answer, spoiled as the first order says."""
    orders = os.environ.get("ONCURVE_TEST_ORDERS")
    for order in sorted(Path(orders).iterdir()) if orders else []:
        action = order.name.partition("-")[0]
        if action == "stale":  # of an update
            continue
        with suppress(FileNotFoundError):
            order.unlink()
            choice = answer["choices"][0]
            match action:
                case "SIGKILL" | "SIGSTOP":
                    os.kill(os.getpid(), signal.Signals[action])
                case "hang":
                    time.sleep(600)
                case "500":
                    raise ZeroDivisionError("a defect of the server")
                case "garbage":
                    return b"<html>"
                case "short":
                    del choice["logprobs"]["content"][-1]
                case "nan":
                    choice["logprobs"]["content"][0]["logprob"] = math.nan
                case "older":
                    choice["weight_versions"][0]["version"] = "an older one"
            break
    return answer


class Handler(BaseHTTPRequestHandler):
    served: Served
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._send(200, b"")

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            stale = self.path == "/collective_rpc" and self._keeps_the_old()
            found = None if stale else self.served.answer(self.path, json.loads(content) if content else None)
            said = obey(found) if "generate" in self.path else found
            self._send(200, said if isinstance(said, bytes) else json.dumps(said).encode())
        except Exception as error:
            self._send(500, f"{type(error).__name__}: {error}".encode())

    def _keeps_the_old(self) -> bool:
        for order in Path(os.environ.get("ONCURVE_TEST_ORDERS", os.devnull)).glob("stale-*"):
            order.unlink()
            return True
        return False

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def server_program(folder: Path) -> None:
    """Write a program `vllm` that is this server to `folder`."""
    folder.mkdir()
    script = folder / "vllm"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).absolute()}" "$@"\n')
    script.chmod(0o755)


def main() -> None:
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    assert arguments[0] == "serve"
    assert {"--enable-scale-out", "--logprobs-mode", "--max-logprobs"} <= set(arguments)
    assert os.environ["VLLM_SERVER_DEV_MODE"] == "1"
    Handler.served = Served(arguments[1])
    port = int(arguments[arguments.index("--port") + 1])
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
