"""The model hub, found in seconds or left alone; and transformers without advice, by one thread at a time."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from oncurve.base.web import ask

SECONDS = 5.0
ANSWER_SECONDS = 10.0


def online() -> bool:
    """Return whether the hub can be used: it is reachable, and it answers."""
    return reachable() and answers()


def reachable(seconds: float = SECONDS) -> bool:
    """Return whether a connection to the hub (or to the proxy in between) can be opened within `seconds`.

    False at once where `HF_HUB_OFFLINE` is set. Looking up a name has no deadline of its own, so a thread does it.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    address, opened = _first_address(constants.ENDPOINT), list[bool]()

    def connect() -> None:
        with suppress(OSError), socket.create_connection(address, timeout=seconds):
            opened.append(True)

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(opened)


def answers(seconds: float = ANSWER_SECONDS) -> bool:
    """Return whether the hub answers within `seconds`, with an error too.

    With a server that accepts connections and never answers, the hub's client would take minutes: it waits ten seconds
    for each of several requests for each of several files, and tries each again.
    """
    from huggingface_hub import constants

    try:
        with suppress(ConnectionError):  # a refusal is an answer, too; the client checks certificates
            ask("HEAD", constants.ENDPOINT, seconds=seconds)
    except TimeoutError:
        return False
    return True


@contextmanager
def offline(local: bool) -> Iterator[None]:
    """Return a context in which, with `local`, nothing reaches the hub, whatever a file of the model names.

    `local_files_only` holds for the files that transformers looks up itself. Other downloads, such as the compiled
    kernels of an architecture, follow this setting of huggingface_hub.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or local
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _first_address(endpoint: str) -> tuple[str, int]:
    """Return host and port of the first connection of a request to `endpoint`."""
    address = urlsplit(endpoint)
    proxy = None if proxy_bypass(address.hostname or "") else getproxies().get(address.scheme, getproxies().get("all"))
    if proxy:
        address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return address.hostname or "", address.port or (80 if address.scheme == "http" else 443)


_ALONE = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Return a context without progress bars, advice, and requests to a server to convert a repository's pickles.

    One thread at a time is in it: transformers loads by changes of the whole process, such as how modules are made, and
    a load in another thread would then miss weights that are there.
    """
    with _ALONE:
        yield from _quiet()


def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    conversion = os.environ.get("DISABLE_SAFETENSORS_CONVERSION")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
        if conversion is None:
            del os.environ["DISABLE_SAFETENSORS_CONVERSION"]
        else:
            os.environ["DISABLE_SAFETENSORS_CONVERSION"] = conversion
