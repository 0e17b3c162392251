"""Scripts for TRL, unchanged but for the import line, train small real models; the log has TRL's keys."""

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from fakes.tables import table
from fakes.tolerance import about

CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
SIZES = (
    "max_completion_length=6, num_generations=4, max_steps=2, logging_steps=1, bf16=False, gradient_checkpointing=False"
)
TRAIN_KEYS = set(table("trl_scripts", "train_keys"))
"""What TRL 1.16 logs for a step of a run without a KL term, next to the rewards by name."""
END_KEYS = set(table("trl_scripts", "end_keys"))

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
    words = SIZES.replace(", ", " --").replace("=", " ")
    monkeypatch.setattr(
        "sys.argv",
        f"script.py --model_name_or_path {test_data / 'models' / 'stories260k'} --dataset_name rows.jsonl --use_peft "
        f"--lora_r 4 --lora_target_modules q_proj v_proj --output_dir out --report_to none --{words}".split(),
    )
    trainer = run(PARSED)["trainer"]
    logs = logs_of(trainer)
    assert [set(line) for line in logs] == [TRAIN_KEYS | {"rewards/reward/mean", "rewards/reward/std"}] * 2
    assert [line["step"] for line in logs] == [1, 2]
    assert logs[1]["num_tokens"] > logs[0]["num_tokens"] > 8 * 6
    assert logs[0]["reward"] == logs[0]["rewards/reward/mean"] > 0
    assert logs[1]["learning_rate"] == pytest.approx(5e-7)  # linear, to 0
    assert (tmp_path / "out" / "metrics.jsonl").read_text().count("\n") == 2
    kept = json.loads((tmp_path / "out" / "model" / "adapter" / "adapter_config.json").read_text())
    assert (kept["r"], kept["lora_alpha"], sorted(kept["target_modules"])) == (4, 32, ["q_proj", "v_proj"])
