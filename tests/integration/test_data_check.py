"""`oncurve data check`: what it shows is what a run would read, and it refuses what a run would refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from oncurve.base.errors import ConfigError, DataError
from oncurve.cli import app
from oncurve.config import load_config, plan
from oncurve.run import assemble, check_data_of

TINY = Path(__file__).parents[2] / "src" / "oncurve" / "models" / "tiny"
ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1), "level": n} for n in range(20)]
MATH = 'rewards=[{kind="exact"}]'


def jsonl(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return file


def words(file: Path, *more: str) -> list[str]:
    return [f"data.path={file}", f"model.path={TINY}", MATH, "rollout.max_new_tokens=16", *more]


def test_rows_columns_prompts_lengths_and_rewards_are_shown(tmp_path: Path):
    file = jsonl(tmp_path / "a.jsonl", [*ROWS[:19], {"prompt": "9" * 30 + "=", "answer": "?"}])
    said = words(file, "data.eval_fraction=0.1", "data.max_prompt_tokens=20", "data.overlong=drop")
    found = check_data_of(*load_config("grpo", said))
    assert (found.rows, found.held_out, found.problems) == (18, 2, ())
    assert [(column.name, column.types, column.rows) for column in found.columns][:2] == [
        ("prompt", ("text",), 18),
        ("answer", ("text",), 18),
    ]
    assert [(reward.name, reward.needs, reward.lacking) for reward in found.rewards] == [("exact", ("answer",), 0)]
    assert found.limit == 20
    assert found.lengths["training"].too_long + found.lengths["held out"].too_long == 1
    text = found.text()
    assert "18 rows to train on, 2 held out" in text
    assert "exact: needs answer; there in every row" in text
    assert "1+1=" in text or "0+1=" in text
    assert text.endswith("A run would take this.")
    assert json.loads(json.dumps(found.to_json()))["rows"] == 18


def test_what_a_run_would_refuse_is_a_problem_with_its_place_and_an_exit_code(tmp_path: Path):
    file = jsonl(tmp_path / "a.jsonl", [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+1=" * 10}, {"prompt": "3"}])
    ended = CliRunner().invoke(app, ["data", "check", "grpo", *words(file, "data.max_prompt_tokens=10"), "--json"])
    assert ended.exit_code == 2
    *lines, last = ended.stdout.splitlines()
    needs, long = json.loads(last)["problems"]
    assert needs.startswith(f"{file} line 2: reward exact needs 'answer', and there is no such column")
    assert long.startswith(f"{file} line 2: the prompt has 41 tokens; 1 of 3 prompts have more than the 10 allowed")
    assert "  exact: needs answer; 2 rows lack it" in lines
    assert "  answer  text (in 1 of 3 rows): 2" in lines
    assert any("1 of 3 too long: refused" in line for line in lines)
    assert "A run would refuse this:" in lines


def test_rows_of_verl_in_parquet_need_no_names_and_a_function_shows_its_columns(tmp_path: Path):
    rows = [
        {"prompt": f"{n}+1=", "data_source": "sums", "reward_model": {"ground_truth": str(n)}, "level": n}
        for n in range(4)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "score.py").write_text("def score(completion, level, hint=None):\n    return float(level)\n")
    reward = f'rewards=[{{kind="exact"}}, {{path="{tmp_path / "score.py"}:score"}}]'
    found = check_data_of(*load_config("grpo", [*words(tmp_path / "a.parquet"), reward]))
    assert found.problems == ()
    assert [(each.needs, each.takes) for each in found.rewards] == [(("answer",), ()), (("level",), ("hint",))]
    assert {column.name: column.types for column in found.columns}["reward_model"] == ("table",)


def test_without_a_model_the_rows_are_shown_and_not_tokenised(tmp_path: Path):
    file = jsonl(tmp_path / "a.jsonl", ROWS)
    found = check_data_of(*load_config("grpo", [f"data.path={file}"]))
    assert found.lengths == {}
    assert [prompt[1] for prompt in found.prompts] == [None] * 3
    assert "prompts are not tokenised: add model.path=" in found.text()
    assert "none in the recipe" in found.text()


def test_generated_rows_are_looked_at_in_part():
    found = check_data_of(*load_config("task", ["run.threads=1"]))
    assert (found.rows > found.looked_at == 1000, found.problems) == (True, ())


def test_what_cannot_be_read_is_an_error_as_in_a_run(tmp_path: Path):
    with pytest.raises(DataError, match="there is no file"):
        check_data_of(*load_config("grpo", words(tmp_path / "none.jsonl")))
    with pytest.raises(ConfigError, match=r"rollout\.max_new_tokens: 100000 leaves no room"):
        check_data_of(*load_config("grpo", words(jsonl(tmp_path / "a.jsonl", ROWS), "rollout.max_new_tokens=100000")))


def test_special_tokens_of_a_chat_template_are_visible(tmp_path: Path, test_data: Path):
    model = tmp_path / "model"
    shutil.copytree(test_data / "tokenizers" / "qwen2", model)
    (model / "config.json").write_text('{"model_type": "qwen2", "max_position_embeddings": 512}')
    asked = [{"role": "user", "content": "Wie groß ist 2+2? 🙂"}]
    file = jsonl(tmp_path / "a.jsonl", [{"prompt": asked, "answer": "4"}])
    found = check_data_of(*load_config("grpo", words(file, f"model.path={model}", "data.system=Be brief.")))
    ((place, tokens, text),) = found.prompts
    assert place == f"{file} line 1"
    assert tokens == found.lengths["training"].percentiles["max"]
    assert text.startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWie groß ist 2+2? 🙂<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert found.limit == 513 - 16


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ([ROWS[0]] * 40, (), "different prompts among the 40 to train on: 1;"),
        ([*ROWS[:9], *[ROWS[9]] * 11], (), None),  # half of them are
        ([*ROWS, *ROWS], (), None),
        (ROWS, ("data.eval_fraction=0.05", "eval.every=1"), "the evaluation is on one prompt only"),
        (ROWS, ("data.eval_fraction=0.2", "eval.every=1", "eval.limit=1"), "the evaluation is on one prompt only"),
        (ROWS, ("data.eval_fraction=0.2", "eval.every=1"), None),
    ],
)
def test_rows_that_repeat_and_an_evaluation_on_one_prompt_are_said_before_and_by_a_run(
    tmp_path: Path, rows: list[Any], more: tuple[str, ...], said: str | None
):
    config, base = load_config("grpo", [*words(jsonl(tmp_path / "a.jsonl", rows), *more)])
    checked = check_data_of(config, base)
    with assemble(config, base) as run:
        planned = plan(run.config, run.facts())
    begun = [
        each
        for each in (*checked.warnings, *planned)
        if each.removeprefix("note: ").startswith(said or ("different prompts", "the evaluation is on"))
    ]
    assert len(begun) == 2 * bool(said)
    assert (said is None) == checked.text().endswith("A run would take this.")
