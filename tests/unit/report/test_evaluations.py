"""What became of held-out problems between two evaluations, by any results."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from oncurve.base.errors import RunDirectoryError
from oncurve.report import EvaluationFiles, look_at_flips

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
    with pytest.raises(RunDirectoryError, match="no results of an evaluation after step 0"):
        look_at_flips(tmp_path)
    files.write(0, [problem(1, True), problem(2, True)])
    files.write(5, [problem(1, False, "another text"), problem(2, False)])
    assert [each["problem"] for each in look_at_flips(tmp_path, 0, 5)["problems"]] == [2]
    for damage in (b"", files.path(5).read_bytes()[:-9], b"[1]", b"\x1f\x8bnonsense"):
        files.path(5).write_bytes(damage)
        with pytest.raises(RunDirectoryError, match="after step 5 can be read; there are those after: 0, 5"):
            look_at_flips(tmp_path, 0, 5)
    files.remove_after(0)
    assert files.steps() == (0,)
