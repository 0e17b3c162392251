"""Names of settings in other tools: TRL's `GRPOConfig`, verl's command line, OpenRLHF, rlox.

One table, from another tool's name to the settings here. It serves error messages: the error for an unknown key or
argument names the setting to use. A name may be dotted; of a name with sections before it
(`actor_rollout_ref.rollout.n`) the longest ending in the table counts.

A second table has other tools' names of kinds, for the error of an unknown kind.

Covered: names of settings and of kinds. Not covered: other values and units, but for a note where they differ.
"""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """The settings for another tool's name (none: there is no such setting), and a note on differences."""

    keys: tuple[str, ...]
    note: str = ""

    def __str__(self) -> str:
        """For example: `kl.where ("loss" or "reward")`."""
        keys = " and ".join(self.keys)
        return f"{keys} ({self.note})" if keys and self.note else keys or self.note


COMPLETIONS = "in prompts, each of which has rollout.group_size completions"
TOKENS = "in tokens; the result does not depend on it"
NUMBER = "how many minibatches a step has, not how large one is"
SAMPLED = "sampling is not cut off: the learner trains on the distribution that was sampled from, whole"
ENGINE = (
    "completions are sampled with the weights that are trained, in this process or those of cluster.rollout_workers; "
    'cluster.engine = "vllm" has vLLM'
)

