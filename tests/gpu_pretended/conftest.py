"""The device of these tests, which refuses nothing while they run."""

from collections.abc import Iterator

import pytest
import torch

from fakes import pretended_gpu
from fakes.gpu_forms import pretend

pretended_gpu.device()  # while tests are collected: the first backward pass of a process counts the devices


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[pretended_gpu.Captures]:
    """The graphs that oncurve captures on the pretended GPU, where it takes the forms that it takes on a GPU."""
    pretended_gpu.refusals()
    yield pretend(monkeypatch)
    assert pretended_gpu.refusals() == []


@pytest.fixture
def gpu(captures: pretended_gpu.Captures) -> torch.device:
    return pretended_gpu.device()
