"""Whether the hub is there is found out in seconds, through a proxy where there is one, and not asked when offline."""

import os
import socket
import subprocess
import sys
import threading

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


def test_a_name_that_nobody_answers_for_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")

    over, asked = threading.Event(), threading.Event()

    def no_answer(*_args, **_kwargs):
        asked.set()
        over.wait()
        raise OSError

    monkeypatch.setattr(socket, "create_connection", no_answer)
    try:
        assert not hub.reachable(seconds=0.1)  # while the question is still open
        assert asked.wait(60)
    finally:
        over.set()


def test_a_hub_that_accepts_and_never_answers_is_given_up_in_time(monkeypatch, listener):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener}")
    assert hub.reachable()
    assert not hub.answers(seconds=0.3)


@pytest.mark.slow
def test_a_model_of_a_silent_hub_is_refused_within_the_stated_time(tmp_path, listener):
    settings = {"HF_ENDPOINT": f"http://127.0.0.1:{listener}", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    script = (
        "from oncurve.models.loading import hub\nhub.answers.__defaults__ = (1.0,)\n"
        "from oncurve.models.loading.weights import ModelConfig\nModelConfig(path='nobody/nothing').build()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**environment, **settings}, capture_output=True, text=True, timeout=120
    )
    assert "ModelError: nobody/nothing is neither a directory here nor a model the hub could give" in done.stderr
