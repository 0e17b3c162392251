"""Other tools' words for our settings: every one leads to a setting that exists, wherever it is written."""

import pytest

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
