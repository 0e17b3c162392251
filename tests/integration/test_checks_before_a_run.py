"""`oncurve data check` and `oncurve reward check`: what a run would read, score and refuse."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import oncurve
from fakes.tables import table
from oncurve.base.errors import ConfigError, DataError, UserError
from oncurve.cli import app
from oncurve.config import load_config, plan
from oncurve.data import distinct_prompts, load_rows
from oncurve.run import assemble, check_data_of, check_rewards_of, evaluate_target, train_recipe

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
    assert [(column["name"], column["types"], column["rows"]) for column in found.columns][:2] == [
        ("prompt", ["text"], 18),
        ("answer", ["text"], 18),
    ]
    assert [(reward["name"], reward["needs"], reward["lacking"]) for reward in found.rewards] == [
        ("exact", ("answer",), 0)
    ]
    assert found.limit == 20
    assert found.lengths["training"]["too_long"] + found.lengths["held out"]["too_long"] == 1
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
    assert needs.startswith(f"{file} line 2: reward exact needs 'answer', and this row has no such column")
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
    assert [(each["needs"], each["takes"]) for each in found.rewards] == [(("answer",), ()), (("level",), ("hint",))]
    assert {column["name"]: column["types"] for column in found.columns}["reward_model"] == ["table"]


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


def test_special_tokens_of_a_chat_template_are_visible(tmp_path: Path, test_data: Path):
    model = tmp_path / "model"
    shutil.copytree(test_data / "tokenizers" / "qwen2", model)
    (model / "config.json").write_text('{"model_type": "qwen2", "max_position_embeddings": 512}')
    asked = [{"role": "user", "content": "Wie groß ist 2+2? 🙂"}]
    file = jsonl(tmp_path / "a.jsonl", [{"prompt": asked, "answer": "4"}])
    found = check_data_of(*load_config("grpo", words(file, f"model.path={model}", "data.system=Be brief.")))
    ((place, tokens, text),) = found.prompts
    assert place == f"{file} line 1"
    assert tokens == found.lengths["training"]["percentiles"]["max"]
    assert text.startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWie groß ist 2+2? 🙂<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert found.limit == 513 - 16


def test_rows_that_ask_the_same_differ_by_what_an_environment_reads(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "seed": number} for number in range(40)]
    config, base = load_config("grpo", words(jsonl(tmp_path / "a.jsonl", rows)))
    read = load_rows(config.data, base)
    assert [distinct_prompts(read, config.data, played) for played in (False, True)] == [1, len(read)]


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


TRIES = [
    {
        "prompt": f"{n}+1=",
        "answer": f"{n + 1}",
        "tries": [f"Answer: {n + 1}", "Answer: 77"],
        "best": {"text": f"{n + 1}"},
    }
    for n in range(6)
]
SCORE = """
def length(completion, answer):
    if completion == "Answer: 77":
        raise ValueError("no 77 🙂")
    return len(completion)
