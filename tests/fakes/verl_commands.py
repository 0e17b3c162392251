"""Settings of verl's documented GSM8K commands, a small model, and rows in verl's form to run them on."""

import json
from collections.abc import Mapping
from pathlib import Path

A, R, M, REF = (f"actor_rollout_ref.{room}" for room in ("actor", "rollout", "model", "ref"))

DATA = {
    "data.train_files": "$HOME/data/gsm8k/train.parquet",
    "data.val_files": "$HOME/data/gsm8k/test.parquet",
    "data.train_batch_size": "1024",
    "data.max_prompt_length": "512",
    "data.max_response_length": "1024",
    "data.filter_overlong_prompts": "True",
    "data.truncation": "error",
}
MODEL = {
    f"{M}.path": "Qwen/Qwen3-8B",
    f"{M}.use_remove_padding": "True",
    f"{M}.enable_gradient_checkpointing": "True",
}
ACTOR = {
    f"{A}.optim.lr": "1e-6",
    f"{A}.ppo_mini_batch_size": "256",
    f"{A}.ppo_micro_batch_size_per_gpu": "40",
    f"{A}.entropy_coeff": "0",
    f"{A}.fsdp_config.param_offload": "False",
    f"{A}.fsdp_config.optimizer_offload": "False",
}
KL_LOSS = {f"{A}.use_kl_loss": "True", f"{A}.kl_loss_coef": "0.001", f"{A}.kl_loss_type": "low_var_kl"}
ROLLOUT = {
    f"{R}.name": "vllm",
    f"{R}.tensor_model_parallel_size": "2",
    f"{R}.gpu_memory_utilization": "0.6",
    f"{R}.n": "5",
    f"{R}.log_prob_micro_batch_size_per_gpu": "40",
}
REFERENCE = {f"{REF}.log_prob_micro_batch_size_per_gpu": "40", f"{REF}.fsdp_config.param_offload": "True"}
TRAINER = {
    "trainer.critic_warmup": "0",
    "trainer.logger": '["console","wandb"]',
    "trainer.project_name": "verl_grpo_example_gsm8k",
    "trainer.experiment_name": "qwen3_8b_function_rm",
    "trainer.n_gpus_per_node": "8",
    "trainer.nnodes": "1",
    "trainer.save_freq": "20",
    "trainer.test_freq": "5",
    "trainer.total_epochs": "15",
}
GRPO = {
    "algorithm.adv_estimator": "grpo", **DATA, **MODEL, **ACTOR, **KL_LOSS, **ROLLOUT, **REFERENCE,
    "algorithm.use_kl_in_reward": "False", **TRAINER,
}  # fmt: skip
LORA = {
    **GRPO, f"{M}.lora_rank": "64", f"{M}.lora_alpha": "32", f"{A}.optim.lr": "3e-6", f"{R}.load_format": "safetensors",
    f"{R}.layered_summon": "True", "trainer.val_before_train": "False",
}  # fmt: skip
PPO = {
    "algorithm.adv_estimator": "gae", **DATA, **MODEL, **ACTOR, **ROLLOUT, f"{R}.n": "1",
    "critic.optim.lr": "1e-5", "critic.model.use_remove_padding": "True", "critic.model.path": "Qwen/Qwen3-8B",
    "critic.model.enable_gradient_checkpointing": "True", "critic.ppo_micro_batch_size_per_gpu": "32",
    "critic.fsdp.param_offload": "False", "critic.fsdp.optimizer_offload": "False",
    "algorithm.use_kl_in_reward": "False", "algorithm.kl_ctrl.kl_coef": "0.001", **TRAINER,
}  # fmt: skip
W = "reward_model.reward_kwargs"
DAPO = {
    **DATA, "data.prompt_key": "prompt", "data.truncation": "left", "data.filter_overlong_prompts": "False",
    "data.gen_batch_size": "1536", f"{R}.n": "16", "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": "False", "algorithm.kl_ctrl.kl_coef": "0.0", f"{A}.use_kl_loss": "False",
    f"{A}.kl_loss_coef": "0.0", f"{A}.clip_ratio_low": "0.2", f"{A}.clip_ratio_high": "0.28",
    f"{A}.clip_ratio_c": "10.0", "algorithm.filter_groups.enable": "True", "algorithm.filter_groups.metric": "acc",
    "algorithm.filter_groups.max_num_gen_batches": "10", **MODEL,
    f"+{M}.override_config.attention_dropout": "0.", f"+{M}.override_config.embd_pdrop": "0.",
    f"+{M}.override_config.resid_pdrop": "0.", f"{A}.use_dynamic_bsz": "True",
    f"{REF}.log_prob_use_dynamic_bsz": "True",
    f"{R}.log_prob_use_dynamic_bsz": "True", f"{A}.ppo_max_token_len_per_gpu": "22528",
    f"{REF}.log_prob_max_token_len_per_gpu": "22528", f"{R}.log_prob_max_token_len_per_gpu": "22528",
    f"{A}.optim.lr": "1e-6", f"{A}.optim.lr_warmup_steps": "10", f"{A}.optim.weight_decay": "0.1",
    f"{A}.ppo_mini_batch_size": "32", f"{A}.fsdp_config.param_offload": "True",
    f"{A}.fsdp_config.optimizer_offload": "True", f"{A}.entropy_coeff": "0", f"{A}.grad_clip": "1.0",
    f"{A}.loss_agg_mode": "token-mean", f"{A}.ulysses_sequence_parallel_size": "8",
    f"{R}.gpu_memory_utilization": "0.80", f"{R}.tensor_model_parallel_size": "4",
    f"{R}.enable_chunked_prefill": "True",
    f"{R}.max_num_batched_tokens": "22528", f"{R}.temperature": "1.0", f"{R}.top_p": "1.0", f"{R}.top_k": "-1",
    f"{R}.val_kwargs.temperature": "1.0", f"{R}.val_kwargs.top_p": "0.7", f"{R}.val_kwargs.top_k": "-1",
    f"{R}.val_kwargs.do_sample": "True", f"{R}.val_kwargs.n": "1", f"{REF}.fsdp_config.param_offload": "True",
    f"{REF}.ulysses_sequence_parallel_size": "8", f"{A}.fsdp_config.fsdp_size": "-1",
    "reward_model.reward_manager": "dapo", f"+{W}.overlong_buffer_cfg.enable": "True",
    f"+{W}.overlong_buffer_cfg.len": "512", f"+{W}.overlong_buffer_cfg.penalty_factor": "1.0",
    f"+{W}.overlong_buffer_cfg.log": "False", f"+{W}.max_resp_len": "1024", **TRAINER,
    "trainer.val_before_train": "True", "trainer.resume_mode": "auto", "trainer.log_val_generations": "10",
}  # fmt: skip
DR_GRPO = {
    **GRPO, f"{A}.loss_agg_mode": "seq-mean-token-sum-norm", f"{A}.loss_scale_factor": "1024",
    f"{A}.use_kl_loss": "False", "algorithm.norm_adv_by_std_in_grpo": "False",
}  # fmt: skip
IN_REWARD = {
    **{name: value for name, value in GRPO.items() if name not in KL_LOSS},
    "algorithm.adv_estimator": "reinforce_plus_plus", "algorithm.use_kl_in_reward": "True",
    "algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.kl_coef": "0.001",
}  # fmt: skip

