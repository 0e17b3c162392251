"""Other tools' words for our settings: every one leads to a setting that exists, wherever it is written."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fakes.messages import message_of
from fakes.tables import table
from oncurve import train
from oncurve.base.errors import ConfigError
from oncurve.base.hints import known_kinds, known_words, word_for
from oncurve.config.loading import load_config
from oncurve.config.sections import RUN, SECTIONS
from oncurve.kl import KL_KINDS
from oncurve.reward_models import REWARD_EXAMPLE_KINDS


def complaint(*overrides: str, recipe: str | Path | None = None, settings: dict[str, Any] | None = None) -> str:
    return message_of(ConfigError, load_config, recipe, overrides, settings=settings)


def test_every_word_leads_to_settings_that_exist_and_is_none_itself() -> None:
    for word, meaning in known_words().items():
        assert word == word.lower()
        assert meaning.keys or meaning.note, word
        assert all(RUN.knows(key) for key in meaning.keys), word
        assert not RUN.knows(word), word


@pytest.mark.parametrize("word", sorted(known_words()))
def test_a_word_alone_is_answered_with_its_setting(word: str) -> None:
    said = complaint(f"{word}=1")
    assert "unknown key" in said
    assert all(key in said for key in known_words()[word].keys or (known_words()[word].note,))


@pytest.mark.parametrize(("written", "meant"), table("hints", "it_may_stand_behind_any_sections"))
def test_it_may_stand_behind_any_sections(written: str, meant: str) -> None:
    kind = ("reward_model.kind=outcome",) if written.startswith("reward_model") else ()
    kind = ("critic.kind=own",) if written == "critic.lr" else kind
    assert f"{written}: unknown key; did you mean {meant}" in complaint(f"{written}=1", *kind)


@pytest.mark.parametrize(
    ("section", "word"), [(section, word) for section, table in known_kinds().items() for word in table]
)
def test_another_tools_kind_is_answered_with_the_kind_of_that_meaning(section: str, word: str) -> None:
    """Not with the one of the most similar name: `objective.kind=ppo` means `clipped`, not `dppo`."""
    kinds = KL_KINDS if section == "kl" else SECTIONS[section].kinds
    assert word not in kinds
    said = complaint(f"{section}.{'estimator' if section == 'kl' else 'kind'}={word}")
    meant = known_kinds()[section][word]
    if meant:
        assert meant in kinds
    assert (f"; did you mean {meant!r}?" if meant else "docs/extending.md") in said


@pytest.mark.parametrize("key", ["kl.aggregation=dr_grpo", "advantage.kind=distill advantage.base=ppo"])
def test_and_so_it_is_in_a_setting_that_names_a_kind_of_another_section(key: str) -> None:
    assert re.search("did you mean '(gae|seq-mean-token-sum-norm)'", complaint(*key.split()))


def test_nested_tables_are_answered_key_by_key() -> None:
    said = complaint(settings={"actor_rollout_ref": {"rollout": {"n": 8}, "actor": {"optim": {"lr": 1e-6}}}})
    assert "rollout.group_size" in said
    assert "learner.learning_rate" in said


def test_a_setting_of_a_class_of_the_users_may_be_called_as_it_likes() -> None:
    assert load_config(settings={"eval": {"n": 4, "every": 1}, "data": {"eval_fraction": 0.5}})[0].eval.n == 4
    assert word_for("nonesuch") is None
    assert "did you mean 'kl.coef'" in complaint("kl.coeff=1")
    both = "rollout.temperature or eval.temperature"
    assert f"a setting stands in its section; did you mean {both}?" in complaint("temperature=1")
    assert "settings have two parts" in complaint("a.b.c=1")


@pytest.mark.parametrize("key", ["learner.learning_rate", "rollout.temperature", "kl.coef"])
def test_a_setting_written_flat_is_answered_with_its_table(key: str) -> None:
    section, _, name = key.partition(".")
    said = complaint(settings={key: 1})
    assert f"settings={{'{section}': {{'{name}': ...}}}}" in said
    assert "did you mean" not in said


@pytest.mark.parametrize("word", sorted(known_words()))
def test_what_an_unknown_argument_is_answered_with_is_taken(word: str) -> None:
    """Every `settings={...}` or `reward={...}` of an answer names a key where the API looks for it."""
    for given in re.findall(r"settings=(\{.*?\}\})", message_of(ConfigError, train, **{word: 1})):
        ((section, keys),) = ast.literal_eval(given).items()
        assert all(RUN.knows(f"{section}.{key}") and "." not in key for key in keys), word


@pytest.mark.parametrize("kind", sorted(REWARD_EXAMPLE_KINDS))
def test_a_recipe_of_a_reward_model_is_answered_with_its_command(kind: str, tmp_path: Path) -> None:
    recipe = tmp_path / "my model.toml"
    recipe.write_text(f'[data]\nkind = "{kind}"\npath = "x.jsonl"\n')
    command = shlex.split(complaint(recipe=recipe).partition("taken by: ")[2])
    assert command == ["oncurve", "reward-model", "train", str(recipe)]
