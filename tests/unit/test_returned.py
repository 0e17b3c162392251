"""What a component from elsewhere returns is checked, and one line says which setting it is and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from fakes.tiny_policy import random_groups
from oncurve.base.errors import ConfigError, DataError
from oncurve.batching import collate
from oncurve.components import Component
from oncurve.data import DataSettings, load_rows
from oncurve.kl import kl_value
from oncurve.losses import TokenSum, objective_loss
from oncurve.rewards import RewardSet
from oncurve.rewards.settings import RewardSettings
from oncurve.rollout import EngineBase, RolloutEngine, sample
from oncurve.trainer.credit import weighted_by
from oncurve.types import TokenLoss, TokenStats, TrainBatch


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
            "'policy/ratioo', which is no metric; did you mean 'policy/ratio'",
        ),
    ],
)
def test_what_an_objective_returns_is_checked(what: Callable[[Tensor], Any], said: str) -> None:
    batch = batch_of_three()
    logprobs = torch.zeros(batch.loss_mask.shape)
    with pytest.raises(ConfigError, match=rf"objective\.kind: Returned .*{said}"):
        objective_loss(Returned(what=what(logprobs)), TokenStats(logprobs), batch)


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


class Generates(EngineBase):
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
