import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oncurve.base.errors import RunDirectoryError
from oncurve.report import RolloutFiles, group_record, inspect_file, inspect_log, read_run
from oncurve.trainer import Recorder, TrainerState
from oncurve.types import Completion, Group, Prompt, Score


def group(scores: tuple[Score, ...]) -> Group:
    prompt = Prompt(7, "2+2=", (5, 9), {"answer": "4", "odd": {1}, "nan": float("nan")})
    right = Completion((6, 2), "4", (-0.3, -0.1), "eos", 0, 11)
    wrong = Completion((7, 7, 7), "555", (-2.0, float("-inf"), -1.0), "length", 1, 11)
    return Group(prompt, (right, wrong), scores, draw=11)


def test_a_group_becomes_one_line_of_plain_json() -> None:
    scored = group((Score(1.0, parts={"exact": 1.0, "length": None}), Score(0.0)))
    record = group_record(scored, torch.tensor([[0.5, 0.5, 0.0], [-0.5, -0.5, -0.5]]))
    read = json.loads(json.dumps(record, allow_nan=False))
    assert read["draw"] == 11
    assert read["prompt"] == {
        "id": 7,
        "text": "2+2=",
        "ids": [5, 9],
        "columns": {"answer": "4", "odd": "{1}", "nan": None},
    }
    first, second = read["completions"]
    assert first == {
        "text": "4",
        "ids": [6, 2],
        "logprobs": [-0.3, -0.1],
        "ended": "eos",
        "sample_index": 0,
        "policy_version": 11,
        "reward": 1.0,
        "valid": True,
        "parts": {"exact": 1.0, "length": None},
        "fault": None,
        "advantage": 0.5,
    }
    assert second["advantage"] == -0.5
    assert second["logprobs"] == [-2.0, None, -1.0]


def test_a_completion_that_is_not_valid_has_no_reward_and_no_advantage() -> None:
    record = group_record(group((Score(1.0), Score(0.0, valid=False, fault="timeout"))), [0.0, 0.0])
    assert record["completions"][1]["reward"] is None
    assert record["completions"][1]["advantage"] is None
    assert record["completions"][1]["fault"] == "timeout"


def test_tokens_that_the_policy_did_not_write_are_marked_in_the_record_and_read_back(tmp_path: Path) -> None:
    right, wrong = group(()).completions
    gaps = Group(group(()).prompt, (right, replace(wrong, trained=(True, False, True))), (Score(1.0), Score(0.0)))
    (tmp_path / "config.toml").touch()
    recorder = Recorder(tmp_path, TrainerState())
    recorder.rollouts(1, [gaps], [None])
    recorder.close()
    first, second = read_run(tmp_path).groups(1)[0]["completions"]
    assert "trained" not in first
    assert second["trained"] == [True, False, True]


