"""transformers without its progress bars, advice and background requests, and by one thread at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
