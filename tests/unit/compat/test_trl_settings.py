"""TRL's settings here: its units, defaults and losses; what is refused; every mistake is translated or refused."""

import copy
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from transformers import HfArgumentParser

from fakes.messages import message_of
from fakes.mutations import accounted, mutations
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.compat import config_of
from oncurve.compat.dialect import Said
from oncurve.compat.trl import DIALECT, GRPOConfig, ModelConfig, ScriptArguments, TrlParser, get_peft_config
from oncurve.compat.trl.config import CONFIG_KEYS, TRAINER_KEYS, Told
from oncurve.compat.trl.parsing import LORA, DatasetMixtureConfig, get_dataset, given_fields, lora_of

VALID: dict[str, Any] = table("trl_settings", "valid")


HELD_OUT = Said(Told("rows", {"data.kind": "list", "data.rows": ["a"], "data.eval_rows": ["b"]}))
MODEL = Said(Told("a model", {"model.path": "some/model"}))


def settings(**given: Any) -> dict[str, Any]:
    args = GRPOConfig(**given)
    config_of(args.translated(**{"GRPOTrainer.eval_dataset": HELD_OUT, "GRPOTrainer.model": MODEL}))
    translation = args.translated()
    return {
        f"{section}.{key}": value for section, table in translation.settings.items() for key, value in table.items()
    }


def refusal(**given: Any) -> str:
    return message_of(ConfigError, settings, **given)


def test_the_defaults_of_trl_that_differ_are_applied() -> None:
    assert settings() == table("trl_settings", "defaults")


@pytest.mark.parametrize(("given", "prompts", "minibatches", "steps"), table("trl_settings", "sizes"))
def test_sizes_in_completions_are_prompts_and_updates_are_steps(
    given: dict[str, Any], prompts: int, minibatches: int, steps: int
) -> None:
    found = settings(max_steps=12, **given)
    assert found["data.prompts_per_step"] == prompts
    assert found.get("learner.minibatches", 0) == minibatches
    assert found["run.steps"] == steps


