"""Scripts for TRL, unchanged but for the import line, train small real models; the log has TRL's keys."""

import json
import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from fakes.tolerance import about

CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
SIZES = (
    "max_completion_length=6, num_generations=4, max_steps=2, logging_steps=1, bf16=False, gradient_checkpointing=False"
)
TRAIN_KEYS = {
    "loss", "grad_norm", "learning_rate", "num_tokens", "completions/mean_length", "completions/min_length",
    "completions/max_length", "completions/clipped_ratio", "completions/mean_terminated_length",
    "completions/min_terminated_length", "completions/max_terminated_length", "reward", "reward_std",
    "frac_reward_zero_std", "entropy", "clip_ratio/low_mean", "clip_ratio/low_min", "clip_ratio/high_mean",
    "clip_ratio/high_max", "clip_ratio/region_mean", "step_time", "epoch", "step",
}  # fmt: skip
"""What TRL 1.16 logs for a step of a run without a KL term, next to the rewards by name."""
END_KEYS = {
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss", "epoch", "step",
}  # fmt: skip

QUICK_START = f"""
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

dataset = Dataset.from_list([{{"prompt": f"Once upon a time, a {{name}}"}} for name in ("cat", "dog", "bird", "fox")])

def reward_num_unique_chars(completions, **kwargs):
    return [len(set(c)) for c in completions]

trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=reward_num_unique_chars,
    args=GRPOConfig(output_dir="out", {SIZES}),
    train_dataset=dataset,
)
trainer.train()
"""

GSM8K = f"""
import json, re
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

with open(GSM8K) as file:
    rows = [json.loads(line) for line in file][:8]
dataset = Dataset.from_list(rows).map(lambda row: {{
    "prompt": [{{"role": "user", "content": row["question"][:60]}}],
    "ground_truth": row["answer"].split("####")[-1].strip(),
}})

def correctness_reward(prompts, completions, ground_truth, **kwargs):
    answers = [completion[0]["content"] for completion in completions]
    assert all(prompt[-1]["role"] == "user" for prompt in prompts)
    return [2.0 if truth in answer else 0.1 * len(answer) for answer, truth in zip(answers, ground_truth)]

def format_reward(completions, **kwargs):
    pattern = r"^<think>.*?</think>$"
    return [1.0 if re.match(pattern, completion[0]["content"]) else 0.0 for completion in completions]

training_args = GRPOConfig(
    output_dir="out", learning_rate=1e-5, adam_beta2=0.99, weight_decay=0.1, warmup_steps=0.5,
    lr_scheduler_type="cosine", per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to="none",
    beta=0.04, scale_rewards="group", loss_type="grpo", epsilon=0.2, log_completions=True, save_steps=1, {SIZES},
)
trainer = GRPOTrainer(
    model=MODEL, processing_class=TOKENIZER, reward_funcs=[correctness_reward, format_reward],
    args=training_args, train_dataset=dataset,
)
trainer.train()
trainer.save_model(training_args.output_dir)
"""


CALLBACK = f"""
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

events = []

class Watch(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        events.append(("begin", state.max_steps, args.learning_rate, model is not None))
    def on_step_begin(self, args, state, control, **kwargs):
        events.append(("step begin", state.global_step))
    def on_step_end(self, args, state, control, **kwargs):
        events.append(("step end", state.global_step))
        if state.global_step == 2:
            control.should_save = True
            control.should_training_stop = True
        return control
    def on_log(self, args, state, control, logs=None, **kwargs):
        events.append(("log", sorted(logs)[0]))
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        events.append(("evaluate", "eval_reward" in metrics))
    def on_save(self, args, state, control, **kwargs):
        events.append(("save", state.global_step))
    def on_train_end(self, args, state, control, **kwargs):
        events.append(("end", state.global_step))

rows = [{{"prompt": f"a {{n}}"}} for n in range(4)]
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=lambda completions, **kwargs: [float(len(set(text))) for text in completions],
    args=GRPOConfig("out", {SIZES.replace("max_steps=2", "max_steps=5")}, eval_strategy="steps", eval_steps=2),
    train_dataset=rows, eval_dataset=rows[:2], callbacks=[Watch],
)
trainer.add_callback(TrainerCallback())
trainer.train()
"""

PARSED = """
from datasets import Dataset
from trl import (
    GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_kbit_device_map, get_peft_config,
    get_quantization_config,
)

def reward(completions, **kwargs):
    return [float(len(text)) for text in completions]

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    quantization_config = get_quantization_config(model_args)
    training_args.model_init_kwargs = dict(
        revision=model_args.model_revision, attn_implementation=model_args.attn_implementation, dtype=model_args.dtype,
        device_map=get_kbit_device_map() if quantization_config is not None else None,
        quantization_config=quantization_config,
    )
    dataset = Dataset.from_json(script_args.dataset_name)
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path, args=training_args, reward_funcs=reward, train_dataset=dataset,
        eval_dataset=dataset if training_args.eval_strategy != "no" else None, peft_config=get_peft_config(model_args),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)
    trainer.end()
"""


