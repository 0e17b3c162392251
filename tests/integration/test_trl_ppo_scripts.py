"""A script for TRL's PPO trainer, unchanged but for the import line, trains a tiny model by a reward model's scores."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from fakes.classifiers import lay_down
from fakes.tolerance import about
from oncurve.base.errors import ConfigError
from oncurve.compat.trl import PPOConfig, PPOTrainer
from oncurve.models import tiny
from oncurve.report import read_run

SCRIPT = """
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, HfArgumentParser
from transformers import TrainerCallback
from trl.experimental.ppo import PPOConfig, PPOTrainer

seen = []

class Watch(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        seen.append((state.global_step, state.max_steps))

if __name__ == "__main__":
    (training_args,) = HfArgumentParser(PPOConfig).parse_args_into_dataclasses(WORDS)
    tokenizer = AutoTokenizer.from_pretrained(training_args.sft_model_path, padding_side="left")
    reward_model = AutoModelForSequenceClassification.from_pretrained(training_args.reward_model_path, num_labels=1)
    value_model = AutoModelForSequenceClassification.from_pretrained(training_args.sft_model_path, num_labels=1)
    policy = AutoModelForCausalLM.from_pretrained(training_args.sft_model_path)
    ref_policy = AutoModelForCausalLM.from_pretrained(training_args.sft_model_path)

    def tokenize(row):
        ids = tokenizer(row["text"])["input_ids"]
        return {"input_ids": ids, "lengths": len(ids)}

    dataset = Dataset.from_dict({"text": ["3+4=", "1+1=", "20-3=", "7*6="] * 2}).map(tokenize, remove_columns="text")
    trainer = PPOTrainer(
        args=training_args, processing_class=tokenizer, model=policy, ref_model=ref_policy, reward_model=reward_model,
        value_model=value_model, train_dataset=dataset, eval_dataset=dataset.select(range(2)), callbacks=[Watch()],
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)
"""
WORDS = (
    "--output_dir out --per_device_train_batch_size 4 --num_mini_batches 2 --num_ppo_epochs 2 --total_episodes 10 "
    "--response_length 6 --missing_eos_penalty 1.0 --stop_token eos --report_to none --bf16 false --learning_rate 1e-3 "
    "--kl_coef 0.1"
)
KEYS = {
    "objective/kl", "objective/entropy", "objective/non_score_reward", "objective/scores", "objective/rlhf_reward",
    "policy/clipfrac_avg", "policy/entropy_avg", "loss/policy_avg", "loss/value_avg", "val/clipfrac_avg", "val/ratio",
    "val/num_eos_tokens", "lr", "episode", "epoch", "step",
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    lay_down(tmp_path / "rm")

    def run_script() -> dict[str, Any]:
        changed, count = re.subn(
            r"^from trl[.\w]* import", "from oncurve.compat.trl import", SCRIPT, flags=re.MULTILINE
        )
        assert count == 1
        (tmp_path / "script.py").write_text(changed)
        words = [*WORDS.split(), "--sft_model_path", str(tiny.path()), "--reward_model_path", "rm"]
        return runpy.run_path(str(tmp_path / "script.py"), init_globals={"WORDS": words}, run_name="__main__")

    return run_script


def test_a_script_with_a_reward_model_trains(run: Callable[[], dict[str, Any]]) -> None:
    left = run()
    trainer, args = left["trainer"], left["training_args"]
    logs = trainer.state.log_history[:-1]
    assert [(line["step"], line["episode"]) for line in logs] == [(1, 4), (2, 8), (3, 12)]  # 10 rounded up
    assert all(set(line) >= KEYS for line in logs)
    assert left["seen"] == [(1, 3), (2, 3), (3, 3)]
    assert logs[0]["objective/kl"] == about(0.0)
    assert logs[2]["objective/kl"] != 0.0
    for line in logs:
        assert line["objective/non_score_reward"] == pytest.approx(-0.1 * line["objective/kl"])
        assert line["objective/rlhf_reward"] == pytest.approx(
            line["objective/scores"] + line["objective/non_score_reward"]
        )
    metrics = read_run(Path("out")).metrics
    assert [line["objective/scores"] for line in logs] == pytest.approx([line["reward/mean"] for line in metrics])
    assert trainer.run.config.updates_per_step == 4
    ids = [list(row["input_ids"]) for row in left["dataset"]]
    assert all(list(trainer.run.prompts[number].ids) == each for number, each in enumerate(ids))
    saved = AutoModelForCausalLM.from_pretrained(args.output_dir)
    assert any(
        not bool((a == b).all()) for a, b in zip(saved.parameters(), left["ref_policy"].parameters(), strict=True)
    )
    assert 'kind = "length_cap"' in trainer.recipe


def test_a_model_in_memory_that_is_not_its_files_is_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    reward = AutoModelForSequenceClassification.from_pretrained(lay_down(tmp_path / "rm"))
    given: dict[str, Any] = {
        "args": PPOConfig(str(tmp_path / "out"), response_length=4, total_episodes=8, bf16=False),
        "model": str(tiny.path()),
        "train_dataset": [{"prompt": "1+1="}] * 8,
        "processing_class": AutoTokenizer.from_pretrained(tiny.path()),
    }
    with PPOTrainer(**given, reward_model=reward) as trainer:
        assert trainer.run.config.run.steps == 1
    reward.score.weight.data.add_(1.0)
    for wrong, says in (
        ({"reward_model": reward}, "reward_model: its weights are not those of"),
        ({"reward_model": None}, "reward_model: expected a folder"),
        ({"reward_model": str(tmp_path / "rm"), "value_model": str(tmp_path / "rm")}, "value_model: it is of"),
        ({"reward_model": str(tmp_path / "rm"), "optimizers": (1, None)}, r"PPOTrainer\.optimizers: not available"),
        ({"reward_model": str(tmp_path / "rm"), "rewards": 1}, "has no argument 'rewards'"),
        ({"reward_model": str(tmp_path / "rm"), "train_dataset": []}, "it has no rows"),
        ({"reward_model": str(tmp_path / "rm"), "args": TrainingOfAnother()}, "expected a PPOConfig"),
        ({"reward_model": str(tmp_path / "rm"), "eval_dataset": {"a": [], "b": []}}, "several data sets"),
    ):
        with pytest.raises(ConfigError, match=says):
            PPOTrainer(**{**given, **wrong})
    assert not (tmp_path / "out").exists()


class TrainingOfAnother:
    """Arguments that are not of this package."""
