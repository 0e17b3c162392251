"""Other tools' words for our settings: every one leads to a setting that exists, wherever it is written."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from oncurve import train
from oncurve.data import JUDGEMENT_KINDS
from oncurve.errors import ConfigError
from oncurve.run.config import RUN
from oncurve.run.loading import load_config
from oncurve.words import WORDS, word_for


def complaint(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config("grpo", overrides)
    return str(caught.value)


def test_every_word_leads_to_settings_that_exist_and_is_none_itself() -> None:
    for word, meaning in WORDS.items():
        assert word == word.lower()
        assert meaning.keys or meaning.note, word
        assert all(RUN.knows(key) for key in meaning.keys), word
        assert not RUN.knows(word), word


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_word_alone_is_answered_with_its_setting(word: str) -> None:
    said = complaint(f"{word}=1")
    assert "unknown key" in said
    assert all(key in said for key in WORDS[word].keys or (WORDS[word].note,))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("learner.lr", "learner.learning_rate"),
        ("critic.lr", "critic.learning_rate"),
        ("rollout.n", "rollout.group_size"),
        ("kl.beta", "kl.coef"),
        ("run.epochs", "run.steps"),
        ("actor_rollout_ref.rollout.n", "rollout.group_size"),
        ("+actor_rollout.ref.rollout.n", "rollout.group_size"),
        ("actor_rollout_ref.actor.optim.lr", "learner.learning_rate"),
        ("critic.optim.lr", "critic.learning_rate"),
        ("algorithm.kl_ctrl.kl_coef", "kl.coef"),
        ("algorithm.adv_estimator", "advantage.kind"),
        ("data.max_response_length", "rollout.max_new_tokens"),
        ("trainer.total_epochs", "run.steps"),
        ("Trainer.Save_Freq", "checkpoint.every"),
        ("reward_model.lr", "reward_model.learning_rate"),
    ],
)
def test_it_may_stand_behind_any_sections(written: str, meant: str) -> None:
    kind = ("reward_model.kind=outcome",) if written.startswith("reward_model") else ()
    kind = ("critic.kind=own",) if written == "critic.lr" else kind
    assert f"{written}: unknown key; did you mean {meant}" in complaint(f"{written}=1", *kind)


def test_nested_tables_are_answered_key_by_key() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(settings={"actor_rollout_ref": {"rollout": {"n": 8}, "actor": {"optim": {"lr": 1e-6}}}})
    assert "rollout.group_size" in str(caught.value)
    assert "learner.learning_rate" in str(caught.value)


def test_a_setting_of_a_class_of_the_users_may_be_called_as_it_likes() -> None:
    assert load_config(settings={"eval": {"n": 4, "every": 1}, "data": {"eval_fraction": 0.5}})[0].eval.n == 4
    assert word_for("nonesuch") is None
    assert "did you mean 'coef'" in complaint("kl.coeff=1")
    assert "a setting stands in its section; did you mean rollout.temperature?" in complaint("temperature=1")
    assert "settings have two parts" in complaint("a.b.c=1")


@pytest.mark.parametrize("key", ["learner.learning_rate", "rollout.temperature", "kl.coef"])
def test_a_setting_written_flat_is_answered_with_its_table(key: str) -> None:
    section, _, name = key.partition(".")
    with pytest.raises(ConfigError) as caught:
        load_config("grpo", settings={key: 1})
    assert f"settings={{'{section}': {{'{name}': ...}}}}" in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("word", sorted(WORDS))
def test_what_an_unknown_argument_is_answered_with_is_taken(word: str) -> None:
    """Every `settings={...}` or `reward={...}` of an answer names a key where the API looks for it."""
    with pytest.raises(ConfigError) as caught:
        train(**{word: 1})
    for table in re.findall(r"settings=(\{.*?\}\})", str(caught.value)):
        ((section, keys),) = ast.literal_eval(table).items()
        assert all(RUN.knows(f"{section}.{key}") and "." not in key for key in keys), word


@pytest.mark.parametrize("kind", sorted(JUDGEMENT_KINDS))
def test_a_recipe_of_a_reward_model_is_answered_with_its_command(kind: str, tmp_path: Path) -> None:
    recipe = tmp_path / "my judge.toml"
    recipe.write_text(f'[data]\nkind = "{kind}"\npath = "x.jsonl"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(recipe)
    assert shlex.split(str(caught.value).partition("taken by: ")[2]) == [
        "oncurve",
        "reward-model",
        "train",
        str(recipe),
    ]