COMMANDS = {"grpo": GRPO, "lora": LORA, "ppo": PPO, "dapo": DAPO, "dr_grpo": DR_GRPO, "kl_in_reward": IN_REWARD}
"""The settings of each command, as its script gives them to Hydra."""


def sized(settings: Mapping[str, str], model: Path, data: Path, out: Path) -> dict[str, str]:
    """A command with a small model, a few rows and small sizes; nothing else is changed."""
    small = {
        "data.train_files": f"{data}/train.parquet",
        "data.val_files": f"{data}/test.parquet",
        "data.train_batch_size": "4",
        "data.max_prompt_length": "400",
        "data.max_response_length": "8",
        f"{M}.path": str(model),
        "critic.model.path": str(model),
        f"{A}.ppo_mini_batch_size": "2",
        f"{A}.loss_scale_factor": "8",
        f"+{W}.overlong_buffer_cfg.len": "4",
        f"+{W}.max_resp_len": "8",
        f"{R}.n": "2",
        f"{M}.lora_rank": "4",
    }
    changed = {name: small.get(name, value) for name, value in settings.items()}
    return changed | {"trainer.total_training_steps": "1", "trainer.default_local_dir": str(out)}


def words(settings: Mapping[str, str]) -> list[str]:
    """The settings as words of a command line."""
    return [f"{name}={value}" for name, value in settings.items()]


def write_rows(source: Path, folder: Path, source_name: str = "openai/gsm8k") -> None:
    """Rows of GSM8K in verl's form, as its preprocessing writes them: `train.parquet` and `test.parquet`."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    ask = 'Let\'s think step by step and output the final answer after "####".'
    for split, first in (("train", 0), ("test", 50)):
        lines = source.read_text(encoding="utf-8").splitlines()[first : first + (12 if split == "train" else 3)]
        rows = []
        for index, row in enumerate(map(json.loads, lines)):
            truth = row["answer"].rpartition("#### ")[2].replace(",", "")
            rows.append(
                {
                    "data_source": source_name,
                    "prompt": [{"role": "user", "content": f"{row['question']} {ask}"}],
                    "ability": "math",
                    "reward_model": {"style": "rule", "ground_truth": truth},
                    "extra_info": {"split": split, "index": index},
                }
            )
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}.parquet")
