"""Iterative GRPO on a real story model with a reward model of film reviews: three iterations, killed in one of them."""

import json
from pathlib import Path

import pytest

from fakes.killed_runs import PLACES, compare, finish, killed_at, metrics_of
from oncurve.config.layers import RECIPES

STEPS = 6


@pytest.mark.slow
def test_three_iterations_replay_what_they_say_and_a_killed_run_is_the_same(test_data: Path, tmp_path: Path) -> None:
    """The reward model is trained by the command; the verifier stands next to it in the log."""
    model = test_data / "models" / "babyllama105"
    sides = [
        (test_data / "sentiment" / f"rt-polarity.{side}").read_text(encoding="latin-1").splitlines()[:120]
        for side in ("pos", "neg")
    ]
    pairs = [{"chosen": chosen.strip(), "rejected": rejected.strip()} for chosen, rejected in zip(*sides, strict=True)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    recipe = str(RECIPES / "reward_models" / "sentiment.toml")
    told = [f"reward_model.path={model}", f"data.path={tmp_path / 'pairs.jsonl'}", "reward_model.epochs=1"]
    finish("reward-model", "train", recipe, *told, "run.threads=1", "--out", str(tmp_path / "rm"))
    words = [str(RECIPES / "stories_sentiment.toml"), f"model.path={model}", f"run.steps={STEPS}"]
    words += [f"reward_model.path={tmp_path / 'rm' / 'model'}", f"iterative.history={tmp_path / 'pairs.jsonl'}"]
    words += ["model.dtype=float32", "run.threads=1", "iterative.steps=2", "data.prompts_per_step=5"]
    words += ["rollout.group_size=4", "rollout.max_new_tokens=80", "reward_model.batch_size=8"]
    words += ["checkpoint.every=1", "checkpoint.keep=20"]
    finish("train", *words, "--out", str(tmp_path / "whole"))
    lines = metrics_of(tmp_path / "whole")
    ends = [line for line in lines if "reward_model/new_examples" in line]
    assert [line["progress/iteration"] for line in ends] == [1.0, 2.0, 3.0]
    known = ends[0]["reward_model/history_examples"]
    assert 100 < known <= 120  # the pairs that fit into 256 characters
    for line in ends:
        replayed = round(0.1 * known) if line["reward_model/new_examples"] else 0
        assert line["reward_model/history_examples"] == known
        assert line["reward_model/replayed_examples"] == replayed
        known += line["reward_model/new_examples"]
    assert [line["step"] for line in lines if "reference/moved" in line] == [3.0, 5.0]
    assert all({"rewards/model", "rewards/truth"} <= line.keys() for line in lines)
    killed_at(PLACES["keeping examples"], "train", *words, "--out", str(tmp_path / "run"))
    finish("resume", str(tmp_path / "run"))
    compare(tmp_path / "whole", tmp_path / "run", STEPS)