"""


def tried_words(folder: Path, *more: str) -> list[str]:
    (folder / "score.py").write_text(SCORE)
    file = jsonl(folder / "a.jsonl", TRIES)
    rewards = f'rewards=[{{kind="numeric"}}, {{path="{folder / "score.py"}:length", weight=0.0}}]'
    return [f"data.path={file}", f"model.path={TINY}", rewards, "rollout.max_new_tokens=8", "run.threads=1", *more]


def test_given_completions_are_scored_one_group_per_row_and_faults_are_shown(tmp_path: Path):
    found = check_rewards_of(*load_config("grpo", tried_words(tmp_path)), column="tries", prompts=2)
    assert found.names == ("numeric", "length")
    assert [[one["reward"] for one in scored] for _, _, scored in found.groups] == [[1.0, 0.0]] * 2
    (place, prompt, (right, wrong)), _ = found.groups
    assert (place, prompt) == (f"{tmp_path / 'a.jsonl'} line 1", "0+1=")
    assert (right["parts"], right["fault"]) == ({"numeric": 1.0, "length": 9.0}, None)
    assert wrong["parts"] == {"numeric": 0.0, "length": None}
    text = found.text()
    assert [words for words in table("checks_before_a_run", "said_a") if words not in text] == []
    assert json.loads(json.dumps(found.to_json()))["rewards"] == ["numeric", "length"]


def test_a_part_of_a_table_and_a_file_without_prompts_hold_completions_too(tmp_path: Path):
    best = check_rewards_of(*load_config("grpo", tried_words(tmp_path)), column="best.text", prompts=6)
    assert [one["reward"] for _, _, scored in best.groups for one in scored] == [1.0] * 6
    assert "all completions have the reward 1," in best.text()
    file = jsonl(tmp_path / "b.jsonl", [{"completion": "It is 5.", "answer": 5}, {"completion": "6", "answer": "5"}])
    given = check_rewards_of(*load_config("grpo", tried_words(tmp_path)), file=file)
    assert [one["reward"] for _, _, scored in given.groups for one in scored] == [1.0, 0.0]
    assert given.source == f"from the column 'completion' of {file}"


def test_sampled_completions_are_those_of_the_first_rollout_whatever_else_is_sampled(tmp_path: Path):
    numeric = "rewards=[{kind='numeric'}]"
    found, again = (
        check_rewards_of(
            *load_config("grpo", tried_words(tmp_path, numeric, "rollout.group_size=3")), sample=True, prompts=count
        )
        for count in (2, 1)
    )
    assert [len(scored) for _, _, scored in found.groups] == [3, 3]
    assert found.groups[0] == again.groups[0]
    assert found.source == f"sampled from {TINY} at temperature 1"


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({}, DataError, "a.jsonl line 1: there is no column 'completion' with a completion; it has: prompt, answer"),
        ({"column": "trys"}, DataError, "did you mean 'tries'?"),
        ({"column": "best"}, DataError, "column 'best' must hold a completion, or a list of them"),
        ({"sample": True, "file": Path("x.jsonl")}, ConfigError, "--sample and --completions are two sources"),
        ({"file": Path("none.jsonl")}, DataError, "there is no file"),
    ],
)
def test_what_cannot_be_scored_is_refused(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], said: str):
    with pytest.raises(error) as caught:
        check_rewards_of(*load_config("grpo", tried_words(tmp_path)), **arguments)
    assert said in str(caught.value)


def test_the_command_prints_the_table_and_refuses_with_exit_code_2(tmp_path: Path):
    given = ["reward", "check", "grpo", *tried_words(tmp_path, "rewards=[{kind='exact'}]")]
    ended = CliRunner().invoke(app, [*given, "--column", "answer", "--prompts", "1", "--json"])
    assert ended.exit_code == 0
    lines = ended.stdout.splitlines()
    place = "from the column 'answer' of the recipe's data (1 of 6 rows; --prompts takes more)"
    assert lines[0] == f"1 completion {place}"
    assert json.loads(lines[-1])["groups"][0]["completions"][0]["reward"] == 1.0
    refused = CliRunner().invoke(app, given)
    assert isinstance(refused.exception, DataError)  # which the command prints and exits with 2


BROKEN = """
import os, sys, time
def none(completion, answer): return None
def text(completion, answer): return "1"
def a_list(completion, answer): return [1.0]
def table(completion, answer): return {"points": 1}
def nan(completion, answer): return float("nan")
def raises(completion, answer): return 1 / 0
def exits(completion, answer): sys.exit(3)
def dies(completion, answer): os._exit(1)
def slow(completion, answer): time.sleep(1000)
def by_form(completion, answer): return float(answer.split("####")[1] in completion)
def short(completions, **columns): return [1.0]
def no_list(completions, **columns): return None
def batch(completions, **columns): raise ValueError("bad")
def compute_score(data_source, solution_str, ground_truth, extra_info=None): return {"acc": 1.0}
def steps(completion, answer): return {"steps": [1.0] * 1000}
"""
FINE = """
def fine(completion, answer): return float(answer in completion)
def many(completions, answer, **columns): return [float(a in c) for a, c in zip(answer, completions)]
def picky(completion, answer): return float(completion.split("####")[1].strip() == answer)
def zero(completion, answer): return 0.0
"""


def recipe_words(folder: Path, code: str, *names: str) -> list[str]:
    (folder / "mine.py").write_text(code)
    rewards = [f"{{path='{folder / 'mine.py'}:{name}', processes=1, timeout_seconds=1}}" for name in names]
    return tried_words(folder, f"rewards=[{', '.join(rewards)}]")


@pytest.mark.parametrize("name", re.findall(r"^def (\w+)", BROKEN, re.MULTILINE))
def test_a_broken_reward_is_a_problem_of_the_data(tmp_path: Path, name: str):
    assert len(check_data_of(*load_config("grpo", recipe_words(tmp_path, BROKEN, name))).problems) == 1


@pytest.mark.parametrize("name", ["raises", "dies", "short"])
def test_a_broken_reward_is_found_before_the_model_loads(tmp_path: Path, name: str):
    said = [*recipe_words(tmp_path, BROKEN, name), f"model.path={tmp_path}"]
    attempts = (
        lambda: check_rewards_of(*load_config("grpo", said), sample=True),
        lambda: train_recipe(*load_config("grpo", [*said, "eval.every=0"]), tmp_path / "out"),
    )
    for attempt in attempts:
        with pytest.raises(UserError, match=rf"(?s){name}.*{tmp_path / 'a.jsonl'} line 1|line 1.*{name}") as caught:
            attempt()
        assert "Traceback" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_rewards_that_work_are_only_warned_of(tmp_path: Path):
    found = check_data_of(*load_config("grpo", recipe_words(tmp_path, FINE, "fine", "many", "picky", "zero")))
    assert found.problems == ()
    picky, zero = found.warnings
    assert re.search("reward picky failed for .*IndexError", picky)
    assert re.search("reward zero gives 0 for the reference answer of .* and 0 for a made-up text", zero)
    assert "A run would take this." not in found.text()
    means = [tuple(reward[key] for key in ("tried", "read", "mean")) for reward in found.rewards]
    assert means == [(6, 6, 1.0)] * 3 + [(6, 6, 0.0)]


def test_of_rows_without_an_answer_a_reward_that_fails_for_every_text_is_a_problem_and_another_a_warning(
    tmp_path: Path,
):
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt": "1+1="}\n')
    code = (
        "def tagged(completion): return float(completion.split('<answer>')[1] == '2')\n"
        "def always(completion): return {}['x']\n"
        "def one(completions, **columns): return [1.0]\n"
    )
    found = {
        name: check_data_of(*load_config("grpo", [*recipe_words(tmp_path, code, name), f"data.path={bare}"]))
        for name in ("tagged", "always", "one")
    }
    assert {name: len(each.problems) for name, each in found.items()} == {"tagged": 0, "always": 1, "one": 1}
    (warning,) = found["tagged"].warnings
    assert re.search("reward tagged failed for .*IndexError", warning)


def test_a_reward_check_where_right_answers_score_0_too_exits_with_2(tmp_path: Path):
    said = recipe_words(tmp_path, FINE, "zero")
    ended = CliRunner().invoke(app, ["reward", "check", "grpo", *said, "--column", "tries"])
    assert ended.exit_code == 2
    assert "Warning: all completions have the reward 0" in ended.output
    ended = CliRunner().invoke(
        app, ["reward", "check", "grpo", *recipe_words(tmp_path, FINE, "fine"), "--column", "tries"]
    )
    assert ended.exit_code == 0


def test_the_reward_of_init_reads_plain_answers_and_worked_solutions(test_data: Path):
    shipped = import_module("oncurve.recipes.rewards.own").reward
    for line in (test_data / "gsm8k" / "test.jsonl").read_text().splitlines()[:200]:
        solution = json.loads(line)["answer"]
        number = solution.partition("#### ")[2]
        assert shipped(f"So it is.\n#### {number}", solution) == shipped(f"#### {number}", number) == 1.0
        assert shipped(f"#### {number}1", solution) == 0.0


TALKATIVE = """
class Talkative:
    def reset(self, **row):
        return "1" * 300

    def get_reward(self):
        return 0.0