_MEANINGS: dict[str, Word] = {
    "lr actor_lr actor_learning_rate step_size": Word(("learner.learning_rate",)),
    "critic.lr critic.optim.lr critic.adam.lr critic_lr critic_learning_rate": Word(("critic.learning_rate",)),
    "n num_generations n_samples_per_prompt num_return_sequences rollout_n num_samples g": Word(
        ("rollout.group_size",)
    ),
    "max_completion_length max_response_length response_length max_tokens generate_max_len max_gen_len "
    "max_generate_length max_completion_tokens": Word(("rollout.max_new_tokens",)),
    "max_prompt_length prompt_max_len max_prompt_len": Word(("data.max_prompt_tokens",)),
    "per_device_train_batch_size generation_batch_size rollout_batch_size train_batch_size batch_size "
    "global_batch_size gradient_accumulation_steps": Word(("data.prompts_per_step",), COMPLETIONS),
    "ppo_micro_batch_size ppo_micro_batch_size_per_gpu micro_batch_size "
    "micro_train_batch_size ppo_max_token_len_per_gpu log_prob_micro_batch_size use_dynamic_bsz "
    "log_prob_micro_batch_size_per_gpu per_device_batch_size": Word(("learner.tokens_per_micro_batch",), TOKENS),
    "train.batch_size ppo_mini_batch_size mini_batch_size steps_per_generation num_mini_batches": Word(
        ("learner.minibatches",), NUMBER
    ),
    "epochs num_train_epochs total_epochs num_epochs n_epochs num_episodes": Word(("run.epochs",)),
    "max_epochs": Word(("run.epochs", "learner.ppo_epochs"), "OpenRLHF's is the second"),
    "max_steps total_training_steps num_steps total_steps training_steps num_train_steps": Word(("run.steps",)),
    "beta kl_coef kl_coeff kl_loss_coef init_kl_coef kl_penalty_coef kl_weight kl_beta": Word(("kl.coef",)),
    "kl_loss_type kl_penalty kl_estimator kl_type": Word(("kl.estimator",)),
    "use_bias_correction_kl": Word(("kl.estimator",), '"ratio_k3" is the KL with the bias correction'),
    "use_kl_loss use_kl_in_reward use_kl_estimator_k3": Word(("kl.where",), '"loss" or "reward"'),
    "target_kl kl_target": Word(("kl.target",)),
    "num_iterations ppo_epochs mu num_ppo_epochs update_epochs": Word(("learner.ppo_epochs",)),
    "epsilon clip_ratio cliprange clip_range clip_eps eps_clip clip_epsilon clip_coef epsilon_clip": Word(
        ("objective.clip_low", "objective.clip_high"), "two settings for one"
    ),
    "epsilon_low clip_ratio_low eps_clip_low cliprange_low": Word(("objective.clip_low",)),
    "epsilon_high clip_ratio_high eps_clip_high cliprange_high": Word(("objective.clip_high",)),
    "clip_ratio_c": Word(("objective.dual_clip",), "of dppo: objective.max_ratio"),
    "loss_type": Word(
        ("aggregation.kind", "objective.kind"), "TRL's word chooses both: an aggregation of clipped, or cispo or sapo"
    ),
    "loss_agg_mode": Word(("aggregation.kind",), "the same words"),
    "loss_scale_factor": Word(("aggregation.max_length",)),
    "loss_mode policy_loss": Word(("objective.kind",), 'verl\'s "vanilla" is "clipped", its "geo_mean" is "gmpo"'),
    "importance_sampling_level": Word(("objective.kind",), '"sequence" is "gspo", "token" is "clipped"'),
    "sapo_temperature_pos tau_pos": Word(("objective.tau_positive",)),
    "sapo_temperature_neg tau_neg": Word(("objective.tau_negative",)),
    "dppo_mask_high dppo_mask_low divergence_threshold": Word(("objective.delta",), "one bound for both directions"),
    "divergence_type": Word(("objective.divergence",), '"tv" or "kl"'),
    "scale_rewards norm_adv_by_std_in_grpo normalize_advantages whiten_advantages": Word(("advantage.scale",)),
    "adv_estimator advantage_estimator": Word(
        ("advantage.kind",), 'reinforce_plus_plus is "reinforce_pp", grpo_passk is "passk"'
    ),
    "multi_objective_aggregation": Word(("advantage.kind",), 'normalize_then_sum is "gdpo"'),
    "overlong_buffer.len overlong_buffer_len soft_punish_cache cache_length": Word(
        ("rewards.0.buffer",), 'in a [[rewards]] table of kind = "overlong"'
    ),
    "overlong_buffer.penalty_factor overlong_penalty_factor": Word(
        ("rewards.0.weight",), 'in a [[rewards]] table of kind = "overlong"'
    ),
    "gae_lambda lambd lambda": Word(("advantage.lam",)),
    "reward_weights": Word(("rewards.0.weight",), "a weight in each [[rewards]] table"),
    "reward_funcs reward_func reward_fn reward_function custom_reward_function.path": Word(
        ("rewards.0.path",), '"file.py:name", in a [[rewards]] table of kind = "python"'
    ),
    "reward_kwargs custom_reward_function.reward_kwargs": Word(("rewards.0.kwargs",)),
    "revision model_revision": Word(("model.revision",)),
    "custom_reward_function.name": Word(("rewards.0.path",), 'the name after the colon of "file.py:name"'),
    "reward_model.model.path reward_model_path reward_pretrain reward.model_name_or_path": Word(
        ("rewards.0.path",), 'in a [[rewards]] table of kind = "model"'
    ),
    "mask_truncated_completions overlong_filtering overlong_filter": Word(("filter.mask_truncated",)),
    "filter_groups.enable filter_groups dynamic_filtering": Word(("filter.dynamic_sampling",)),
    "max_num_gen_batches": Word(("filter.max_rounds",), "the run ends only where no group is found"),
    "filter_groups.metric": Word(("eval.verifier",), "the name of the reward that decides what is right"),
    "rollout_is rollout_rs vllm_importance_sampling_mode vllm_importance_sampling_correction": Word(
        ("correction.kind", "correction.level"), '"truncated" or "masked", by "token", "sequence" or "geometric"'
    ),
    "rollout_is_threshold rollout_rs_threshold vllm_importance_sampling_cap vllm_importance_sampling_clip_max "
    "tis_imp_ratio_cap": Word(("correction.threshold",)),
    "rollout_rs_threshold_lower vllm_importance_sampling_clip_min": Word(("correction.threshold_lower",)),
    "off_policy_mask_threshold": Word(("filter.off_policy_threshold",)),
    "top_entropy_quantile": Word(("filter.top_entropy",), "a share of tokens"),
    "top_p top_k min_p repetition_penalty": Word((), SAMPLED),
    "generation_kwargs stop_strings stop_words": Word(("rollout.stop",)),
    "stop_token_ids eos_token_id eos_token_ids": Word(("rollout.eos_ids",)),
    "max_num_seqs max_num_sequences": Word(("rollout.max_concurrent",)),
    "use_vllm vllm_mode gpu_memory_utilization vllm_gpu_memory_utilization": Word((), ENGINE),
    "model_name_or_path model_name pretrain pretrained_model_name_or_path model_id": Word(("model.path",)),
    "torch_dtype bf16 fp16 model_dtype": Word(("model.dtype",)),
    "attn_implementation": Word(("model.attention",)),
    "enable_gradient_checkpointing": Word(("learner.gradient_checkpointing",)),
    "adam_beta1 adam_beta2 adam_betas": Word(("learner.betas",), "both in one list"),
    "adam_epsilon adam_eps": Word(("learner.epsilon",)),
    "grad_clip clip_grad clip_grad_norm max_norm gradient_clipping grad_clip_norm": Word(("learner.max_grad_norm",)),
    "lr_scheduler_type lr_scheduler warmup_style scheduler": Word(("learner.schedule",)),
    "critic_warmup": Word(("critic.warmup_steps",)),
    "lr_warmup_steps num_warmup_steps": Word(("learner.warmup_steps",), "a number of updates"),
    "warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio": Word(("learner.warmup_ratio",)),
    "cliprange_value value_clip vf_clip": Word(("critic.clip",)),
    "entropy_coeff entropy_coef ent_coef entropy_loss_coef entropy_bonus": Word(("entropy.coef",)),
    "target_entropy tgt_ent": Word(("entropy.target",), "in nats per token"),
    "sync_ref_model ref_model_sync_steps": Word(("reference.every",), "in steps; 0: it stays"),
    "ref_model_mixup_alpha": Word(("reference.mixup_alpha",)),
    "lora.r lora_r lora_rank": Word(("lora.rank",)),
    "lora_alpha": Word(("lora.alpha",)),
    "target_modules lora_target_modules": Word(("lora.targets",)),
    "lora_dropout": Word(("lora.dropout",)),
    "lora_adapter_path adapter_name_or_path": Word(("lora.path",)),
    "run_name experiment_name": Word(("run.name",)),
    "wandb.run_name wandb_run_name": Word(("tracking.name",)),
    "random_seed data_seed data_loader_seed": Word(("run.seed",)),
    "shuffle_dataset": Word(("data.shuffle",)),
    "train_files train_file train_path train_data dataset dataset_name dataset_path train_dataset prompt_data": Word(
        ("data.path",), "a file (JSONL, parquet, CSV), a folder, or a data set's id on the hub"
    ),
    "val_files val_file test_files eval.dataset eval_dataset eval_data eval_file validation_file": Word(
        ("data.eval_path",), "named like data.path; of the same data set: data.eval_split"
    ),
    "dataset_config dataset_config_name": Word(("data.subset",)),
    "dataset_train_split dataset_split": Word(("data.split",)),
    "dataset_test_split eval_split": Word(("data.eval_split",)),
    "dataset_revision": Word(("data.revision",)),
    "column_mapping rename_columns": Word(("data.columns",)),
    "prompt_data_probs dataset_weights interleave_probs": Word(("data.weights",)),
    "prompt_key input_key prompt_field": Word(("data.prompt_column",)),
    "filter_overlong_prompts truncation": Word(("data.overlong",), '"error", "drop" or "truncate_left"'),
    "chat_template_kwargs apply_chat_template_kwargs": Word(("data.chat_template_kwargs",)),
    "enable_thinking": Word(("data.chat_template_kwargs",), "{enable_thinking=false}"),
    "system_prompt": Word(("data.system",)),
    "prompt_template input_template": Word(("data.template",)),
    "max_samples max_train_samples train_max_samples": Word(("data.limit",)),
    "save_steps save_freq save_interval checkpoint_interval": Word(("checkpoint.every",)),
    "save_total_limit max_actor_ckpt_to_keep max_ckpt_num": Word(("checkpoint.keep",)),
    "rollout.keep keep_rollouts rollout_data_dir": Word(
        ("rollouts.keep",), "the groups of every step are in rollouts/ of the run's folder, or of some steps"
    ),
    "eval_steps test_freq eval_freq eval_interval": Word(("eval.every",)),
    "num_generations_eval val_kwargs.n eval.n_samples_per_prompt eval_n_samples_per_prompt": Word(("eval.n",)),
    "eval_temperature val_kwargs.temperature": Word(("eval.temperature",)),
    "output_dir default_local_dir save_path": Word((), "the run's folder is --out, in Python out="),
    "resume_from_checkpoint resume_mode": Word((), "a run is continued by: oncurve resume FOLDER"),
    "report_to logging_steps log_completions": Word(
        (), "every step is in metrics.jsonl, report.html and rollouts/ of the run's folder"
    ),
}

