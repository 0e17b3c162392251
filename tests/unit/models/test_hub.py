"""Whether the hub is there is found out in seconds, through a proxy where there is one, and not asked when offline."""

import socket

import pytest
from huggingface_hub import constants

from oncurve.models.loading import hub


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


def test_a_hub_that_does_not_is_not(monkeypatch, closed_port):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed_port}")
    assert not hub.reachable()


def test_a_hub_that_accepts_and_never_answers_is_given_up_in_time(monkeypatch, listener):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener}")
    assert hub.reachable()
    assert not hub.answers(seconds=0.3)