@pytest.mark.parametrize(("given", "kind", "aggregation", "more"), table("trl_settings", "losses"))
def test_a_loss_is_an_objective_and_an_aggregation(
    given: dict[str, Any], kind: str, aggregation: str, more: dict[str, Any]
) -> None:
    found = settings(**given)
    assert found["objective.kind"] == kind
    assert found["aggregation.kind"] == aggregation
    assert {key: value for key, value in found.items() if key.startswith("objective.") and key[-4:] != "kind"} == more


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *table("trl_settings", "changed"),
        ({"generation_kwargs": {"top_p": 0.9, "min_p": None}}, {"rollout.top_p": 0.9}),
        ({"loss_type": "bnpo", "entropy_coef": 0.01}, {"entropy.coef": 0.01, "entropy.aggregation": None}),
    ],
)
def test_values_change_as_they_should(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = settings(**given)
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(("given", "says"), table("trl_settings", "refused"))
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    assert says in refusal(**given)


def test_a_config_has_trls_attributes() -> None:
    args = GRPOConfig("out", per_device_train_batch_size=4, gradient_accumulation_steps=4, lr_scheduler_type="cosine")
    assert (args.output_dir, args.beta, args.bf16, args.scale_rewards) == ("out", 0.0, True, "group")
    assert (args.steps_per_generation, args.generation_batch_size) == (4, 16)
    args.beta = 0.1
    assert args.translated().settings["kl"]["coef"] == 0.1
    with pytest.raises(ConfigError, match="no such setting"):
        args.betta = 0.1
    with pytest.raises(AttributeError):
        _ = args.betta
    assert args.to_dict()["num_generations"] == 8
    assert "coef = 0.1" in args.recipe


def test_a_config_is_a_dataclass_of_the_table() -> None:
    args = GRPOConfig(
        "out", learning_rate=2e-6, generation_batch_size=32, chat_template_kwargs={"enable_thinking": True}
    )
    assert [field.name for field in dataclasses.fields(GRPOConfig)] == [key.theirs for key in CONFIG_KEYS]
    assert {field.name: field.default for field in dataclasses.fields(GRPOConfig)}["beta"] == 0.0
    assert GRPOConfig(**dataclasses.asdict(args)) == args
    assert repr(GRPOConfig(**dataclasses.asdict(args))).count("=") == 4  # what was given, and not every default
    assert dataclasses.replace(args, beta=0.5).translated().settings["kl"]["coef"] == 0.5
    assert dataclasses.replace(args).translated().settings == args.translated().settings
    assert dataclasses.replace(GRPOConfig(), per_device_train_batch_size=16).generation_batch_size == 16
    assert copy.deepcopy(args) == args
    with pytest.raises(ConfigError, match="a longest completion"):
        dataclasses.replace(args, max_completion_length=None)


WORDS_OF_A_SHELL = (
    "--output_dir x --learning-rate 1e-5 --use_vllm --no_gradient_checkpointing --reward_weights 1 2 --beta 0.5 "
    "--report_to wandb --logging_steps 0.5 --scale_rewards none --save_steps 50 --eval_steps 4 --bf16 true "
    '--model_init_kwargs {"dtype":"bfloat16"}'
)


def test_a_parser_makes_a_config_of_words() -> None:
    (args,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(
        WORDS_OF_A_SHELL.split(), look_for_args_file=False
    )
    assert args == GRPOConfig(
        "x", learning_rate=1e-5, use_vllm=True, gradient_checkpointing=False, reward_weights=[1.0, 2.0], beta=0.5,
        report_to="wandb", logging_steps=0.5, scale_rewards="none", save_steps=50, eval_steps=4,
        model_init_kwargs={"dtype": "bfloat16"},
    )  # fmt: skip
    assert not args.translated().settings["learner"]["gradient_checkpointing"]
    assert "seed" not in repr(args)
    words = ["--repetition_penalty", "0.9"]
    with pytest.raises(ConfigError, match="repetition_penalty"):
        HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(words, look_for_args_file=False)


def test_words_win_over_the_file_of_a_parser(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCURVE_SAID", "before")
    file = tmp_path / "grpo.yaml"
    file.write_text(
        "env: {ONCURVE_SAID: 1}\nmodel_name_or_path: some/model\nlearning_rate: 2.0e-6\nbeta: 0.1\nuse_peft: true\n"
        "lora_target_modules: [all-linear]\n"
    )
    parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
    script, args, model = parser.parse_args_and_config(["--config", str(file), "--beta", "0.5", "--dataset_name", "d"])
    assert (script.dataset_name, args.learning_rate, args.beta) == ("d", 2e-6, 0.5)
    assert (model.model_name_or_path, os.environ["ONCURVE_SAID"]) == ("some/model", "1")
    lora = lora_of(given_fields(get_peft_config(model)))
    assert (lora["lora.rank"], lora["lora.alpha"], lora["lora.targets"]) == (16, 32, "all-linear")
    file.write_text("betta: 1\n")
    for words in (["--config", str(file)], ["--betta", "1"]):
        with pytest.raises(SystemExit) as ended:
            TrlParser(GRPOConfig).parse_args_and_config(words)
        assert ended.value.code == 2
        assert "no argument --betta; did you mean 'beta'?" in capsys.readouterr().err
    rest = TrlParser(GRPOConfig).parse_args_and_config(["--config", str(file)], return_remaining_strings=True)[-1]
    assert rest == ["--betta", "1"]
    assert len(TrlParser(GRPOConfig).parse_args_and_config([f"--config={file}"], fail_with_unknown_args=False)) == 1
    for text in ("- a", "{", "env: 3"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"grpo\.yaml"):
            TrlParser(GRPOConfig).parse_args_and_config(["--config", str(file)])
    with pytest.raises(ConfigError, match="load_in_4bit"):
        ModelConfig(load_in_4bit=True)


def test_a_mixture_of_data_sets_has_the_shares_of_its_file(tmp_path: Path) -> None:
    for name, rows in (("a", 6), ("b", 30)):
        text = "".join(f'{{"prompt": "{name}{row}", "other": {row}}}\n' for row in range(rows))
        (tmp_path / f"{name}.jsonl").write_text(text)
    sets: list[Any] = [
        {"path": "json", "data_files": str(tmp_path / f"{name}.jsonl"), "columns": ["prompt"], "fraction": fraction}
        for name, fraction in (("a", 1.0), ("b", 2.0))
    ]
    file = tmp_path / "mixture.yaml"
    file.write_text(json.dumps({"datasets": sets}))
    (mixture,) = TrlParser(DatasetMixtureConfig).parse_args_and_config(["--config", str(file)])
    assert get_dataset(mixture)["train"]["prompt"] == [f"a{n}" for n in range(6)] + [f"b{n}" for n in range(12)]
    mixture.test_split_size = 0.5
    assert [len(split) for split in get_dataset(mixture).values()] == [9, 9]
    for wrong, says in ((dict(sets[0], paht="x"), "did you mean 'path'"), ({"name": "x"}, r"datasets\.0\.path")):
        with pytest.raises(ConfigError, match=says):
            DatasetMixtureConfig([wrong])
    with pytest.raises(ConfigError, match="fraction"):
        get_dataset(DatasetMixtureConfig([sets[0], dict(sets[1], fraction=None)]))
    with pytest.raises(ConfigError, match="there is none"):
        get_dataset(DatasetMixtureConfig())


def test_every_row_of_the_table_says_what_becomes_of_it() -> None:
    names = [key.theirs for key in DIALECT.keys]
    assert len(names) == len(set(names))
    assert all(key.note for key in DIALECT.keys if not key.ours)
    assert len(TRAINER_KEYS) == 14


@pytest.mark.parametrize("seed", range(2))
def test_every_mistake_in_a_config_is_translated_or_refused(seed: int) -> None:
    found = [
        accounted(each, lambda pairs: GRPOConfig(**dict(pairs)).translated()) for each in mutations(VALID, 100, seed)
    ]
    assert {"translated", "refused"} <= set(found)


def test_a_lora_config_is_an_adapter() -> None:
    assert lora_of({"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}) == {
        "lora.rank": 16,
        "lora.alpha": 32,
        "lora.targets": "all-linear",
    }
    assert lora_of({})["lora.targets"] == ["q_proj", "v_proj"]
    for wrong in ({"use_dora": True}, {"init_lora_weights": False}, {"target_modules": "q_.*"}):
        with pytest.raises(ConfigError, match=f"LoraConfig: {next(iter(wrong))}: "):
            lora_of(wrong)


def test_the_table_of_an_adapter_has_pefts_fields_and_defaults() -> None:
    usual = {name: value for name, value in vars(LoraConfig()).items() if not name.startswith("_")}
    assert usual.keys() <= LORA.table.keys()
    assert [
        name for name, key in LORA.table.items() if key.refused and usual.get(name, key.default) != key.default
    ] == []
