"""Records of groups and of evaluations as they are written and read, and the problems that flipped between two."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from oncurve.base.errors import RunDirectoryError
from oncurve.report import EvaluationFiles, RolloutFiles, group_record, look_at, look_at_flips, read_run, show_text
from oncurve.trainer import Recorder, TrainerState
from oncurve.types import Completion, Group, Prompt, Score, Turn


def group(scores: tuple[Score, ...]) -> Group:
    prompt = Prompt(7, "2+2=", (5, 9), {"answer": "4", "odd": {1}, "nan": float("nan"), "chat": ({"role": "user"},)})
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
        "columns": {"answer": "4", "odd": "{1}", "nan": None, "chat": [{"role": "user"}]},
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


def test_an_episode_is_shown_by_its_turns_and_with_its_fault(tmp_path: Path) -> None:
    right, wrong = group(()).completions
    said = (Turn("assistant", 0, 1, "4?"), Turn("tool", 1, 2, "warm"))
    episodes = (replace(right, turns=said), replace(wrong, ended="fault", fault="environment: exception: it broke"))
    RolloutFiles(tmp_path).write(
        1, RolloutFiles.content([{"step": 1, **group_record(Group(group(()).prompt, episodes))}])
    )
    (tmp_path / "config.toml").touch()
    shown = show_text(look_at(tmp_path, group=0))
    for words in ("  assistant: 4?\n  tool: warm", "fault: environment: exception: it broke"):
        assert words in shown


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
    assert run.environment == {}


def test_what_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(RunDirectoryError, match="not a run"):
        read_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="not a folder"):
        read_run(tmp_path / "missing")


RIGHT = st.sampled_from([True, False, None])


def problem(number: int, right: bool | None, prompt: str = "2+2=") -> dict:
    about = {"answer": "4", "reply": "\ud8005 <b>", "ended": "eos", "reward": None, "fault": None, "samples": [1, 3]}
    return {"id": number, "prompt": prompt, "right": right, **about}


@settings(max_examples=40, deadline=None)
@given(before=st.dictionaries(st.integers(0, 30), RIGHT), after=st.dictionaries(st.integers(0, 30), RIGHT))
def test_flips_are_those_of_the_problems_that_both_evaluations_have(tmp_path_factory, before, after) -> None:
    run = tmp_path_factory.mktemp("run")
    files = EvaluationFiles(run)
    for step, results in ((0, before), (4, {}), (12, after)):
        files.write(step, [problem(number, right) for number, right in results.items()])
    found = look_at_flips(run)
    assert (found["steps"], found["first"], found["last"]) == ([0, 4, 12], 0, 12)
    both = before.keys() & after.keys()
    words = {"right to wrong": (True, False), "wrong to right": (False, True)}
    words |= {"still right": (True, True), "still wrong": (False, False)}
    for change, pair in words.items():
        expected = {number for number in both if (before[number], after[number]) == pair}
        assert {each["problem"] for each in found["problems"] if each["change"] == change} == expected
        assert found["counts"][change] == len(expected)
    assert {each["problem"] for each in found["problems"]} == both
    for number in both:
        results = look_at_flips(run, 0, 12, number)["results"]
        assert [each["right"] for each in results] == [before[number], after[number]]


def test_what_is_missing_damaged_or_another_problem_is_told_apart(tmp_path: Path) -> None:
    files = EvaluationFiles(tmp_path)
    assert files.steps() == ()
    with pytest.raises(RunDirectoryError, match="no evaluation was made after step 0"):
        look_at_flips(tmp_path)
    files.write(0, [problem(1, True), problem(2, True)])
    files.write(5, [problem(1, False, "another text"), problem(2, False)])
    assert [each["problem"] for each in look_at_flips(tmp_path, 0, 5)["problems"]] == [2]
    for damage in (b"", files.path(5).read_bytes()[:-9], b"[1]", b"\x1f\x8bnonsense"):
        files.path(5).write_bytes(damage)
        with pytest.raises(RunDirectoryError, match=r"step-000005.json.gz is damaged \("):
            look_at_flips(tmp_path, 0, 5)
    files.remove_after(0)
    assert files.steps() == (0,)
