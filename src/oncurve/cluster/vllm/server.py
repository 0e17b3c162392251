"""One vLLM server, started here or running already, and its HTTP routes.

    with start_server(minder, key, lambda port: command_line(folder, port, "float32", 1, ())) as server:
        server.wait_until_ready(seconds=600)
        answer = server.post("/inference/v1/generate", {...}, seconds=600)
        server.update(other_folder, "3", seconds=600)

Covered: a server that ends, hangs, refuses or answers something else than JSON: a `ServerFaultError` that says which.
Not covered: TLS; a server of several machines.
"""

from __future__ import annotations

import contextlib
import http
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError
from oncurve.base.web import WebAnswer, begin
from oncurve.cluster.vllm import guard
from oncurve.processes import Minder

ROUTE = "/inference/v1/generate"

DEVELOPER = {"VLLM_SERVER_DEV_MODE": "1"}
"""Variables without which a server has no routes for new weights."""

NEEDED = (
    *("--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
    *("--max-logprobs", "-1", "--generation-config", "vllm"),
)
"""Arguments of `vllm serve` without which a server has no route for token ids, log-probs at another temperature, or
sampling settings of its own."""

_POLL_SECONDS, _SHORT_SECONDS, _MOMENT_SECONDS = 0.1, 10.0, 1.0
_LONGEST_WORDS = 300
_LARGEST_BYTES = 1 << 30


class ServerFaultError(Exception):
    """A vLLM server ended, did not answer in time, or answered something that cannot be used."""


class VllmServer(Closing):
    """The server at `address` (`http://host:port`).

    key     sent with every request; "": none is
    minder  where it was started here
    """

    def __init__(self, address: str, key: str = "", minder: Minder | None = None) -> None:
        self.address, self._minder = address, minder
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._guard, self._closed = threading.Lock(), threading.Event()
        self._open: set[Future[WebAnswer]] = set()
        self._fault: str | None = None

    def post(self, route: str, body: Any = None, seconds: float = _SHORT_SECONDS) -> Any:
        """Return the JSON that the server answers to `body`; None: it answers nothing.

        Raises ServerFaultError: no answer within `seconds`, another status than 200, no JSON.
        """
        return self._ask("POST", route, body, seconds)

    def wait_until_ready(self, seconds: float) -> None:
        """Return as soon as the server answers. Raises ServerFaultError: it ended, or `seconds` are over."""
        deadline = time.monotonic() + seconds
        while True:
            fault = None
            try:
                self._ask("GET", "/health", None, _SHORT_SECONDS)
            except ServerFaultError as found:
                fault = found
            if self._minder is not None and (ending := self._minder.ending()):
                raise ServerFaultError(f"{ending}, before it was ready") from fault
            if fault is None:
                return
            if time.monotonic() > deadline:
                raise ServerFaultError(f"it was not ready within {seconds:g} seconds: {fault}") from fault
            time.sleep(_POLL_SECONDS)

    def check_routes(self) -> None:
        """Raises ServerFaultError: the server does not answer, or was started without what a run needs."""
        self._ask("GET", "/health", None, _SHORT_SECONDS)
        for route, missing in ((ROUTE, NEEDED[0]), ("/collective_rpc", "VLLM_SERVER_DEV_MODE=1 before vllm serve")):
            if self._answer("GET", route, None, _SHORT_SECONDS)[0] == http.HTTPStatus.NOT_FOUND:
                raise ServerFaultError(f"{self.address} has no {route}: it is no vLLM server, or lacks {missing}")
        self.longest_row()  # which needs the key

    def check_guarded(self) -> None:
        """Raise ServerFaultError where the server obeys without its key, and so any user of the machine."""
        if VllmServer(self.address)._answer("GET", "/collective_rpc", None, _SHORT_SECONDS)[0] != 401:
            raise ServerFaultError(f"{self.address} answers without its key: vLLM did not use --middleware")

    def longest_row(self) -> int | None:
        """Return the most tokens of a prompt with its completion that the server takes; None: it does not say."""
        answer = self._ask("GET", "/v1/models", None, _SHORT_SECONDS)
        try:
            return int(answer["data"][0]["max_model_len"])
        except (KeyError, IndexError, TypeError, ValueError):
            return None

    def watch(self, seconds: float) -> None:
        """From now on look every few seconds whether the server lives. Where it does not answer that within `seconds`,
        all requests end at once, with a ServerFaultError that says so."""
        threading.Thread(target=self._watch, args=(seconds,), name="vLLM server", daemon=True).start()

    def update(self, folder: Path, version: str, seconds: float) -> None:
        """Replace the weights by those in `folder`, under the name `version`. Raises ServerFaultError: it may now have
        some of both."""
        self.post("/pause?mode=abort&clear_cache=true", None, seconds)
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self.post("/collective_rpc", reload, seconds)
        # The cache holds keys and values of the earlier weights, and reload_weights leaves it as it is.
        if self.post("/reset_prefix_cache", None, seconds) != {"success": True}:
            raise ServerFaultError("the server did not empty its prefix cache, which holds the earlier weights' values")
        self.post("/update_weight_version", {"new_version": version}, seconds)
        self.post("/resume", None, seconds)

    def close(self) -> None:
        """End the server, if it was started here. Twice is allowed."""
        self._closed.set()
        if self._minder is not None:
            self._minder.close()

    def _watch(self, seconds: float) -> None:
        while not self._closed.wait(seconds / 4):
            try:
                self._ask("GET", "/health", None, seconds)
            except ServerFaultError as fault:
                with self._guard:
                    self._fault = str(fault)
                    for pending in self._open:
                        with contextlib.suppress(InvalidStateError):  # it is answered
                            pending.set_exception(ServerFaultError(self._fault))
                return

    def _ask(self, method: str, route: str, body: Any, seconds: float) -> Any:
        status, text = self._answer(method, route, body, seconds)
        if status != http.HTTPStatus.OK:
            said = text[:_LONGEST_WORDS].decode(errors="replace")
            raise ServerFaultError(f"{self.address}{route} answered {status}: {said}")
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise ServerFaultError(f"{self.address}{route} answered no JSON: {text[:40]!r}") from error

    def _answer(self, method: str, route: str, body: Any, seconds: float) -> tuple[int, bytes]:
        """Status and text of the answer. Raises ServerFaultError: none has come within `seconds`."""
        content = None if body is None else json.dumps(body).encode()
        with self._guard:
            if self._fault is not None:
                raise ServerFaultError(self._fault)
            url = self.address.rstrip("/") + route
            pending = begin(method, url, content, self._headers, seconds, _LARGEST_BYTES, proxies=False)
            self._open.add(pending)
        try:
            answer = pending.result(seconds)
            return answer.status, answer.body
        except TimeoutError as error:
            raise ServerFaultError(f"{self.address}{route} did not answer within {seconds:g} seconds") from error
        except OSError as error:
            ending = "" if self._minder is None else self._minder.ending(_MOMENT_SECONDS)
            raise ServerFaultError(
                f"{self.address}{route} did not answer ({error}){'; ' * bool(ending)}{ending}"
            ) from error
        finally:
            with self._guard:
                self._open.discard(pending)


def vllm_program() -> str:
    """Return the path of `vllm`. Raises ConfigError: it is not on PATH."""
    found = shutil.which("vllm")
    if found is None:
        raise ConfigError(
            'cluster.engine: "vllm" starts servers with the program vllm, which is not on PATH; run pip install '
            "'oncurve[vllm]', name running servers in cluster.vllm_addresses, or set it to \"own\""
        )
    return found


def command_line(model: Path, port: int, dtype: str, gpus: int, more: Sequence[str]) -> list[str]:
    """Return what starts a server of the model in a folder, without its tokenizer.

    dtype  the type that it computes in, as `vllm serve --dtype` names it
    gpus   among which it divides the model; it has those that CUDA_VISIBLE_DEVICES of this process names
    more   further arguments of `vllm serve`; they come last, and so overrule the others

    Raises ConfigError: vllm is not on PATH.
    """
    where = ["--host", "127.0.0.1", "--port", str(port)]
    parts = ["--tensor-parallel-size", str(gpus)] if gpus > 1 else []
    kept = ["--dtype", dtype, "--skip-tokenizer-init", *NEEDED, *parts]
    return [vllm_program(), "serve", str(model), *where, *kept, *more]


def start_server(minder: Minder, key: str, command: Callable[[int], Sequence[str]]) -> VllmServer:
    """Return the server that `command(port)` starts, with a free port of the loopback device; it is not ready yet.

    key   which it has from the environment of the minder, and without which its guard lets no request through
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shutil.copy(guard.__file__, minder.folder / "oncurve_guard.py")
    found = os.pathsep.join(filter(None, [str(minder.folder), os.environ.get("PYTHONPATH")]))
    minder.start(["env", f"PYTHONPATH={found}", *command(port), "--middleware", "oncurve_guard.Guard"])
    return VllmServer(f"http://127.0.0.1:{port}", key, minder)
