"""A request ends at its deadline or at its limit of bytes, whatever arrives."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx2  # noqa: F401 - before the deadlines, which are shorter than its import
import pytest

from fakes.slow_server import PACES, PARTS, SlowServer
from oncurve.base.web import ask


def ended(server: SlowServer) -> BaseException:
    """The error that a request ended with after the server had begun with the endless part."""
    for attempt in itertools.count():
        with pytest.raises((TimeoutError, ConnectionError)) as caught:
            ask("POST", server.url, b"{}", seconds=0.2 * 2**attempt, largest=1 << 14, proxies=False)
        if server.reached.is_set():  # else this machine is busy, and nothing was tried
            return caught.value
    raise AssertionError


def test_no_answer_that_never_ends_outlives_its_deadline() -> None:
    with ExitStack() as open_servers, ThreadPoolExecutor(len(PARTS) * len(PACES)) as at_once:
        tried = list(itertools.product(PARTS, PACES))
        servers = [open_servers.enter_context(SlowServer(part, pace)) for part, pace in tried]
        errors = dict(zip(tried, at_once.map(ended, servers), strict=True))
        assert [case for case, server in zip(tried, servers, strict=True) if not server.left.wait(60)] == []
    silent = {case for case in tried if case[1] != "floods"}
    assert {case for case in silent if not isinstance(errors[case], TimeoutError)} == set()
    assert {str(errors[case])[:23] for case in silent} == {"no whole answer within "}
