"""Whether the hub is there is found out in seconds, through a proxy where there is one, and not asked when offline."""

import socket
import time

import pytest
from huggingface_hub import constants

from oncurve.models import hub


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_hub_that_listens_is_reachable(monkeypatch, listener):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener}")
    assert hub.reachable()


def test_a_hub_that_does_not_is_not(monkeypatch, closed_port):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed_port}")
    assert not hub.reachable()


def test_a_proxy_is_what_is_asked(monkeypatch, listener, closed_port):
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener}")
    assert hub.reachable()
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed_port}")
    assert not hub.reachable()


def test_offline_means_that_nothing_is_asked(monkeypatch, listener):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener}")
    monkeypatch.setattr(socket, "create_connection", lambda *_args, **_kwargs: pytest.fail("a socket was opened"))
    assert not hub.reachable()


def test_a_name_that_nobody_answers_for_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")

    def no_answer(*_args, **_kwargs):
        time.sleep(2)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", no_answer)
    began = time.monotonic()
    assert not hub.reachable(seconds=0.1)
    assert time.monotonic() - began < 1.5