def test_a_run_is_read_back(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n{"step": 2, "rew')
    (tmp_path / "config.toml").write_text("[run]\nsteps = 3\n")
    record = {"step": 1, **group_record(group((Score(1.0), Score(0.0))), [1.0, -1.0])}
    RolloutFiles(tmp_path).write(1, RolloutFiles.content([record]))
    run = read_run(tmp_path)
    assert [dict(m) for m in run.metrics] == [{"step": 1, "reward/mean": 0.5}]
    assert run.steps == (1,)
    assert run.groups(1)[0]["completions"][0]["advantage"] == 1.0
    assert run.config == {"run": {"steps": 3}}
    assert run.environment == run.evaluation == {}


def test_what_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(RunDirectoryError, match="not a run"):
        read_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="not a folder"):
        read_run(tmp_path / "missing")


def test_a_run_of_an_earlier_version_is_refused_in_one_line(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "kl": 0.0}\n')
    with pytest.raises(RunDirectoryError, match="earlier version of oncurve") as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


CONFIG = """
[model]
path = "org/policy"
[data]
path = "train.jsonl"
[rollout]
temperature = 0.7
max_new_tokens = 9
[run]
seed = 3
[[rewards]]
kind = "python"
[[rewards]]
kind = "exact"
answer = "solution"
"""


def logged_group(number: int, rewards: list[float | None], **prompt: object) -> Group:
    """A completion for each reward; None: its reward failed."""
    asked = Prompt(number, f"what is {number}?", (5, 6), {"solution": number, "answer": "other"}, **prompt)  # type: ignore[arg-type]
    completions = tuple(
        Completion((7, 8, 9), f"it is {index}", (-1.0,) * 3, "length" if index else "eos", index, 4)
        for index in range(len(rewards))
    )
    scores = tuple(
        Score(0.0, valid=False, parts={"total": None}, fault="timeout: 5 s")
        if reward is None
        else Score(reward, parts={"total": reward, "exact": reward * 2})
        for reward in rewards
    )
    return Group(asked, completions, scores)


def written(tmp_path: Path, groups: list[Group]) -> dict[str, object]:
    """The log of step 12 of a run with these groups, as its file has it."""
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "metrics.jsonl").write_text('{"step": 12, "reward/mean": 0.5, "time/step": 60}\n')
    records = [group_record(each, [0.5] * len(each.completions)) for each in groups]
    RolloutFiles(tmp_path).write(12, RolloutFiles.content(records))
    name, content = inspect_file(inspect_log(read_run(tmp_path), 12, "abc"))
    assert name.endswith("_step000012.json")
    return json.loads(content)


def test_a_prompt_is_a_sample_and_each_completion_an_epoch_of_it(tmp_path: Path) -> None:
    log = written(tmp_path, [logged_group(8, [1.0, 0.0])])
    first, second = log["samples"]
    assert [(one["id"], one["epoch"]) for one in (first, second)] == [(8, 1), (8, 2)]
    assert (first["input"], first["target"]) == ("what is 8?", "8")
    assert [message["role"] for message in second["messages"]] == ["user", "assistant"]
    assert second["output"]["completion"] == second["messages"][-1]["content"] == "it is 1"
    stops = [one["output"]["choices"][0]["stop_reason"] for one in (first, second)]
    assert stops == ["stop", "max_tokens"]
    assert first["output"]["usage"] == {"input_tokens": 2, "output_tokens": 3, "total_tokens": 5}
    assert first["metadata"] == {
        "solution": 8, "answer": "other", "step": 12, "policy_version": 4, "ended": "eos", "advantage": 0.5
    }  # fmt: skip


def test_scores_are_the_total_and_the_parts_and_a_part_of_that_name_is_kept_apart(tmp_path: Path) -> None:
    first = written(tmp_path, [logged_group(8, [0.25])])["samples"][0]
    assert {name: score["value"] for name, score in first["scores"].items()} == {
        "total": 0.25,
        "total (part)": 0.25,
        "exact": 0.5,
    }


def test_the_metrics_are_those_of_the_means_of_the_groups(tmp_path: Path) -> None:
    log = written(
        tmp_path,
        [logged_group(1, [1.0, 0.0]), logged_group(2, [1.0, 1.0]), logged_group(3, [None, None])],
    )
    total = log["results"]["scores"][0]
    assert (total["name"], total["scored_samples"], total["unscored_samples"]) == ("total", 2, 1)
    assert total["metrics"]["mean"]["value"] == 0.75
    assert math.isclose(total["metrics"]["stderr"]["value"], math.sqrt(0.125) / math.sqrt(2))  # of 0.5 and 1


def test_the_head_names_model_data_step_and_settings_and_comes_before_the_samples(tmp_path: Path) -> None:
    log = written(tmp_path, [logged_group(1, [1.0])])
    assert list(log)[:3] == ["version", "status", "eval"]  # Inspect reads a head without reading further
    assert list(log)[-1] == "samples"
    assert (log["eval"]["model"], log["eval"]["dataset"]["name"]) == ("org/policy", "train.jsonl")
    assert log["plan"]["config"] == {"max_tokens": 9, "temperature": 0.7, "seed": 3}
    assert log["eval"]["task_args"] == {"step": 12}
    assert log["results"]["metadata"]["metrics"]["reward/mean"] == 0.5