WORDS: dict[str, Word] = {word: meaning for words, meaning in _MEANINGS.items() for word in words.split()}
"""Another tool's name, in lower case, to the settings here."""


_KIND_MEANINGS: dict[str, dict[str, str]] = {
    "objective": {
        "grpo ppo vanilla token dapo dr_grpo bnpo": "clipped",
        "sequence": "gspo",
        "geo_mean": "gmpo",
        "rloo reinforce_plus_plus policy_gradient pg": "reinforce",
        "dppo_tv dppo_kl": "dppo",
        "luspo vespo fipo": "",
    },
    "advantage": {
        "dapo dr_grpo": "grpo",
        "ppo": "gae",
        "rloo_vectorized": "rloo",
        "grpo_passk": "passk",
        "reinforce_plus_plus reinforce++": "reinforce_pp",
        "reinforce_plus_plus_baseline reinforce++_baseline": "reinforce_pp_baseline",
        "normalize_then_sum": "gdpo",
    },
    "aggregation": {
        "dapo bnpo": "token-mean",
        "grpo sapo": "seq-mean-token-mean",
        "dr_grpo": "seq-mean-token-sum-norm",
    },
    "data": {"jsonl json csv parquet file hub hf": "files"},
    "kl": {"kl": "k1", "mse": "k2", "low_var_kl": "k3"},
}

