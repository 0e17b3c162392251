"""Rewards that a network gives: a classifier's verdicts on prompt and completion, as a whole or step by step."""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.classifiers import LONGEST, TRIMMING, byte_tokenizer, classifier, lay_down
from fakes.messages import message_of
from fakes.scoring import faults_of, group, rewards_of
from fakes.tables import table
from fakes.tolerance import about
from oncurve.base.errors import ConfigError, ModelError
from oncurve.models.classifiers.classifier import Classifier
from oncurve.models.classifiers.load import load_classifier
from oncurve.rewards import RewardSet
from oncurve.types import Completion, Group, Prompt

GROUPS = [group("7*8=56\n#### 56", "7*8=54", number=1), group("", "  \n", "1\n2\n\n3", number=2)]
LINES = {"7*8=56\n#### 56": (7, 14), "7*8=54": (6,), "1\n2\n\n3": (2, 5, 6)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {head: lay_down(tmp_path_factory.mktemp(head), head) for head in ("outcome", "process")}


@pytest.fixture(scope="module")
def classifiers(folders: dict[str, Path]) -> dict[str, Classifier]:
    return {head: load_classifier(str(folder), head, device="cpu") for head, folder in folders.items()}


def letters(prompt: Prompt, completion: Completion, ends: Sequence[int]) -> tuple[int, ...]:
    """The groups' tokens are characters."""
    return tuple(end - 1 for end in ends)


def scored(groups: Sequence[Group], *settings: Any, network: Classifier | None = None) -> list[Group]:
    with RewardSet.build(settings) as rewards:
        rewards.locate = letters
        if network is not None:
            rewards.score_with(network)
        return rewards.score(groups)


def chances(network: Classifier, prompt: str, text: str) -> list[float]:
    return network.score([network.encode(prompt, text, LINES[text])])[0]


def test_a_model_scores_prompt_and_completion(folders: dict[str, Path], classifiers: dict[str, Classifier]) -> None:
    wanted = [
        classifiers["outcome"].score([classifiers["outcome"].encode(each.prompt.text, completion.text)])[0][0]
        for each in GROUPS
        for completion in each.completions
    ]
    found = scored(GROUPS, {"kind": "model", "path": str(folders["outcome"])})
    assert rewards_of(found) == about(wanted)
    assert [score.parts["model"] for each in found for score in each.scores] == rewards_of(found)
    assert len(set(wanted)) == len(wanted)
    assert found[0].scores[0].step_ends == ()
    assert found[0].scores[0].part_steps == {}


WHOLES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda steps: sum(steps) / len(steps),
    "last": lambda steps: steps[-1],
    "product": math.prod,
}


@pytest.mark.parametrize("whole", WHOLES)
def test_a_process_model_gives_each_step_its_likelihood_and_the_whole_what_is_asked(
    folders: dict[str, Path], classifiers: dict[str, Classifier], whole: str
) -> None:
    found = scored(GROUPS, {"kind": "process_model", "path": str(folders["process"]), "whole": whole})
    for each in found:
        for completion, score in zip(each.completions, each.scores, strict=True):
            if not completion.text.strip():
                assert (score.reward, score.valid, score.step_ends, score.part_steps) == (0.0, True, (), {})
                continue
            steps = chances(classifiers["process"], each.prompt.text, completion.text)
            assert score.step_rewards == about(steps)
            assert score.step_offsets == LINES[completion.text]
            assert score.step_ends == tuple(end - 1 for end in LINES[completion.text])
            assert score.reward == about(WHOLES[whole](steps))
            assert score.part_steps == {
                "process_model": tuple(zip(score.step_offsets, score.step_rewards, strict=True))
            }


def test_a_chat_is_read_through_the_models_own_template(tmp_path: Path) -> None:
    network = classifier(tmp_path, "process", tokenizer=byte_tokenizer(), template=TRIMMING)
    asked = ({"role": "user", "content": "2+2?"},)
    (found,) = scored([group(" 2+2\n4\n", messages=asked)], {"kind": "process_model"}, network=network)
    ids = network.encode(asked, " 2+2\n4\n", (5, 7))
    assert network.tokenizer.decode(ids.ids) == "<|user|>2+2?<|end|>\n<|assistant|>2+2\n4<|end|>\n"
    assert found.scores[0].step_rewards == about(network.score([ids])[0])
    assert found.scores[0].step_offsets == (5, 7)


@pytest.mark.parametrize(("kind", "head"), [("model", "outcome"), ("process_model", "process")])
def test_what_is_too_long_has_no_reward_and_is_said(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture, kind: str, head: str
) -> None:
    groups = [group("1", "1" * LONGEST, "2"), group("3" * LONGEST)]
    with caplog.at_level(logging.WARNING):
        alone = scored(groups, {"kind": kind, "path": str(folders[head])})
    (line,) = caplog.messages  # one for all of a step
    assert line.startswith("2 of 4 completions have no reward")
    assert f"reads {LONGEST} tokens" in line
    assert faults_of(alone) == [None, "none", None, "none"]
    assert rewards_of(alone)[1] is None
    beside = scored(groups, {"kind": kind, "path": str(folders[head])}, lambda completion: 1.0)
    assert rewards_of(beside)[1] == 1.0
    assert rewards_of(beside)[:3:2] == pytest.approx([value + 1.0 for value in rewards_of(alone)[:3:2]])


def test_the_runs_own_model_scores_where_no_path_is_given(
    folders: dict[str, Path], classifiers: dict[str, Classifier], tmp_path: Path
) -> None:
    other = lay_down(tmp_path, seed=1)
    settings = [{"kind": "model", "name": "own"}, {"kind": "model", "name": "other", "path": str(other)}]
    found = scored(GROUPS, *settings, network=classifiers["outcome"])
    own = scored(GROUPS, {"kind": "model", "path": str(folders["outcome"])})
    foreign = scored(GROUPS, {"kind": "model", "path": str(other)})
    parts = [score.parts for each in found for score in each.scores]
    assert [part["own"] for part in parts] == rewards_of(own)
    assert [part["other"] for part in parts] == rewards_of(foreign) != rewards_of(own)


@pytest.mark.parametrize(("settings", "message"), table("model_rewards", "what_cannot_be_is_refused_with_the_mend"))
def test_what_cannot_be_is_refused_with_the_mend(
    folders: dict[str, Path], settings: dict[str, Any], message: str
) -> None:
    path = settings.get("path")
    chosen = {**settings, "path": str(folders.get(path, path))} if path else settings
    assert message in message_of((ConfigError, ModelError), RewardSet.build, [chosen])