"""


def test_an_opening_that_is_too_long_is_refused_before_the_first_rollout(tmp_path: Path):
    (tmp_path / "talk.py").write_text(TALKATIVE)
    kind = f"{tmp_path / 'talk.py'}:Talkative"
    with pytest.raises(DataError, match=r"with what the environment says it has 30\d tokens, and \d+ fit"):
        oncurve.train(
            model=str(TINY),
            data=[{"prompt": "1?"}],
            settings={"rollout": {"max_new_tokens": 16}, "environment": {"kind": kind, "processes": 1}},
        )
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?", "answer": "2"}\n')
    said = [*words(tmp_path / "rows.jsonl"), f"environment.kind={kind}", "environment.processes=1"]
    (problem,) = check_data_of(*load_config("grpo", said)).problems
    assert "row 1" in problem or "line 1" in problem
    assert "with what the environment says" in problem


@pytest.mark.slow
def test_the_model_of_a_finished_run_is_evaluated_in_its_environment(tmp_path: Path):
    (tmp_path / "game.py").write_text(TALKATIVE.replace('"1" * 300', '" go"').replace("0.0", "1.0"))
    rows = jsonl(tmp_path / "rows.jsonl", ROWS[:2])
    environment = {"kind": f"{tmp_path / 'game.py'}:Talkative", "processes": 1}
    settings = {"environment": environment, "rollout": {"max_new_tokens": 24, "group_size": 2}}
    oncurve.train(model=str(TINY), data=str(rows), steps=1, out=tmp_path / "run", settings=settings).close()
    assert evaluate_target(str(tmp_path / "run"), [], n=1)[1].to_json()["mean_reward"][0] == 1.0
