"""Iterative GRPO on a real story model with a reward model of film reviews: three iterations, killed in every phase."""

import json
import signal
from pathlib import Path

import pytest

from fakes.killed_runs import KILLER, PLACES, command, compare
from oncurve.config.layers import RECIPES

STEPS = 6
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def words(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The recipe with a reward model that was trained by the command, made small."""
    folder, model = tmp_path_factory.mktemp("glad"), test_data / "models" / "babyllama105"
    sides = [
        (test_data / "sentiment" / f"rt-polarity.{side}").read_text(encoding="latin-1").splitlines()[:120]
        for side in ("pos", "neg")
    ]
    pairs = [{"chosen": chosen.strip(), "rejected": rejected.strip()} for chosen, rejected in zip(*sides, strict=True)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    recipe = str(RECIPES / "reward_models" / "sentiment.toml")
    told = [f"reward_model.path={model}", f"data.path={folder / 'pairs.jsonl'}", "reward_model.epochs=1"]
    trained = command(["reward-model", "train", recipe, *told, "run.threads=1", "--out", str(folder / "rm")])
    assert trained.returncode == 0, trained.stderr
    return [
        str(RECIPES / "stories_sentiment.toml"),
        f"model.path={model}",
        "model.dtype=float32",
        f"reward_model.path={folder / 'rm' / 'model'}",
        f"iterative.history={folder / 'pairs.jsonl'}",
        "run.threads=1",
        f"run.steps={STEPS}",
        "iterative.steps=2",
        "data.prompts_per_step=5",
        "rollout.group_size=4",
        "rollout.max_new_tokens=80",
        "reward_model.batch_size=8",
        "checkpoint.every=1",
        "checkpoint.keep=20",
    ]


@pytest.fixture(scope="session")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = command(["train", *words, "--out", str(out)])
    assert done.returncode == 0, done.stderr
    return out


def test_three_iterations_replay_what_they_say_and_show_the_verifier_next_to_the_reward_model(whole: Path) -> None:
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    ends = [line for line in lines if "reward_model/new_examples" in line]
    assert [line["progress/iteration"] for line in ends] == [1.0, 2.0, 3.0]
    known = ends[0]["reward_model/history_examples"]
    assert 100 < known <= 120  # the pairs that fit into 256 characters
    for line in ends:
        assert line["reward_model/history_examples"] == known
        assert line["reward_model/replayed_examples"] == (
            round(0.1 * known) if line["reward_model/new_examples"] else 0
        )
        known += line["reward_model/new_examples"]
    assert [line["step"] for line in lines if "reference/moved" in line] == [3.0, 5.0]
    assert all({"rewards/model", "rewards/truth"} <= line.keys() for line in lines)


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_and_a_resume_are_the_uninterrupted_run_bit_for_bit(
    place: str, words: list[str], whole: Path, tmp_path: Path
) -> None:
    module, name, method, count = PLACES[place]
    out = tmp_path / "run"
    killed = command([module, name, method, str(count), "train", *words, "--out", str(out)], "-c", KILLER)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = command(["resume", str(out)])
    assert resumed.returncode == 0, resumed.stderr
    compare(whole, out, STEPS)
