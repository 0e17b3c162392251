"""What `oncurve.train(reward=...)` takes for a reward."""

from pathlib import Path
from typing import Any

import pytest

from oncurve.base.errors import ConfigError
from oncurve.run.arguments import _reward_table


@pytest.mark.parametrize(
    ("given", "table"),
    [
        ("math", {"kind": "math"}),
        ("mine.py:reward", {"kind": "python", "path": "mine.py:reward"}),
        ("some-lab/reward-model", {"kind": "model", "path": "some-lab/reward-model"}),
        ("nonesuch", {"kind": "nonesuch"}),
        ({"kind": "task", "weight": 0.5}, {"kind": "task", "weight": 0.5}),
    ],
)
def test_a_reward_by_its_name(given: Any, table: dict[str, Any]) -> None:
    assert _reward_table(given) == table


def test_a_folder_is_a_reward_model(tmp_path: Path) -> None:
    assert _reward_table(str(tmp_path)) == {"kind": "model", "path": str(tmp_path)}


def test_what_is_no_reward_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a function, a kind"):
        _reward_table(3)
