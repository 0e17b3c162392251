"""What TRL's users reach through the trainer: model, evaluations, log, resume and reward models are those of TRL."""

import asyncio
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    TrainerCallback,
)

from fakes.architectures import SMALL
from fakes.tables import table
from oncurve.base.errors import ConfigError, DataError, RewardError
from oncurve.compat.trl import GRPOConfig, GRPOTrainer
from oncurve.report import EvaluationFiles

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT reads it

ROWS = [{"prompt": f"a {n}"} for n in range(4)]
LORA = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


@pytest.fixture
def folder(test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(test_data / "models" / "stories260k")


def trainer(model: Any, settings: dict[str, Any] | None = None, **arguments: Any) -> GRPOTrainer:
    args = GRPOConfig(
        "out", max_completion_length=4, num_generations=4, bf16=False, gradient_checkpointing=False,
        **{"max_steps": 2, "learning_rate": 1e-2, "logging_steps": 1, **(settings or {})},
    )  # fmt: skip
    reward = {"reward_funcs": lambda completions, **_: [float(len(text)) for text in completions]}
    return GRPOTrainer(model=model, **{"args": args, "train_dataset": ROWS, **reward, **arguments})


def test_coroutine_functions_wait_next_to_each_other(folder: str) -> None:
    both = asyncio.Barrier(2)

    async def one(completions: list[str], **_: Any) -> list[float]:
        await both.wait()
        return [1.0] * len(completions)

    async def broken(**_: Any) -> list[float]:
        raise ValueError("no more")

    trainer(folder, reward_funcs=[one, one]).train()
    with pytest.raises(RewardError, match=r"^reward broken failed: ValueError: no more") as caught:
        trainer(folder, reward_funcs=broken).train()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("given", ["a folder", "a PeftModel"])
def test_over_an_adapter_the_model_is_a_peft_model(folder: str, given: str) -> None:
    if given == "a folder":
        made = trainer(folder, peft_config=LoraConfig(**LORA))
    else:
        made = trainer(get_peft_model(AutoModelForCausalLM.from_pretrained(folder), LoraConfig(**LORA)))
    before = {name: value.clone() for name, value in made.model.named_parameters()}
    trained = made.model.get_nb_trainable_parameters()[0]
    made.train()
    moved = {name for name, value in before.items() if not torch.equal(value, made.model.get_parameter(name))}
    assert moved == {name for name in before if ".lora_" in name}
    assert trained == sum(before[name].numel() for name in moved)
    made.model.save_pretrained("saved")
    base = AutoModelForCausalLM.from_pretrained(folder)
    again, ids = PeftModel.from_pretrained(base, "saved"), torch.tensor([[1, 5, 9]])
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, made.model(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_trained_adapter_does_not_begin_again(folder: str) -> None:
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), LoraConfig(**LORA))
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if "lora_B" in name).fill_(1.0)
    with pytest.raises(ConfigError, match="of a PeftModel one new adapter is trained"):
        trainer(model)


