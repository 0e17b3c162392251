"""One vLLM server: a child process of this one, or one that runs already, and its HTTP routes.

    with start_server(folder, "float32", ()) as server:
        answer = server.post("/inference/v1/generate", {...}, seconds=600)
        server.update(other_folder, "3", seconds=600)

Covered: a server that ends, hangs, refuses or answers something else than JSON: a `ServerFaultError` that says which.
Not covered: TLS, passwords; a server of several machines.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oncurve.closing import Closing
from oncurve.errors import ConfigError

_POLL_SECONDS, _SHORT_SECONDS, _END_SECONDS = 0.1, 10.0, 5.0
_LONGEST_WORDS = 300

# The server ends with the process that started it, however that one ends (PR_SET_PDEATHSIG).
_CHILD = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


class ServerFaultError(Exception):
    """A vLLM server ended, did not answer in time, or answered something that cannot be used."""


class VllmServer(Closing):
    """The server at `address` (`http://host:port`). `process`: where it is a child; `log`: the file that it writes."""

    def __init__(self, address: str, process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
        self.address, self.process, self._log = address, process, log
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    def post(self, route: str, body: Any = None, seconds: float = _SHORT_SECONDS) -> Any:
        """The JSON that the server answers to `body`; None: it answers nothing.

        Raises ServerFaultError: no answer within `seconds`, another status than 200, no JSON.
        """
        return self._ask("POST", route, body, seconds)

    def wait_until_ready(self, seconds: float) -> None:
        """Return as soon as the server answers. Raises ServerFaultError: it ended, or `seconds` are over."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._ask("GET", "/health", None, _SHORT_SECONDS)
            except ServerFaultError as fault:
                if self.process is not None and self.process.poll() is not None:
                    raise ServerFaultError(f"the vLLM server ended before it was ready{self._last_words()}") from fault
                if time.monotonic() > deadline:
                    raise ServerFaultError(f"it was not ready within {seconds:g} seconds: {fault}") from fault
            else:
                return
            time.sleep(_POLL_SECONDS)

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
        """End the server, if it is a child. Twice is allowed."""
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS)

    def _ask(self, method: str, route: str, body: Any, seconds: float) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, route, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except TimeoutError as error:
            raise ServerFaultError(f"{self.address}{route} did not answer within {seconds:g} seconds") from error
        except (OSError, http.client.HTTPException) as error:
            why = f"{type(error).__name__}: {error}"
            raise ServerFaultError(f"{self.address}{route} did not answer ({why}){self._last_words()}") from error
        finally:
            connection.close()
        if status != http.HTTPStatus.OK:
            said = text[:_LONGEST_WORDS].decode(errors="replace")
            raise ServerFaultError(f"{self.address}{route} answered {status}: {said}")
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise ServerFaultError(f"{self.address}{route} answered no JSON: {text[:40]!r}") from error

    def _last_words(self) -> str:
        """How a child ended, and the last line that it wrote."""
        code = None if self.process is None else self.process.poll()
        if code is None:
            return ""
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        lines = [] if self._log is None else self._log.read_text(errors="replace").strip().splitlines()
        return f"; the vLLM server ended ({how}){': ' + lines[-1][:_LONGEST_WORDS] if lines else ''}"


def vllm_program() -> str:
    """The path of `vllm`. Raises ConfigError: it is not on PATH."""
    found = shutil.which("vllm")
    if found is None:
        raise ConfigError(
            'cluster.engine: "vllm" starts servers with the program vllm, which is not on PATH; run pip install '
            "'oncurve[vllm]', name running servers in cluster.vllm_addresses, or set it to \"own\""
        )
    return found


def start_server(folder: Path, log: Path, dtype: str, more: Sequence[str]) -> VllmServer:
    """A server of the model in `folder`, as a child that ends with this process; it is not ready yet.

    log    the file that takes what it prints
    dtype  the type that it computes in, as `vllm serve --dtype` names it
    more   further arguments of `vllm serve`

    Raises ConfigError: vllm is not on PATH.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [vllm_program(), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    arguments += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    arguments += ["--generation-config", "vllm", *more]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},
        )
    return VllmServer(f"http://127.0.0.1:{port}", process, log)
