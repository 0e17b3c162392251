"""Whether the model hub can be reached: asked once, quickly, before its client would ask for half a minute."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

__all__ = ["reachable"]

SECONDS = 5.0


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


def _door(endpoint: str) -> tuple[str, int]:
    """Host and port that a request to `endpoint` goes to first."""
    address = urlsplit(endpoint)
    proxy = None if proxy_bypass(address.hostname or "") else getproxies().get(address.scheme, getproxies().get("all"))
    if proxy:
        address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
