"""What components say of themselves, and what is made of it: checked, explained, and assumed where nothing is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from fakes.batches import rows_of
from fakes.learning import finished
from fakes.messages import message_of
from fakes.tiny_policy import random_groups, tiny_model
from oncurve.advantages import GroupAdvantage
from oncurve.base.errors import ConfigError, DataError
from oncurve.batching import collate
from oncurve.components import Component, Equation, described, stated
from oncurve.config import load_config
from oncurve.config.sentences.plan import explain
from oncurve.data import DataSettings, Rows, load_rows
from oncurve.kl import Estimator, k2, kl_value
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import (
    OBJECTIVE_KINDS,
    Clipped,
    KLPenalty,
    Regularizer,
    TokenSum,
    has_importance_ratio,
    objective_loss,
    reads_reference,
    zero_gradient_at_zero_advantage,
)
from oncurve.rewards import RewardSet
from oncurve.rewards.settings import RewardSettings
from oncurve.rollout import RolloutEngine, sample
from oncurve.trainer.credit import weighted_by
from oncurve.types import TokenLoss, TokenStats, TrainBatch


class Pulled(Clipped):
    """The clipped surrogate and a term that has a gradient where the advantage is 0."""

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        token = super().__call__(stats, batch)
        return TokenLoss(token.loss + torch.where(batch.loss_mask, stats.logprobs.square(), 0.0), token.stats)


class Described(Pulled):
    """The same, which says what it is."""

    reads_reference: ClassVar[bool] = False

    def describe(self) -> Equation:
        return Equation("X_i + π_old", {"X_i": "a value of G things"})


def test_a_statement_is_inherited_with_the_formula_that_it_speaks_of() -> None:
    for kind in OBJECTIVE_KINDS.values():
        inherits = type("Inherits", (kind,), {})()
        assert zero_gradient_at_zero_advantage(kind())
        assert zero_gradient_at_zero_advantage(inherits)
        assert not reads_reference(kind())
        assert described(inherits) == kind().describe()
    assert not zero_gradient_at_zero_advantage(Pulled())
    assert reads_reference(Pulled())
    assert not reads_reference(Described())
    assert not has_importance_ratio(OBJECTIVE_KINDS["reinforce"]())
    assert has_importance_ratio(OBJECTIVE_KINDS["clipped"]())
    assert has_importance_ratio(Pulled())
    assert stated(Described(), "importance_ratio", "nothing") == "nothing"


def test_rows_of_advantage_0_are_computed_for_an_objective_that_does_not_state_their_gradient_to_be_0() -> None:
    constant = random_groups(rewards=[[1.0] * 4] * 3)
    norms = {}
    for kind in (Clipped, Pulled):
        model = tiny_model()
        learner = LocalLearner(LearnerConfig(), model, kind(), Regularizer(KLPenalty(coef=0.0)))
        norms[kind] = learner.update(finished(learner, constant)).metrics.result()["optim/grad_norm"]
    assert norms[Clipped] == 0
    assert norms[Pulled] > 0


def config(**sections: Any) -> Any:
    return load_config(None, settings=sections)[0]


def test_an_outside_component_explains_itself_and_its_letters_are_explained() -> None:
    lines = explain(config(objective=Described(), kl={"coef": 0})).splitlines()
    assert lines[0] == "J(θ) = 1/N Σ_i Σ_t { X_i + π_old }"
    said = dict(line.strip().split("   ", 1) for line in lines[2:])
    assert {letter: said[letter].strip() for letter in ("X_i", "G")} == {
        "X_i": "a value of G things",
        "G": "8, the completions of a prompt",
    }
    assert "the policy that sampled" in said["π_old"]
    assert "π_ref" not in said


class Long(Described):
    def describe(self) -> Equation:
        return Equation("A: b", {"A: b": "a value\n        in two lines"})


def test_a_meaning_may_have_several_lines_and_a_letter_a_colon() -> None:
    assert "  A: b   a value in two lines" in explain(config(objective=Long(), kl={"coef": 0}))


class Table(DataSettings):
    """A data source whose columns are known before it is read."""

    def column_names(self) -> frozenset[str]:
        return frozenset({"question", "answer"})

    def read(self, base: Path | None) -> tuple[Rows, Rows]:
        raise AssertionError("nothing is read at load")


class Unread(DataSettings):
    """A data source without rows."""


class Unsure(Table):
    holds_out: ClassVar[str] = "perhaps"  # type: ignore[assignment]


class Idle(RewardSettings):
    """A reward that does not say how it is run."""


class NoSum(Component):
    """An aggregation that is none."""


class Boasting(Clipped):
    zero_gradient_at_zero_advantage: ClassVar[str] = "yes"  # type: ignore[assignment]


class Failing(Described):
    def describe(self) -> Equation:
        raise ValueError("no words")


class Wordy(GroupAdvantage):
    def describe(self) -> str:  # type: ignore[override]
        return "Â"

    def __call__(self, batch: TrainBatch) -> Tensor:
        raise AssertionError


chi2 = Estimator(lambda logprobs, ref_logprobs, _: k2(logprobs, ref_logprobs), "χ²")
greedy = Estimator(lambda logprobs, ref_logprobs, _: logprobs, needs=frozenset({"everything"}))
nothing = 3


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"kind": "list"}, "advantage": NoSum()}, "advantage.kind: NoSum lacks __call__ and min_valid"),
        ({"aggregation": NoSum()}, "aggregation.kind: NoSum lacks __call__, so it is no aggregation"),
        ({"objective": NoSum()}, "objective.kind: NoSum lacks __call__ and needs, so it is no objective"),
        ({"critic": NoSum()}, "critic.kind: NoSum lacks build, so it is no critic"),
        ({"data": NoSum()}, "data.kind: NoSum is no data source: derive it from oncurve.data.DataSettings"),
        ({"data": Unread()}, r"data.kind: Unread lacks read(base)"),
        ({"data": Unsure()}, "data.kind: Unsure.holds_out is 'perhaps'; it must be True or False"),
        ({"data": Table()}, "data.prompt_column: there is no column 'prompt'; the columns are: answer, question"),
        (
            {"data": Table(template="{qestion}")},
            "data.template: there is no column 'qestion'; did you mean 'question'?",
        ),
        ({"data": {"kind": "task", "template": "{a}"}}, "data.template: there is no column 'a'"),
        ({"rewards": [NoSum()]}, "rewards.0.kind: NoSum is no reward: derive it from oncurve.rewards.RewardSettings"),
        ({"rewards": [Idle()]}, "rewards.0.kind: Idle lacks start(base)"),
        ({"objective": Boasting()}, "objective.kind: Boasting.zero_gradient_at_zero_advantage is 'yes'; it must be"),
        ({"objective": Failing()}, "objective.kind: Failing.describe() failed: ValueError: no words"),
        ({"advantage": Wordy()}, "advantage.kind: Wordy.describe() must return an oncurve.components.Equation"),
        ({"kl": {"estimator": f"{__name__}:greedy"}}, f"kl.estimator: {__name__}:greedy: needs must be a frozenset"),
        ({"kl": {"estimator": f"{__name__}:nothing"}}, f"kl.estimator: {__name__}:nothing is not an oncurve.kl.Est"),
        ({"kl": {"estimator": "k33"}}, "kl.estimator: expected one of k1, abs, k2, k3, full, k1+, abs+, k3+, ratio_k3"),
    ],
)
def test_an_outside_component_is_checked_at_load(sections: dict[str, Any], said: str) -> None:
    assert message_of(ConfigError, config, **sections).startswith(said)


def test_an_estimator_of_the_users_is_named_by_its_path() -> None:
    made = config(kl={"estimator": f"{__name__}:chi2"})
    assert made.kl.chosen is chi2
    assert f"KL_it   {__name__}:chi2: χ²" in explain(made)
    logprobs, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    batch = rows_of(torch.ones(1, 2, dtype=torch.bool), ref_logprobs=reference)
    loss = Regularizer(KLPenalty(estimator=f"{__name__}:chi2", coef=2.0))(TokenStats(logprobs), batch).loss
    assert loss.tolist() == [[2 * 0.5**2 / 2, 2 * 1.0**2 / 2]]


class Returned(Component):
    """An objective or aggregation that returns what it is told to."""

    what: Any = None
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, *_: object) -> Any:
        return self.what


def batch_of_three() -> TrainBatch:
    return collate(random_groups(1, 3))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda mask: None, "it returned None"),
        (lambda mask: mask.sum(1), r"one weight per token, a tensor \(B, T\), here .*; it returned \(3,\)"),
        (lambda mask: mask.sum(1, keepdim=True), r"it returned \(3, 1\)"),  # it would broadcast, without a word
        (lambda mask: torch.ones(mask.shape), "must be 0 where loss_mask is False"),
    ],
)
def test_what_an_aggregation_returns_is_checked(what: Callable[[Tensor], Any], said: str) -> None:
    batch = batch_of_three()
    batch = replace(batch, loss_mask=batch.loss_mask & (torch.arange(batch.loss_mask.shape[1]) > 0))
    with pytest.raises(ConfigError, match=rf"aggregation\.kind: .*{said}"):
        weighted_by(Returned(what=what(batch.loss_mask)), batch)
    assert torch.equal(weighted_by(TokenSum(), batch).token_weights, batch.loss_mask.double())


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda x: x, "must return an oncurve.types.TokenLoss"),
        (lambda x: TokenLoss(x.sum(1, keepdim=True)), r"one loss per token, .*; it returned \(3, 1\)"),
        (
            lambda x: TokenLoss(x, {"policy/ratioo": x}),
            "metric 'policy/ratioo' is not declared; did you mean 'policy/ratio'",
        ),
        (lambda x: TokenLoss(x.detach()), "loss has no gradient"),
    ],
)
def test_what_an_objective_returns_is_checked(what: Callable[[Tensor], Any], said: str) -> None:
    batch = batch_of_three()
    logprobs = torch.zeros(batch.loss_mask.shape, requires_grad=True)
    with pytest.raises(ConfigError, match=rf"objective\.kind: Returned.*{said}"):
        objective_loss(Returned(what=what(logprobs)), TokenStats(logprobs), batch)
    own = TokenLoss(logprobs, {"own/mine": logprobs})
    assert objective_loss(Returned(what=own), TokenStats(logprobs), batch) is own


@pytest.mark.parametrize("value", ["None", "logprobs.sum(1)"])
def test_what_an_estimator_returns_is_checked(tmp_path: Path, value: str) -> None:
    file = tmp_path / "mine.py"
    call = f"lambda logprobs, ref, old: {value}"
    file.write_text(f"from oncurve.kl import Estimator\nmine = Estimator({call}, 'd')\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"kl\.estimator: .*must return one value per token"):
        kl_value(f"{file}:mine", torch.zeros(2, 3), torch.zeros(2, 3))


class Reads(DataSettings):
    """A data source that returns what it is told to, or opens a file that is not there."""

    what: Any = None

    def read(self, base: Path | None) -> Any:
        return Path("there/is/none.csv").read_text() if self.what == "file" else self.what


@pytest.mark.parametrize(
    ("what", "said"),
    [(None, "two oncurve.data.Rows"), (([], []), "two oncurve.data.Rows"), ("file", "No such file .*none.csv")],
)
def test_what_a_data_source_reads_is_checked(what: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_rows(Reads(what=what))


class Started(RewardSettings):
    """A reward whose start returns no runner."""

    def start(self, base: Path | None) -> Any:
        return lambda item: 1.0


def test_what_starts_a_reward_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"reward started: function lacks about and run and close"):
        RewardSet.build([Started()])


class Generates:
    """An engine that returns what it is told to."""

    exact = True

    def __init__(self, groups: Any) -> None:
        self.groups = groups

    def generate(self, *_: object) -> Any:
        return self.groups


def test_what_an_engine_generates_is_checked() -> None:
    groups = random_groups(2, 3)
    prompts = [group.prompt for group in groups]
    assert sample(cast("RolloutEngine", Generates(groups)), prompts, 0, 3) == groups
    for wrong in (None, groups[:1], groups[::-1], [group.completions for group in groups]):
        with pytest.raises(ConfigError, match=r"engine\.kind: Generates\.generate must return a list of one Group"):
            sample(cast("RolloutEngine", Generates(wrong)), prompts, 0, 3)
    with pytest.raises(ConfigError, match="each of 4 completions"):
        sample(cast("RolloutEngine", Generates(groups)), prompts, 0, 4)
    first = groups[0].completions[0]
    for wrong, says in (
        ({"ids": (), "logprobs": ()}, "without tokens"),
        ({"logprobs": first.logprobs[1:]}, f"of {len(first.ids)} tokens with {len(first.ids) - 1} log-probs"),
        ({"logprobs": (math.nan, *first.logprobs[1:])}, "a log-prob that is not finite"),
        ({"ended": "done"}, "whose `ended` is 'done'"),
    ):
        changed = replace(groups[0], completions=(replace(first, **wrong), *groups[0].completions[1:]))
        with pytest.raises(ConfigError, match=says):
            sample(cast("RolloutEngine", Generates([changed, *groups[1:]])), prompts, 0, 3)
    untrained = {"logprobs": (math.nan, *first.logprobs[1:]), "trained": (False, *[True] * (len(first.ids) - 1))}
    groups[0] = replace(groups[0], completions=(replace(first, **untrained), *groups[0].completions[1:]))
    assert sample(cast("RolloutEngine", Generates(groups)), prompts, 0, 3) is groups
