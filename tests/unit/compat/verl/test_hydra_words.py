"""Hydra's words: keys with their marks, values of its grammar, interpolation, and what is refused."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.compat.verl import DIALECT, read
from oncurve.compat.verl.hydra import assignment, value_of


def said(*words: str) -> dict[str, Any]:
    return {name: each.value for name, each in read(words).said.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [*table("hydra_words", "values"), ("null", None), ("inf", math.inf), ("{'a b': null}", {"a b": None})],
)
def test_a_value_is_what_hydra_makes_of_it(text: str, value: Any) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("text", "why"), [*table("hydra_words", "refused"), ("[" * 100, "nested")])
def test_a_value_that_cannot_be_is_said(text: str, why: str) -> None:
    assert why in message_of(ConfigError, value_of, text)


@given(st.text(alphabet="[]{}'\"\\${}:,=.a1 \n+-e", max_size=40))
def test_no_text_is_anything_but_a_value_or_a_message(text: str) -> None:
    with suppress(ConfigError):
        value_of(text)


def test_marks_of_hydra_are_read() -> None:
    assert [assignment(f"{mark}a.b=1").mark for mark in ("", "+", "++")] == ["", "+", "++"]
    assert said("+algorithm.adv_estimator=grpo", "++actor_rollout_ref.rollout.n=4", "~data.val_batch_size") == {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.rollout.n": 4,
        "data.val_batch_size": None,
    }


@pytest.mark.parametrize(("word", "why"), table("hydra_words", "no_assignment"))
def test_a_word_that_is_no_assignment_is_said(word: str, why: str) -> None:
    assert why in message_of(ConfigError, read, ["algorithm.adv_estimator=grpo", word])


def test_tables_are_their_settings_and_free_tables_stay_whole() -> None:
    assert said(*table("hydra_words", "tables")) == table("hydra_words", "free_tables")


def test_a_part_of_a_free_table_that_is_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        read(["custom_reward_function.reward_kwargs=3", "custom_reward_function.reward_kwargs.a=1"])


def test_the_last_of_several_values_counts_and_a_note_says_so() -> None:
    reading = read(["data.truncation=left", "data.truncation=error"])
    assert reading.said["data.truncation"].value == "error"
    assert "data.truncation is given more than once" in reading.notes[0]


def test_interpolation_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCURVE_TEST_NAME", "here")
    found = said(
        "data.train_batch_size=64",
        "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}",
        "trainer.experiment_name=${trainer.project_name}-${oc.env:ONCURVE_TEST_NAME}",
        "trainer.project_name=p",
        "critic.ppo_epochs=${oc.select:actor_rollout_ref.actor.ppo_epochs,1}",
        "critic.ppo_micro_batch_size=${.ppo_epochs}",
        "trainer.default_local_dir=/x/${oc.env:ONCURVE_NOT_SET,d}/${trainer.experiment_name}",
        "data.val_batch_size=${oc.select:no.such,7}",
        "data.seed=${oc.select:no.such,${oc.select:none.either,3}}",
        "data.apply_chat_template_kwargs=${oc.select:no.such,{}}",
        "custom_reward_function.reward_kwargs.a=${oc.select:no.such,{b: {c: ${data.train_batch_size}}}}",
        "actor_rollout_ref.rollout.trace.token2text=${no.such}",
    )
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"] == 64
    assert found["trainer.experiment_name"] == "p-here"
    assert found["trainer.default_local_dir"] == "/x/d/p-here"
    assert (found["critic.ppo_epochs"], found["critic.ppo_micro_batch_size"]) == (1, 1)
    assert (found["data.val_batch_size"], found["data.seed"]) == (7, 3)
    assert found["data.apply_chat_template_kwargs"] == {}
    assert found["custom_reward_function.reward_kwargs"] == {"a": {"b": {"c": 64}}}
    assert found["actor_rollout_ref.rollout.trace.token2text"] == "${no.such}"  # it has no meaning here


@pytest.mark.parametrize(("value", "why"), table("hydra_words", "wrong_interpolation"))
def test_interpolation_that_cannot_be_is_said_with_its_key(value: str, why: str) -> None:
    message = message_of(ConfigError, read, [f"trainer.project_name={value}"])
    assert message.startswith("trainer.project_name: ")
    assert why in message


def test_a_yaml_file_is_read_with_its_lines_and_words_after_it_win(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(
        "defaults:\n  - ppo_trainer\n  - _self_\n\nalgorithm:\n  adv_estimator: grpo\ndata:\n  train_batch_size: 64\n"
        "  train_files:\n    - a.parquet\n    - b.parquet\nactor_rollout_ref:\n  actor:\n    optim: {lr: 1e-6}\n"
        "    ppo_mini_batch_size: ${data.train_batch_size}\n  rollout:\n    'n': 4\n"
    )
    reading = read([str(file), "actor_rollout_ref.rollout.n=8"])
    assert {name: each.value for name, each in reading.said.items()} == table("hydra_words", "of_the_file")
    assert reading.said["data.train_batch_size"].place == f"{file} line 8"
    assert any("defaults: its files are not read" in note for note in reading.notes)
    DIALECT.translate(reading.said)


@pytest.mark.parametrize(
    ("text", "why"), [*table("hydra_words", "no_yaml"), ("x: " + "{a: " * 60 + "1" + "}" * 60, "nested")]
)
def test_a_yaml_file_that_cannot_be_is_said(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(text)
    message = message_of(ConfigError, read, [str(file)])
    assert why in message
    assert str(file) in message


@pytest.mark.parametrize("own", ["ppo_trainer", "ppo_megatron_trainer.yaml"])
def test_hydras_flags_for_verls_own_configuration_are_its_defaults(own: str) -> None:
    assert said("--config-path=config", "--config-name", own, "data.seed=3") == {"data.seed": 3}
    assert said("data.seed=3", f"--config-name={own}", "--config-path", "./config") == {"data.seed": 3}


def test_hydras_flags_name_a_file_whose_settings_lose_to_words(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: {seed: 1, train_batch_size: 8}\n")
    words = (f"--config-path={tmp_path}", "--config-name=mine", "data.seed=3")
    assert said(*words) == {"data.seed": 3, "data.train_batch_size": 8}
    with pytest.raises(ConfigError, match=r"there is no file .*other\.yaml"):
        read(["--config-name=other", "data.seed=3"])


@pytest.mark.parametrize("words", [[], ["run.sh"], ["no_such.yaml", "a=1"], ["."], [__file__]])
def test_a_file_that_is_not_there_or_no_yaml_is_said(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--verl"):
        read(words)
