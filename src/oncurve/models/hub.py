"""Whether the model hub can be reached and answers: found out in seconds, before its client tries for minutes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, getproxies, proxy_bypass, urlopen

__all__ = ["answers", "offline", "reachable"]

SECONDS = 5.0
ANSWER_SECONDS = 10.0


def reachable(seconds: float = SECONDS) -> bool:
    """Whether a connection to the hub (or to the proxy in between) can be opened within `seconds`.

    False without a try where `HF_HUB_OFFLINE` is set. Looking up a name has no deadline of its own, so that a thread
    does it, which is left behind where it takes too long.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    host, port = _door(constants.ENDPOINT)
    opened: list[bool] = []

    def knock() -> None:
        with suppress(OSError), socket.create_connection((host, port), timeout=seconds):
            opened.append(True)

    thread = Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(opened)


def answers(seconds: float = ANSWER_SECONDS) -> bool:
    """Whether the hub says anything at all within `seconds`, if only that something is wrong.

    A server that accepts connections and never answers would keep the hub's client for minutes: it waits ten seconds
    for each of several requests for each of several files, and tries each again.
    """
    from huggingface_hub import constants

    said: list[bool] = []

    def ask() -> None:
        try:
            with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=seconds):
                said.append(True)
        except TimeoutError:
            pass
        except URLError as error:  # also its answer that this is refused; certificates are for the client to judge
            said.extend([True] if not isinstance(error.reason, TimeoutError) else [])
        except (OSError, ValueError):
            said.append(True)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(said)


@contextmanager
def offline(local: bool) -> Iterator[None]:
    """With `local`: nothing within reaches the hub, whatever a file of the model names. After: as before.

    `local_files_only` holds for the files that transformers looks up itself. What it loads on the way, such as the
    compiled kernels of an architecture, goes by this setting of huggingface_hub.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or local
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _door(endpoint: str) -> tuple[str, int]:
    """Host and port that a request to `endpoint` goes to first."""
    address = urlsplit(endpoint)
    proxy = None if proxy_bypass(address.hostname or "") else getproxies().get(address.scheme, getproxies().get("all"))
    if proxy:
        address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
