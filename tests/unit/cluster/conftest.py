"""Where tests of this folder put what their processes are told to do."""

from pathlib import Path

import pytest


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    folder = tmp_path / "orders"
    folder.mkdir()
    return folder