KINDS = {
    section: {word: kind for words, kind in meanings.items() for word in words.split()}
    for section, meanings in _KIND_MEANINGS.items()
}
"""By section, another tool's name of a kind to the kind here; "": an example in docs/extending.md."""


_ON_PAIRS = (
    "it trains on pairs without sampling. Nearest is a reward model that is trained on the pairs, and a run with it: "
    "oncurve reward-model train reward_models/sentiment data.path=PAIRS.jsonl reward_model.path=MODEL --out REWARD, "
    "then oncurve train MODEL --data PROMPTS.jsonl --reward REWARD/model"
)
METHODS = {
    **dict.fromkeys(("dpo", "kto", "ipo", "orpo", "simpo", "cpo"), _ON_PAIRS),
    "sft": "it trains on given texts. Nearest is --preset distill with advantage.teacher=MODEL; or train with another "
    "tool first, and go on with its model here",
    "remax": "nearest is --preset rloo",
    "vpg": "nearest is --preset rloo",
    "reinforce": "nearest is --preset reinforce_pp_baseline, or rloo",
}
"""By the name of a method that has no preset: what is nearest."""


def kind_for(where: str, written: str) -> str:
    """`"; did you mean 'x'?"` for another tool's name of a kind of the section that `where` begins with, or `""`."""
    kind = KINDS.get(where.split(".")[0], {}).get(written.lower())
    return f"; did you mean {kind!r}?" if kind else "" if kind is None else "; docs/extending.md has it as an example;"


def word_for(written: str) -> Word | None:
    """The settings for the key `written`, with or without sections before it; None: the table does not have it.

    Hydra's marks before it (`+`, `++`, `~`) and capitals are ignored.
    """
    parts = written.lstrip("+~").lower().split(".")
    endings = (".".join(parts[start:]) for start in range(len(parts)))
    return next((WORDS[ending] for ending in endings if ending in WORDS), None)