class Ask(TrainerCallback):
    """Asks for an evaluation after the first step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_evaluate = state.global_step == 1


EVENTS = ("train_begin", "step_begin", "step_end", "log", "evaluate", "save", "train_end")


def watching(events: list[Any]) -> TrainerCallback:
    """A callback that notes its calls, and ends the run with a checkpoint after step 2."""

    def noting(name: str) -> Any:
        def call(_: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
            events.append((name, state.global_step, given))
            if (name, state.global_step) == ("step_end", 2):
                control.should_save = control.should_training_stop = True

        return call

    return type("Watch", (TrainerCallback,), {f"on_{name}": noting(name) for name in EVENTS})()


def test_callbacks_see_the_run_and_end_it(folder: str) -> None:
    events: list[Any] = []
    every = {"max_steps": 5, "eval_strategy": "steps", "eval_steps": 2}
    made = trainer(folder, every, eval_dataset=ROWS[:2], callbacks=[watching(events)])
    made.add_callback(TrainerCallback())
    made.train()
    begin, step, end, log = "train_begin", "step_begin", "step_end", "log"
    assert [name for name, *_ in events] == [
        *(begin, step, end, log, step, end, log, log, "evaluate", "save", log, "train_end")
    ]
    assert [step for name, step, _ in events if name in (begin, "step_begin", end, "save")] == [0, 0, 1, 1, 2, 2]
    assert events[0][2]["model"] is not None
    assert events[-1][1] == made.state.global_step == 2
    assert "eval_reward" in next(given["metrics"] for name, _, given in events if name == "evaluate")
    metrics = made.evaluate()
    assert {"eval_reward", "eval_reward_std", "eval_completions/mean_length", "eval_runtime"} <= set(metrics)
    assert math.isfinite(metrics["eval_reward"])


def test_evaluations_of_the_run_keep_what_became_of_each_problem(folder: str) -> None:
    made = trainer(folder, {"eval_strategy": "steps", "eval_steps": 2}, eval_dataset=ROWS[:2], callbacks=[Ask()])
    made.train()
    made.evaluate()  # the run has ended: its directory stays as it is
    files = EvaluationFiles(made.directory)
    assert files.steps() == (1, 2)
    assert [(each["prompt"], each["right"]) for each in files.read(2).values()] == [("a 0", None), ("a 1", None)]


def test_several_sets_are_evaluated_each_under_its_name(folder: str) -> None:
    made = trainer(folder, {"eval_strategy": "steps", "eval_steps": 2}, eval_dataset={"a": ROWS[:1], "b": ROWS[:3]})
    made.train()
    (line,) = (each for each in made.state.log_history if "eval_runtime" in each)
    assert {"eval_a_reward", "eval_b_reward", "eval_b_completions/mean_length"} <= set(line)
    assert "eval_reward" not in line
    assert "test_reward" in made.evaluate("b", metric_key_prefix="test")
    with pytest.raises(ConfigError, match="no data set 'c'"):
        made.evaluate("c")


def test_other_rows_are_evaluated_and_the_held_out_ones_stay(folder: str) -> None:
    made = trainer(folder)
    with pytest.raises(ConfigError, match="evaluate needs held-out prompts"):
        made.evaluate()
    found = made.evaluate(eval_dataset=[{"prompt": "once"}])
    assert found["eval_reward"] > 0
    assert found["eval_loss"] == pytest.approx(0.0, abs=1.0)
    assert "eval_loss" not in trainer(folder, {"beta": 0.1}).evaluate(eval_dataset=[{"prompt": "once"}])
    assert {"eval_x_reward", "eval_y_reward"} <= set(made.evaluate({"x": ROWS[:1], "y": ROWS[1:2]}))
    with pytest.raises(DataError, match="held-out row 0"):
        made.evaluate(eval_dataset=[{"question": "once"}])
    assert not len(made.run.eval_prompts)


@pytest.mark.parametrize("adapted", [False, True])
def test_an_entropy_bonus_has_its_keys_in_the_log(folder: str, adapted: bool) -> None:
    more = {"use_adaptive_entropy": True, "entropy_target": 100.0, "entropy_coef_delta": 0.01} if adapted else {}
    made = trainer(folder, {"entropy_coef": 0.5, **more})
    made.train()
    first, second, _ = made.state.log_history
    assert (first["entropy_coef"], second["entropy_coef"]) == pytest.approx((0.51, 0.52) if adapted else (0.5, 0.5))
    assert made.entropy_coef == pytest.approx(0.52 if adapted else 0.5)
    in_force = 0.51 if adapted else 0.5
    assert second["policy_loss"] == pytest.approx(second["loss"] + in_force * second["entropy"], rel=1e-6)


def test_a_mixture_of_experts_is_refused_where_trl_would_balance_it(folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "head_dim": 4}
    config = Qwen3MoeConfig(vocab_size=len(tokenizer), **experts, **SMALL)
    model = Qwen3MoeForCausalLM(config)
    with pytest.raises(ConfigError, match=r"write router_aux_loss_coef=0\.0"):
        trainer(model, processing_class=tokenizer)
    trainer(model, {"router_aux_loss_coef": 0.0}, processing_class=tokenizer).close()


def test_a_reward_model_in_memory_scores_prompt_and_completion(folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = LlamaConfig(vocab_size=len(tokenizer), num_labels=1, **SMALL)
    model = LlamaForSequenceClassification(config)
    with pytest.raises(ConfigError, match="reward_processing_classes: missing"):
        trainer(folder, reward_funcs=model)
    made = trainer(folder, reward_funcs=model, reward_processing_classes=tokenizer)
    assert made.reward_processing_classes == [tokenizer]
    (reward,) = made.run.config.rewards
    texts = ["a 1 cat", "a 2 dogs ran"]
    with torch.no_grad():
        alone = [
            float(model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, 0])
            for text in texts
        ]
    assert reward.function(prompts=["a 1", "a 2"], completions=[" cat", " dogs ran"]) == pytest.approx(alone, rel=1e-4)
    made.train()
    assert any("LlamaForSequenceClassification" in key for key in made.state.log_history[0])


@pytest.mark.parametrize(("loss", "warned"), [("dapo", True), ("grpo", False)])
def test_a_ratio_of_completions_in_a_sum_over_tokens_is_warned_of(
    folder: str, loss: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer(folder, {"importance_sampling_level": "sequence", "loss_type": loss})
    assert made.reward_func_names == ["reward"]
    assert ("weights each sequence by its completion length" in caplog.text) == warned


class EndTheEpoch(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = True


def test_a_run_that_gets_no_better_is_stopped_early_and_the_end_of_an_epoch_alone_is_refused(folder: str) -> None:
    every = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_reward"}
    given = {"reward_funcs": lambda completions, **_: [1.0] * len(completions), "eval_dataset": ROWS[:2]}
    made = trainer(folder, every, **given, callbacks=[EarlyStoppingCallback(early_stopping_patience=1)])
    assert made.train().global_step == 2
    assert (made.state.best_metric, made.state.best_global_step) == (1.0, 1)
    with pytest.raises(ConfigError, match="should_epoch_stop"):
        trainer(folder, callbacks=[EndTheEpoch]).train()


def test_the_reference_is_the_trainers_ref_model(folder: str) -> None:
    assert trainer(folder).ref_model is None
    made = trainer(folder, {"beta": 0.1})
    assert made.ref_model is not made.model
    assert trainer(folder, {"beta": 0.1}, peft_config=LoraConfig(**LORA)).ref_model is None


def test_steps_after_the_last_line_are_in_the_summary(folder: str) -> None:
    made = trainer(folder, {"logging_steps": 10, "metric_for_best_model": "eval_reward"})
    output = made.train()
    (line,) = made.state.log_history
    assert {"reward", "completions/mean_length", "train_loss", "train_runtime", "num_tokens"} <= set(line)
    assert not {"loss", "grad_norm", "learning_rate"} & set(line)
    assert output.global_step == line["step"] == 2
    assert made.args.greater_is_better


def test_epochs_are_counted_as_trl_counts_them(folder: str) -> None:
    sizes = {"max_steps": -1, "num_train_epochs": 1, "steps_per_generation": 2, "num_iterations": 2}
    every = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    made = trainer(folder, sizes | every, train_dataset=[*ROWS, {"prompt": "b"}], eval_dataset=ROWS[:1])
    assert made.train().global_step == 4  # one whole generation of 4 prompts, in 2 minibatches, twice
    assert [line["step"] for line in made.state.log_history if "eval_reward" in line] == [4]
    assert made.run.config.checkpoint.every == 1


def test_nothing_is_overwritten_and_a_resume_goes_on(folder: str, tmp_path: Path) -> None:
    for name in ("out", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("mine")
    first = trainer(folder)
    first.train()
    assert first.directory == Path("out-2")
    with pytest.raises(ConfigError, match="has a run in out-2"):
        first.train()
    assert trainer(folder).train(resume_from_checkpoint=True).global_step == 2  # it is finished
    longer = trainer(folder, {"max_steps": 3})
    assert longer.train(resume_from_checkpoint=True).global_step == 3
    assert [line["step"] for line in longer.state.log_history if "loss" in line] == [3]
    assert sorted(os.listdir(tmp_path)) == ["out", "out-2", "there"]
    with pytest.raises(ConfigError, match="exists already"):
        longer.save_model("there")
    assert (tmp_path / "there" / "config.json").read_text() == "mine"
    for saving in (longer, trainer(folder)):  # as TRL does, and another process
        saving.save_model("saved")
    (tmp_path / "saved" / "config.json").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        trainer(folder).save_model("saved")


def test_a_reward_that_raises_ends_the_run(folder: str) -> None:
    def broken(completions: list[str], **kwargs: Any) -> list[float]:
        raise KeyError("answer")

    with pytest.raises(RewardError, match="reward broken failed: KeyError"):
        trainer(folder, reward_funcs=broken).train()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tools": [len]}, r"tool len: .* missing a type hint"),
        ({"optimizers": (1, None)}, r"GRPOTrainer\.optimizers"),
        ({"reward_processing_classes": [None, None]}, r"their number \(2\) must match that of reward_funcs \(1\)"),
        ({"train_dataset": None}, "train_dataset: missing"),
        ({"train_dataset": (row for row in ROWS), "args": GRPOConfig("out")}, "give max_steps"),
        ({"reward_funcs": None}, "No reward source provided"),
        *table("trl_trainer", "refused"),
    ],
)
def test_what_the_trainer_cannot_have_is_refused_by_name(folder: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        trainer(folder, **arguments)


def test_one_of_several_processes_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="not with accelerate launch or torchrun"):
        trainer(folder)
