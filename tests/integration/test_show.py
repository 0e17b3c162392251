"""What a step does to its tokens, recorded while it trains and shown afterwards."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes.by_transformers import logprobs_of, taken
from fakes.project import Command
from fakes.tables import table
from oncurve.learner import LocalLearner
from oncurve.report import TOKENS, EvaluationFiles, RolloutFiles, RolloutIndex, look_at

pytestmark = pytest.mark.slow

SETTINGS = table("show", "settings")


def test_numbers_of_tokens_are_those_of_the_checkpoints_before_and_after_the_step(command: Command) -> None:
    assert command("train", "recipe.toml", *SETTINGS, "run.steps=3", "--out", "out").code == 0
    for step in (1, 2):
        assert command("export", "out", "--step", str(step)).code == 0
    index = RolloutIndex(Path("out"))
    for number in (0, 1):
        group = index.group(2, number)
        for item in group["completions"]:
            prompt, ids = group["prompt"]["ids"], item["ids"]
            before, after, reference = (
                logprobs_of(Path(folder), prompt, ids, 0.8)
                for folder in ("out/export/step-000001", "out/export/step-000002", "model")
            )
            picked = [taken(each, ids) for each in (before, after, reference)]
            distance = picked[2] - picked[0]
            expected = {
                "before": picked[0],
                "after": picked[1],
                "entropy": -(before.exp() * before).sum(1),
                "kl": distance.exp() - 1 - distance,
            }
            for name, values in expected.items():
                torch.testing.assert_close(torch.tensor(item[name]).double(), values, rtol=0, atol=1e-5)
            assert re.sub("<.*?>", " ", "".join(item["pieces"])).split() == item["text"].split()
    assert [("after" in index.group(step, 0)["completions"][0]) for step in (1, 2, 3)] == [True, True, False]


def test_measuring_tokens_changes_no_bit_of_the_run_and_takes_one_pass_more_where_old_logprobs_are_there(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[frozenset[str]] = []
    inner = LocalLearner.score
    monkeypatch.setattr(
        LocalLearner, "score", lambda self, batch, want: passes.append(want) or inner(self, batch, want)
    )
    for every in ("0", "1"):
        settings = ("kl.coef=0.05", "learner.ppo_epochs=2", f"rollouts.tokens_every={every}")
        assert command("train", "recipe.toml", *settings, "--out", every).code == 0
        assert sum("old" in want for want in passes) == {"0": 3, "1": 3 + 3 + 3}[every]
    for file in ("model/model.safetensors", *(f"rollouts/step-{step:06d}.jsonl.gz" for step in (1, 2, 3))):
        assert Path("0", file).read_bytes() == Path("1", file).read_bytes(), file


def test_a_group_is_shown_with_what_the_step_changed_most_and_places_that_are_not_there_are_named(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("train", "recipe.toml", *SETTINGS, "run.steps=3", "--out", "out").fine()
    listed = command("show", "out", "--step", "2", "--json").fine()
    of_step = json.loads(listed.out.splitlines()[-1])
    assert [row["group"] for row in of_step["rows"]] == [0, 1]
    said = command("show", "out", "--step", "2", "--group", "1", "--json").fine()
    found = json.loads(said.out.splitlines()[-1])
    assert (found["link"], found["step"]) == ("#/out/2/1", 2)
    items = found["completions"]
    assert sorted(item["completion"] for item in items) == [0, 1, 2, 3]
    rewards = [item["reward"] for item in items]
    assert (rewards[0], rewards[1]) == (max(rewards), min(rewards))
    assert {"parts", "ended", "text", "advantage"} <= items[0].keys()
    group = RolloutIndex(Path("out")).group(2, 1)["completions"]
    changes = [
        (abs(torch.tensor(after).double().exp() - torch.tensor(before).double().exp()).item(), number, token)
        for number, item in enumerate(group)
        for token, (before, after) in enumerate(zip(item["before"], item["after"], strict=True))
    ]
    top = found["most_changed"][0]
    assert abs(top["change"]) == pytest.approx(max(changes)[0])
    assert top["link"] == f"#/out/2/1/{top['completion']}/{top['token']}"
    assert top["piece"] in said.out
    assert abs(of_step["most_changed"][0]["change"]) >= abs(top["change"])
    groups = [RolloutIndex(Path("out")).group(2, number)["completions"] for number in (0, 1)]
    before, after = (
        np.float32([value for items in groups for item in items for value in item[key]]) for key in ("before", "after")
    )
    largest = np.argsort(-np.abs(np.exp(after) - np.exp(before)), kind="stable")[:9]
    found_in = dict.fromkeys((largest >= sum(len(item["ids"]) for item in groups[0])).astype(int).tolist())
    for part in (1, 7, 1 << 20):
        monkeypatch.setattr("oncurve.report.index._PART", part)
        assert RolloutIndex(Path("out")).changed(2, 9) == list(found_in)
    one = look_at(Path("out"), 2, 1, top["completion"])
    assert [item["completion"] for item in one["completions"]] == [top["completion"]]
    for words, error in table("show", "places_that_are_not_there"):
        said = command("show", "out", *words)
        assert (said.code, error in said.err) == (2, True), said.err
    RolloutFiles(Path("out")).path(1, TOKENS).unlink()
    said = command("show", "out", "--step", "1", "--group", "0")
    assert (said.code, "not measured" in said.out) == (0, True)


def test_held_out_problems_that_flipped_are_recorded_and_survive_a_resume(command: Command) -> None:
    settings = table("show", "evaluated")
    assert command("train", "recipe.toml", *settings, "run.steps=4", "--out", "whole").code == 0
    assert command("train", "recipe.toml", *settings, "run.steps=2", "--out", "out").code == 0
    EvaluationFiles(Path("out")).write(3, [])  # of a step that a kill has undone
    assert command("resume", "out", "run.steps=2").code == 0
    assert command("resume", "out", "run.steps=4").code == 0
    files = EvaluationFiles(Path("whole"))
    lines = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    accuracy = {int(line["step"]): line["eval/accuracy"] for line in lines if "eval/accuracy" in line}
    assert tuple(accuracy) == files.steps() == (0, 1, 2, 3, 4)
    for step, share in accuracy.items():
        assert files.path(step).read_bytes() == EvaluationFiles(Path("out")).path(step).read_bytes()
        results = files.read(step).values()
        assert sum(each["right"] for each in results) / len(results) == pytest.approx(share)
        assert all(("w1" in each["reply"], each["samples"][1]) == (each["right"], 3) for each in results)
    said = command("show", "whole", "--flips", "--since", "0", "--step", "4", "--json").fine()
    found = json.loads(said.out.splitlines()[-1])
    one, two = files.read(0), files.read(4)
    flipped = [each["problem"] for each in found["problems"] if " to " in each["change"]]
    assert sorted(flipped) == sorted(number for number in one if one[number]["right"] != two[number]["right"])
    place = found["problems"][0]
    assert place["link"] == f"#/whole/evaluation/0/4/{place['problem']}"
    told = command("show", "whole", "--flips", "--group", str(place["problem"]))
    assert (told.code, "after step 4: " in told.out, "/3 samples right" in told.out) == (0, True, True), told
    for words, error in table("show", "flips_that_are_not_there"):
        said = command("show", "whole", *words)
        assert (said.code, error in said.err) == (2, True), said.err
