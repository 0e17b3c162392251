"""One vLLM server, and its HTTP routes.

    server = start_server(minder, key, folder, "float32", 1, ())
    server.wait_until_ready(seconds=600)
    answer = server.ask("/inference/v1/generate", {...}, seconds=600)
    server.update(other_folder, "3", seconds=600)

Not covered: TLS; a server of several machines.
"""

import http
import json
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from oncurve.base.errors import ConfigError, TrainingError
from oncurve.base.web import ask
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


class VllmServer:
    """The server at `address` (`http://host:port`), which the `minder` has started; `key` is sent with every request.

    Where it ends, does not answer in time, or answers something that cannot be used, a TrainingError says which.
    """

    def __init__(self, address: str, key: str, minder: Minder) -> None:
        self.address, self._minder = address, minder
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def wait_until_ready(self, seconds: float) -> None:
        """Return as soon as the server answers, and does not without its key: any user of the machine could ask."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.ask("/health", method="GET")
                break
            except TrainingError as fault:
                if ending := self._minder.ending(_POLL_SECONDS):
                    raise TrainingError(f"{ending}, before it was ready") from fault
                if time.monotonic() > deadline:
                    raise TrainingError(f"it was not ready within {seconds:g} seconds: {fault}") from fault
        stranger = VllmServer(self.address, "none", self._minder)
        if stranger.answer("GET", "/collective_rpc", None, _SHORT_SECONDS)[0] != http.HTTPStatus.UNAUTHORIZED:
            raise TrainingError(f"{self.address} answers without its key: vLLM did not use --middleware")

    def longest_row(self) -> int | None:
        """Return the most tokens of a prompt with its completion that the server takes; None: it does not say."""
        return cast("int | None", self.ask("/v1/models", method="GET")["data"][0].get("max_model_len"))

    def update(self, folder: Path, version: str, seconds: float) -> None:
        """Replace the weights by those in `folder`, under the name `version`."""
        self.ask("/pause?mode=abort&clear_cache=true", None, seconds)
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self.ask("/collective_rpc", reload, seconds)
        # The cache holds keys and values of the earlier weights, and reload_weights leaves it as it is.
        if self.ask("/reset_prefix_cache", None, seconds) != {"success": True}:
            raise TrainingError("the server did not empty its prefix cache, which holds the earlier weights' values")
        self.name_weights(version)
        self.ask("/resume", None, seconds)

    def name_weights(self, version: str) -> None:
        """Have the completions of the weights that the server has name this version."""
        self.ask("/update_weight_version", {"new_version": version})

    def ask(self, route: str, body: Any = None, seconds: float = _SHORT_SECONDS, method: str = "POST") -> Any:
        """Return the JSON that the server answers to `body`; None: it answers nothing."""
        status, text = self.answer(method, route, body, seconds)
        if status != http.HTTPStatus.OK:
            said = text[:_LONGEST_WORDS].decode(errors="replace")
            raise TrainingError(f"{self.address}{route} answered {status}: {said}")
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise TrainingError(f"{self.address}{route} answered no JSON: {text[:40]!r}") from error

    def answer(self, method: str, route: str, body: Any, seconds: float) -> tuple[int, bytes]:
        """Return status and text of the answer."""
        content = None if body is None else json.dumps(body).encode()
        url = self.address + route
        try:
            found = ask(method, url, content, self._headers, seconds=seconds, largest=_LARGEST_BYTES, proxies=False)
            return found.status, found.body
        except TimeoutError as error:
            raise TrainingError(f"{url} did not answer within {seconds:g} seconds") from error
        except OSError as error:
            ending = self._minder.ending(_MOMENT_SECONDS)
            raise TrainingError(f"{url} did not answer ({error}){'; ' * bool(ending)}{ending}") from error


def vllm_program() -> str:
    """Return the path of `vllm`. Raises ConfigError: it is not on PATH."""
    found = shutil.which("vllm")
    if found is None:
        raise ConfigError(
            'cluster.engine: "vllm" starts servers with the program vllm, which is not on PATH; run pip install '
            "'oncurve[vllm]', or set it to \"own\""
        )
    return found


def command_line(model: Path, port: int, dtype: str, gpus: int, more: Sequence[str]) -> list[str]:
    """Return what starts a server of the model in a folder, without its tokenizer.

    dtype  the type that it computes in, as `vllm serve --dtype` names it
    gpus   among which it divides the model; it has those that CUDA_VISIBLE_DEVICES of this process names
    more   further arguments of `vllm serve`; they come last, and so overrule the others

    Raises ConfigError: vllm is not on PATH.
    """
    begin = [vllm_program(), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    parts = ["--tensor-parallel-size", str(gpus)] if gpus > 1 else []
    return [*begin, "--skip-tokenizer-init", *NEEDED, *parts, *more]


def start_server(minder: Minder, key: str, model: Path, dtype: str, gpus: int, more: Sequence[str]) -> VllmServer:
    """Return the server of a `command_line`, on a free port of the loopback device; it is not ready yet.

    key   which it has from the environment of the minder, and without which its guard lets no request through
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shutil.copy(guard.__file__, minder.folder / "oncurve_guard.py")
    found = os.pathsep.join(filter(None, [str(minder.folder), os.environ.get("PYTHONPATH")]))
    command = command_line(model, port, dtype, gpus, more)
    minder.start(["env", f"PYTHONPATH={found}", *command, "--middleware", "oncurve_guard.Guard"])
    return VllmServer(f"http://127.0.0.1:{port}", key, minder)
