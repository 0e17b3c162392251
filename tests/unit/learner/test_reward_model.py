"""The learner of a reward model beside a plain one: gradients, updates, what is passed over, exact state."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.classifiers import LONGEST, lay_down
from fakes.learning import relative_error
from fakes.tolerance import about
from oncurve.metrics import Metrics
from oncurve.models.layers.rms_norm import replace_norms
from oncurve.reward_models import LabelledSteps, PreferencePair, learner as reward_learner
from oncurve.reward_models.learner import Example, OutcomeModel, ProcessModel, RewardLearner
from oracles.plain_reward_model import plain_pair_loss, plain_reward, plain_step_loss

PAIRS = [
    PreferencePair("7*8=", "56", "54"),
    PreferencePair("Mia has 7 bags of 8 beads\n", "7*8=56\n#### 56", "7*8=63\n#### 63", 0.5),
    PreferencePair("2+2=", "4", "a long way round to 5", -0.25),
    PreferencePair("", "1", "2"),
]
STEPS = [
    LabelledSteps("7*8+31\n", "7*8=56\n56+31=97\n#### 97", (7, 16, 23), (1.0, 0.0, None)),
    LabelledSteps("2+2\n", "4", (1,), (0.75,)),
    LabelledSteps("3\n", "1+2\n\n3\n", (5, 7), (None, 0.25)),
    LabelledSteps("9-8\n", "1\n1\n1\n1", (2, 4, 6, 7), (1.0, 1.0, 0.5, 0.0)),
]
EXAMPLES: dict[str, Sequence[Example]] = {"outcome": PAIRS, "process": STEPS}
CENTER = 0.03
TOO_LONG = "1" * LONGEST
heads = pytest.mark.parametrize("head", ["outcome", "process"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {head: lay_down(tmp_path_factory.mktemp(head), head) for head in EXAMPLES}


@pytest.fixture
def learners(folders: dict[str, Path]) -> Any:
    """`learners(head, **settings)`: a fresh learner of the same weights each time."""

    def make(head: str, total_updates: int = 0, **settings: Any) -> RewardLearner:
        if head == "outcome":
            settings = {"center": CENTER, **settings}
        chosen = (OutcomeModel if head == "outcome" else ProcessModel)(
            path=str(folders[head]), device="cpu", **settings
        )
        return chosen.build(chosen.load(), total_updates)

    return make


def plain_loss(module: Any, learner: RewardLearner, examples: Sequence[Example]) -> Tensor:
    tokenizer = learner.classifier.tokenizer
    if learner.classifier.head == "outcome":
        return plain_pair_loss(module, tokenizer, examples, CENTER)
    return plain_step_loss(module, tokenizer, examples)


def gradient(learner: RewardLearner, examples: Sequence[Example]) -> Tensor:
    learner.optimizer.zero_grad()
    learner._measured(examples, Metrics(), backward=True)
    return torch.cat([part.flatten().double() for part in learner.optimizer.gradients().values()])


def in_float64(module: Any) -> Any:
    """A copy in float64 throughout: the norms of transformers compute in float32 whatever they are given."""
    module = copy.deepcopy(module)
    replace_norms(module)
    return module.double()


def weights(learner: RewardLearner) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in learner.classifier.module.parameters()])


@heads
def test_the_gradient_is_that_of_one_text_at_a_time(learners: Any, head: str) -> None:
    learner = learners(head)
    module = in_float64(learner.classifier.module)
    plain_loss(module, learner, EXAMPLES[head]).backward()
    wanted = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    assert relative_error(gradient(learner, EXAMPLES[head]), wanted) < 1e-5


@heads
@pytest.mark.parametrize("tokens", [1, 60, 90])
def test_the_pieces_that_a_batch_is_computed_in_change_nothing(
    learners: Any, monkeypatch: pytest.MonkeyPatch, head: str, tokens: int
) -> None:
    learner = learners(head)
    whole, measured = gradient(learner, EXAMPLES[head]), learner.measure(EXAMPLES[head])
    monkeypatch.setattr(reward_learner, "TOKENS", tokens)
    calls = []
    scores = type(learner.classifier).scores
    monkeypatch.setattr(
        type(learner.classifier), "scores", lambda self, texts: calls.append(len(texts)) or scores(self, texts)
    )
    assert relative_error(gradient(learner, EXAMPLES[head]), whole) < 1e-5
    assert learner.measure(EXAMPLES[head]) == about(measured)
    assert len(calls) > 2
    assert sum(calls) == 2 * len(EXAMPLES[head]) * (2 if head == "outcome" else 1)


def test_what_is_measured_of_pairs(learners: Any) -> None:
    learner = learners("outcome")
    module, tokenizer = learner.classifier.module, learner.classifier.tokenizer
    with torch.no_grad():
        loss = float(plain_pair_loss(module, tokenizer, PAIRS, CENTER))
        right = [
            plain_reward(module, tokenizer, p.prompt + p.chosen)
            > plain_reward(module, tokenizer, p.prompt + p.rejected)
            for p in PAIRS
        ]
    wanted = {"loss": about(loss), "accuracy": sum(map(bool, right)) / 4}
    assert learner.measure(PAIRS) == wanted
    update = learner.update(PAIRS)
    assert update.metrics.result() == {f"reward_model/{name}": value for name, value in wanted.items()}


@heads
def test_what_is_too_long_or_unlabelled_is_passed_over(learners: Any, head: str) -> None:
    useless: list[Example] = (
        [PreferencePair(TOO_LONG, "1", "2"), PreferencePair("", TOO_LONG, "2"), PreferencePair("", "1", TOO_LONG)]
        if head == "outcome"
        else [LabelledSteps("", TOO_LONG, (5,), (1.0,)), LabelledSteps("2+2\n", "4\n4", (2, 3), (None, None))]
    )
    one, two = learners(head), learners(head)
    good = list(EXAMPLES[head])
    assert one.fitting([*useless, *good, *useless]) == good
    assert one.measure(useless) == {}
    assert one.measure([*useless, *good]) == about(one.measure(good))
    one.update([useless[0], *good, useless[-1]])
    two.update(good)
    assert torch.equal(weights(one), weights(two))


@heads
def test_a_loss_that_is_not_finite_changes_nothing(learners: Any, head: str) -> None:
    learner = learners(head, learning_rate=0.01)
    learner.update(EXAMPLES[head])
    score = learner.classifier.module.score.weight
    good = score.detach().clone()
    with torch.no_grad():
        score[0, 0] = float("nan")
    before = {name: tensor.clone() for name, tensor in learner.optimizer.state().items()}
    result = learner.update(EXAMPLES[head])
    assert result.skipped
    assert result.reason.startswith("reward model: loss nan, gradient norm")
    assert result.metrics.result() == {}
    after = learner.optimizer.state()
    assert all(torch.equal(tensor.nan_to_num(7.0), after[name].nan_to_num(7.0)) for name, tensor in before.items())
    assert learner.optimizer.steps == 1
    assert learner.changes == 3
    assert all(parameter.grad is None for parameter in learner.classifier.module.parameters())
    with torch.no_grad():
        score.copy_(good)
    assert not learner.update(EXAMPLES[head]).skipped
