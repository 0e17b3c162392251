from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.components import Component
from oncurve.config.loading import load_config
from oncurve.config.rules.combinations import inert
from oncurve.config.sections import RunConfig
from oncurve.types import AdvantagesAndReturns, TrainBatch


def complaint(*overrides: str, recipe: str | Path | None = None) -> str:
    return message_of(ConfigError, load_config, recipe, overrides)


@pytest.mark.parametrize(("overrides", "said"), table("rules", "impossible_combinations_are_refused_with_the_reason"))
def test_impossible_combinations_are_refused_with_the_reason(overrides: list[str], said: str):
    assert complaint(*overrides).startswith(said)


@pytest.mark.parametrize("overrides", table("rules", "combinations_that_are_possible_load"))
def test_combinations_that_are_possible_load(overrides: list[str]):
    load_config(None, overrides)


@pytest.mark.parametrize(("overrides", "key"), table("rules", "a_key_made_meaningless_in_the_same_layer_is_refused"))
def test_a_key_made_meaningless_in_the_same_layer_is_refused(overrides: list[str], key: str):
    assert f"{key}: set to no effect: " in complaint(*overrides)
    assert "(the command line)" in complaint(*overrides)


def test_over_layers_a_meaningless_key_is_no_error_and_the_plan_says_it(tmp_path: Path):
    (tmp_path / "r.toml").write_text('[kl]\nestimator = "k2"\ncoef = 0.1\n')
    config, _ = load_config(tmp_path / "r.toml", ["kl.coef=0"])
    assert inert(config) == ["kl.estimator has no effect: kl.coef = 0 means that there is no KL term"]
    assert inert(RunConfig()) == []


class Values(Component):
    """An advantage from elsewhere that reads a critic's values."""

    needs: ClassVar[frozenset[str]] = frozenset({"values"})
    min_valid_completions: ClassVar[int] = 1

    def __call__(self, batch: TrainBatch) -> AdvantagesAndReturns:
        return AdvantagesAndReturns(batch.values, batch.values)


class Steps(Values):
    needs: ClassVar[frozenset[str]] = frozenset({"steps"})


class StepsOfSiblings(Values):
    needs: ClassVar[frozenset[str]] = frozenset({"steps", "siblings"})


class Siblings(Values):
    needs: ClassVar[frozenset[str]] = frozenset({"siblings"})


class Nothing(Component):
    """States nothing but what it must."""

    min_valid_completions: ClassVar[int] = 1

    def __call__(self, batch: TrainBatch) -> Tensor:
        return batch.rewards[:, None] * batch.existing()


class Misspelt(Values):
    needs: ClassVar[frozenset[str]] = frozenset({"value"})


class AString(Values):
    needs: ClassVar[str] = "values"


class NoCount(Values):
    min_valid_completions: ClassVar[float] = 2.5


class TwoMore(Values):
    def __call__(self, batch, step, more): ...


OWN = {"critic": {"kind": "own"}}
IN_REWARD = {"kl": {"where": "reward", "coef": 0.1}}
EXACT = {"rewards": [{"kind": "exact"}]}
ALONE = {"rollout": {"group_size": 1}}


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (Values, {}, "critic.kind: the advantage needs a critic's values"),
        (Values, OWN, None),
        (Values, OWN | ALONE | IN_REWARD, None),
        (Nothing, OWN, "critic.kind: the advantage reads no values"),
        (Nothing, {"critic": {"kind": "shared"}}, "critic.kind: the advantage reads no values"),
        (Nothing, ALONE | IN_REWARD | EXACT, None),
        (Siblings, OWN, "critic.kind: the advantage reads no values"),
        (Siblings, ALONE, "rollout.group_size: "),
        (Siblings, {}, None),
        (Steps, EXACT, "advantage.kind: the advantage needs rewards of the steps"),
        (Steps, IN_REWARD, "kl.where: the advantage needs rewards of steps"),
        (Steps, {"rewards": [{"kind": "task_steps"}]}, None),
        (
            Misspelt,
            {},
            "advantage.kind: Misspelt.needs must be a frozenset of names among components, demonstrations, ",
        ),
        (AString, {}, "advantage.kind: AString.needs must be a frozenset of names"),
        (NoCount, {}, "advantage.kind: NoCount.min_valid_completions is 2.5"),
        (TwoMore, {}, "advantage.kind: TwoMore.__call__ is given (batch), which it does not take: missing a"),
    ],
)
def test_an_advantage_from_elsewhere_is_checked_by_what_it_states(
    kind: type[Component], settings: dict[str, Any], said: str | None
):
    tables = {**settings, "advantage": kind()}
    if said is None:
        load_config(None, settings=tables)
        return
    assert message_of(ConfigError, load_config, None, settings=tables).startswith(said)


@pytest.mark.parametrize(
    ("like", "kind"),
    [(Values, "gae"), (StepsOfSiblings, "process"), (Siblings, "grpo")],
    ids=["values", "steps", "siblings"],
)
@pytest.mark.parametrize("settings", [{}, OWN, ALONE, IN_REWARD, EXACT, OWN | ALONE, IN_REWARD | OWN, EXACT | ALONE])
def test_the_same_is_said_of_ours_as_of_one_from_elsewhere_that_states_the_same(
    like: type[Component], kind: str, settings: dict[str, Any]
):
    def said(advantage: object) -> str:
        try:
            load_config(None, settings={**settings, "advantage": advantage})
        except ConfigError as error:
            return str(error)
        return ""

    assert said(like()) == said({"kind": kind})


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/tmp/x", "..", ".", "", " ", ".hidden", "a\\b", "a\nb", "a\0b", "a\x1b[2J", "x" * 300]
)
def test_a_name_that_is_no_name_of_a_folder_is_refused(name: str):
    for settings in ({"run": {"name": name}}, {"rewards": [{"kind": "exact", "name": name}]}):
        with pytest.raises(ConfigError, match="name: "):
            load_config(None, settings=settings)
