"""Every row has what the rewards need, wherever it comes from: looked at before a model is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.tables import table
from oncurve.base.errors import DataError
from oncurve.config.loading import load_config
from oncurve.models.loading.weights import ModelConfig
from oncurve.run.assembly import assemble
from oncurve.run.commands.evaluation import evaluate_target

GOOD: dict[str, Any] = {"prompt": "2+2=", "answer": "4"}
SOURCE = """
from oncurve.data import DataSettings, Rows

class Mine(DataSettings):
    rows: tuple = ()

    def read(self, base):
        rows = Rows(self.rows, range(len(self.rows)), "item {}".format)
        return rows.select(range(len(rows) - 2)), rows.select(range(len(rows) - 2, len(rows)))
"""
REWARDS: dict[str, dict[str, Any]] = table("columns", "rewards")
BAD: dict[str, Any] = {"missing": "missing", "null": None, "a list": ["4"], "a mapping": {"is": "4"}}


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ModelConfig, "build", lambda *_, **__: pytest.fail("the model was loaded"))
    (tmp_path / "mine.py").write_text("def reward(completion, answer): return 1.0\n" + SOURCE)
    monkeypatch.chdir(tmp_path)


def bad_row(fault: str) -> dict[str, Any]:
    return {"prompt": "1+1="} if fault == "missing" else {**GOOD, "answer": BAD[fault]}


def source_with(kind: str, rows: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Settings of `[data]` for a source of that kind, and how it calls its rows."""
    lines = ["".join(json.dumps(row) + "\n" for row in part) for part in (rows, held_out)]
    Path("data.jsonl").write_text(lines[0])
    Path("held.jsonl").write_text(lines[1])
    if kind == "jsonl":
        return {"path": "data.jsonl", "eval_path": "held.jsonl"}, "line"
    if kind == "list":
        return {"kind": "list", "rows": (*rows, *held_out), "eval_fraction": 0.3}, "data row"
    return {"kind": f"{Path('mine.py').absolute()}:Mine", "rows": (*rows, *held_out)}, "item"


@pytest.mark.parametrize("where", ["training", "held out"])
@pytest.mark.parametrize("source", ["jsonl", "list", "outside"])
@pytest.mark.parametrize("reward", ["numeric", "exact", "task"])
@pytest.mark.parametrize("fault", BAD)
def test_a_row_that_a_reward_cannot_use_is_refused_with_its_place(
    fault: str, reward: str, source: str, where: str
) -> None:
    rows, held_out = [dict(GOOD) for _ in range(8)], [dict(GOOD) for _ in range(2)]
    (rows if where == "training" else held_out)[1] = bad_row(fault)
    data, place = source_with(source, rows, held_out)
    config, base = load_config(settings={"data": data, "rewards": [REWARDS[reward]], "model": {"path": "none"}})
    number = {"line": 2, "data row": 1, "item": 1}[place] + (8 if where == "held out" and place != "line" else 0)
    with pytest.raises(DataError, match=rf"{place} {number}: reward {reward}.*'answer'"):
        assemble(config, base)


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["math", "python"])
def test_what_a_worker_needs_is_asked_of_the_worker(reward: str) -> None:
    name = {"python": "reward"}.get(reward, reward)
    data, _ = source_with("jsonl", [GOOD] * 7 + [bad_row("missing")], [GOOD])
    config, base = load_config(settings={"data": data, "rewards": [REWARDS[reward]], "model": {"path": "none"}})
    with pytest.raises(DataError, match=rf"data.jsonl line 8: reward {name} needs 'answer'"):
        assemble(config, base)
    Path("held.jsonl").write_text(json.dumps(bad_row("missing")))
    words = ["data.eval_path=held.jsonl", f"rewards=[{_inline(REWARDS[reward])}]", "data.path=data.jsonl"]
    with pytest.raises(DataError, match=rf"held.jsonl line 1: reward {name} needs 'answer'"):
        evaluate_target("none", words)


def _inline(table: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}={json.dumps(value)}" for key, value in table.items()) + "}"


def test_a_template_may_use_what_a_reward_needs_and_a_prompt_column_may_be_asked_for_by_name() -> None:
    Path("named.py").write_text("def reward(completion, question): return 1.0\n")
    rows = [{"question": "1+1="}] * 3
    for data in ({"prompt_column": "question"}, {"template": "{question}?"}):
        settings = {"data": {"kind": "list", "rows": rows, **data}, "rewards": [{"path": "named.py:reward"}]}
        config, base = load_config(settings={**settings, "model": {"path": "none"}})
        with pytest.raises(pytest.fail.Exception, match="the model was loaded"):
            assemble(config, base)
