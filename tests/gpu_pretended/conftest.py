"""The device of these tests."""

from collections.abc import Iterator

import pytest
import torch

from fakes.gpu_forms import pretend


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The pretended GPU, on which oncurve takes the forms that it takes on a GPU."""
    yield pretend(monkeypatch)