@pytest.fixture
def run(test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs a script with its import line changed, as `python script.py` would, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    model = test_data / "models" / "stories260k"

    def run_script(script: str) -> dict[str, Any]:
        changed, count = re.subn(r"^from trl import", "from oncurve.compat.trl import", script, flags=re.MULTILINE)
        assert count == 1
        (tmp_path / "script.py").write_text(changed)
        tokenizer = AutoTokenizer.from_pretrained(model)
        tokenizer.chat_template = CHAT
        given = {"MODEL": str(model), "GSM8K": str(next((test_data / "gsm8k").glob("train*"))), "TOKENIZER": tokenizer}
        return runpy.run_path(str(tmp_path / "script.py"), init_globals=given, run_name="__main__")

    return run_script


def logs_of(trainer: Any) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = trainer.state.log_history
    assert set(history[-1]) == END_KEYS
    return history[:-1]


def test_the_quick_start(run: Callable[[str], dict[str, Any]]) -> None:
    trainer = run(QUICK_START)["trainer"]
    logs = logs_of(trainer)
    rewards = {"rewards/reward_num_unique_chars/mean", "rewards/reward_num_unique_chars/std"}
    assert [set(line) for line in logs] == [TRAIN_KEYS | rewards] * 2
    assert [line["step"] for line in logs] == [1, 2]
    assert logs[1]["num_tokens"] > logs[0]["num_tokens"] > 8 * 6
    assert logs[0]["reward"] == logs[0]["rewards/reward_num_unique_chars/mean"] > 0
    assert logs[1]["learning_rate"] == pytest.approx(5e-7)  # linear, to 0
    assert (Path("out") / "model" / "model.safetensors").is_file()
    assert (Path("out") / "metrics.jsonl").read_text().count("\n") == 2


@pytest.mark.slow
def test_the_gsm8k_example(run: Callable[[str], dict[str, Any]]) -> None:
    trainer = run(GSM8K)["trainer"]
    logs = logs_of(trainer)
    assert all({"kl", "rewards/correctness_reward/mean", "rewards/format_reward/std"} <= set(line) for line in logs)
    assert logs[0]["kl"] == about(0.0)
    config = (Path("out") / "config.toml").read_text()
    assert "prompts_per_step = 2" in config
    assert len(list(Path("out/checkpoints").glob("step-*"))) == 2
    AutoModelForCausalLM.from_pretrained("out")  # save_model(output_dir)
    assert trainer.recipe.count("warmup_ratio = 0.5") == 1
    trainer.save_state()
    trainer.save_metrics("train", {"train_loss": 0.5})
    assert json.loads(Path("out/train_results.json").read_text()) == {"train_loss": 0.5}
    assert json.loads(Path("out/trainer_state.json").read_text())["log_history"] == trainer.state.log_history


def test_a_script_that_parses_its_words(
    run: Callable[[str], dict[str, Any]], test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a cat"}\n{"prompt": "a dog"}\n')
    words = SIZES.replace("_steps=1,", "_steps=2,").replace(", ", " --").replace("=", " ")
    monkeypatch.setattr(
        "sys.argv",
        f"script.py --model_name_or_path {test_data / 'models' / 'stories260k'} --dataset_name rows.jsonl --use_peft "
        f"--lora_r 4 --lora_target_modules q_proj v_proj --output_dir out --report_to none --{words}".split(),
    )
    trainer = run(PARSED)["trainer"]
    assert [line["step"] for line in logs_of(trainer)] == [2]
    kept = json.loads((tmp_path / "out" / "model" / "adapter" / "adapter_config.json").read_text())
    assert (kept["r"], kept["lora_alpha"], sorted(kept["target_modules"])) == (4, 32, ["q_proj", "v_proj"])


def test_callbacks_see_the_run_and_end_it(run: Callable[[str], dict[str, Any]]) -> None:
    left = run(CALLBACK)
    events = left["events"]
    assert events[:3] == [("begin", 5, 1e-6, True), ("step begin", 0), ("step end", 1)]
    kinds = [event[0] for event in events]
    assert kinds == [
        "begin", "step begin", "step end", "log", "step begin", "step end", "log", "log", "evaluate", "save", "log",
        "end",
    ]  # fmt: skip
    assert events[-1] == ("end", 2)
    assert ("evaluate", True) in events
    trainer = left["trainer"]
    assert trainer.state.global_step == 2
    metrics = trainer.evaluate()
    assert {"eval_reward", "eval_reward_std", "eval_completions/mean_length", "eval_runtime"} <= set(metrics)
    assert math.isfinite(metrics["eval_reward"])
