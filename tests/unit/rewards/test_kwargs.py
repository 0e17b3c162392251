"""`rewards.N.kwargs`: keyword arguments for a function of each signature, in a worker and in this process."""

from pathlib import Path
from typing import Any

import pytest

from oncurve.errors import ConfigError
from oncurve.rewards import RewardSet
from oncurve.types import Completion, Group, Prompt

FUNCTIONS = """
def plain(completion: str, limit: int, unit: float = 1.0) -> float:
    return unit * (len(completion) <= limit)


def trl(completions, limit, **columns):
    return [float(len(text) <= limit) for text in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, limit=0):
    return {"score": float(len(solution_str) <= limit)}
"""


def group(**columns: Any) -> Group:
    completions = tuple(
        Completion((1,) * len(text), text, (-1.0,) * len(text), "eos", index, 0)
        for index, text in enumerate(("four", "eleven long"))
    )
    return Group(Prompt(0, "p", (1,), {"ground_truth": "x", **columns}), completions)


def rewards_of(base: Path, table: dict[str, Any], **columns: Any) -> list[float]:
    with RewardSet.build([table], base=base) as rewards:
        (scored,) = rewards.score([group(**columns)])
    return [score.reward for score in scored.scores]


@pytest.mark.parametrize("name", ["plain", "trl", "compute_score"])
def test_each_signature_gets_them(tmp_path: Path, name: str) -> None:
    (tmp_path / "f.py").write_text(FUNCTIONS)
    table = {"path": f"f.py:{name}", "kwargs": {"limit": 4}, "processes": 1}
    assert rewards_of(tmp_path, table) == [1.0, 0.0]
    assert rewards_of(tmp_path, table | {"kwargs": {"limit": 11}}, limit=1) == [1.0, 1.0]  # a column does not count


@pytest.mark.parametrize(
    ("name", "kwargs", "error"),
    [
        ("plain", {"limit": 1, "unt": 2.0}, r"reward plain: kwargs: it takes no 'unt'; did you mean 'unit'\?"),
        ("plain", {"completion": "x"}, r"reward plain: kwargs: 'completion' is what is to be rewarded"),
        ("compute_score", {"solution_str": "x"}, r"kwargs: 'solution_str' is what is to be rewarded"),
    ],
)
def test_what_a_function_does_not_take_is_refused_at_load(tmp_path: Path, name: str, kwargs: Any, error: str) -> None:
    (tmp_path / "f.py").write_text(FUNCTIONS)
    with pytest.raises(ConfigError, match=error):
        RewardSet.build([{"path": f"f.py:{name}", "kwargs": kwargs, "processes": 1}], base=tmp_path)
